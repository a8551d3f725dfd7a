"""Aborted transactions of a segment: what a read_committed reader is told to skip.

An entry belongs to the segment that holds the abort marker, in Kafka's file format (`.txnindex`):

    version int16 (0) | producer id int64 | first offset int64 | last offset int64 | last stable offset int64

The last offset is the marker's. The last stable offset is that of the moment after the marker. It rises from entry to
entry, so a reader who wants the transactions that touch offsets below some bound may stop at the first entry whose last
stable offset is at or above it: whatever was aborted later began at or after it.

Like the other indexes it waits in memory for the next checkpoint, and what lies behind the checkpoint is made again
from the log. A segment without aborted transactions has no file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from onceflow.errors import CorruptLog
from onceflow.log.files import File

__all__ = ["AbortedIndex", "AbortedTransaction"]

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
    last_stable_offset: int


class AbortedIndex:
    __slots__ = ("_entries", "file", "saved")
    entry_size = _ENTRY.size

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)
        self.saved = 0
        """How many entries are in the file."""
        self.file: File | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        self._entries.append(entry)

    def cut(self, offset: int) -> bool:
        """Forget transactions that ended at or behind an offset; whether there were any."""
        kept = [entry for entry in self._entries if entry.last_offset < offset]
        was_cut = len(kept) < len(self._entries)
        self._entries = kept
        self.saved = min(self.saved, len(kept))
        return was_cut

    def to_bytes(self, start: int = 0) -> bytes:
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[start:])

    @classmethod
    def from_bytes(cls, data: bytes, name: object) -> AbortedIndex:
        if len(data) % _ENTRY.size:
            raise CorruptLog(f"{name} does not hold whole entries.")
        entries = []
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION or not 0 <= entry.first_offset <= entry.last_offset:
                raise CorruptLog(f"{name} holds an entry that is none: {entry}.")
            entries.append(entry)
        index = cls(entries)
        index.saved = len(index)
        return index
