"""The progress topic of Spark jobs, read from within: what is new since the last look, committed records only.

A look reads a bounded number of bytes, so a long topic is read over several looks. The first look begins near the end:
only the last micro-batches are shown. Whatever is wrong with the topic, watching goes on without it.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topics
from onceflow.errors import CorruptLog, MalformedMessage, ProtocolError, StorageError
from onceflow.log.aborted import AbortedTransaction
from onceflow.monitor.micro_batches import PROGRESS_PARTITION, PROGRESS_TOPIC, MicroBatches
from onceflow.monitor.snapshot import MicroBatch
from onceflow.wire.batch import BatchHeader, batches
from onceflow.wire.records import Record, read_records

__all__ = ["ProgressReader"]

logger = logging.getLogger(__name__)

FIRST_LOOK_OFFSETS: Final = 2_000
"""A micro-batch takes two: its record and the marker."""
READ_BYTES: Final = 256 * 1024
WAITING_OF_ONE: Final = 10
WAITING_PRODUCERS: Final = 1_000
"""Jobs write one record per transaction; the limits are for whoever else writes here."""


class ProgressReader:
    def __init__(self) -> None:
        self._partition: Partition | None = None
        self._next = 0
        self._found = MicroBatches()
        self._waiting: dict[int, deque[Record]] = {}
        """By producer id: records that are committed, and whose marker, which says when, is to come."""

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
            logger.warning("Micro-batches cannot be shown: %s", error)
        return self._found.last

    def _begin(self, partition: Partition) -> None:
        """A topic that was deleted and made again is another one."""
        self._partition = partition
        self._next = max(0, partition.log.last_stable_offset - FIRST_LOOK_OFFSETS)
        self._found = MicroBatches()
        self._waiting = {}

    def _read_new(self, partition: Partition) -> None:
        log = partition.log
        offset = max(self._next, log.start_offset)
        found = log.slice(offset, READ_BYTES, committed=True)
        if found is None:
            return
        aborted = log.aborted_in(offset, found)
        for header, batch in batches(found.read()):
            if header.last_offset >= offset:
                self._see(header, batch, aborted)
                self._next = header.last_offset + 1

    def _see(self, header: BatchHeader, batch: memoryview, aborted: list[AbortedTransaction]) -> None:
        if header.is_control:
            for record in self._waiting.pop(header.producer_id, ()):
                self._found.see(record.key, record.value, committed_ms=header.max_timestamp)
        elif not any(_is_of(header, each) for each in aborted):
            for record in read_records(batch):
                if header.is_transactional:
                    self._wait_for_marker(header.producer_id, record)
                else:
                    self._found.see(record.key, record.value)

    def _wait_for_marker(self, producer_id: int, record: Record) -> None:
        waiting = self._waiting.setdefault(producer_id, deque(maxlen=WAITING_OF_ONE))
        waiting.append(record)
        if len(self._waiting) > WAITING_PRODUCERS:
            del self._waiting[next(iter(self._waiting))]


def _is_of(header: BatchHeader, aborted: AbortedTransaction) -> bool:
    return (
        header.is_transactional
        and header.producer_id == aborted.producer_id
        and aborted.first_offset <= header.base_offset <= aborted.last_offset
    )
