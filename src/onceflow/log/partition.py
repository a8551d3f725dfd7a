"""The log of one topic-partition: append, read, find, flush.

Invariants, always:

    log start  <=  last stable offset  <=  high watermark  <=  log end

- **High watermark: what may be read and what was acknowledged.** Under `fsync` it is the end of what was synced;
  otherwise it is the log end. No reader is ever shown a record that a crash could take back from under it.
- **A failed write changes nothing.** Bytes first, then memory: `append` updates the end, the indexes and the
  producers only after the write returned.
- **A failed sync is not retried on the same pages**: the kernel may have dropped them and call the next sync a
  success. The log goes back to the high watermark, on disk and in memory, and takes writes again once that cut
  itself is synced.
- Nothing here waits, sleeps or knows of sockets. Slow work is handed out as plain objects (`Flush`, `Checkpoint`)
  whose `run` may be called from another thread, and whose result is brought back by `complete_...`.
"""

from __future__ import annotations

import logging
import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.clock import Clock
from onceflow.config import TopicConfig
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log import by_time
from onceflow.log.aborted import AbortedTransaction
from onceflow.log.checksums import Checksums, Sum
from onceflow.log.files import File, FileSlice, FileSystem
from onceflow.log.recovery import SNAPSHOT_SUFFIX, Recovered, recover, snapshots
from onceflow.log.segment import ABORTED_SUFFIX, CHECKSUMS_SUFFIX, LOG_SUFFIX, Segment, file_name
from onceflow.log.small_files import read_json, replace_json
from onceflow.wire.batch import (
    LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    assign_offset,
    checksum,
    read_header,
    stamp_append_time,
)
from onceflow.wire.records import EndTxnMarker, build_batch

__all__ = ["LEADER_EPOCH", "Appended", "Checkpoint", "Flush", "PartitionLog", "was_written"]

logger = logging.getLogger(__name__)

START_FILE: Final = "log-start-offset.json"
RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""Index entries hold offsets relative to the segment in 31 bits."""
KEPT_SNAPSHOTS: Final = 2


class Appended(NamedTuple):
    base_offset: int
    append_time_ms: int
    """The broker's stamp, or -1 where the records keep their own."""
    repeated: bool


def was_written(files: FileSystem, directory: Path) -> bool:
    """Whether there is, or ever was, a record in the log in a folder, as far as its files tell."""
    return any(
        name == START_FILE
        or name.endswith(SNAPSHOT_SUFFIX)
        or (name.endswith(LOG_SUFFIX) and (name != file_name(0, LOG_SUFFIX) or files.size(directory / name) > 0))
        for name in files.list(directory)
    )


@dataclass(slots=True)
class Flush:
    """Files to sync so that everything up to `end_offset` is on disk."""

    files: FileSystem
    dirty: list[File]
    new_names_in: Path | None
    segment: Segment
    position: int
    end_offset: int
    era: int
    """How often the log had been taken back when this began."""

    def run(self) -> None:
        for file in self.dirty:
            file.sync()
        if self.new_names_in is not None:
            self.files.sync_directory(self.new_names_in)


@dataclass(slots=True)
class _Part:
    """What a checkpoint vouches for in one segment."""

    known: Checksums
    size: int
    end_offset: int
    indexes: tuple[Sum, Sum, Sum]
    made: Checksums | None = None


@dataclass(slots=True)
class Checkpoint:
    """Everything below `offset` goes to disk, then the snapshot that says so."""

    files: FileSystem
    directory: Path
    offset: int
    segments: list[Segment]
    parts: list[_Part]
    """Of the same segments: what there is to vouch for."""
    indexes: list[File]
    snapshot: bytes
    lock: AbstractContextManager[object]
    """Held while a snapshot is written, and while the log notes that it is taken back."""
    is_void: Callable[[], bool]
    """Whether the log was taken back or abandoned since this began. The snapshot would vouch for what is gone."""

    def run(self) -> None:
        """The process may die after any step. Checksums that are newer than the snapshot are as true as it."""
        try:
            for segment in self.segments:
                if not self.files.exists(segment.log.path):
                    raise StorageError(
                        f"{segment.log.path} was removed while it was open. What is in it can be read until the broker "
                        "stops, and is lost then: copy its records to another topic."
                    )
                segment.log.sync()
            for index in self.indexes:
                index.sync()
        finally:
            for index in self.indexes:
                index.close()
        for segment, part in zip(self.segments, self.parts, strict=True):
            part.made = part.known.extended(segment.log, part.size, part.end_offset, part.indexes)
        with self.lock:
            if self.is_void():
                return
            for segment, part in zip(self.segments, self.parts, strict=True):
                assert part.made is not None
                segment.replace_checksums(part.made)
        self.files.sync_directory(self.directory)
        with self.lock:
            if not self.is_void():
                self.files.replace(self.directory / file_name(self.offset, SNAPSHOT_SUFFIX), self.snapshot)


@lru_cache(maxsize=16)
def _marker_batch(producer_id: int, epoch: int, marker: EndTxnMarker, now_ms: int) -> bytes:
    """Kept for a moment: the end of a transaction writes the same one to all its partitions."""
    return build_batch(
        (marker.to_record(offset=0, timestamp=now_ms),),
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


class PartitionLog:
    def __init__(
        self, files: FileSystem, directory: Path, config: TopicConfig, clock: Clock, *, fsync: bool = True
    ) -> None:
        """Open or create the log in `directory`, recovering from whatever is there."""
        self._files = files
        self._clock = clock
        self._fsync = fsync
        self.directory = directory
        self.config = config
        self.closed = False
        self._era = 0
        """One more at each failed flush, at each repair and at the end: what began before is void."""
        self._snapshot_lock = threading.Lock()
        files.make_directory(directory)
        self.start_offset = self._read_start_offset()
        self._open()

    def _open(self) -> None:
        """Recover what is on disk. If the disk refuses, nothing has changed here."""
        is_new = not self._files.list(self.directory)
        found = recover(
            self._files, self.directory, self.start_offset, self.config.index_interval_bytes, self._clock.now_ms()
        )
        if found.cut_bytes:
            logger.warning("Cut %d bytes of an unfinished write off the end of %s.", found.cut_bytes, self.directory)
        unsaved = found.segments[found.first_unsaved :]
        if found.cut_bytes or (self._fsync and not is_new):
            # What was read above the checkpoint may still be in the page cache only, and what was cut or removed, now
            # or by a process that died over it, may come back. Where nothing waits, this costs next to nothing.
            try:
                for segment in unsaved:
                    segment.log.sync()
                self._files.sync_directory(self.directory)
            except StorageError:
                for segment in found.segments:
                    segment.close()
                raise
        self.recovered: Recovered = found
        self.segments = found.segments
        self._bases = [segment.base_offset for segment in self.segments]
        self.active = self.segments[-1]
        self.producers = found.producers
        self.start_offset = max(self.start_offset, self.segments[0].base_offset)
        self.end_offset = max(found.end_offset, self.start_offset)
        self._checkpoint_offset = found.checkpoint
        self._unsaved = unsaved
        self.wants_checkpoint = found.scanned_bytes > 0 or len(unsaved) > 1 or self.active.checksums is None
        self._needs_repair = False
        self._dirty: list[File] = []
        self._stable_at: tuple[int, Segment | None, int] = (-1, None, 0)
        """Where the last stable offset was found last: (offset, segment, position)."""
        self._new_names = is_new  # then the first flush makes the name durable
        self._set_high_watermark(self.active, self.active.size, self.end_offset)
        self.producers.decide(self.high_watermark)

    # Writing

    def append(
        self, batch: memoryview, header: BatchHeader, now_ms: int | None = None, *, new_from_zero: bool = False
    ) -> Appended:
        """Write one batch that `validation.accept` let through, or recognise it as a repeat.

        Raises `ProtocolError` for a sequence or epoch that does not fit and `StorageError` when the disk refuses;
        nothing has changed then.
        """
        if self._needs_repair:
            self._repair()  # first: until then the producers remember batches that were taken back
        if header.producer_id != NO_PRODUCER_ID:
            earlier = self.producers.check(header, new_from_zero=new_from_zero)
            if earlier is not None:
                time = earlier.timestamp if self.config.append_time else NO_TIMESTAMP
                return Appended(earlier.first_offset, time, True)
        if now_ms is None:
            now_ms = self._clock.now_ms()
        append_time_ms = NO_TIMESTAMP
        if self.config.append_time:
            stamp_append_time(batch, now_ms)
            header = read_header(batch)
            append_time_ms = now_ms
        base_offset = self._write(batch, header, now_ms)
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.complete(header, base_offset, now_ms)
        return Appended(base_offset, append_time_ms, False)

    def append_marker(self, producer_id: int, epoch: int, marker: EndTxnMarker, *, bumped: bool) -> int:
        """End a producer's transaction on this partition, if it has one; returns the offset of the marker.

        `bumped`: the epoch is the one after the transaction's (V2). Raises as `append` does.
        """
        if self._needs_repair:
            self._repair()
        self.producers.check_marker(producer_id, epoch, marker.coordinator_epoch, bumped=bumped)
        now_ms = self._clock.now_ms()
        batch = bytearray(_marker_batch(producer_id, epoch, marker, now_ms))
        if self.config.append_time:
            stamp_append_time(batch, now_ms)
        header = read_header(batch)
        offset = self._write(memoryview(batch), header, now_ms)
        aborted = self.producers.complete_marker(header, marker, offset, now_ms)
        if aborted is not None:
            self.active.aborted.add(aborted)
        if not self._fsync:
            self.producers.decide(self.high_watermark)
        return offset

    def _write(self, batch: memoryview, header: BatchHeader, now_ms: int) -> int:
        """Put a batch at the end of the log; returns its offset. The producers' memory is left to the caller."""
        base_offset = self.end_offset
        last_offset = base_offset + header.last_offset_delta
        segment = self.active
        size = len(batch)
        if segment.log.size and self._is_full(segment, size, last_offset, now_ms):
            segment = self._roll()
        assign_offset(batch, base_offset, LEADER_EPOCH)
        position = segment.log.size
        if position == 0:
            segment.first_append_ms = now_ms
        segment.log.append(batch)
        # Written: from here on nothing can fail.
        segment.note(position, size, last_offset, header.max_timestamp, self.config.index_interval_bytes)
        self.end_offset = last_offset + 1
        if not self._fsync:
            self._set_high_watermark(segment, position + size, self.end_offset)
        elif segment.log not in self._dirty:
            self._dirty.append(segment.log)
        return base_offset

    def _is_full(self, segment: Segment, more_bytes: int, last_offset: int, now_ms: int) -> bool:
        config = self.config
        if segment.log.size + more_bytes > config.segment_bytes:
            return True
        if last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if segment.offset_index.entry_size * len(segment.offset_index) >= config.segment_index_bytes:
            return True
        if segment.first_append_ms is None:
            segment.first_append_ms = self._first_timestamp(segment, now_ms)
        age_ms = now_ms - segment.first_append_ms
        if config.segment_jitter_ms:
            age_ms += random.Random(segment.base_offset).randrange(config.segment_jitter_ms)
        return age_ms > config.segment_ms

    @staticmethod
    def _first_timestamp(segment: Segment, now_ms: int) -> int:
        """After a restart the age of a segment is that of its first record, as in Kafka."""
        try:
            _, first = next(segment.headers(0, peek=True))
        except CorruptLog:  # who reads there is told; the age decides nothing but when the next segment begins
            return now_ms
        return min(first.base_timestamp, now_ms) if first.base_timestamp > 0 else now_ms

    def _roll(self) -> Segment:
        """Seal the active segment and start the next one at the log end."""
        if self._files.size(self.active.log.path) > self.active.size:  # a write that failed left bytes behind
            self.active.log.truncate(self.active.size)
            self.active.log.sync()
        # As may have been left there. Before the segment is made: if that fails, the active one grows past its offset,
        # and a restart would end the log at a segment that begins too early.
        self._files.remove(self.directory / file_name(self.end_offset, ABORTED_SUFFIX))
        segment = Segment(self._files, self.directory, self.end_offset)
        if segment.size:  # left by an attempt that failed before this one
            segment.log.truncate(0)
        segment.start_indexes()
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self._unsaved.append(segment)
        self.active = segment
        self._new_names = True
        self.wants_checkpoint = True
        return segment

    def roll(self) -> None:
        """Seal the active segment if it holds anything, for retention and compaction, which never touch the
        active one."""
        if self.active.size:
            self._roll()

    # Group commit: under `fsync`, an append counts once a flush that began after it has completed.

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def begin_flush(self) -> Flush:
        flush = Flush(
            self._files,
            self._dirty,
            self.directory if self._new_names else None,
            self.active,
            self.active.size,
            self.end_offset,
            self._era,
        )
        self._dirty = []
        self._new_names = False
        return flush

    def complete_flush(self, flush: Flush) -> None:
        is_void = self._needs_repair or flush.era < self._era
        if not is_void and flush.end_offset > self.high_watermark:
            self._set_high_watermark(flush.segment, flush.position, flush.end_offset)
            self.producers.decide(flush.end_offset)

    def fail_flush(self) -> None:
        """A sync failed: what is above the high watermark is void, and its producers may send it again."""
        if self.closed:
            return
        self._needs_repair = True
        with self._snapshot_lock:  # a snapshot that is being written is there for the repair to remove, or never comes
            self._era += 1
        self._dirty = []
        try:
            self._repair()
        except StorageError as error:
            logger.warning("%s takes no writes until the disk works again: %s", self.directory, error)

    @property
    def awaits_repair(self) -> bool:
        """A flush failed and so did the way back: what is above the high watermark is void, and the next write tries
        again."""
        return self._needs_repair

    def _repair(self) -> None:
        """Go back to the high watermark: cut the files there, sync the cut, and read the producers' state again.

        If the disk refuses on the way, what is below the high watermark can still be read, and this is tried again. The
        process may die after any step. Until the folder is synced, each change of a name may be on disk or not:

            snapshots above the high watermark are removed     none, or one whose log is still whole
            sync the folder                                    none
            checksums of what goes are removed                 any of them, whose log is still whole
            sync the folder                                    none
            later segments are removed                         any of them, perhaps behind a gap: a start cuts there
            sync the folder                                    none
            the last segment is cut, and synced                cut or not; what was not cut is whole batches and a
                                                               torn end
        """
        keep = self._hw_segment
        for offset in snapshots(self._files, self.directory):
            if offset > self.high_watermark:
                self._files.remove(self.directory / file_name(offset, SNAPSHOT_SUFFIX))
        self._files.sync_directory(self.directory)  # a snapshot must not come back without what it vouches for
        if self._forget_checksums_behind(keep):
            self._files.sync_directory(self.directory)
        while self.segments[-1].base_offset > keep.base_offset:
            self.segments[-1].delete()
            self._bases.pop()
            self.segments.pop()
        self._files.sync_directory(self.directory)
        path = keep.log.path
        if not self._files.exists(path) or self._files.size(path) < self._hw_position:
            raise StorageError(f"{path} was removed or cut while it was open.")
        fresh = self._files.open(path)  # the old one remembers that it failed
        try:
            fresh.truncate(self._hw_position)
            fresh.sync()
        finally:
            fresh.close()
        high_watermark = self.high_watermark
        before = self.segments
        self._open()
        for segment in before:
            segment.close()
        self._era += 1
        assert self.end_offset == high_watermark
        logger.warning("%s was cut back to offset %d, the last one on disk.", self.directory, high_watermark)

    def _forget_checksums_behind(self, keep: Segment) -> bool:
        """Remove those of what is above the high watermark; whether there were any."""
        found = False
        for segment in self.segments:
            if segment.base_offset < keep.base_offset:
                continue
            path = segment.path(CHECKSUMS_SUFFIX)
            if self._files.exists(path):
                sums = Checksums.from_bytes(self._files.read_bytes(path), segment.base_offset)
                if segment is not keep or sums is None or sums.size > self._hw_position:
                    self._files.remove(path)
                    found = True
        return found

    def _set_high_watermark(self, segment: Segment, position: int, offset: int) -> None:
        self.high_watermark = offset
        self._hw_segment = segment
        self._hw_position = position

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is undecided. Without open transactions that is the high watermark."""
        return max(self.producers.undecided_from(self.high_watermark), self.start_offset)

    # Checkpoints

    def begin_checkpoint(self) -> Checkpoint | None:
        """What to write so that a restart need not look below the current end; None if there is nothing new."""
        self.wants_checkpoint = False
        is_known = self.end_offset == self._checkpoint_offset and self.active.checksums is not None
        nothing_new = is_known and self._unsaved == [self.active]
        if nothing_new or self._needs_repair:
            return None
        indexes: list[File] = []
        try:
            for segment in self._unsaved:
                indexes += segment.save_indexes()
        except StorageError:
            for file in indexes:
                file.close()
            raise
        era = self._era
        return Checkpoint(
            self._files,
            self.directory,
            self.end_offset,
            list(self._unsaved),
            [self._part(segment) for segment in self._unsaved],
            indexes,
            self.producers.to_snapshot(),
            self._snapshot_lock,
            lambda: era < self._era,
        )

    def _part(self, segment: Segment) -> _Part:
        at = bisect_right(self._bases, segment.base_offset)
        end_offset = self._bases[at] if at < len(self._bases) else self.end_offset
        known = segment.checksums or Checksums(segment.base_offset)
        return _Part(known, segment.size, end_offset, segment.index_sums)

    def complete_checkpoint(self, checkpoint: Checkpoint) -> None:
        if checkpoint.is_void():
            return
        for segment, part in zip(checkpoint.segments, checkpoint.parts, strict=True):
            segment.checksums = part.made
        self._checkpoint_offset = checkpoint.offset
        # All but the one that was active then, which has grown since: its last entries are not saved yet.
        for segment in checkpoint.segments[:-1]:
            if segment in self._unsaved:
                self._unsaved.remove(segment)
                segment.drop_indexes()
        for old in self._lasting_snapshots()[:-KEPT_SNAPSHOTS]:
            self._files.remove(self.directory / file_name(old, SNAPSHOT_SUFFIX))
        self._free_segments()

    def _lasting_snapshots(self) -> list[int]:
        """Those that do not go should a flush fail."""
        return [offset for offset in snapshots(self._files, self.directory) if offset <= self.high_watermark]

    def close(self) -> None:
        """Write a checkpoint and close the files: the next open has nothing to read."""
        try:
            checkpoint = self.begin_checkpoint()
            if checkpoint is not None:
                checkpoint.run()
                self.complete_checkpoint(checkpoint)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and write nothing more: the topic was deleted."""
        self.closed = True
        with self._snapshot_lock:  # the folder may soon be that of another topic of this name
            self._era += 1
        for segment in self.segments:
            segment.close()

    # Reading

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool = True, committed: bool = False) -> bytes:
        """What `slice` finds, as bytes."""
        found = self.slice(offset, max_bytes, at_least_one=at_least_one, committed=committed)
        return found.read() if found is not None else b""

    def slice(
        self, offset: int, max_bytes: int, *, at_least_one: bool = True, committed: bool = False
    ) -> FileSlice | None:
        """Batches from the one that holds `offset`, up to the high watermark, cut at `max_bytes` wherever that falls.

        `committed` ends it at the last stable offset; what was aborted below that is in there too (`aborted_in`).
        Raises `CorruptLog` rather than pass over a gap, or serve what is not as it was written.
        With `at_least_one` the first batch comes whole even if it is larger. Batches that compaction left without
        records are passed over, unless nothing else follows: librdkafka takes an answer without a single record for
        one that was cut too short, and after ten of them reports an error.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Offset {offset} is not in {self.start_offset}..{self.end_offset}.",
            )
        if offset >= (self.last_stable_offset if committed else self.high_watermark):
            return None
        empty = None
        reached = offset
        for segment, end in self._readable_from(offset, committed=committed):
            if segment.base_offset > reached:
                raise self._gap(reached, segment)
            for position, first in segment.headers_from(offset, end):
                reached = first.last_offset + 1
                if not first.count:
                    if segment.unverified is not None:
                        segment.readable(position, first.size, first.size)
                    empty = FileSlice(segment.log, position, first.size)
                    continue
                wanted = min(end - position, max_bytes)
                if wanted < first.size:
                    if not at_least_one:
                        return None
                    wanted = first.size
                if segment.unverified is not None:
                    wanted = segment.readable(position, wanted, first.size)
                return FileSlice(segment.log, position, wanted)
        return empty

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch from the log start to the high watermark, for who keeps state in a log.

        Each is checked: who reads all of it anyway need not believe that the disk has kept it.
        """
        reached = self.start_offset
        for segment, end in self._readable_from(self.start_offset):
            if segment.base_offset > reached:
                raise self._gap(reached, segment)
            for position, header, batch in segment.batches(0, end):
                if checksum(batch) != header.crc:
                    raise segment.damaged(position, "the record batch there fails its checksum")
                if header.last_offset >= self.start_offset:
                    yield header, batch
                    reached = header.last_offset + 1

    def _gap(self, reached: int, segment: Segment) -> CorruptLog:
        """Each segment begins where the one before it ends, or else files are missing (see `log.recovery`)."""
        return CorruptLog(
            f"{self.directory} has nothing from offset {reached} to {segment.base_offset - 1}: the end of a segment or "
            f"whole segments are missing before {segment.log.path.name}. Something other than the broker has removed "
            "or cut them. Stop the broker and restore the folder from a backup, or have readers go on at offset "
            f"{segment.base_offset} to go without the records."
        )

    def aborted_in(self, offset: int, found: FileSlice) -> list[AbortedTransaction]:
        """The aborted transactions with records in a slice from `offset` on, and perhaps some behind it.

        To be asked at once: compaction may soon put another file in the place of the slice's.
        """
        place = self._bound(offset, found)
        assert place is not None
        at, bound = place
        touched = []
        for segment in islice(self.segments, at, None):
            more, is_all = segment.aborted.touching(offset, bound)
            touched += more
            if is_all:
                break
        return touched

    def has_read(self, start: int, sent: FileSlice, offset: int, found: FileSlice | None) -> bool:
        """Whether who was sent a slice from `start` on can have come to `offset` by reading it, rather than by a seek.

        `found` is what there is to read at `offset` now. Exact to an entry of the index; False if nobody can tell.
        """
        if found is not None and found.file is sent.file:  # as nearly always, and it costs nothing
            return found.at <= sent.at + sent.size
        bound = self._bound(start, sent)
        return bound is not None and offset <= bound[1]

    def _bound(self, offset: int, found: FileSlice) -> tuple[int, int] | None:
        """The number of the segment that a slice is of, and an offset behind it, as exact as the index is.

        None if the segment is gone meanwhile.
        """
        at = max(0, bisect_right(self._bases, offset) - 1)
        while self.segments[at].log is not found.file:
            at += 1
            if at == len(self.segments):
                return None
        bound = self.segments[at].offset_index.offset_after(found.at + found.size)
        if bound is None:
            bound = self._bases[at + 1] if at + 1 < len(self._bases) else self.end_offset
        return at, bound

    def bytes_after(self, offset: int, *, committed: bool = False) -> int:
        """About how many bytes a read at `offset` could return; exact enough for a long poll's min_bytes."""
        if offset >= (self.last_stable_offset if committed else self.high_watermark):
            return 0
        available = 0
        for segment, end in self._readable_from(offset, committed=committed):
            if not available:
                found = segment.locate(offset, end)
                if found is not None:
                    available = end - found[0]
            else:
                available += end
        return available

    def _readable_from(self, offset: int, *, committed: bool = False) -> Iterator[tuple[Segment, int]]:
        """Segments from the one that may hold `offset`, each with the position up to which it may be read."""
        last, end = self.readable_end(committed=committed)
        at = max(0, bisect_right(self._bases, offset) - 1)
        for segment in islice(self.segments, at, None):
            if segment.base_offset > last.base_offset:
                return
            yield segment, end if segment is last else segment.size

    def readable_end(self, *, committed: bool = False) -> tuple[Segment, int]:
        """The segment and the position of the high watermark, or with `committed` of the last stable offset."""
        return self._stable_end() if committed else (self._hw_segment, self._hw_position)

    def _stable_end(self) -> tuple[Segment, int]:
        """The segment and the position of the last stable offset."""
        offset = self.last_stable_offset
        if offset == self.high_watermark:
            return self._hw_segment, self._hw_position
        segment = self.segments[max(0, bisect_right(self._bases, offset) - 1)]
        if self._stable_at[:2] != (offset, segment):
            found = segment.locate(offset, segment.size)
            assert found is not None
            self._stable_at = (offset, segment, found[0])
        return segment, self._stable_at[2]

    # Finding by time, see `log.by_time`

    def first_offset_at(self, timestamp: int, limit: int | None = None) -> by_time.Steps:
        return by_time.first_offset_at(self._readable_from(self.start_offset), timestamp, self.start_offset, limit)

    def offset_of_newest(self, limit: int | None = None) -> by_time.Steps:
        return by_time.offset_of_newest(self._readable_from(self.start_offset), self.start_offset, limit)

    # Letting go of the old

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def delete_before(self, offset: int) -> None:
        """Move the log start (DeleteRecords); segments that lie before it entirely are freed."""
        if offset <= self.start_offset:
            return
        if offset > self.high_watermark:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, f"Offset {offset} is above {self.high_watermark}.")
        # On disk first: were a removed segment to come back after a crash, this file would still hide it.
        replace_json(self._files, self.directory / START_FILE, {"offset": offset})
        self.start_offset = offset
        if offset == self.end_offset:
            self.roll()
        self._free_segments()

    def apply_retention(self, now_ms: int) -> int:
        """Free segments beyond `retention.ms` and `retention.bytes`; returns how many bytes that was."""
        config = self.config
        before = self.size
        if config.delete:
            offset = self.start_offset
            size = before
            for segment, next_base in zip(self.segments, [*self._bases[1:], self.end_offset], strict=True):
                if segment.size == 0 or next_base > self.high_watermark:
                    break
                newest = segment.newest[0]
                too_old = 0 <= config.retention_ms < now_ms - newest if newest >= 0 else False
                # The active segment goes by age only: by size there is always one left to write into.
                too_much = 0 <= config.retention_bytes <= size - segment.size and segment is not self.active
                if not (too_old or too_much):
                    break
                size -= segment.size
                offset = next_base
            self.delete_before(offset)
        self._free_segments()
        return before - self.size

    def _free_segments(self) -> None:
        """Free what lies before the log start, once a snapshot says what producers wrote there."""
        if len(self.segments) == 1 or self.segments[1].base_offset > self.start_offset:
            return
        free_before = min(self.start_offset, max(self._lasting_snapshots(), default=0))
        while len(self.segments) > 1 and self.segments[1].base_offset <= free_before:
            segment = self.segments.pop(0)
            self._bases.pop(0)
            if segment in self._unsaved:
                self._unsaved.remove(segment)
            if segment.log in self._dirty:
                self._dirty.remove(segment.log)
            if self._hw_segment is segment:
                self._set_high_watermark(self.segments[0], 0, self.high_watermark)
            segment.delete()
        if len(self.segments) > 1 and self.segments[1].base_offset <= self.start_offset:
            self.wants_checkpoint = True  # soon, and with it the snapshot that the rest waits for

    def settled_segments(self) -> list[tuple[Segment, int]]:
        """Sealed segments that no flush, checkpoint or repair comes back to, with the offset where the next one begins.

        Compaction may replace them. They are below the last checkpoint, so a restart does not read compacted batches
        to learn what producers wrote, unless the snapshots are lost.
        """
        settled = []
        limit = min(self.last_stable_offset, self._checkpoint_offset)
        for segment, next_base in zip(self.segments, self._bases[1:], strict=False):
            if next_base > limit or segment in self._unsaved:
                break
            settled.append((segment, next_base))
        return settled

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Put a compacted segment in the place of the settled ones it was made from.

        Their names on disk, and closing them, are the business of `log.compaction`.
        """
        at = self.segments.index(old[0])
        assert self.segments[at : at + len(old)] == old
        self.segments[at : at + len(old)] = [new]
        self._bases = [segment.base_offset for segment in self.segments]
        if self._hw_segment in old:  # it stood at the end of the last one
            self._set_high_watermark(new, new.size, self.high_watermark)

    def _read_start_offset(self) -> int:
        path = self.directory / START_FILE
        if not self._files.exists(path):
            return 0
        remedy = "Restore it from a backup of the directory, or write {} into it: then all is read that is still there."
        offset = read_json(self._files, path, remedy).get("offset", 0)
        if type(offset) is not int or offset < 0:
            raise CorruptLog(f"{path} does not hold an offset. {remedy}")
        return offset
