"""Aborted transactions of a segment: what a read_committed reader is told to skip.

An entry belongs to the segment that holds the abort marker, in Kafka's file format (`.txnindex`):

    version int16 (0) | producer id int64 | first offset int64 | last offset int64 | last stable offset int64

The last offset is the marker's. The last stable offset is that of the moment after the marker. It rises from entry to
entry, so a reader who wants the transactions that touch offsets below some bound may stop at the first entry whose last
stable offset is at or above it: whatever was aborted later began at or after it.

Like the other indexes it waits in memory for the next checkpoint, and what lies behind the checkpoint is made again
from the log. A segment without aborted transactions has no file, or an empty one.

It is no hint, as the other indexes are. A record of an aborted transaction without its entry would be read as a
committed one. An entry without its marker would be as bad: a reader skips all from the producer until it comes to that.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from onceflow.errors import CorruptLog
from onceflow.log.index import SavedIndex

__all__ = ["AbortedIndex", "AbortedTransaction", "Aborts"]

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
    last_stable_offset: int


_LAST_OFFSET: Final = attrgetter("last_offset")


class AbortedIndex(SavedIndex):
    __slots__ = ("_entries",)
    entry_size = _ENTRY.size

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        super().__init__()
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)

    def touching(self, offset: int, bound: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions with anything from `offset` up to, but without, `bound`; whether later ones have nothing."""
        touched = []
        for at in range(bisect_left(self._entries, offset, key=_LAST_OFFSET), len(self._entries)):
            entry = self._entries[at]
            if entry.first_offset < bound:
                touched.append(entry)
            if entry.last_stable_offset >= bound:
                return touched, True
        return touched, False

    def cut(self, offset: int) -> bool:
        """Forget transactions that ended at or behind an offset; whether there were any."""
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        was_cut = len(kept) < len(self._entries)
        self._entries = kept
        self.keep_saved(len(kept))
        return was_cut

    def to_bytes(self, start: int = 0) -> bytes:
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[start:])

    @classmethod
    def from_bytes(cls, data: bytes, name: object) -> AbortedIndex:
        if len(data) % _ENTRY.size:
            raise CorruptLog(f"{name} does not hold whole entries.")
        entries = []
        previous = 0
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            # A page that was never written is all zeros; but a marker comes after what it ends.
            is_sound = 0 <= entry.first_offset < entry.last_offset and entry.last_stable_offset >= 0
            if version != _VERSION or not is_sound or not previous < entry.last_offset >= entry.last_stable_offset - 1:
                raise CorruptLog(f"{name} holds an entry that is none: {entry}.")
            entries.append(entry)
            previous = entry.last_offset
        index = cls(entries)
        index.was_loaded(data)
        return index


class Aborts:
    """All aborted transactions of a log, in the order of their markers, for who goes through its batches."""

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._by_marker: dict[int, AbortedTransaction] = {}
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in entries:
            self._by_marker[entry.last_offset] = entry
            self._ranges.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))

    def of_marker(self, offset: int) -> AbortedTransaction | None:
        """What the marker at an offset aborted, if anything."""
        return self._by_marker.get(offset)

    def has(self, producer_id: int, offset: int) -> bool:
        """Whether what a producer wrote at an offset, in a transaction, was aborted."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        # A producer has one transaction at a time, so its ranges do not overlap.
        at = bisect_right(ranges, offset, key=_first_of) - 1
        return at >= 0 and offset < ranges[at][1]


def _first_of(begin_and_end: tuple[int, int]) -> int:
    return begin_and_end[0]
