"""The topics in which coordinators keep their state: records in, and a word when they are on disk.

Both coordinators work alike:

    decide         from what is in memory, without changing it
    append         the records that say what was decided
    apply          them to memory, with the same code that a restart replays them with
    answer         when they are on disk (`when_durable`); so must every answer that is based on them

Appended is not yet on disk. If the disk refuses, the log goes back to what it had, `on_taken_back` is called so that
the coordinator reads its state again, and then everybody who waits is told. The order on disk is the order of appending
(one log), so whoever knows that a record is on disk knows it of all before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.errors import CorruptLog, ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.checksums import RESTORE
from onceflow.wire.batch import BatchHeader, read_header
from onceflow.wire.records import Record, build_batch, read_records

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["KeyValue", "StateLog", "java_hash"]

KeyValue = tuple[bytes, bytes | None]
"""A record of a state topic; without a value it is a tombstone."""

COMPACT: Final = "compact"

Done = Callable[[ErrorCode], None]

REFUSAL_COUNTS_MS: Final = 60_000
"""How long a write that the disk refused tells of the present. Who cannot go on tries again much sooner."""


_utf_16 = codecs.getencoder("utf-16-be")  # now: the first time it is asked for needs a file, and there may be none left


def java_hash(text: str) -> int:
    """`String.hashCode`, by which Kafka finds the partition of a group or a transactional id."""
    code = 0
    units, _ = _utf_16(text, "surrogatepass")
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code >= 1 << 31 else code


def partition_of(key: str, partitions: int) -> int:
    code = java_hash(key)
    return 0 if code == -(2**31) else abs(code) % partitions


class StateLog:
    """One state topic, made when it is first needed."""

    def __init__(self, node: Node, topic: str, prefix: str, on_taken_back: Callable[[int], None]) -> None:
        """`prefix` is that of the broker settings about the topic; `on_taken_back` gets the index of a partition."""
        self._node = node
        self.name: Final = topic
        self._prefix = prefix
        self._on_taken_back = on_taken_back
        self._refused: tuple[int, str] | None = None
        """When the disk last refused a write, and what it said; None after one that it took."""
        self._topic: Topic | None = node.topics.get(topic)
        if self._topic is not None:
            self._watch(self._topic)

    @property
    def partitions(self) -> list[Partition]:
        return self._topic.partitions if self._topic is not None else []

    def open(self) -> Topic:
        """The topic; it is made unless it is there."""
        if self._topic is not None:
            return self._topic
        try:
            return self.create(self._node.config[f"{self._prefix}.num.partitions"], {})
        except StorageError as error:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    def create(self, partitions: int, given: Mapping[str, str]) -> Topic:
        """Make the topic, which must not be there, as a client wants it."""
        self._topic = self._node.topics.create(self.name, partitions, self.overrides(given))
        self._watch(self._topic)
        return self._topic

    def overrides(self, given: Mapping[str, str]) -> dict[str, str]:
        """The settings of the topic. Raises `ProtocolError` for one that would lose state: Kafka takes it."""
        defaults = {
            "cleanup.policy": COMPACT,
            "compression.type": "producer",
            "segment.bytes": self._node.config.text(f"{self._prefix}.segment.bytes"),
        }
        if given.get("cleanup.policy", COMPACT).strip() != COMPACT:
            raise ProtocolError(
                ErrorCode.INVALID_CONFIG,
                f"{self.name} holds the state of a coordinator: its cleanup.policy is {COMPACT}, and nothing else.",
            )
        return {**defaults, **given}

    def _watch(self, topic: Topic) -> None:
        for partition in topic.partitions:
            partition.on_taken_back = partial(self._on_taken_back, partition.index)

    def partition_of(self, key: str) -> int:
        """Where the state of a group or of a transactional id is kept."""
        self.open()
        count = len(self.partitions)
        return partition_of(key, count) if count > 1 else 0

    def append(self, index: int, records: Sequence[KeyValue], *, producer: tuple[int, int] | None = None) -> int:
        """Write records, at least one, as one batch; returns the offset of the first.

        `producer` (id and epoch) makes it part of that producer's transaction. Raises `ProtocolError`, with nothing
        written, if the disk refuses or the producer is fenced.
        """
        self.open()
        now_ms = self._node.clock.now_ms()
        entries = [Record(at, now_ms, key, value) for at, (key, value) in enumerate(records)]
        if producer is None:
            batch = build_batch(entries, base_offset=0)
        else:
            batch = build_batch(
                entries, base_offset=0, producer_id=producer[0], producer_epoch=producer[1], transactional=True
            )
        try:
            appended = self._node.write(self.partitions[index], memoryview(bytearray(batch)), read_header(batch))
        except ProtocolError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._refused = (now_ms, error.message or "")
            raise
        self._refused = None
        return appended.base_offset

    @property
    def trouble(self) -> str:
        """Why nothing can be written at present; empty if it can, as far as is known."""
        for partition in self.partitions:
            if partition.log.awaits_repair:
                return f"{self.name}-{partition.index} takes no writes until the disk works again."
        if self._refused is None or self._node.clock.now_ms() - self._refused[0] > REFUSAL_COUNTS_MS:
            return ""
        return self._refused[1]

    def when_durable(self, index: int, done: Done) -> None:
        """Call `done` once all that was appended so far is on disk, which may be now, or with why it never will be."""
        if self._topic is None:
            done(ErrorCode.NONE)
            return
        partition = self.partitions[index]
        log = partition.log
        # What a log that awaits its repair has above the high watermark is void: the coordinator does not know it any
        # more, and it will never be on disk.
        if log.awaits_repair or log.end_offset <= log.high_watermark:
            done(ErrorCode.NONE)
        else:
            partition.when_durable(
                log.end_offset, lambda error: done(ErrorCode.COORDINATOR_NOT_AVAILABLE if error else error)
            )

    def replay(self, index: int) -> Iterator[tuple[BatchHeader, list[Record]]]:
        """Every batch of a partition up to its high watermark, control batches too, with its records."""
        for header, batch in self.partitions[index].log.batches():
            with self.naming(index, f" The record batch at offset {header.base_offset} cannot be read."):
                records = list(read_records(batch))
            yield header, records

    @contextmanager
    def naming(self, index: int, more: str = "") -> Iterator[None]:
        """What is stored and cannot be read is reported with the folder that it is in."""
        try:
            yield
        except (MalformedMessage, CorruptLog) as error:
            folder = self.partitions[index].log.directory
            if str(folder) in str(error):
                raise
            raise CorruptLog(f"{folder} is not as a coordinator has written it.{more} {error} {RESTORE}") from error
