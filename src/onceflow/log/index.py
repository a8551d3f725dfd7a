"""Sparse indexes: where in a segment an offset, or a time, is to be found.

One entry about every `index.interval.bytes` of log, in Kafka's file formats:

    .index      (int32 offset - base, int32 position)     the batch at that position ends with that offset
    .timeindex  (int64 timestamp, int32 offset - base)    nothing up to the batch of that offset is newer than that

Indexes are hints that save reading. They are never synced on the write path: entries wait in memory until the next
checkpoint, and after a crash those behind the checkpoint are made again while the tail of the log is checked.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import ClassVar, Final

import google_crc32c

from onceflow.log.checksums import Sum
from onceflow.log.files import File

__all__ = ["OffsetIndex", "SavedIndex", "TimeIndex"]

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")


class SavedIndex:
    """Entries that are in a file, all of them or the first ones, and its checksum."""

    __slots__ = ("crc", "file", "saved")
    entry_size: ClassVar[int]

    def __init__(self) -> None:
        self.saved = 0
        """How many entries are in the file."""
        self.file: File | None = None
        """The file that they were last saved through; whether it could be synced is known only later."""
        self.crc: int | None = 0
        """Of what is in the file; None if it has to be computed."""

    def __len__(self) -> int:
        raise NotImplementedError

    def to_bytes(self, start: int = 0) -> bytes:
        """The entries from one on, as they stand in the file."""
        raise NotImplementedError

    @property
    def sum(self) -> Sum:
        """Of what is in the file."""
        return Sum(self.saved * self.entry_size, self.known_crc())

    def known_crc(self) -> int:
        if self.crc is None:
            self.crc = int(google_crc32c.value(self.to_bytes()[: self.saved * self.entry_size]))
        return self.crc

    def keep_saved(self, count: int) -> None:
        """No more than so many entries count as saved: those behind them were cut."""
        if count < self.saved:
            self.saved, self.crc = count, None

    def was_loaded(self, data: bytes) -> None:
        """All entries come from a file with this content."""
        self.saved, self.crc = len(self), int(google_crc32c.value(data))


class OffsetIndex(SavedIndex):
    """Entries (last offset of a batch - base, position of that batch), both rising."""

    __slots__ = ("_base", "_offsets", "_positions")
    entry_size = _OFFSET_ENTRY.size

    def __init__(self, base_offset: int) -> None:
        super().__init__()
        self._base = base_offset
        self._offsets = array("q")
        self._positions = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self._base)
        self._positions.append(position)

    def position_for(self, offset: int) -> int:
        """A batch boundary at or before the batch that holds `offset`."""
        at = bisect_right(self._offsets, offset - self._base)
        return self._positions[at - 1] if at else 0

    def offset_after(self, position: int) -> int | None:
        """An offset that no batch before this position reaches; None if only the end of the segment is one."""
        at = bisect_left(self._positions, position)
        return self._base + self._offsets[at] if at < len(self._offsets) else None

    def cut(self, position: int, offset: int) -> None:
        """Forget entries at or behind a position in the log, which is that of an offset.

        By both: of an entry that was torn while it was written, the end of the position may be missing.
        """
        keep = min(bisect_left(self._positions, position), bisect_left(self._offsets, offset - self._base))
        del self._offsets[keep:], self._positions[keep:]
        self.keep_saved(keep)

    def to_bytes(self, start: int = 0) -> bytes:
        pack = _OFFSET_ENTRY.pack
        return b"".join(map(pack, self._offsets[start:], self._positions[start:]))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes | None) -> OffsetIndex | None:
        """The index in `data`, or None if that is not one."""
        index = cls(base_offset)
        if data is None or len(data) % _OFFSET_ENTRY.size:
            return None
        previous = (
            -1,
            0,
        )  # the batch at position 0 never has an entry: one that says so is a page that was never written
        for entry in _OFFSET_ENTRY.iter_unpack(data):
            if entry[0] <= previous[0] or entry[1] <= previous[1]:
                return None
            index._offsets.append(entry[0])
            index._positions.append(entry[1])
            previous = entry
        index.was_loaded(data)
        return index


class TimeIndex(SavedIndex):
    """Entries (largest timestamp so far, offset - base of its batch), timestamps rising."""

    __slots__ = ("_base", "_offsets", "_timestamps")
    entry_size = _TIME_ENTRY.size

    def __init__(self, base_offset: int) -> None:
        super().__init__()
        self._base = base_offset
        self._timestamps = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int] | None:
        """(timestamp, offset) of the last entry."""
        return (self._timestamps[-1], self._offsets[-1] + self._base) if self._timestamps else None

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry if it says something new: only a larger timestamp does."""
        if not self._timestamps or timestamp > self._timestamps[-1]:
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base)

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record with at least this timestamp."""
        at = bisect_left(self._timestamps, timestamp)
        return self._base + (self._offsets[at - 1] if at else 0)

    def cut(self, offset: int) -> None:
        """Forget entries of offsets at or behind one."""
        keep = bisect_left(self._offsets, offset - self._base)
        del self._offsets[keep:], self._timestamps[keep:]
        self.keep_saved(keep)

    def to_bytes(self, start: int = 0) -> bytes:
        pack = _TIME_ENTRY.pack
        return b"".join(map(pack, self._timestamps[start:], self._offsets[start:]))

    @classmethod
    def from_bytes(cls, base_offset: int, data: bytes | None) -> TimeIndex | None:
        index = cls(base_offset)
        if data is None or len(data) % _TIME_ENTRY.size:
            return None
        previous = (-(2**63), -1)
        for entry in _TIME_ENTRY.iter_unpack(data):
            # (0, 0) is a page that was never written, or rare enough to read the segment for.
            if entry[0] <= previous[0] or entry[1] <= previous[1] or entry == (0, 0):
                return None
            index._timestamps.append(entry[0])
            index._offsets.append(entry[1])
            previous = entry
        index.was_loaded(data)
        return index
