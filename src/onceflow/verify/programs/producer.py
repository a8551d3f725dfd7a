"""An idempotent producer of records that each have an id of their own, as fast as its settings say.

Several writes are under way at the same time, so that a lost answer finds batches behind it. What it says about a
write:

- ok: every record was acknowledged.
- failed: no record was taken by the client; nothing was sent.
- unknown: everything else. librdkafka knows of some records that they were never sent, but does not tell it to Python.

A fatal error of the client (the broker lost track of its sequence) ends this life. The next one has a name of its own,
and with it ids and an order of its own: what the old client has on its way may still arrive between its records.

Idempotence ends with the first record whose time is over (`delivery.timeout.ms`): librdkafka then takes a new epoch and
sends whatever else was under way again in it, and a broker cannot know that it has that already. So the time is as long
as Kafka's own default, which no fault outlasts, and a record that exceeds it all the same ends this life on the spot.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from onceflow.verify.history import Outcome, Record
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.watchdog import Watchdog

__all__ = ["place_of_key"]

BURST_MAX: Final = 20
UNDER_WAY_MAX: Final = 400
"""Records. A broker that is away does not make the queue grow without end."""
FULL_S: Final = 0.1
"""How often to look whether there is room again."""
DELIVERY_MS: Final = 120_000
FLUSH_S: Final = 15.0
"""What has no outcome by then stays without: unknown."""
OUTDATED: Final = 71
"""The exit code after a record whose time was over."""


def place_of_key(key: int, partitions: int) -> int:
    """The partition of a key, which it has for itself and for ever."""
    return key % partitions


class _Write:
    """One operation: its outcome is known when each of its records has one."""

    def __init__(self, life: Life, records: list[tuple[str, int, str]]) -> None:
        self._life = life
        self._op = life.record.begin("write", transaction=None, records=records)
        self._left = len(records)
        self._sent = self._lost = 0
        self._written: list[tuple[str, int, int, str]] = []

    def sent(self) -> None:
        self._sent += 1

    def refused(self) -> None:
        """The client did not take the record."""
        self._lost += 1
        self._one_less()

    def delivered(self, id: str, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._written.append((message.topic(), message.partition(), message.offset(), id))
        else:
            self._lost += 1
        self._one_less()
        if error is not None and error.code() == KafkaError._MSG_TIMED_OUT:
            print(f"the time of {id} was over", file=sys.stderr, flush=True)
            os._exit(OUTDATED)

    def _one_less(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._life.record.end(self._op, self._outcome(), written=self._written)

    def _outcome(self) -> Outcome:
        if not self._lost:
            return Outcome.OK
        return Outcome.UNKNOWN if self._sent else Outcome.FAILED


class _IdProducer:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._topic: str = life.settings["topic"]
        self._partitions: int = life.settings["partitions"]
        self._keys: int = life.settings["keys"]
        self._rate: float = life.settings["rate"]
        self._fatal: KafkaError | None = None
        self._producer = Producer(
            life.client_config(
                enable_idempotence=True,
                acks="all",
                linger_ms=life.chance.choice((0, 2, 5)),
                delivery_timeout_ms=DELIVERY_MS,
                request_timeout_ms=10_000,
                socket_timeout_ms=10_000,
                reconnect_backoff_max_ms=500,
                error_cb=self._noticed,
            )
        )
        self._watchdog = Watchdog(life)

    def run(self) -> None:
        due = time.monotonic()
        while not self._life.is_over and self._fatal is None:
            self._watchdog.pet()
            if len(self._producer) < UNDER_WAY_MAX:
                due += self._burst() / self._rate
            else:
                due = time.monotonic() + FULL_S
            self._wait_until(due)
            due = max(due, time.monotonic() - 1)  # what could not be written in time is not made up for in one go
        self._producer.flush(FLUSH_S)
        if self._fatal is not None:
            raise KafkaException(self._fatal)

    def _burst(self) -> int:
        size = self._life.chance.randint(1, BURST_MAX)
        keys = [self._life.chance.randrange(self._keys) for _ in range(size)]
        records = [(self._topic, place_of_key(key, self._partitions), self._life.new_id()) for key in keys]
        write = _Write(self._life, records)
        for key, record in zip(keys, records, strict=True):
            self._send(write, f"k{key}", *record)
        return size

    def _send(self, write: _Write, key: str, topic: str, partition: int, id: str) -> None:
        value = Record(id=id, key=key).to_bytes()
        delivered = partial(write.delivered, id)
        try:
            self._producer.produce(topic, value, key.encode(), partition=partition, on_delivery=delivered)
        except (BufferError, KafkaException) as problem:
            print(f"{id} was not taken: {problem}", file=sys.stderr)
            write.refused()
        else:
            write.sent()

    def _wait_until(self, due: float) -> None:
        """At least one look at what came back, also when it is late."""
        while True:
            self._producer.poll(max(0.0, min(0.05, due - time.monotonic())))
            if self._life.is_over or time.monotonic() >= due:
                return

    def _noticed(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = error


def main() -> int:
    life = Life.begin()
    try:
        _IdProducer(life).run()
    except (KafkaException, SystemError) as problem:  # the latter where a fatal error comes out of a callback
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a client in trouble can take for ever to be taken apart, and no watchdog looks on any more
