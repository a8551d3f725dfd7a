"""Record batches as columns of numbers: where each key and value lies, and every record's offset and timestamp.

`wire.records` reads the same format one record after the other and decides what is right: this gives what that gives,
for all records of many batches at once, at a tenth of the cost. No Python object per record comes into being.

1. The records of all batches, unpacked, are laid into one buffer.
2. Where they begin is `record_starts`' task: a record is only found from the one before.
3. From then on everything is a column. A varint of one or two bytes is looked up in a table by the two bytes at its
   place; the few longer ones are read apart.

Invariants:

- Positions only ever grow, and before a length is believed the end of its record is compared: so damaged bytes raise
  `MalformedMessage` and nothing else. Behind the buffer are zeros enough for all that is read before the comparison.
- The checksum of each batch is checked before its records are looked at.
- Headers are read only by who asks for them (`read_headers`); without them a record's last bytes are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from onceflow.errors import MalformedMessage
from onceflow.spark.record_starts import SIZES, VALUES, Bytes, find_starts
from onceflow.wire import batch as wire_batch
from onceflow.wire.batch import ATTRIBUTES_AT, HEADER_SIZE, BatchHeader
from onceflow.wire.compression import decompress
from onceflow.wire.records import RECORD_SIZE_MIN

__all__ = ["UNPACKED_BYTES_MAX", "Headers", "Records", "Spans", "read_headers", "unpack"]

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.signedinteger[Any]]

UNPACKED_BYTES_MAX: Final = 2**30
"""What one batch may unpack to. Kafka has no limit, and what a producer got in must come out again."""
BUFFER_BYTES_MAX: Final = 2**31 - 2**10
"""Arrow counts the bytes of a column with 31 bits."""

_PADDING: Final = bytes(64)
_RECORDS_AT: Final = HEADER_SIZE - ATTRIBUTES_AT
_HEADER_SIZE_MIN: Final = 2


@dataclass(frozen=True)
class Spans:
    """Byte strings in the buffer; the size of one that is null is -1."""

    at: Integers
    sizes: Numbers

    @property
    def ends(self) -> Integers:
        """Where each ends; a null one where it begins."""
        return self.at + np.maximum(self.sizes, 0)

    def __getitem__(self, rows: slice) -> Spans:
        return Spans(self.at[rows], self.sizes[rows])


@dataclass(frozen=True)
class Records:
    """The records of some batches, in columns. Offsets rise strictly."""

    buffer: bytes
    offsets: Integers
    timestamps: Integers
    append_times: npt.NDArray[np.bool_]
    """Whether the timestamp is the broker's."""
    keys: Spans
    values: Spans
    header_counts: Numbers
    headers_at: Integers
    ends: Integers

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, rows: slice) -> Records:
        return Records(
            self.buffer,
            self.offsets[rows],
            self.timestamps[rows],
            self.append_times[rows],
            self.keys[rows],
            self.values[rows],
            self.header_counts[rows],
            self.headers_at[rows],
            self.ends[rows],
        )


def unpack(batches: Iterable[tuple[BatchHeader, memoryview]], part_bytes: int = 2**31) -> Iterator[Records]:
    """The records of these data batches, which must be whole and in order. In one part, or, if they unpack to more than
    `part_bytes`, in several; in none if there are no records.
    """
    sections = _Sections()
    for header, batch in batches:
        sections.add(header, batch)
        if sections.size >= part_bytes:
            yield _columns(sections)
            sections = _Sections()
    if sections.headers:
        yield _columns(sections)


# --- one buffer


class _Sections:
    """The unpacked records of each batch, end to end, and its header."""

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.pieces: list[bytes] = []
        self.first: list[int] = []
        self.last: list[int] = []
        """Where the records of each batch begin and end."""
        self.size = 0

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        raw = _checked(header, batch)
        count, codec = header.count, header.compression
        if count == 0 and len(raw) == _RECORDS_AT:
            return  # what compaction leaves to remember a producer by
        first = self.size
        if codec:
            raw = decompress(codec, memoryview(raw)[_RECORDS_AT:], UNPACKED_BYTES_MAX)
        else:
            first += _RECORDS_AT  # the rest of the header stays in the buffer: nobody looks there
        self.size += len(raw)
        if count <= 0 or count * RECORD_SIZE_MIN > self.size - first:
            raise MalformedMessage(f"{self.size - first} bytes cannot hold the {count} records of the batch.")
        if self.size > BUFFER_BYTES_MAX:
            raise MalformedMessage(f"These batches unpack to more than {BUFFER_BYTES_MAX} bytes: read fewer at once.")
        self.headers.append(header)
        self.pieces.append(raw)
        self.first.append(first)
        self.last.append(self.size)

    def field(self, name: str) -> Integers:
        """A field of all headers."""
        return np.array(list(map(attrgetter(name), self.headers)), dtype=np.int64)


def _checked(header: BatchHeader, batch: memoryview) -> bytes:
    """The batch from its attributes on."""
    if header.magic != wire_batch.MAGIC or header.size != len(batch):
        raise MalformedMessage(f"A batch of magic {header.magic} says it has {header.size} bytes and has {len(batch)}.")
    raw = bytes(batch[ATTRIBUTES_AT:])
    if google_crc32c.value(raw) != header.crc:
        raise MalformedMessage(f"The checksum of the batch at offset {header.base_offset} is wrong.")
    return raw


# --- columns


def _columns(sections: _Sections) -> Records:
    buffer = Bytes(b"".join((*sections.pieces, _PADDING)))
    counts = sections.field("count")
    first, last = np.array(sections.first, dtype=np.int64), np.array(sections.last, dtype=np.int64)
    starts = find_starts(buffer, first, last, counts)
    last_rows = np.cumsum(counts) - 1
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[last_rows] = last

    at = starts + SIZES.take(buffer.pairs[starts])
    at = _after_long_lengths(buffer, starts, at)
    time_deltas, at = _varints(buffer, at + 1, 64)
    offset_deltas, at = _varints(buffer, at)
    _check(
        bool((offset_deltas >= 0).all())
        and bool((offset_deltas[last_rows] <= sections.field("last_offset_delta")).all())
    )
    key_sizes, at = _varints(buffer, at)
    keys = Spans(at, key_sizes)
    at = _passed(keys, ends)
    value_sizes, at = _varints(buffer, at)
    values = Spans(at, value_sizes)
    at = _passed(values, ends)
    header_counts, at = _varints(buffer, at)
    _check_headers(header_counts, at, ends)
    offsets = np.repeat(sections.field("base_offset"), counts) + offset_deltas
    _check(bool((offsets[1:] > offsets[:-1]).all()))
    timestamps, append_times = _timestamps(sections, counts, time_deltas)
    return Records(buffer.whole, offsets, timestamps, append_times, keys, values, header_counts, at, ends)


def _check(is_right: bool) -> None:
    if not is_right:
        raise MalformedMessage("The records of a batch do not fit into each other, or their offsets do not rise.")


def _passed(spans: Spans, ends: Integers) -> Integers:
    """Behind the spans, which must lie inside their records and leave room there for another field."""
    after = spans.ends
    _check(int(spans.sizes.min()) >= -1 and bool((after < ends).all()))
    return after


def _check_headers(counts: Numbers, at: Integers, ends: Integers) -> None:
    """A record without headers ends here; with headers, there must be room for as many as it says."""
    left = ends - at
    if not counts.any():
        _check(not left.any())
    else:
        _check(int(counts.min()) >= 0 and bool((left >= counts * _HEADER_SIZE_MIN).all()))
        _check(not left[counts == 0].any())


def _timestamps(sections: _Sections, counts: Integers, deltas: Numbers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """With log append time, the batch's largest timestamp is that of every record."""
    timestamps = np.repeat(sections.field("base_timestamp"), counts) + deltas  # wraps at 64 bits, as Java's
    is_append_time = sections.field("attributes") & wire_batch.TIMESTAMP_TYPE_BIT != 0
    append_times = np.repeat(is_append_time, counts)
    if is_append_time.any():
        timestamps = np.where(append_times, np.repeat(sections.field("max_timestamp"), counts), timestamps)
    return timestamps, append_times


# --- varints


def _after_long_lengths(buffer: Bytes, starts: Integers, after: Integers) -> Integers:
    """`after`, where the table knew how long the length of the record is, and the right place where it did not."""
    long = np.flatnonzero(after == starts)
    if len(long):
        after[long] += _long_varints(buffer, starts[long], 32)[1]
    return after


def _varints(buffer: Bytes, at: Integers, bits: int = 32) -> tuple[Numbers, Integers]:
    """The numbers at these places, and the places behind them."""
    pairs = buffer.pairs[at]
    sizes = SIZES.take(pairs)
    values: Numbers = VALUES.take(pairs)
    if sizes.min() == 0:
        long = np.flatnonzero(sizes == 0)
        values = values.astype(np.int64)
        values[long], sizes[long] = _long_varints(buffer, at[long], bits)
    return values, at + sizes


def _long_varints(buffer: Bytes, at: Integers, bits: int) -> tuple[Integers, npt.NDArray[np.int8]]:
    """Numbers and sizes, for varints of any size."""
    raw = np.zeros(len(at), dtype=np.uint64)
    sizes = np.zeros(len(at), dtype=np.int8)
    goes_on = np.ones(len(at), dtype=np.bool_)
    for shift in range(0, bits, 7):
        byte = np.where(goes_on, buffer.numbers[at + shift // 7], 0).astype(np.uint64)
        if bits - shift < 7 and int(byte.max()) >> (bits - shift):
            raise MalformedMessage(f"A variable-length number that does not fit {bits} bits.")
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        sizes += goes_on
        goes_on &= byte >= 0x80
    return ((raw >> np.uint64(1)) ^ (np.uint64(0) - (raw & np.uint64(1)))).view(np.int64), sizes


# --- headers


@dataclass(frozen=True)
class Headers:
    """The headers of all records, one after the other."""

    first: Integers
    """Which is the first of each record, and how many there are in all."""
    keys: Spans
    values: Spans


def read_headers(records: Records) -> Headers:
    """Reads the first header of all records, then the second of all that have one, and so on."""
    buffer = Bytes(records.buffer)
    counts = records.header_counts
    first = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)))
    keys, values = (Spans(*np.empty((2, int(first[-1])), dtype=np.int64)) for _ in range(2))
    rows = np.flatnonzero(counts)
    at = records.headers_at[rows]
    done = 0
    while len(rows):
        here = first[rows] + done
        ends = records.ends[rows]
        keys.sizes[here], keys.at[here] = sizes, at = _varints(buffer, at)
        _check(int(sizes.min()) >= 0)
        at = _passed(Spans(at, sizes), ends)
        values.sizes[here], values.at[here] = sizes, at = _varints(buffer, at)
        at = _passed(Spans(at, sizes), ends + 1)
        done += 1
        is_last = counts[rows] == done
        _check(bool((at[is_last] == ends[is_last]).all()))
        rows, at = rows[~is_last], at[~is_last]
    return Headers(first, keys, values)
