"""Opening a partition's log after whatever happened to the last process.

What a crash can have left, and what becomes of it:

    bytes after the last whole batch        cut: they were never acknowledged
    a batch that fails its checksum         cut, with everything behind it (under `fsync`, none of it was acknowledged)
    a segment that begins after a gap       cut likewise: the end of the one before it did not get to disk
    a segment that begins too early         cut likewise: it was removed, but its removal did not get to disk
    index entries behind the checkpoint     dropped and made again from the log
    a missing or damaged index              made again from its segment
    aborted transactions behind it          dropped likewise; see `log.aborted`
    a damaged list of aborted transactions  made again from the log, which is read from its start
    a damaged snapshot                      removed; an older one is taken, and more of the log is read
    half-written files (.tmp, .cleaned)     removed; see `log.compaction` for its commit point

**A snapshot is a checkpoint**: it is written only after every byte below its offset was synced, log and index. So
recovery trusts the log below the newest snapshot and reads, batch by batch, only what is above it: its time grows
with the tail since the last checkpoint, not with the log. Reading a batch restores all three at once: the end of the
log, the index entries and the producers' state.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

from onceflow.errors import CorruptLog, StorageError
from onceflow.log import compaction
from onceflow.log.aborted import AbortedTransaction
from onceflow.log.files import TEMPORARY_SUFFIX, FileSystem
from onceflow.log.producers import ProducerStates
from onceflow.log.segment import LOG_SUFFIX, Segment, file_name
from onceflow.wire.batch import NO_PRODUCER_ID, BatchHeader, checksum
from onceflow.wire.records import EndTxnMarker, read_records

__all__ = ["SNAPSHOT_SUFFIX", "Recovered", "recover", "snapshots"]

SNAPSHOT_SUFFIX = ".snapshot"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    segments: list[Segment]
    first_unsaved: int
    """The first of which more is known than may be on disk, of its log or of its indexes; or the last one."""
    producers: ProducerStates
    end_offset: int
    checkpoint: int
    """Offset of the snapshot that recovery began from; where the log begins, without one."""
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
    bases = offsets_of(files, directory, LOG_SUFFIX)
    checkpoints = snapshots(files, directory)
    if not bases or (bases[0] > start_offset and bases[0] > max(checkpoints, default=0)):
        bases.insert(0, start_offset)  # a new log, or one of which the name of the first file did not get to disk
    segments: list[Segment] = []
    try:
        for base in bases:
            segments.append(Segment(files, directory, base))
        scan = _Scan(files, directory, segments, start_offset, index_interval, now_ms)
        for checkpoint in reversed(checkpoints):
            if checkpoint < bases[0]:
                break
            path = directory / file_name(checkpoint, SNAPSHOT_SUFFIX)
            try:
                return scan.run(checkpoint, ProducerStates.from_snapshot(files.read_bytes(path), now_ms))
            except CorruptLog as error:
                logger.warning("Checkpoint %d of %s is given up: %s", checkpoint, directory, error)
                files.remove(path)  # it would be believed again once the log has grown past it
                scan.may_have_gaps = True
        return scan.run(bases[0], ProducerStates())
    except StorageError:
        for segment in segments:
            segment.close()
        raise


@dataclass(slots=True)
class _Scan:
    files: FileSystem
    directory: Path
    segments: list[Segment]
    start_offset: int
    index_interval: int
    now_ms: int
    may_have_gaps: bool = False
    """Compaction was here, or may have been: it works below the newest checkpoint only, which we may have lost."""

    def run(self, checkpoint: int, producers: ProducerStates) -> Recovered:
        """Check everything from the checkpoint on, cutting at the first thing that is not a whole, sound batch.

        Raises `CorruptLog`, with nothing changed, if the log does not reach up to the checkpoint: files that were
        synced are not there any more, because somebody else removed or damaged them.
        """
        # The segment with the batch before the checkpoint: its indexes may know more than was left of it.
        first = max((at for at, segment in enumerate(self.segments) if segment.base_offset < checkpoint), default=0)
        position, is_saved = self._position_of_checkpoint(first, checkpoint)
        self._mend_aborted(first, position, checkpoint)
        self.segments[first].forget_aborted(checkpoint)
        found = Recovered(self.segments, first, producers, checkpoint, checkpoint, 0, 0)
        if is_saved and position == self.segments[first].size and first + 1 < len(self.segments):
            found.first_unsaved = first + 1
        for at in range(first, len(self.segments)):
            segment = self.segments[at]
            if at > first:
                if self._is_torn_off(segment, found.end_offset):
                    self._cut(at - 1, self.segments[at - 1].size, found)
                    break
                found.end_offset = max(found.end_offset, segment.base_offset)
                segment.start_indexes()
                segment.forget_aborted(0)
                position = 0
            sound_to = self._read(segment, position, found)
            if sound_to < segment.size:
                # A write that failed in the middle leaves its bytes at the end of a segment that was sealed then.
                next_base = self.segments[at + 1].base_offset if at + 1 < len(self.segments) else None
                if next_base == found.end_offset:
                    found.cut_bytes += segment.size - sound_to
                    segment.log.truncate(sound_to)
                else:
                    self._cut(at, sound_to, found)
                    break
        if found.end_offset < self.start_offset:
            self._start_over(found)
        found.first_unsaved = min(found.first_unsaved, len(self.segments) - 1)
        return found

    def _start_over(self, found: Recovered) -> None:
        """The log ends before it starts, as after loss of power without `fsync`: nothing in it can be read any more."""
        found.cut_bytes += sum(segment.size for segment in self.segments)
        while self.segments:
            self.segments.pop().delete()
        self.files.sync_directory(self.directory)
        segment = Segment(self.files, self.directory, self.start_offset)
        segment.start_indexes()
        segment.forget_aborted(0)
        self.segments.append(segment)
        found.producers = ProducerStates()  # they may go on; what they wrote last is lost
        found.end_offset = self.start_offset

    def _read(self, segment: Segment, position: int, found: Recovered) -> int:
        """Take in the batches from a position on; returns where the sound ones end."""
        started_at = position
        with contextlib.suppress(CorruptLog):
            for _, header, batch in segment.batches(position):
                if header.base_offset < found.end_offset or checksum(batch) != header.crc:
                    break
                self._take_in(segment, position, header, batch, found)
                position += header.size
        found.scanned_bytes += position - started_at
        return position

    def _take_in(self, segment: Segment, position: int, header: BatchHeader, batch: bytes, found: Recovered) -> None:
        segment.note(position, header.size, header.last_offset, header.max_timestamp, self.index_interval)
        if header.producer_id != NO_PRODUCER_ID:
            aborted = _replay(header, batch, found.producers, self.now_ms)
            if aborted is not None:
                segment.aborted.add(aborted)
        if header.base_offset > found.end_offset or header.count <= header.last_offset_delta:
            self.may_have_gaps = True
        found.end_offset = header.last_offset + 1

    def _mend_aborted(self, last: int, end: int, checkpoint: int) -> None:
        """Make damaged lists of aborted transactions again, of those below the checkpoint: `end` in segment `last`."""
        below = [segment for segment in self.segments[: last + 1] if segment.base_offset < checkpoint]
        damaged = [at for at, segment in enumerate(below) if not self._has_sound_aborted(segment)]
        producers = ProducerStates()
        for at, segment in enumerate(below[: max(damaged, default=-1) + 1]):
            entries = []
            for _, header, batch in segment.batches(0, end if at == last else None):
                aborted = _replay(header, batch, producers, self.now_ms) if header.is_transactional else None
                if aborted is not None:
                    entries.append(aborted)
            if at in damaged:
                segment.mend_aborted(entries)
        for segment in below[:-1]:
            segment.drop_indexes()

    @staticmethod
    def _has_sound_aborted(segment: Segment) -> bool:
        try:
            return segment.aborted is not None
        except CorruptLog as error:
            logger.warning("%s It is made again.", error)
            return False

    def _is_torn_off(self, segment: Segment, end_offset: int) -> bool:
        """Whether this segment does not begin where the one before it ends."""
        if segment.base_offset < end_offset:
            return True  # it was removed once, and its name came back
        return segment.base_offset > max(end_offset, self.start_offset) and not self.may_have_gaps

    def _cut(self, at: int, position: int, found: Recovered) -> None:
        """End the log at a position in one segment."""
        segment = self.segments[at]
        found.cut_bytes += segment.size - position + sum(later.size for later in self.segments[at + 1 :])
        # The last one first: if we die on the way, there is no gap.
        while len(self.segments) > at + 1:
            self.segments.pop().delete()
        segment.log.truncate(position)

    def _position_of_checkpoint(self, at: int, checkpoint: int) -> tuple[int, bool]:
        """Where in its segment the first batch at or after the checkpoint stands; the indexes know all before it.

        And whether the index files know exactly that.
        """
        segment = self.segments[at]
        must_reach = checkpoint > self.start_offset  # otherwise what came in between may have been freed
        if segment.load_indexes():
            try:
                start = segment.offset_index.position_for(checkpoint - 1)
                position = _walk(segment, start, checkpoint, must_reach=must_reach)
            except CorruptLog:
                pass  # or is it the index that is wrong?
            else:
                return position, not segment.forget_behind(position, checkpoint)
        segment.start_indexes()
        position = _walk(segment, 0, checkpoint, must_reach=must_reach, index_interval=self.index_interval)
        segment.index_newest()
        return position, False


def _replay(header: BatchHeader, batch: bytes, producers: ProducerStates, now_ms: int) -> AbortedTransaction | None:
    """Have the producers' state follow a batch of the log; the transaction that it aborted, if any."""
    if not header.is_control:
        producers.complete(header, header.base_offset, now_ms)
        return None
    marker = next(map(EndTxnMarker.read, read_records(batch)), None)
    return producers.complete_marker(header, marker, header.base_offset, now_ms)


def _walk(
    segment: Segment, position: int, checkpoint: int, *, must_reach: bool, index_interval: int | None = None
) -> int:
    """Where the batches below the checkpoint end; `CorruptLog` if they end too early."""
    if position and position >= segment.size:
        raise CorruptLog(f"{segment.log.path} has only {segment.size} bytes.")
    end_offset = segment.base_offset
    try:
        for at, header in segment.headers(position, peek=True):
            if header.base_offset >= checkpoint:
                return at
            if header.base_offset < end_offset:
                raise CorruptLog(f"{segment.log.path} has offset {header.base_offset} again at position {at}.")
            if index_interval is not None:
                segment.note(at, header.size, header.last_offset, header.max_timestamp, index_interval)
            position, end_offset = at + header.size, header.last_offset + 1
    except CorruptLog:
        # With indexes to go by, it may be they who are wrong.
        if end_offset < checkpoint and (must_reach or index_interval is None):
            raise
    if must_reach and end_offset < checkpoint:
        raise CorruptLog(f"{segment.log.path} ends at offset {end_offset}.")
    return position
