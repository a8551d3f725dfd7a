"""Consume, transform, produce: one instance of several in a group that copies a topic and counts what it copies.

Each batch is one transaction: the outputs, the new counts of their keys, and the offsets of the group. Fenced twice
over: a successor of this instance takes its transactional id, and whoever is given its partitions is protected by the
group's generation, which goes along with the offsets.

That generation has to be the one under which the partitions are ours. librdkafka forgets its member id in the
background when the group has thrown it out, before the program is told that the partitions are lost. And offsets that
come without member and generation are taken without a check: they are how programs without a group commit. So group
metadata that names no member is not used; the batch is dropped.

Records are taken one by one, not with `consume`: partitions come and go between two records, and what was collected
of a partition that went is dropped with it.

After an abort, wanted or not, everything starts from what is committed: offsets, and counts. An error that is fatal for
the producer ends this life. `transactor.py` says what is told about a commit.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from onceflow.verify.history import Outcome, Record
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.state_store import Ending, StateStore, ask_again
from onceflow.verify.programs.transactor import Aborted, abort, end_transaction, take
from onceflow.verify.programs.watchdog import Watchdog

__all__ = ["is_of_a_member"]

ASK_S: Final = 20.0
BATCH_MAX: Final = 400
BATCH_S: Final = 0.15
"""How long a batch is collected."""
ABORT_SHARE: Final = 0.05
METADATA_HEADER: Final = b"CGMDv2:"


def is_of_a_member(metadata: bytes) -> bool:
    """Does group metadata, as librdkafka writes it, name a member and its generation?

    Header, generation (32 bits in the machine's order), group and member id, both ended by a zero byte.
    """
    if not metadata.startswith(METADATA_HEADER):
        raise ValueError(f"group metadata in a form that is not known: {metadata[:16]!r}")
    body = metadata[len(METADATA_HEADER) :]
    [generation] = struct.unpack_from("=i", body)
    _, member, *_ = body[4:].split(b"\0")
    return generation >= 0 and member != b""


class _Copier:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._settings = life.settings
        self._batch: list[Any] = []
        self._store = StateStore(life)
        self._producer = Producer(
            life.client_config(
                transactional_id=self._settings["transactional_id"],
                transaction_timeout_ms=self._settings["transaction_timeout_ms"],
                linger_ms=2,
                reconnect_backoff_max_ms=500,
            )
        )
        self._consumer = Consumer(self._consumer_config())
        self._watchdog = Watchdog(life)

    def _consumer_config(self) -> dict[str, Any]:
        return self._life.client_config(
            group_id=self._settings["group"],
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_wait_max_ms=100,
            socket_timeout_ms=10_000,
            reconnect_backoff_max_ms=500,
            **self._settings["membership"],
        )

    def run(self) -> None:
        take(self._life, self._producer, self._settings["transactional_id"])
        self._consumer.subscribe([self._settings["input"]], on_assign=self._given, on_revoke=self._taken_away)
        while not self._life.is_over:
            self._watchdog.pet()
            self._collect()
            if self._batch:
                self._copy()

    def close(self) -> None:
        self._watchdog.pet()
        self._consumer.close()
        self._store.close()

    # Partitions come and go; all of this happens in `poll`

    def _given(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        numbers = [each.partition for each in partitions]
        start = self._committed(numbers)
        self._store.restore(numbers)
        if self._settings["is_incremental"]:
            consumer.incremental_assign(start)
        else:
            consumer.assign(start)

    def _taken_away(self, _consumer: Any, partitions: list[TopicPartition]) -> None:
        self._forget([each.partition for each in partitions])

    def _forget(self, partitions: Collection[int]) -> None:
        self._batch = [each for each in self._batch if each.partition() not in partitions]
        self._store.drop(partitions)

    def _committed(self, partitions: Collection[int]) -> list[TopicPartition]:
        """Where to go on. Waits until the transactions that hold offsets of these partitions are decided."""
        if not partitions:
            return []
        asked = [TopicPartition(self._settings["input"], each) for each in partitions]

        def ask() -> list[TopicPartition]:
            found = self._consumer.committed(asked, timeout=ASK_S)
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return [TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found]

        return ask_again(self._life, ask)

    def _start_over(self) -> None:
        """From what is committed: after an abort the consumer is ahead of it, and the counts are."""
        partitions = list(self._store.partitions)
        self._forget(partitions)
        start = self._committed(partitions)
        self._store.restore(partitions)
        for each in start:
            self._consumer.seek(each)

    # One transaction

    def _collect(self) -> None:
        ends = time.monotonic() + BATCH_S
        while len(self._batch) < BATCH_MAX and (left := ends - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._batch.append(message)
            elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)

    def _copy(self) -> None:
        metadata = self._consumer.consumer_group_metadata()
        if not is_of_a_member(metadata):
            print("no longer a member of the group; the batch is dropped", file=sys.stderr)
            self._batch = []  # the next poll tells that the partitions are lost
            return
        batch, self._batch = self._batch, []
        name = self._life.new_transaction()
        self._producer.begin_transaction()
        try:
            self._transaction(name, batch, metadata)
        except Aborted as why:
            print(f"{name} is over: {why}", file=sys.stderr)
            self._start_over()

    def _transaction(self, name: str, batch: list[Any], metadata: bytes) -> None:
        """Returns if it is committed; raises `Aborted`, or `KafkaException` if the producer is finished."""
        chance = self._life.chance.random()
        offsets = _next_offsets(batch)
        try:
            self._write(name, batch)
            if chance > ABORT_SHARE / 2:
                self._producer.send_offsets_to_transaction(offsets, metadata, ASK_S)
        except KafkaException as problem:
            if problem.args[0].fatal():
                raise
            # Also what could be tried again: asking for the same is no better than a new attempt at the whole.
            abort(self._life, self._producer, name)
            raise Aborted(str(problem)) from None
        if chance < ABORT_SHARE:
            abort(self._life, self._producer, name)
            raise Aborted("on purpose")
        part_of_it = [(each.topic, each.partition, each.offset) for each in offsets]
        end_transaction(self._life, self._producer, name, group=self._settings["group"], offsets=part_of_it)

    def _write(self, name: str, batch: list[Any]) -> None:
        outputs = [(each.partition(), Record.from_bytes(each.value())) for each in batch]
        topic = self._settings["output"]
        records = [(topic, partition, record.id) for partition, record in outputs]
        op = self._life.record.begin("write", transaction=name, records=records)
        written: list[tuple[str, int, int, str | None]] = []
        for partition, record in outputs:
            value = record._replace(transaction=name).to_bytes()
            delivered = partial(_note, written, record.id)
            self._producer.produce(topic, value, record.key, partition=partition, on_delivery=delivered)
        for (partition, key), more in Counter((partition, str(record.key)) for partition, record in outputs).items():
            state = Record(state=key, n=self._store.add(partition, key, more), transaction=name)
            self._producer.produce(self._settings["state"], state.to_bytes(), key, partition=partition)
        self._producer.flush(ASK_S)
        is_complete = len(written) == len(records)
        self._life.record.end(op, Outcome.OK if is_complete else Outcome.UNKNOWN, written=written)


def _note(
    written: list[tuple[str, int, int, str | None]], id: str | None, error: KafkaError | None, message: Any
) -> None:
    if error is None:
        written.append((message.topic(), message.partition(), message.offset(), id))


def _next_offsets(batch: list[Any]) -> list[TopicPartition]:
    ends = {(each.topic(), each.partition()): each.offset() + 1 for each in batch}
    return [TopicPartition(*place, end) for place, end in ends.items()]


def main() -> int:
    life = Life.begin()
    copier = _Copier(life)
    try:
        copier.run()
    except Ending:
        pass
    except (KafkaException, SystemError) as problem:  # the latter where a fatal error comes out of a callback
        print(problem, file=sys.stderr)
        return 1  # fenced, most likely: the next life takes over
    with contextlib.suppress(Ending):  # partitions may still come while it leaves the group
        copier.close()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # a client in trouble can take for ever to be taken apart, and no watchdog looks on any more
