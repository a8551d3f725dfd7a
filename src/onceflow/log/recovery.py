"""Opening a partition's log after whatever happened to the last process.

What a crash can have left, and what becomes of it:

    bytes after the last whole batch        cut: they were never acknowledged
    a batch that fails its checksum         cut, with everything behind it (under `fsync`, none of it was acknowledged)
    a segment that begins after a gap       cut likewise: the end of the one before it did not get to disk, or the
                                            removal of those in between did, and its own did not
    a segment that begins too early         cut likewise: it was removed, but its removal did not get to disk
    index entries behind the checkpoint     dropped and made again from the log
    a missing or damaged index              made again from its segment
    aborted transactions behind it          dropped likewise; see `log.aborted`
    a damaged list of aborted transactions  made again from the log, which is read from its start
    a damaged snapshot                      removed; an older one is taken, and more of the log is read
    missing or damaged checksums            made again from their segment, all of which is read
    half-written files (.tmp, .cleaned)     removed; see `log.compaction` for its commit point

**A snapshot is a checkpoint**: it is written only after every byte below its offset was synced, log and index. So
recovery trusts the log below the newest snapshot and reads, batch by batch, only what is above it: its time grows
with the tail since the last checkpoint, not with the log. Reading a batch restores all three at once: the end of the
log, the index entries and the producers' state.

**No segment counts behind a gap.** Each one begins where the one before it ends, also where compaction was, which
keeps the last batch of every file. (Before the log start there may be gaps; nobody reads there.) What is cut was
written after the last checkpoint, and is removed.

**Nothing below a checkpoint is ever cut or missing after a crash**, since snapshots and checksums are removed for good
before anything that they vouch for. So if a segment is shorter than its checksums say, does not reach up to the next
one, or is not there, something else has removed or damaged files that were on disk. Then `CorruptLog` says which and
what to do, and nothing is touched: what a person does with the rest is not for us to decide. What is longer than it was
loses what was added. Bytes that were changed inside a segment are found when somebody reads them (`log.checksums`), or
here, if the end of the log is among them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from onceflow.digits import whole_number_of
from onceflow.errors import CorruptLog, StorageError
from onceflow.log import compaction
from onceflow.log.aborted import AbortedTransaction
from onceflow.log.checksums import RESTORE
from onceflow.log.files import TEMPORARY_SUFFIX, FileSystem
from onceflow.log.producers import ProducerStates
from onceflow.log.segment import CHECKSUMS_SUFFIX, LOG_SUFFIX, Segment, file_name
from onceflow.wire.batch import LEADER_EPOCH, NO_PRODUCER_ID, BatchHeader, checksum
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
    stems = [name.removesuffix(suffix) for name in files.list(directory) if name.endswith(suffix)]
    return sorted(offset for stem in stems if (offset := whole_number_of(stem)) is not None)


def snapshots(files: FileSystem, directory: Path) -> list[int]:
    return offsets_of(files, directory, SNAPSHOT_SUFFIX)


def recover(files: FileSystem, directory: Path, start_offset: int, index_interval: int, now_ms: int) -> Recovered:
    for name in files.list(directory):
        if name.endswith(TEMPORARY_SUFFIX):
            files.remove(directory / name)
    compaction.finish_interrupted(files, directory)
    bases = offsets_of(files, directory, LOG_SUFFIX)
    checkpoints = snapshots(files, directory)
    vouched_to = max(checkpoints, default=0)
    if vouched_to > start_offset and (not bases or bases[0] > start_offset):
        raise _missing(directory, start_offset, bases[0] if bases else vouched_to)
    if not bases or (bases[0] > start_offset and bases[0] > vouched_to):
        # A new log, or one of which the name of the first file did not get to disk.
        _remove_orphans(files, directory, bases)
        bases.insert(0, start_offset)
    segments: list[Segment] = []
    try:
        for base in bases:
            segments.append(Segment(files, directory, base))
        unsaved = _check_vouched(segments, start_offset, vouched_to)
        _remove_orphans(files, directory, bases)
        may_have_gaps = not checkpoints and files.exists(directory / compaction.OFFSET_FILE)
        scan = _Scan(files, directory, segments, start_offset, unsaved, index_interval, now_ms, may_have_gaps)
        given_up: list[Path] = []
        found = None
        for checkpoint in reversed(checkpoints):
            if checkpoint < bases[0]:
                break
            path = directory / file_name(checkpoint, SNAPSHOT_SUFFIX)
            try:
                producers = ProducerStates.from_snapshot(files.read_bytes(path), now_ms)
            except CorruptLog as error:
                logger.warning("%s is damaged and is removed, an older one is taken: %s", path, error)
                given_up.append(path)
                continue
            found = scan.run(checkpoint, producers)
            break
        if found is None:
            if bases[0] > 0:
                _check_begins_anew(segments, directory, given_up)
            found = scan.run(bases[0], ProducerStates())
            if bases[0] > 0:
                _begin_with_snapshot(files, directory, bases[0])
        if given_up:
            # After the cut is on disk, so that a start after a crash in between still knows what was vouched for. And
            # for good before the log grows: past their offsets they would be believed again.
            files.sync_directory(directory)
            for path in given_up:
                files.remove(path)
            files.sync_directory(directory)
        return found
    except (StorageError, CorruptLog):
        for segment in segments:
            segment.close()
        raise


def _remove_orphans(files: FileSystem, directory: Path, bases: list[int]) -> None:
    """Checksums of segments that are gone, or whose name did not get to disk. They must not meet a new one."""
    orphans = set(offsets_of(files, directory, CHECKSUMS_SUFFIX)) - set(bases)
    for base in orphans:
        files.remove(directory / file_name(base, CHECKSUMS_SUFFIX))
    if orphans:
        files.sync_directory(directory)


def _missing(where: object, reached: int, until: int) -> CorruptLog:
    return CorruptLog(
        f"{where} has nothing from offset {reached} to {until - 1}, though it was on disk once: segments are missing, "
        f"or the end of one. {RESTORE}"
    )


def _check_vouched(segments: list[Segment], start_offset: int, vouched_to: int) -> int:
    """Raise `CorruptLog` unless everything that was on disk at the newest checkpoint still is, as far as sizes tell.

    What was added to a sealed segment is cut. Returns the first segment whose checksums have to be made again.
    """
    unsaved = len(segments)
    grown: list[tuple[Segment, int]] = []
    for at, segment in enumerate(segments):
        next_base = segments[at + 1].base_offset if at + 1 < len(segments) else None
        if next_base is not None and next_base <= start_offset:
            continue  # it was freed, and its removal did not get to disk
        if segment.size < segment.vouched_size:
            raise segment.damaged(segment.size, f"it ends there, and had {segment.vouched_size} bytes")
        must_reach = vouched_to if next_base is None else min(vouched_to, next_base)
        sums = segment.checksums
        if sums is not None and (segment.vouched_size or not segment.size):
            reached = sums.end_offset
            if reached == next_base and segment.size > sums.size:
                grown.append((segment, sums.size))
        elif segment.base_offset < vouched_to:
            reached = _checked_to(segment, must_reach)
            unsaved = min(unsaved, at)
        else:
            continue
        if max(reached, start_offset) < must_reach:
            raise _missing(segment.log.path, reached, must_reach)
        if next_base is not None and next_base < min(reached, vouched_to):
            raise CorruptLog(
                f"{segments[at + 1].log.path} begins at offset {next_base}, and {segment.log.path} reaches "
                f"up to {reached}: what one of them holds was replaced or removed once, and is there again. {RESTORE}"
            )
    for segment, size in grown:
        logger.warning(
            "%s had %d bytes and has %d: what was added to it is cut. Something other than the broker has done that.",
            segment.log.path,
            size,
            segment.size,
        )
        segment.log.truncate(size)
        segment.log.sync()
    return unsaved


def _checked_to(segment: Segment, must_reach: int) -> int:
    """The offset that the batches of a segment without checksums reach, each of them checked, up to one offset."""
    reached = segment.base_offset
    for position, header, batch in segment.batches():
        if header.base_offset >= must_reach:
            break
        if header.base_offset < reached or checksum(batch) != header.crc:
            raise segment.damaged(position, "the record batch there fails its checksum")
        reached = header.last_offset + 1
    return reached


def _check_begins_anew(segments: list[Segment], directory: Path, given_up: list[Path]) -> None:
    """Segments are freed only when a snapshot says what producers wrote in them. So there is one, unless none ever was.

    Not of a log that begins behind 0 because nothing was left of it: it has a snapshot before it has checksums.
    """
    if given_up or any(segment.vouched_size for segment in segments):
        which = ", ".join(str(path) for path in given_up) or f"the one in {directory} is missing"
        raise CorruptLog(
            f"No producer snapshot (*{SNAPSHOT_SUFFIX}) can be read: {which}. Without one nobody knows what producers "
            f"have written into the segments that were removed, and repeats could not be told. {RESTORE}"
        )


def _begin_with_snapshot(files: FileSystem, directory: Path, offset: int) -> None:
    """Of a log that begins here, with nothing before it to know of."""
    files.replace(directory / file_name(offset, SNAPSHOT_SUFFIX), ProducerStates().to_snapshot())


@dataclass(slots=True)
class _Scan:
    files: FileSystem
    directory: Path
    segments: list[Segment]
    start_offset: int
    unsaved: int
    """The first segment whose files have to be brought up to date."""
    index_interval: int
    now_ms: int
    may_have_gaps: bool

    def run(self, checkpoint: int, producers: ProducerStates) -> Recovered:
        """Check everything from the checkpoint on, cutting at the first thing that is not a whole, sound batch.

        Raises `CorruptLog`, with nothing cut, where that would take away what was on disk once.
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
                    reason = f"the next segment begins at offset {segment.base_offset}"
                    self._cut(at - 1, self.segments[at - 1].size, found, reason)
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
                    self._cut(at, sound_to, found, f"there is no sound record batch at position {sound_to}")
                    break
        if found.end_offset < self.start_offset:
            self._start_over(found)
        found.first_unsaved = min(found.first_unsaved, self.unsaved, len(self.segments) - 1)
        return found

    def _start_over(self, found: Recovered) -> None:
        """The log ends before it starts, as after loss of power without `fsync`: nothing in it can be read any more."""
        found.cut_bytes += sum(segment.size for segment in self.segments)
        _begin_with_snapshot(self.files, self.directory, self.start_offset)
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
        try:
            for _, header, batch in segment.batches(position):
                if not self._follows(segment, position, header, found) or checksum(batch) != header.crc:
                    break
                self._take_in(segment, position, header, batch, found)
                position += header.size
        except CorruptLog:
            if position < segment.vouched_size:
                raise
        found.scanned_bytes += position - started_at
        return position

    def _follows(self, segment: Segment, position: int, header: BatchHeader, found: Recovered) -> bool:
        """Whether a batch may stand where it does, by what no checksum of its own covers.

        Batches follow each other without a gap until compaction has been there. It leaves alone what is above a
        checkpoint, and has checksums made of what it writes.
        """
        if position < segment.vouched_size or self.may_have_gaps:
            return header.base_offset >= found.end_offset
        return (header.base_offset, header.leader_epoch) == (found.end_offset, LEADER_EPOCH)

    def _take_in(self, segment: Segment, position: int, header: BatchHeader, batch: bytes, found: Recovered) -> None:
        segment.note(position, header.size, header.last_offset, header.max_timestamp, self.index_interval)
        if header.producer_id != NO_PRODUCER_ID:
            aborted = _replay(header, batch, found.producers, self.now_ms)
            if aborted is not None:
                segment.aborted.add(aborted)
        found.end_offset = header.last_offset + 1

    def _mend_aborted(self, last: int, end: int, checkpoint: int) -> None:
        """Make damaged lists of aborted transactions again, of those below the checkpoint: `end` in segment `last`."""
        below = [segment for segment in self.segments[: last + 1] if segment.base_offset < checkpoint]
        damaged = [at for at, segment in enumerate(below) if not self._has_sound_aborted(segment)]
        if below and len(below) - 1 not in damaged and not below[-1].has_true_aborted(checkpoint, end):
            damaged.append(len(below) - 1)
        producers = ProducerStates()
        for at, segment in enumerate(below[: max(damaged, default=-1) + 1]):
            entries = []
            for _, header, batch in segment.batches(0, end if at == last else None):
                aborted = _replay(header, batch, producers, self.now_ms) if header.is_transactional else None
                if aborted is not None:
                    entries.append(aborted)
            if at in damaged:
                segment.mend_aborted(entries)
                self.unsaved = min(self.unsaved, at)
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
        return segment.base_offset > max(end_offset, self.start_offset)

    def _cut(self, at: int, position: int, found: Recovered, reason: str) -> None:
        """End the log at a position in one segment."""
        segment, behind = self.segments[at], self.segments[at + 1 :]
        if position < segment.vouched_size:
            raise segment.damaged(position, reason)
        for later in behind:
            if later.vouched_size:
                raise _missing(segment.log.path, found.end_offset, later.base_offset)
        cut_bytes = segment.size - position + sum(later.size for later in behind)
        found.cut_bytes += cut_bytes
        if behind:
            logger.warning(
                "%s ends at offset %d, in %s: %s. The %d bytes behind it, with %d segments that follow, are dropped. "
                "They were written after the last checkpoint.",
                self.directory,
                found.end_offset,
                segment.log.path.name,
                reason,
                cut_bytes,
                len(behind),
            )
        # The last one first: if the process dies on the way, what is left has one gap, and the next start cuts there.
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
                is_saved = not segment.forget_behind(position, checkpoint)
                if segment.has_true_newest(position):
                    return position, is_saved
            except CorruptLog:
                pass  # or is it the index that is wrong?
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
