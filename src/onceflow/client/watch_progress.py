"""Micro-batches of Spark jobs, from their progress records: with each take, what is new since the one before.

Read up to the high watermark: `MicroBatches` decides by the markers what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onceflow.client.cluster import Refused
from onceflow.client.fetching import Fetched, fetch
from onceflow.client.watch_questions import Questions
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.monitor.micro_batches import PROGRESS_PARTITION, PROGRESS_TOPIC, MicroBatches
from onceflow.monitor.snapshot import MicroBatch, Partition

__all__ = ["ProgressReader"]

FIRST_OFFSETS_MAX: Final = 10_000
"""How far back the first take looks: some thousand micro-batches, of which the last are kept."""
FETCHES_MAX: Final = 4
"""In one take; what is left is for the next one."""
FETCH_BYTES: Final = 4 * 1024 * 1024
UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one fetch."""


class ProgressReader:
    def __init__(self) -> None:
        self._batches = MicroBatches()
        self._position: int | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        return self._batches.remarks

    def read(self, asking: Questions, partitions: Iterable[Partition]) -> tuple[MicroBatch, ...]:
        where = (PROGRESS_TOPIC, PROGRESS_PARTITION)
        found = next((each for each in partitions if (each.topic, each.partition) == where), None)
        if found is not None and found.leader is not None:
            try:
                asking.ask(found.leader, "micro-batches", lambda: self._read_new(asking, found))
            except OnceflowError as problem:  # anybody can write into a topic; what we cannot read is passed over
                asking.note(f"some micro-batches are left out: {problem}")
                self._position = found.end
        return self._batches.last

    def _read_new(self, asking: Questions, partition: Partition) -> None:
        assert partition.leader is not None
        self._begin(partition)
        for _ in range(FETCHES_MAX):
            assert self._position is not None
            if self._position >= partition.end:
                return
            try:
                fetched = fetch(
                    asking.cluster,
                    PROGRESS_TOPIC,
                    PROGRESS_PARTITION,
                    self._position,
                    leader=partition.leader,
                    read_committed=False,
                    max_bytes=FETCH_BYTES,
                    wait_ms=0,
                )
            except Refused as refusal:
                if refusal.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._position = None  # deleted or created anew since the offsets were asked for
                    return
                raise
            if not fetched.batches:
                return  # nothing is known about these offsets: they are asked for again in the next take
            self._take_in(fetched)

    def _begin(self, partition: Partition) -> None:
        is_another = self._position is not None and self._position > partition.end
        if self._position is None or is_another:
            self._batches = MicroBatches()
            self._position = max(partition.start, partition.end - FIRST_OFFSETS_MAX)

    def _take_in(self, fetched: Fetched) -> None:
        left = UNPACKED_BYTES_MAX
        for header, batch in fetched.batches:
            if left <= 0:
                return  # the rest is fetched again
            left -= self._batches.see_batch(header, batch)
            self._position = header.last_offset + 1
