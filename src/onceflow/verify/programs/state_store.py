"""Counts per key that live in a topic, as Kafka Streams keeps its state: every change is a record (a changelog), and
whoever is given a partition reads that partition of the topic first.

Restoring must see everything that the last owner committed. It is called when the group's committed offsets of the
partition are known, and those are only answered once every transaction that holds offsets is decided (a consumer with
read_committed asks for stable offsets). The decision reaches the state's partition on its own, maybe later. So the
reading goes on to the end of the partition as it was afterwards, in the sense of read_uncommitted: what is decided is
seen, and behind what is not, the reader waits. Nobody who lost the partition can commit anything to it any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.verify.history import Record
from onceflow.verify.programs.life import Life

__all__ = ["Ending", "StateStore", "ask_again"]

T = TypeVar("T")
ASK_S: Final = 10.0
ATTEMPTS: Final = 4
AGAIN_S: Final = 0.5


class Ending(Exception):
    """The life is over in the middle of something that takes long."""


def ask_again(life: Life, ask: Callable[[], T]) -> T:
    """The answer, after some attempts if need be: brokers come and go. Raises `KafkaException`, or `Ending`."""
    for _ in range(ATTEMPTS - 1):
        raise_if_over(life)
        try:
            return ask()
        except KafkaException:
            life.rest(AGAIN_S)
    return ask()


def raise_if_over(life: Life) -> None:
    if life.is_over:
        raise Ending


class StateStore:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._topic: str = life.settings["state"]
        self._counts: dict[int, dict[str, int]] = {}
        self._reader = self._consumer("read_committed")
        self._onlooker = self._consumer("read_uncommitted")

    def _consumer(self, isolation: str) -> Any:
        return Consumer(
            self._life.client_config(
                group_id=self._life.process,  # librdkafka wants one; it joins nothing
                isolation_level=isolation,
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="error",
                fetch_wait_max_ms=50,
                socket_timeout_ms=10_000,
                reconnect_backoff_max_ms=500,
            )
        )

    @property
    def partitions(self) -> Collection[int]:
        return self._counts.keys()

    def add(self, partition: int, key: str, more: int) -> int:
        """The new count, which has still to be written. It is gone with `drop` if that fails."""
        counts = self._counts[partition]
        counts[key] += more
        return counts[key]

    def drop(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self._counts.pop(partition, None)

    def restore(self, partitions: Collection[int]) -> None:
        """Raises `KafkaException`, or `Ending`."""
        self.drop(partitions)
        for partition in partitions:
            self._counts[partition] = self._read(partition, self._end(partition))

    def _end(self, partition: int) -> int:
        place = TopicPartition(self._topic, partition)
        _, end = ask_again(self._life, lambda: self._onlooker.get_watermark_offsets(place, timeout=ASK_S))
        return int(end)

    def _read(self, partition: int, end: int) -> dict[str, int]:
        counts: dict[str, int] = defaultdict(int)
        if end == 0:
            return counts
        self._reader.assign([TopicPartition(self._topic, partition, 0)])
        try:
            while True:
                raise_if_over(self._life)
                for message in self._reader.consume(1000, timeout=0.2):
                    if self._take_in(message, counts) >= end:
                        return counts
        finally:
            self._reader.unassign()

    def _take_in(self, message: Any, counts: dict[str, int]) -> int:
        """How far it has come."""
        error: KafkaError | None = message.error()
        if error is None:
            record = Record.from_bytes(message.value())
            if record.state is not None and record.n is not None:
                counts[record.state] = record.n
            return int(message.offset()) + 1
        if error.code() == KafkaError._PARTITION_EOF:
            return int(message.offset())  # behind the markers, which nobody is shown
        if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaException(error)
        return 0

    def close(self) -> None:
        self._reader.close()
        self._onlooker.close()
