"""A cleaned segment in the making: what survives of each batch, and the files it is written to.

The rules are told in `log.compaction`, which decides what is cleaned, and when a draft takes the place of the segments
it was made from. What is marked [thread] runs in the cleaner's thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from onceflow.config import LONG_MAX, TopicConfig
from onceflow.errors import CorruptLog, StorageError
from onceflow.log.aborted import Aborts
from onceflow.log.checksums import Checksums, Sum
from onceflow.log.files import File, FileSystem
from onceflow.log.segment import SUFFIXES, Segment, file_name
from onceflow.wire.batch import BatchHeader, checksum, read_header
from onceflow.wire.thinning import Span, emptied, spans, thinned, unpacked

__all__ = ["CLEANED_SUFFIX", "Draft", "Part", "Survivors", "cleaned", "note_keys"]

CLEANED_SUFFIX: Final = ".cleaned"
KEY_LENGTH_MAX: Final = 24
"""Longer keys are noted as a hash, which is longer than this, so that no key can be mistaken for one."""
UNPACKED_BYTES_MAX: Final = 1 << 27
"""Twice what a compacted topic takes in a batch: there may be others in it, from before it became one."""
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
    epochs: dict[int, int]
    """Producers of whom only the epoch is remembered, which came with a marker."""
    aborts: Aborts
    _in_transaction: set[int] = field(default_factory=set)
    """Producers of whom there was a transactional batch, and no marker since. Batches have to come in their order."""

    def of(self, header: BatchHeader, batch: bytes) -> bytes:
        """The batch as it goes on: as it is, with fewer records, with none, or not at all (b"")."""
        if header.is_control:
            return self._of_marker(header, batch)
        is_aborted = False
        if header.is_transactional:
            self._in_transaction.add(header.producer_id)
            is_aborted = self.aborts.has(header.producer_id, header.base_offset)
        if header.base_offset >= self.mapped_to:
            return batch
        if is_aborted:
            return self._without_records(header, batch, is_remembered=header.last_offset in self.remembered)
        return self._of_records(header, batch)

    def _of_marker(self, header: BatchHeader, batch: bytes) -> bytes:
        is_needed = header.producer_id in self._in_transaction
        self._in_transaction.discard(header.producer_id)
        if is_needed or header.base_offset >= self.mapped_to:
            return batch
        horizon = header.delete_horizon_ms
        if header.count and horizon is None:
            return self._with_horizon(header, batch)
        if header.count and horizon is not None and horizon > self.now_ms:
            return batch
        is_remembered = self.epochs.get(header.producer_id) == header.producer_epoch
        return self._without_records(header, batch, is_remembered=is_remembered)

    def _with_horizon(self, header: BatchHeader, batch: bytes) -> bytes:
        data = unpacked(header, batch, UNPACKED_BYTES_MAX)
        return thinned(header, data, spans(header, data), delete_horizon_ms=self._horizon())

    def _horizon(self) -> int:
        return min(self.now_ms + self.delete_retention_ms, LONG_MAX)

    @staticmethod
    def _without_records(header: BatchHeader, batch: bytes, *, is_remembered: bool) -> bytes:
        if not is_remembered:
            return b""
        return emptied(header) if header.count else batch

    def _of_records(self, header: BatchHeader, batch: bytes) -> bytes:
        data = unpacked(header, batch, UNPACKED_BYTES_MAX)
        horizon = header.delete_horizon_ms
        tombstones_go = horizon is not None and horizon <= self.now_ms
        latest, mapped_to = self.latest, self.mapped_to

        def stays(span: Span) -> bool:
            _, _, offset, _, key_at, key_size, _, value_size = span
            if offset >= mapped_to:
                return True  # nobody has looked for older records of its key, which would outlive a tombstone
            if key_size < 0 or (tombstones_go and value_size < 0):
                return False
            return latest.get(noted(data, key_at, key_size), -1) <= offset

        kept = 0
        has_tombstones = False
        for span in filter(stays, spans(header, data)):
            kept += 1
            if span[7] < 0:
                has_tombstones = True
        if not kept:
            return self._without_records(header, batch, is_remembered=header.last_offset in self.remembered)
        if has_tombstones and horizon is None:
            return thinned(header, data, filter(stays, spans(header, data)), delete_horizon_ms=self._horizon())
        return batch if kept == header.count else thinned(header, data, filter(stays, spans(header, data)))


class Draft:
    """A cleaned segment in the making: open files named *.cleaned. Made and closed on the loop's thread."""

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

    def write(
        self, parts: list[Part], survivors: Survivors, pace: Callable[[], None], start_offset: int
    ) -> tuple[int, bool]:
        """Write and sync what survives of the first few segments, as many as fit. [thread]

        Returns how many, and whether anything would change. Raises `CorruptLog` at a gap behind the start of the log:
        in one segment with what follows, nobody could tell it from what compaction has removed.
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
                else:
                    changes += 1
                    if survivor:
                        header = read_header(survivor)
                        add(survivor, header)
                aborted = survivors.aborts.of_marker(header.base_offset) if header.is_control else None
                if aborted is not None and survivor and header.count:
                    segment.aborted.add(aborted)
            reached = part.segment.base_offset if last is None else last.last_offset + 1
            if reached < part.end_offset and part.end_offset > start_offset:
                raise CorruptLog(
                    f"{part.segment.log.path} ends at offset {reached}, and the next segment begins at offset "
                    f"{part.end_offset}: records in between are missing."
                )
        if last is not None and not last_stays:
            add(emptied(last), last)
            changes -= last.count == 0  # it was so before
        segment.log.append(waiting)
        if segment.max_timestamp_offset >= 0:
            segment.time_index.add(segment.max_timestamp, segment.max_timestamp_offset)
        self._open[1].append(segment.offset_index.to_bytes())
        self._open[2].append(segment.time_index.to_bytes())
        self._open[3].append(segment.aborted.to_bytes())
        segment.aborted.saved = len(segment.aborted)
        changed = changes > 0 or taken > 1
        if changed:
            segment.index_sums = (_sum(self._open[1]), _sum(self._open[2]), _sum(self._open[3]))
            known = Checksums(segment.base_offset)
            end_offset = parts[taken - 1].end_offset
            segment.checksums = known.extended(segment.log, position, end_offset, segment.index_sums)
            self._open[4].append(segment.checksums.to_bytes())
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


def _sum(file: File) -> Sum:
    return Sum.of_bytes(file.read(0, file.size))


def cleaned(path: Path) -> Path:
    return path.with_name(path.name + CLEANED_SUFFIX)


def noted(data: bytes, key_at: int, key_size: int) -> bytes:
    """A key as it is noted."""
    if key_size <= KEY_LENGTH_MAX:
        return data[key_at : key_at + key_size]
    key = memoryview(data)[key_at : key_at + key_size]
    return hashlib.blake2b(key, digest_size=KEY_LENGTH_MAX + 1, usedforsecurity=False).digest()


def check_sound(segment: Segment, header: BatchHeader, batch: bytes) -> None:
    """Damage must not spread into what is written anew, nor decide what else may go."""
    if checksum(batch) != header.crc:
        raise CorruptLog(f"A batch of {segment.log.path} at offset {header.base_offset} fails its checksum.")


def note_keys(
    segment: Segment, header: BatchHeader, batch: bytes, latest: dict[bytes, int], from_offset: int, keys_max: int
) -> int:
    """Note the offset of every key in a batch from there on, over those that were noted before; returns up to
    where. [thread]

    That is the end of the batch, or less, as soon as there are so many keys.
    """
    check_sound(segment, header, batch)
    data = unpacked(header, batch, UNPACKED_BYTES_MAX)
    for _, _, offset, _, key_at, key_size, _, _ in spans(header, data):
        if key_size >= 0 and offset >= from_offset:
            latest[noted(data, key_at, key_size)] = offset
            if len(latest) >= keys_max:
                return offset + 1
    return header.last_offset + 1
