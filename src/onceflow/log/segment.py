"""One segment: a file of record batches, its indexes, and finding one's way in it.

Invariants:

- The file is batches back to back, byte for byte as Apache Kafka stores them, from position 0 to `size`. Offsets
  rise; the first batch starts at or after `base_offset` (after it, where compaction removed records).
- Only the last segment of a log grows. A sealed one never changes; compaction replaces it as a whole.
- The indexes of offsets and times may miss entries, never hold a wrong one. That of aborted transactions
  (`log.aborted`) has them all: it is not a hint, and is never dropped to be guessed again.
- Large reads and scans go in pieces: no segment is ever in memory whole.
- What was on disk at a checkpoint is read only after it was compared with its checksums (`log.checksums`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

import google_crc32c

from onceflow.errors import CorruptLog, StorageError
from onceflow.log.aborted import AbortedIndex, AbortedTransaction
from onceflow.log.checksums import BLOCK_SIZE, NO_INDEXES, Checksums, Sum, Unverified, damaged
from onceflow.log.files import Buffer, File, FileSystem, temporary_for
from onceflow.log.index import OffsetIndex, SavedIndex, TimeIndex
from onceflow.wire.batch import HEADER_SIZE, MAGIC, MIN_LENGTH, NO_TIMESTAMP, BatchHeader, read_header

__all__ = ["Segment", "file_name"]

logger = logging.getLogger(__name__)

SCAN_CHUNK: Final = 1 << 20
VERIFIED_AT_ONCE: Final = 8 << 20
"""Who reads what nobody has read before gets no more at a time."""
LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
ABORTED_SUFFIX: Final = ".txnindex"
CHECKSUMS_SUFFIX: Final = ".checksums"
SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX, CHECKSUMS_SUFFIX)
"""All files of a segment, the log first."""


_LAST_OFFSET: Final = attrgetter("last_offset")


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class Segment:
    def __init__(self, files: FileSystem, directory: Path, base_offset: int, log: File | None = None) -> None:
        """`log` is for a segment in the making, whose file is open and has another name yet (`log.compaction`)."""
        self._files = files
        self._directory = directory
        self.base_offset = base_offset
        self.log: File = files.open(self.path(LOG_SUFFIX)) if log is None else log
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted = None if log is None else AbortedIndex()
        self._bytes_since_entry = 0
        self.max_timestamp = NO_TIMESTAMP
        """Largest timestamp of the batches seen by `note`; `newest` also looks into the index."""
        self.max_timestamp_offset = -1
        self.first_append_ms: int | None = None
        self.index_sums = NO_INDEXES
        """Of what was saved of the indexes."""
        self.checksums = self._load_checksums() if log is None else Checksums(base_offset)
        """What the last checkpoint knows of the files; None if the file that says so is missing or damaged."""
        self.unverified: Unverified | None = None
        """What is vouched for and was not read yet; None if it was, or was written by this process."""
        if self.vouched_size:
            assert self.checksums is not None
            self.index_sums = self.checksums.indexes
            self.unverified = Unverified(self.checksums)

    @property
    def vouched_size(self) -> int:
        """So much of the log was on disk at the last checkpoint. It never gets less than that."""
        return 0 if self.checksums is None else self.checksums.size

    def _load_checksums(self) -> Checksums | None:
        data = self._read_if_there(CHECKSUMS_SUFFIX)
        if data is None:
            return None if self.size else Checksums(self.base_offset)
        found = Checksums.from_bytes(data, self.base_offset)
        if found is None:
            logger.warning("%s is damaged. It is made again.", self.path(CHECKSUMS_SUFFIX))
        return found

    def replace_checksums(self, new: Checksums) -> None:
        """The name is certain only after the folder was synced."""
        path = self.path(CHECKSUMS_SUFFIX)
        file = self._files.open(temporary_for(path))
        try:
            file.truncate(0)
            file.append(new.to_bytes())
            file.sync()
        finally:
            file.close()
        self._files.rename(temporary_for(path), path)

    @property
    def size(self) -> int:
        return self.log.size

    def path(self, suffix: str) -> Path:
        return self._directory / file_name(self.base_offset, suffix)

    # Writing

    def append(self, batch: Buffer) -> None:
        """Write the bytes; `note` the batch afterwards."""
        self.log.append(batch)

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int) -> None:
        """Know of a batch that stands at `position`: the largest timestamp, and now and then an index entry."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > interval:
            self.offset_index.add(last_offset, position)
            if self.max_timestamp_offset >= 0:
                self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def index_newest(self) -> None:
        """Have the largest timestamp up to here in the time index, so that it is found there again.

        For every checkpoint there is such an entry, and recovery relies on it.
        """
        if self.max_timestamp_offset >= 0:
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)

    def save_indexes(self) -> list[File]:
        """Bring the index files up to date with what is known; returns them open, for the caller to sync and close."""
        self.index_newest()
        saved: list[File] = []
        try:
            for index, suffix in ((self.offset_index, OFFSET_INDEX_SUFFIX), (self.time_index, TIME_INDEX_SUFFIX)):
                saved.append(self._save(index, self.path(suffix)))
            if len(self.aborted):
                saved.append(self._save(self.aborted, self.path(ABORTED_SUFFIX)))
        except StorageError:
            for file in saved:
                file.close()
            raise
        self.index_sums = (self.offset_index.sum, self.time_index.sum, self.aborted.sum)
        return saved

    def _save(self, index: SavedIndex, path: Path) -> File:
        """Entries that an earlier checkpoint vouches for are never taken out of the file, not even for a moment.

        What is left after a crash in the middle would be a shorter index that looks sound, and with the last entry of
        the time index the newest timestamp of the segment would be gone.
        """
        if index.file is not None and index.file.lost_pages:
            index.saved = 0
            index.crc = None
        file = self._files.open(path)
        try:
            known = index.saved * index.entry_size
            more = index.to_bytes(index.saved)
            crc = google_crc32c.extend(index.known_crc(), more)
            if known and file.size > known:
                file.truncate(known)
            if file.size == known:
                file.append(more)
            else:
                file.close()
                self._files.replace(path, index.to_bytes())
                file = self._files.open(path)
        except StorageError:
            file.close()
            raise
        index.saved = len(index)
        index.crc = int(crc)
        index.file = file
        return file

    def drop_indexes(self) -> None:
        """Free the memory of a sealed segment's indexes; they are read again when needed."""
        self._offset_index = self._time_index = None
        if self._aborted:  # that there are none is cheap to know
            self._aborted = None

    # Finding

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None and not self.load_indexes():
            self.rebuild_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None and not self.load_indexes():
            self.rebuild_indexes()
        assert self._time_index is not None
        return self._time_index

    @property
    def aborted(self) -> AbortedIndex:
        """The transactions whose abort marker is in here. `CorruptLog` if the file that says so is damaged."""
        if self._aborted is None:
            data = self._read_if_there(ABORTED_SUFFIX) or b""
            path = self.path(ABORTED_SUFFIX)
            known = self._known(data, 2)
            if known is None:
                raise CorruptLog(f"{path} does not hold the aborted transactions that a checkpoint has noted.")
            self._aborted = AbortedIndex.from_bytes(known, path) if known else AbortedIndex()
        return self._aborted

    def forget_aborted(self, offset: int) -> None:
        """Know nothing of transactions that ended at or behind an offset, here and in the file.

        A file that goes may come back in a crash; then the same checkpoint is found again, and it goes again.
        """
        path = self.path(ABORTED_SUFFIX)
        if offset <= self.base_offset:
            self._files.remove(path)
            self._aborted = AbortedIndex()
        elif self.aborted.cut(offset):
            self._files.replace(path, self.aborted.to_bytes())
        else:
            return
        assert self._aborted is not None
        self.index_sums = (*self.index_sums[:2], self._aborted.sum)

    def mend_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Put entries that were made again from the log in the place of a damaged file.

        At once and for good: were the damaged file to go first, a crash would leave no file, which says "none".
        """
        index = AbortedIndex(entries)
        self._files.replace(self.path(ABORTED_SUFFIX), index.to_bytes())
        index.saved, index.crc = len(index), None
        self.index_sums = (*self.index_sums[:2], index.sum)
        self._aborted = index

    def load_indexes(self) -> bool:
        """Read both from their files; False where a file is missing or is not an index."""
        offsets = OffsetIndex.from_bytes(self.base_offset, self._known(self._read_if_there(OFFSET_INDEX_SUFFIX), 0))
        times = TimeIndex.from_bytes(self.base_offset, self._known(self._read_if_there(TIME_INDEX_SUFFIX), 1))
        if offsets is None or times is None:
            if self.vouched_size:
                logger.warning("An index of %s is missing or damaged. It is made again from the log.", self.log.path)
            return False
        self._offset_index, self._time_index = offsets, times
        return True

    def _known(self, data: bytes | None, index: int) -> bytes | None:
        """What a checkpoint has noted of the content of an index, all of it without one; None if it is not there."""
        if data is None or not self.vouched_size:
            return data
        noted: Sum = self.index_sums[index]
        return data[: noted.size] if noted.is_of(data) else None

    def _read_if_there(self, suffix: str) -> bytes | None:
        path = self.path(suffix)
        return self._files.read_bytes(path) if self._files.exists(path) else None

    def rebuild_indexes(self, interval: int = 4096) -> None:
        """By reading the headers of the whole segment, which must be sound to its end."""
        self.start_indexes()
        for position, header in self.headers(0):
            self.note(position, header.size, header.last_offset, header.max_timestamp, interval)

    def start_indexes(self) -> None:
        """Empty indexes, for a new segment or one that is about to be read through."""
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, -1
        self._bytes_since_entry = 0

    def forget_behind(self, position: int, offset: int) -> bool:
        """Know nothing of the batches from a position on, whose first offset is given; False if nothing was known."""
        entries = len(self.offset_index) + len(self.time_index)
        self.offset_index.cut(position, offset)
        self.time_index.cut(offset)
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last or (NO_TIMESTAMP, -1)
        self._bytes_since_entry = 0
        return len(self.offset_index) + len(self.time_index) < entries

    def has_true_newest(self, end: int) -> bool:
        """Whether the last entry of the time index is that of a batch before position `end`.

        Of one that was torn while it was written, the end of the offset may be missing.
        """
        last = self.time_index.last
        found = None if last is None else self.locate(last[1], end)
        return last is None or (found is not None and (found[1].max_timestamp, found[1].last_offset) == last)

    def has_true_aborted(self, offset: int, end: int) -> bool:
        """Whether the last of the aborted transactions that ended below an offset has its marker before `end`.

        Of an entry that was torn while it was written, the end of the marker's offset may be missing.
        """
        last = max((entry for entry in self.aborted if entry.last_offset < offset), key=_LAST_OFFSET, default=None)
        found = None if last is None else self.locate(last.last_offset, end)
        if last is None or found is None:
            return last is None
        header = found[1]
        return header.is_control and (header.producer_id, header.base_offset) == (last.producer_id, last.last_offset)

    def locate(self, offset: int, end: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch that ends at or after `offset`, before position `end`."""
        return next(self.headers_from(offset, end), None)

    def headers_from(self, offset: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch that ends at or after `offset`, before position `end`."""
        for position, header in self.headers(self.offset_index.position_for(offset), end, peek=True):
            if header.last_offset >= offset:
                yield position, header

    @property
    def newest(self) -> tuple[int, int]:
        """(largest timestamp, an offset of the batch that has it); (-1, -1) when there is none."""
        last = self.time_index.last
        if last is not None and last[0] > self.max_timestamp:
            return last
        return self.max_timestamp, self.max_timestamp_offset

    # Reading

    def headers(self, start: int, end: int | None = None, *, peek: bool = False) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `start`, a batch boundary; raises `CorruptLog` where there is none.

        `peek` reads header by header, for short walks; otherwise larger pieces are read.
        """
        end = self.size if end is None else end
        position = start
        piece, piece_at = b"", start
        read = self.log.read if self.unverified is None else self.read
        while position + HEADER_SIZE <= end:
            if position + HEADER_SIZE > piece_at + len(piece):
                want = HEADER_SIZE if peek else SCAN_CHUNK
                piece, piece_at = read(position, want), position
                if len(piece) < HEADER_SIZE:
                    raise self.damaged(position, "the file was cut there while it was open")
            header = self._checked(read_header(piece, position - piece_at), position)
            if position + header.size > end:
                break
            yield position, header
            position += header.size
        self._check_end(position, end)

    def _checked(self, header: BatchHeader, position: int) -> BatchHeader:
        if header.magic != MAGIC or header.length < MIN_LENGTH:
            raise self.damaged(position, "there is no record batch there")
        return header

    def damaged(self, position: int, reason: str) -> CorruptLog:
        return damaged(self.log.path, position, reason)

    def _check_end(self, position: int, end: int) -> None:
        if position < end:
            raise self.damaged(position, "it ends in the middle of a record batch")

    def read(self, at: int, size: int) -> bytes:
        """Bytes of the log. `CorruptLog` if they are not those that were written."""
        unverified = self.unverified
        if unverified is not None:
            unverified.verify(self.log, at, at + size)
            if unverified.is_over:
                self.unverified = None
        return self.log.read(at, size)

    def readable(self, at: int, size: int, least: int) -> int:
        """How many bytes from a position on may be served: up to `size`, and `least` if that is more.

        `CorruptLog` if not even so few are as they were written. Bounded, since it may have to read them.
        """
        unverified = self.unverified
        if unverified is None:
            return max(size, least)
        unverified.verify(self.log, at, at + least)
        sound_to = at + least
        end = min(at + size, at + max(least, VERIFIED_AT_ONCE))
        while sound_to < end:
            until = min(end, (sound_to // BLOCK_SIZE + 1) * BLOCK_SIZE)
            try:
                unverified.verify(self.log, sound_to, until)
            except CorruptLog:
                break
            sound_to = until
        if unverified.is_over:
            self.unverified = None
        return sound_to - at

    def batches(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """Position, header and bytes of each batch, whole, read in large pieces."""
        end = self.size if end is None else end
        position = start
        piece, piece_at = b"", start
        while position + HEADER_SIZE <= end:
            at = position - piece_at
            if at + HEADER_SIZE > len(piece):
                piece, piece_at, at = self.read(position, SCAN_CHUNK), position, 0
                if len(piece) < HEADER_SIZE:
                    raise self.damaged(position, "the file was cut there while it was open")
            header = self._checked(read_header(piece, at), position)
            if position + header.size > end:
                break
            if at + header.size > len(piece):
                piece, piece_at, at = self.read(position, max(SCAN_CHUNK, header.size)), position, 0
                if len(piece) < header.size:
                    raise self.damaged(position, "the file was cut there while it was open")
            yield position, header, piece[at : at + header.size]
            position += header.size
        self._check_end(position, end)

    def close(self) -> None:
        self.log.close()

    def delete(self) -> None:
        self.close()
        for suffix in SUFFIXES:
            self._files.remove(self.path(suffix))
