"""Batches, logs and settings for the tests of the log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.log.files import FileSystem
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import Appended, PartitionLog
from onceflow.wire.batch import BatchHeader, batches, read_header
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records
from tests.support.at_once import accept

DIRECTORY = Path("/data/events-0")
T0 = 1_700_000_000_000
"""What a `ManualClock` shows before it is moved."""


def make_batch(
    count: int = 1,
    *,
    producer: tuple[int, int, int] | None = None,
    timestamps: Sequence[int] | None = None,
    value: bytes = b"value",
    key: bytes | None = b"key",
    **rest: Any,
) -> bytearray:
    """A batch as a client sends it; `producer` is its id, epoch and first sequence."""
    stamps = timestamps if timestamps is not None else [T0] * count
    if producer is not None:
        rest |= {"producer_id": producer[0], "producer_epoch": producer[1], "base_sequence": producer[2]}
    records = [Record(at, stamp, key, value) for at, stamp in enumerate(stamps)]
    return bytearray(build_batch(records, base_offset=0, **rest))


def header_of(batch: bytes | bytearray | memoryview) -> BatchHeader:
    return read_header(batch)


def open_log(
    files: FileSystem | None = None,
    config: TopicConfig | None = None,
    *,
    clock: ManualClock | None = None,
    fsync: bool = True,
    directory: Path = DIRECTORY,
) -> PartitionLog:
    return PartitionLog(
        files or MemoryFileSystem(), directory, config or TopicConfig(), clock or ManualClock(), fsync=fsync
    )


def append(log: PartitionLog, batch: bytearray, now_ms: int = T0) -> Appended:
    """What the broker does with a batch from a producer."""
    return log.append(*accept(memoryview(batch), log.config, now_ms))


def flush(log: PartitionLog) -> None:
    """One round of group commit."""
    round_ = log.begin_flush()
    round_.run()
    log.complete_flush(round_)


def checkpoint(log: PartitionLog) -> bool:
    """A checkpoint from begin to end; False if there was nothing to write."""
    job = log.begin_checkpoint()
    if job is None:
        return False
    job.run()
    log.complete_checkpoint(job)
    return True


class _Chosen(random.Random):
    """Decides of each change of a name, in their order, as it was told; of the rest by chance."""

    def __init__(self, seed: int, fates: Sequence[bool | None]) -> None:
        super().__init__(seed)
        self._fates = list(fates)

    def random(self) -> float:
        fate = self._fates.pop(0) if self._fates else None
        return super().random() if fate is None else 0.0 if fate else 1.0


def each_crash(files: MemoryFileSystem, suffixes: Sequence[str]) -> Iterator[MemoryFileSystem]:
    """What `kill -9` leaves, and every loss of power: each set of the changes of names that end so may be on disk.

    Of other names, and of bytes that were not synced, a seed decides.
    """
    yield files.kill()
    waiting = [str(change.gone or change.new).endswith(tuple(suffixes)) for change in files._changes]
    for seed, fates in enumerate(product((True, False), repeat=sum(waiting))):
        told = iter(fates)
        yield files.crash(_Chosen(seed, [next(told) if is_named else None for is_named in waiting]))


def read_all(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    """Every readable batch, read as a consumer does."""
    found = []
    offset = log.start_offset
    while offset < log.high_watermark:
        data = log.read(offset, 1 << 20)
        assert data, f"nothing at {offset}, below {log.high_watermark}"
        for header, batch in batches(data):
            found.append((header, bytes(batch)))
            offset = header.last_offset + 1
    return found


def read_committed(log: PartitionLog, max_bytes: int = 300) -> list[Record]:
    """What a consumer with `isolation.level=read_committed` hands out, as Java's does it (`CompletedFetch`)."""
    found = []
    offset = log.start_offset
    while (part := log.slice(offset, max_bytes, committed=True)) is not None:
        waiting = sorted(log.aborted_in(offset, part), key=lambda entry: entry.first_offset)
        skipped: set[int] = set()
        for header, batch in batches(part.read()):
            while waiting and waiting[0].first_offset <= header.last_offset:
                skipped.add(waiting.pop(0).producer_id)
            fresh = [record for record in read_records(batch) if record.offset >= offset]
            offset = header.last_offset + 1
            if header.is_control:
                if fresh and not EndTxnMarker.read(fresh[0]).commit:
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                found += fresh
    return found


def values(log: PartitionLog) -> list[bytes | None]:
    """The values of every readable record."""
    return [record.value for _, batch in read_all(log) for record in read_records(batch)]
