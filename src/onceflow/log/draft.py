"""A cleaned segment in the making: what survives of each batch, and the files it is written to.

The rules are told in `log.compaction`, which decides what is cleaned, and when a draft takes the place of the segments
it was made from. What is marked [thread] runs in the cleaner's thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onceflow.config import LONG_MAX, TopicConfig
from onceflow.errors import CorruptLog, StorageError
from onceflow.log.files import File, FileSystem
from onceflow.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment, file_name
from onceflow.wire.batch import BatchHeader, checksum, read_header
from onceflow.wire.thinning import Span, emptied, spans, thinned, unpacked

__all__ = ["CLEANED_SUFFIX", "SUFFIXES", "Draft", "Part", "Survivors", "cleaned", "note_keys"]

CLEANED_SUFFIX: Final = ".cleaned"
SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
KEY_LENGTH_MAX: Final = 24
"""Longer keys are noted as a hash, which is longer than this, so that no key can be mistaken for one."""
UNPACKED_BYTES_MAX: Final = 1 << 28
WRITE_CHUNK: Final = 1 << 20
INDEXED_POSITION_MAX: Final = 2**31 - 1
RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Part:
    """A segment and where the next one begins."""

    segment: Segment
    end_offset: int


@dataclass(slots=True)
class Survivors:
    """Decides what stays of a batch."""

    latest: dict[bytes, int]
    mapped_to: int
    """`latest` knows all records from the start of the dirty range to here; nothing from here on is touched."""
    now_ms: int
    delete_retention_ms: int
    remembered: set[int]
    """Last offsets of the batches that producers are remembered by."""

    def of(self, header: BatchHeader, batch: bytes) -> bytes:
        """The batch as it goes on: as it is, with fewer records, with none, or not at all (b"")."""
        # TRANSACTIONS: markers may go when nothing of their transaction is left; until somebody counts, they stay.
        if header.base_offset >= self.mapped_to or header.is_control:
            return batch
        data = unpacked(header, batch, UNPACKED_BYTES_MAX)
        horizon = header.delete_horizon_ms
        tombstones_go = horizon is not None and horizon <= self.now_ms
        kept: list[Span] = []
        has_tombstones = False
        latest = self.latest
        for span in spans(header, data):
            _, _, offset, key, has_value = span
            if key is None or latest.get(key if len(key) <= KEY_LENGTH_MAX else digest(key), -1) > offset:
                continue
            if not has_value:
                if tombstones_go:
                    continue
                has_tombstones = True
            kept.append(span)
        if not kept:
            if header.last_offset not in self.remembered:
                return b""
            return emptied(header) if header.count else batch
        # TRANSACTIONS: an aborted tombstone deletes nothing, so it must not be counted on. No horizon, no end.
        if has_tombstones and horizon is None and not header.is_transactional:
            horizon = min(self.now_ms + self.delete_retention_ms, LONG_MAX)
            return thinned(header, data, kept, delete_horizon_ms=horizon)
        return batch if len(kept) == header.count else thinned(header, data, kept)


class Draft:
    """A cleaned segment in the making: three open files named *.cleaned. Made and closed on the loop's thread."""

    def __init__(self, files: FileSystem, directory: Path, base_offset: int, config: TopicConfig) -> None:
        self._files = files
        self._base = directory / file_name(base_offset, "")
        self._config = config
        self._open: list[File] = []
        self.is_adopted = False
        """The log's file is now that of a segment in use."""
        try:
            for suffix in SUFFIXES:
                self._open.append(files.open(self.path(suffix)))
        except StorageError:
            self.close()
            raise
        self.segment = Segment(files, directory, base_offset, self._open[0])

    def path(self, suffix: str) -> Path:
        return cleaned(self._base.with_name(self._base.name + suffix))

    def write(self, parts: list[Part], survivors: Survivors, pace: Callable[[], None]) -> tuple[int, bool]:
        """Write and sync what survives of the first few segments, as many as fit. [thread]

        Returns how many, and whether anything would change.
        """
        for file in self._open:
            if file.size:  # left behind by an attempt that failed
                file.truncate(0)
        segment = self.segment
        segment.start_indexes()
        waiting = bytearray()
        position = taken = changes = 0
        last, last_stays = None, True

        def add(batch: bytes, header: BatchHeader) -> None:
            nonlocal position
            interval = self._config.index_interval_bytes if position <= INDEXED_POSITION_MAX else LONG_MAX
            segment.note(position, len(batch), header.last_offset, header.max_timestamp, interval)
            position += len(batch)
            waiting.extend(batch)
            if len(waiting) >= WRITE_CHUNK:
                segment.log.append(waiting)
                waiting.clear()

        for part in parts:
            if taken and not self._has_room_for(part, position):
                break
            taken += 1
            for _, header, batch in part.segment.batches():
                pace()
                check_sound(part.segment, header, batch)
                survivor = survivors.of(header, batch)
                last, last_stays = header, bool(survivor)
                if survivor is batch:
                    add(batch, header)
                    continue
                changes += 1
                if survivor:
                    add(survivor, read_header(survivor))
        if last is not None and not last_stays:
            add(emptied(last), last)
            changes -= last.count == 0  # it was so before
        segment.log.append(waiting)
        if segment.max_timestamp_offset >= 0:
            segment.time_index.add(segment.max_timestamp, segment.max_timestamp_offset)
        self._open[1].append(segment.offset_index.to_bytes())
        self._open[2].append(segment.time_index.to_bytes())
        changed = changes > 0 or taken > 1
        if changed:
            for file in self._open:
                file.sync()
        return taken, changed

    def _has_room_for(self, part: Part, size: int) -> bool:
        """Whether a segment fits in here too, even if all of it stays.

        Kafka (`groupSegmentsBySize`) asks before cleaning, and needs several rounds to make one of many small ones.
        """
        fits = size == 0 or size + part.segment.size <= self._config.segment_bytes
        return fits and part.end_offset - 1 - self.segment.base_offset <= RELATIVE_OFFSET_MAX

    def remove(self) -> None:
        for suffix in SUFFIXES:
            self._files.remove(self.path(suffix))

    def close(self) -> None:
        for file in self._open[1 if self.is_adopted else 0 :]:
            file.close()


def cleaned(path: Path) -> Path:
    return path.with_name(path.name + CLEANED_SUFFIX)


def digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=KEY_LENGTH_MAX + 1, usedforsecurity=False).digest()


def check_sound(segment: Segment, header: BatchHeader, batch: bytes) -> None:
    """Damage must not spread into what is written anew, nor decide what else may go."""
    if checksum(batch) != header.crc:
        raise CorruptLog(f"A batch of {segment.log.path} at offset {header.base_offset} fails its checksum.")


def note_keys(segment: Segment, header: BatchHeader, batch: bytes, latest: dict[bytes, int]) -> None:
    """Note the offset of every key in a batch, over those that were noted before. [thread]"""
    check_sound(segment, header, batch)
    for _, _, offset, key, _ in spans(header, unpacked(header, batch, UNPACKED_BYTES_MAX)):
        if key is not None:
            latest[key if len(key) <= KEY_LENGTH_MAX else digest(key)] = offset
