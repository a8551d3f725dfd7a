"""Opening a partition's log after whatever happened to the last process.

What a crash can have left, and what becomes of it:

    bytes after the last whole batch        cut: they were never acknowledged
    a batch that fails its checksum         cut, with everything behind it (under `fsync`, none of it was acknowledged)
    index entries behind the checkpoint     dropped and made again from the log
    a missing or damaged index              made again from its segment
    a damaged snapshot                      an older one is taken, and more of the log is read
    half-written files (.tmp, .cleaned)     removed; see `log.compaction` for its commit point

**A snapshot is a checkpoint**: it is written only after every byte below its offset was synced, log and index. So
recovery trusts the log below the newest snapshot and reads, batch by batch, only what is above it: its time grows
with the tail since the last checkpoint, not with the log. Reading a batch restores all three at once: the end of the
log, the index entries and the producers' state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from onceflow.errors import CorruptLog
from onceflow.log import compaction
from onceflow.log.files import TEMPORARY_SUFFIX, FileSystem
from onceflow.log.producers import ProducerStates
from onceflow.log.segment import LOG_SUFFIX, Segment
from onceflow.wire.batch import NO_PRODUCER_ID, checksum

__all__ = ["SNAPSHOT_SUFFIX", "Recovered", "recover", "snapshots"]

SNAPSHOT_SUFFIX = ".snapshot"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    segments: list[Segment]
    producers: ProducerStates
    end_offset: int
    checkpoint: int
    """Offset of the snapshot that recovery began from; 0 without one."""
    scanned_bytes: int
    cut_bytes: int


def offsets_of(files: FileSystem, directory: Path, suffix: str) -> list[int]:
    """The offsets in the names of all files of a kind, rising."""
    names = [name for name in files.list(directory) if name.endswith(suffix)]
    return sorted(int(name.removesuffix(suffix)) for name in names if name.removesuffix(suffix).isdigit())


def snapshots(files: FileSystem, directory: Path) -> list[int]:
    return offsets_of(files, directory, SNAPSHOT_SUFFIX)


def recover(files: FileSystem, directory: Path, start_offset: int, index_interval: int, now_ms: int) -> Recovered:
    for name in files.list(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            files.remove(directory / name)
    compaction.finish_interrupted(files, directory)
    bases = offsets_of(files, directory, LOG_SUFFIX) or [start_offset]
    segments = [Segment(files, directory, base) for base in bases]
    for checkpoint, producers in _checkpoints(files, directory, now_ms):
        if checkpoint >= segments[0].base_offset:
            try:
                return _scan(segments, producers, checkpoint, index_interval, now_ms)
            except _LogEndsBeforeCheckpoint as short:
                logger.warning("%s ends before its checkpoint %d: %s", directory, checkpoint, short)
                segments = [Segment(files, directory, base) for base in bases]
    return _scan(segments, ProducerStates(), segments[0].base_offset, index_interval, now_ms)


class _LogEndsBeforeCheckpoint(Exception):
    """Files that were synced are not there any more; somebody else removed or damaged them."""


def _checkpoints(files: FileSystem, directory: Path, now_ms: int) -> list[tuple[int, ProducerStates]]:
    """Readable snapshots, newest first."""
    readable = []
    for offset in reversed(snapshots(files, directory)):
        data = files.read_bytes(directory / f"{offset:020d}{SNAPSHOT_SUFFIX}")
        try:
            readable.append((offset, ProducerStates.from_snapshot(data, now_ms)))
        except CorruptLog as error:
            logger.warning("Snapshot %d of %s is left out: %s", offset, directory, error)
    return readable


def _scan(
    segments: list[Segment], producers: ProducerStates, checkpoint: int, index_interval: int, now_ms: int
) -> Recovered:
    """Check everything from the checkpoint on, cutting at the first thing that is not a whole, sound batch."""
    first = max(at for at, segment in enumerate(segments) if segment.base_offset <= checkpoint)
    end_offset = checkpoint
    scanned = cut = 0
    for at in range(first, len(segments)):
        segment = segments[at]
        if segment.base_offset <= checkpoint:
            position = _position_of_checkpoint(segment, checkpoint)
        else:
            end_offset = max(end_offset, segment.base_offset)
            segment.start_indexes()
            position = 0
        started_at = position
        sound = True
        while position < segment.size:
            try:
                _, header = next(segment.headers(position, peek=True))
                batch = segment.log.read(position, header.size)
                sound = header.base_offset >= end_offset and checksum(batch) == header.crc
            except (CorruptLog, StopIteration):
                sound = False
            if not sound:
                break
            segment.note(position, header.size, header.last_offset, header.max_timestamp, index_interval)
            if header.producer_id != NO_PRODUCER_ID:
                producers.complete(header, header.base_offset, now_ms)
            end_offset = header.last_offset + 1
            position += header.size
        scanned += position - started_at
        if not sound:
            cut += segment.size - position
            segment.log.truncate(position)
            for later in segments[at + 1 :]:
                cut += later.size
                later.delete()
            del segments[at + 1 :]
            break
    return Recovered(segments, producers, end_offset, checkpoint, scanned, cut)


def _position_of_checkpoint(segment: Segment, checkpoint: int) -> int:
    """Where in its segment the first batch at or after the checkpoint stands; the indexes are cut there."""
    position = segment.offset_index.position_for(checkpoint)
    if position > segment.size:
        segment.rebuild_indexes()
        position = 0
    try:
        last = segment.base_offset - 1
        for at, header in segment.headers(position, peek=True):
            if header.base_offset >= checkpoint:
                position = at
                break
            position, last = at + header.size, header.last_offset
    except CorruptLog as error:
        if last + 1 < checkpoint:
            raise _LogEndsBeforeCheckpoint(str(error)) from error
    segment.offset_index.cut(position)
    segment.time_index.cut(checkpoint)
    newest = segment.time_index.last
    if newest is not None:
        segment.max_timestamp, segment.max_timestamp_offset = newest
    return position
