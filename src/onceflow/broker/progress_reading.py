"""The progress topic of Spark jobs, read from within: what is new since the last look.

A look reads a bounded number of bytes, so a long topic is read over several looks. The first look begins near the end:
only the last micro-batches are shown. Whatever is wrong with the topic, watching goes on without it.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.complaints import complain
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topics
from onceflow.errors import CorruptLog, MalformedMessage, ProtocolError, StorageError
from onceflow.monitor.micro_batches import PROGRESS_PARTITION, PROGRESS_TOPIC, MicroBatches
from onceflow.monitor.snapshot import MicroBatch
from onceflow.wire.batch import batches

__all__ = ["ProgressReader"]

FIRST_LOOK_OFFSETS: Final = 2_000
"""A micro-batch takes two: its record and the marker."""
READ_BYTES: Final = 256 * 1024
UNPACKED_BYTES_MAX: Final = 4 * 1024 * 1024


class ProgressReader:
    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._next = 0
        self._found = MicroBatches()

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._found.remarks

    def read(self, topics: Topics) -> tuple[MicroBatch, ...]:
        """The last micro-batches, oldest first."""
        partition = topics.partition(PROGRESS_TOPIC, PROGRESS_PARTITION)
        if partition is None:
            return ()
        if partition is not self._partition:
            self._begin(partition)
        try:
            self._read_new(partition)
        except (ProtocolError, StorageError, CorruptLog, MalformedMessage) as error:
            complain("progress", "Micro-batches cannot be shown: %s", error)
        return self._found.last

    def _begin(self, partition: Partition) -> None:
        """A topic that was deleted and made again is another one."""
        self._partition = partition
        self._next = max(0, partition.log.high_watermark - FIRST_LOOK_OFFSETS)
        self._found = MicroBatches()

    def _read_new(self, partition: Partition) -> None:
        log = partition.log
        offset = max(self._next, log.start_offset)
        found = log.slice(offset, READ_BYTES)
        if found is None:
            return
        left = UNPACKED_BYTES_MAX
        for header, batch in batches(found.read()):
            if left <= 0:
                return  # the rest at the next look
            if header.last_offset >= offset:
                left -= self._found.see_batch(header, batch)
                self._next = header.last_offset + 1
