"""What the files of a segment are known to hold: the file `.checksums` beside them.

Invariants:

- It says: the first `size` bytes of the log, and so many bytes of each index, are on disk, and these are their
  checksums. All of that was synced before; so a file that does not hold it was changed by something else.
- Every checkpoint brings that of each segment which may have grown up to date, before its snapshot. So below the newest
  snapshot every segment has one, and ends where the next one begins, or at or behind the snapshot.
- A log that is cut below `size` loses its checksums first, for good. Only a failed flush does that.
- Checksums are of blocks, and the last one of what there is of its block. The next checkpoint extends it with what came
  after, without reading the rest again: what was changed meanwhile does not get a right checksum that way.

They are read when a log is opened, which finds files that were cut, emptied, grew or are missing. A changed byte is
found when its block is read for the first time in a process (`Unverified`), before anything of it is served: opening a
log does not read it, and a block that was read costs nothing any more.

    version int16 | crc uint32 of what follows | base offset int64 | size int64 | end offset int64
    three times, for .index, .timeindex and .txnindex: size int64, crc uint32
    size of a block int32 | number of whole blocks int32 | crc uint32 of each, and of what is behind them
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from onceflow.errors import CorruptLog, StorageError
from onceflow.log.files import File

__all__ = ["BLOCK_SIZE", "NO_INDEXES", "RESTORE", "Checksums", "Sum", "Unverified"]

BLOCK_SIZE: Final = 256 * 1024
RESTORE: Final = (
    "Something other than the broker has changed it. Stop the broker and restore the folder from a backup of the "
    "directory."
)
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_BODY: Final = struct.Struct(">qqqqIqIqIii")


class Sum(NamedTuple):
    """So many bytes from the start of a file, and their checksum."""

    size: int
    crc: int

    @classmethod
    def of_bytes(cls, data: bytes) -> Sum:
        return cls(len(data), int(google_crc32c.value(data)))

    def is_of(self, data: bytes) -> bool:
        """Whether the file whose content is `data` begins with them."""
        return len(data) >= self.size and int(google_crc32c.value(data[: self.size])) == self.crc


NOTHING: Final = Sum(0, 0)
NO_INDEXES: Final = (NOTHING, NOTHING, NOTHING)


class Checksums:
    """A value: what a checkpoint adds makes a new one."""

    __slots__ = ("base_offset", "blocks", "end_offset", "indexes", "size", "tail")

    def __init__(
        self,
        base_offset: int,
        size: int = 0,
        end_offset: int = -1,
        indexes: tuple[Sum, Sum, Sum] = NO_INDEXES,
        blocks: array[int] | None = None,
        tail: int = 0,
    ) -> None:
        self.base_offset = base_offset
        self.size = size
        self.end_offset = max(end_offset, base_offset)
        """The offset behind the last batch of what is vouched for."""
        self.indexes = indexes
        """Of .index, .timeindex and .txnindex."""
        self.blocks = array("I") if blocks is None else blocks
        self.tail = tail

    def extended(self, log: File, size: int, end_offset: int, indexes: tuple[Sum, Sum, Sum]) -> Checksums:
        """With what the log has grown by. Reads that, in pieces of a block."""
        known = self if self.size <= size else Checksums(self.base_offset)
        blocks, tail, at = known.blocks[:], known.tail, known.size
        while at < size:
            until = min(size, (at // BLOCK_SIZE + 1) * BLOCK_SIZE)
            data = log.read(at, until - at)
            if len(data) != until - at:
                raise StorageError(f"{log.path} was cut while its checksums were made.")
            tail = int(google_crc32c.extend(tail, data))
            if until % BLOCK_SIZE == 0:
                blocks.append(tail)
                tail = 0
            at = until
        return Checksums(self.base_offset, size, end_offset, indexes, blocks, tail)

    def crc_of(self, block: int) -> int:
        return self.blocks[block] if block < len(self.blocks) else self.tail

    def to_bytes(self) -> bytes:
        flat = [number for each in self.indexes for number in each]
        body = _BODY.pack(
            self.base_offset, self.size, self.end_offset, *flat, BLOCK_SIZE, len(self.blocks)
        )  # fmt: skip
        sums = struct.pack(f">{len(self.blocks) + 1}I", *self.blocks, self.tail)
        return _HEAD.pack(_VERSION, google_crc32c.value(body + sums)) + body + sums

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> Checksums | None:
        """None if that is not one, or not one of this segment."""
        if len(data) < _HEAD.size + _BODY.size:
            return None
        version, crc = _HEAD.unpack_from(data)
        if version != _VERSION or google_crc32c.value(data[_HEAD.size :]) != crc:
            return None
        base, size, end_offset, *flat, block_size, count = _BODY.unpack_from(data, _HEAD.size)
        sums_at = _HEAD.size + _BODY.size
        if base != base_offset or block_size != BLOCK_SIZE or len(data) != sums_at + 4 * (count + 1):
            return None
        *blocks, tail = struct.unpack_from(f">{count + 1}I", data, sums_at)
        indexes = (Sum(*flat[0:2]), Sum(*flat[2:4]), Sum(*flat[4:6]))
        return cls(base, size, end_offset, indexes, array("I", blocks), tail)


class Unverified:
    """Blocks of a log that nobody has read in this process, or not all of them."""

    __slots__ = ("_checksums", "_seen")

    def __init__(self, checksums: Checksums) -> None:
        self._checksums = checksums
        self._seen = bytearray(-(-checksums.size // BLOCK_SIZE))

    @property
    def is_over(self) -> bool:
        return 0 not in self._seen

    def verify(self, log: File, start: int, end: int) -> None:
        """Raise `CorruptLog` unless all blocks with bytes from `start` up to `end` are as they were written."""
        for block in range(start // BLOCK_SIZE, min(-(-end // BLOCK_SIZE), len(self._seen))):
            if not self._seen[block]:
                self._verify(log, block)

    def _verify(self, log: File, block: int) -> None:
        start = block * BLOCK_SIZE
        end = min(start + BLOCK_SIZE, self._checksums.size)
        data = log.read(start, end - start)
        if len(data) != end - start or google_crc32c.value(data) != self._checksums.crc_of(block):
            raise damaged(log.path, start, f"the bytes from there up to {end} fail their checksum")
        self._seen[block] = 1


def damaged(path: Path, position: int, reason: str) -> CorruptLog:
    return CorruptLog(f"{path} is damaged at position {position}: {reason}. {RESTORE}")
