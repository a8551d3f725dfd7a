"""A compacted log with a model beside it: every record that was ever written, by offset, and what became of it.

After anything at all happened, `Shop.check` says whether the log still is what compaction may make of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.log import compaction
from onceflow.log.compaction import Cleaner
from onceflow.log.files import FileSystem
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.wire.batch import BatchHeader, batches, read_header
from onceflow.wire.compression import Codec
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records
from tests.support.at_once import accept
from tests.unit.log.support import checkpoint, flush, read_committed

FOLDER = Path("/data/orders-0")
DAY_MS = 86_400_000

Pair = tuple[str | None, str | None]


def settings_of(**changes: Any) -> TopicConfig:
    values: dict[str, Any] = {"compact": True, "delete": False, "index_interval_bytes": 100}
    values.update(min_cleanable_dirty_ratio=0.0, delete_retention_ms=DAY_MS)
    return TopicConfig(**{**values, **changes})


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


MODEL = ("written", "sequences", "epochs", "transactions", "aborted")


class Shop:
    """A log, its cleaner, and all that was ever written to it."""

    def __init__(self, files: FileSystem | None = None, folder: Path = FOLDER, **changes: Any) -> None:
        self.files: Any = files or MemoryFileSystem()
        self.folder = folder
        self.clock = ManualClock()
        self.config = settings_of(**changes)
        self.written: dict[int, Record] = {}
        self.keys_max = compaction.KEYS_MAX
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.transactions: dict[int, list[int]] = {}
        """Open ones: what each producer has written in its own."""
        self.aborted: set[int] = set()
        self.open()

    def open(self) -> None:
        self.log = PartitionLog(self.files, self.folder, self.config, self.clock)
        self.cleaner = Cleaner(self.files, keys_max=self.keys_max)

    def reopen(self, files: FileSystem | None = None) -> None:
        """A new process on what the last one left."""
        self.files = files or self.files
        self.open()

    # Writing

    def write(
        self,
        *pairs: Pair,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        transactional: bool = False,
        by_coordinator: bool = False,
        unchecked: bool = False,
    ) -> int:
        """One batch, on disk and acknowledged. A coordinator writes for a producer and does not count."""
        now_ms = self.clock.now_ms()
        records = [
            Record(at, now_ms + at, encoded(key), encoded(value), (("n", b"%d" % at),) if at % 2 else ())
            for at, (key, value) in enumerate(pairs)
        ]
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 and not by_coordinator else -1
        batch = bytearray(
            build_batch(
                records,
                base_offset=0,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=self.epochs.get(producer_id, 0) if producer_id >= 0 else -1,
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        if sequence >= 0:
            self.sequences[producer_id] = sequence + len(pairs)
        config = TopicConfig() if unchecked else self.config
        view = memoryview(batch)
        base_offset = self.append(*(accept(view, config, now_ms) if not by_coordinator else (view, read_header(view))))
        if transactional:
            self.transactions.setdefault(producer_id, []).extend(range(base_offset, base_offset + len(pairs)))
        stamp = now_ms if self.config.append_time else None
        for record in records:
            timestamp = record.timestamp if stamp is None else stamp
            offset = base_offset + record.offset
            self.written[offset] = record._replace(offset=offset, timestamp=timestamp)
        return base_offset

    def append(self, batch: memoryview, header: BatchHeader) -> int:
        base_offset = self.log.append(batch, header).base_offset
        flush(self.log)
        return base_offset

    def transaction(self, *pairs: Pair, producer_id: int, commit: bool = True, **options: Any) -> None:
        """One batch and its marker."""
        self.write(*pairs, producer_id=producer_id, transactional=True, **options)
        self.end(producer_id, commit=commit)

    def end(self, producer_id: int, *, commit: bool = True, bumped: bool = False) -> int:
        """A marker, on disk; the offset of it. `bumped`: as in V2."""
        if bumped:
            self.epochs[producer_id] = self.epochs.get(producer_id, 0) + 1
            self.sequences[producer_id] = 0
        marker = EndTxnMarker(commit, 0)
        offset = self.log.append_marker(producer_id, self.epochs.get(producer_id, 0), marker, bumped=bumped)
        flush(self.log)
        written = self.transactions.pop(producer_id, [])
        if not commit:
            self.aborted.update(written)
        return offset

    def roll(self) -> None:
        """Seal what was written and make a checkpoint, as the broker does half a second later."""
        self.log.roll()
        self.checkpoint()

    def checkpoint(self) -> None:
        checkpoint(self.log)

    def segment(self, *pairs: Pair, **options: Any) -> None:
        """A sealed segment of one batch."""
        self.write(*pairs, **options)
        self.roll()

    # Compacting

    @property
    def is_due(self) -> bool:
        return bool(self.cleaner.due([self.log], self.clock.now_ms()))

    def compact(self) -> None:
        for step in self.cleaner.clean(self.log, self.clock.now_ms()):
            step()

    # Reading

    def batches(self) -> Iterator[tuple[BatchHeader, bytes]]:
        offset = self.log.start_offset
        while data := self.log.read(offset, 200):
            for header, batch in batches(data):
                assert header.last_offset >= offset
                yield header, bytes(batch)
                offset = header.last_offset + 1

    def stored(self) -> list[tuple[BatchHeader, bytes]]:
        """All batches, also those that no reader is shown."""
        return [(header, batch) for segment in self.log.segments for _, header, batch in segment.batches()]

    def records(self) -> list[Record]:
        return [
            record
            for header, batch in self.batches()
            if not header.is_control
            for record in read_records(batch)
            if record.offset >= self.log.start_offset
        ]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records()]

    def view(self) -> dict[str, str]:
        """What a reader of all that was committed knows in the end."""
        known: dict[str, str] = {}
        for record in read_committed(self.log):
            assert record.key is not None
            if record.value is None:
                known.pop(record.key.decode(), None)
            else:
                known[record.key.decode()] = record.value.decode()
        return known

    def committed(self) -> dict[int, Record]:
        """Up to the first transaction that is open."""
        opened = [min(written) for written in self.transactions.values()]
        stable = min([*opened, self.log.high_watermark])
        assert self.log.last_stable_offset == max(stable, self.log.start_offset)
        return {o: record for o, record in self.written.items() if o < stable and o not in self.aborted}

    def should_be_seen(self) -> dict[str, str]:
        known: dict[str, str] = {}
        for offset, record in self.committed().items():
            assert record.key is not None
            known.pop(record.key.decode(), None)
            if record.value is not None and offset >= self.log.start_offset:
                known[record.key.decode()] = record.value.decode()
        return known

    def names(self) -> list[str]:
        return [name for name in self.files.list(self.folder) if not name.endswith(".snapshot")]

    def check(self) -> None:
        records = self.records()
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        for record in records:
            assert record == self.written[record.offset]
        assert self.view() == self.should_be_seen()
        last: dict[bytes | None, Record] = {record.key: record for record in self.committed().values()}
        for record in last.values():
            if record.value is None and record.timestamp + self.config.delete_retention_ms > self.clock.now_ms() + 1000:
                assert record.offset in offsets or record.offset < self.log.start_offset
        self.check_files()
        self.check_aborted()

    def check_aborted(self) -> None:
        """Each aborted record has its entry, and each entry its marker, in the same segment."""
        entries = [entry for segment in self.log.segments for entry in segment.aborted]
        for record in self.records():
            is_aborted = any(entry.first_offset <= record.offset < entry.last_offset for entry in entries)
            assert is_aborted or record.offset not in self.aborted
        for segment in self.log.segments:
            markers = {header.base_offset: header for _, header in segment.headers(0) if header.is_control}
            for entry in segment.aborted:
                assert markers[entry.last_offset].count == 1
                assert markers[entry.last_offset].producer_id == entry.producer_id

    def check_files(self) -> None:
        """Each batch is found through the index, and sound."""
        for segment in self.log.segments:
            for position, header, _ in segment.batches():
                assert segment.offset_index.position_for(header.base_offset) <= position
                assert segment.locate(header.base_offset, segment.size) == (position, header)
                assert segment.newest[0] >= header.max_timestamp
            assert segment.size or segment is self.log.active
        assert [segment.base_offset for segment in self.log.segments] == self.log._bases


def remembered(log: PartitionLog) -> dict[int, Any]:
    return {
        id: (p.epoch, [(b.last_sequence, b.last_offset, b.offset_delta) for b in p.batches]) for id, p in log.producers
    }


def cloned(shop: Shop) -> Shop:
    clone = Shop.__new__(Shop)
    clone.__dict__.update(copy.deepcopy({name: shop.__dict__[name] for name in MODEL}))
    clone.__dict__.update({name: value for name, value in shop.__dict__.items() if name not in MODEL})
    clone.reopen(shop.files.kill())
    return clone


def after_power_loss(files: MemoryFileSystem, seed: int) -> MemoryFileSystem:
    chance = random.Random(seed)
    return files.crash(chance) if seed % 2 else files.kill().crash(chance)
