"""Fills the input topics of a reference pipeline with its sample, at a pace that leaves something for every fault.

Nothing of it is random, so a life that follows another goes on where that one has come to: what is in a partition
already is left out. It goes around the nemesis; the pipeline is put to the test, not its input.

While faults are made, each may use up one part of the input, and less and less of that per second, down to a trickle:
there is always something left to be dealt with, however long a fault lasts. When the faults are over, the rest follows
at once. In the history:

    feed     number                 how many more were written
               end: fed, of         how many there are now, and are to be
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from onceflow.pipelines.reference import Message, Reference
from onceflow.verify.history import Outcome
from onceflow.verify.observers import places_of
from onceflow.verify.programs.life import Life
from onceflow.verify.workloads.references import load_reference

__all__ = ["Pacing", "unfed"]

TICK_S: Final = 0.1
CHUNK_MAX: Final = 5000
SHARE: Final = 0.01
"""Of what the present fault may use up, per tick."""
SHARE_OF_ALL: Final = 0.001
"""Where nobody knows how many faults there will be."""
ASK_S: Final = 20.0
DELIVERY_MS: Final = 120_000


class Pacing:
    """How many records may follow now."""

    def __init__(self, records: int, faults: int | None, rate: float | None) -> None:
        """`faults`: how many there will be; None if nobody knows. `rate`: records per second at most."""
        self._records = records
        self._faults = faults
        self._rate = rate

    def next(self, fed: int, struck: int, is_released: bool) -> int:
        """For one tick. `struck`: faults so far."""
        most = CHUNK_MAX if self._rate is None else max(1, math.ceil(self._rate * TICK_S))
        if is_released or (self._faults is not None and struck >= self._faults):
            return min(most, self._records - fed)
        if self._faults is None:
            return min(most, math.ceil((self._records - fed) * SHARE_OF_ALL))
        until = self._records * (struck + 1) // (self._faults + 1)
        # One is always to be had, or a pipeline that has nothing to do would wait for a fault that waits for it.
        return min(most, self._records - fed, max(1, math.ceil((until - fed) * SHARE)))


def unfed(messages: Iterator[Message], there: Counter[tuple[str, int]]) -> Iterator[Message]:
    """Those that are not in their partitions yet. `there`: how many are."""
    left = Counter(there)
    for message in messages:
        place = message.topic, message.partition
        if left[place] > 0:
            left[place] -= 1
        else:
            yield message


class _Feeder:
    def __init__(self, life: Life, reference: Reference) -> None:
        settings = life.settings
        self._life = life
        self._prefix: str = settings["prefix"]
        self._records: int = settings["records"]
        self._released = Path(settings["released"])
        self._nemesis = Path(settings["nemesis"])
        self._pacing = Pacing(self._records, settings["faults"], settings["rate"])
        self._problem: KafkaError | None = None
        self._producer = Producer(
            self._direct(
                enable_idempotence=True, linger_ms=5, delivery_timeout_ms=DELIVERY_MS, reconnect_backoff_max_ms=500
            )
        )
        there = self._there({each.topic: each.partitions for each in reference.pipeline.inputs})
        self._fed = there.total()
        self._messages = unfed(reference.generate(settings["seed"], self._records), there)

    def _there(self, topics: Mapping[str, int]) -> Counter[tuple[str, int]]:
        """Nobody else writes to them, and nobody in transactions: there is an offset for each record."""
        if self._life.settings["life"] == 1:
            return Counter()
        consumer = Consumer(self._direct(group_id=self._life.process))  # librdkafka wants a group; it joins nothing
        try:
            return Counter({(topic, number): self._end(consumer, topic, number) for topic, number in places_of(topics)})
        finally:
            consumer.close()

    def _end(self, consumer: Any, topic: str, number: int) -> int:
        _, end = consumer.get_watermark_offsets(TopicPartition(f"{self._prefix}{topic}", number), timeout=ASK_S)
        return int(end)

    def _direct(self, **config: Any) -> dict[str, Any]:
        return {**self._life.client_config(**config), "bootstrap.servers": self._life.settings["direct"]}

    def run(self) -> None:
        due = time.monotonic()
        while not self._life.is_over:
            if number := self._pacing.next(self._fed, self._struck(), self._released.exists()):
                self._feed(list(islice(self._messages, number)))
            now = time.monotonic()
            due = max(due + TICK_S, now - TICK_S) if self._is_paced or self._fed == self._records else now
            self._life.rest(max(0.0, due - now))

    @property
    def _is_paced(self) -> bool:
        """Otherwise the rest goes as fast as it can."""
        settings = self._life.settings
        is_free = self._released.exists() or (settings["faults"] is not None and self._struck() >= settings["faults"])
        return settings["rate"] is not None or not is_free

    def _struck(self) -> int:
        try:
            lines = self._nemesis.read_bytes().splitlines()
        except OSError:
            return 0
        return sum(b'"end":"ok"' in line for line in lines)

    def _feed(self, messages: list[Message]) -> None:
        op = self._life.record.begin("feed", number=len(messages))
        for topic, partition, key, value, timestamp in messages:
            self._producer.produce(
                f"{self._prefix}{topic}", value, key, partition, self._delivered, timestamp=timestamp
            )
        while self._producer.flush(0.5):
            if self._life.is_over or self._problem is not None:
                break
        if self._problem is not None:
            raise KafkaException(self._problem)
        self._fed += len(messages)
        self._life.record.end(op, Outcome.OK, fed=self._fed, of=self._records)

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        self._problem = self._problem or error


def main() -> int:
    life = Life.begin()
    try:
        _Feeder(life, load_reference(life.settings["reference"])).run()
    except KafkaException as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
