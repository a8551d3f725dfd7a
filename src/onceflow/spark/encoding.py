"""Arrow columns to record batches, without a Python object per record.

A record is a few numbers and a few payloads in turn:

    length, attributes, timestamp delta, offset delta, key length | key | value length | value | header count | headers

The numbers of all records become columns of varints, glued together row by row; the payloads stay the Arrow columns
they are. Arrow joins all these row by row: the data of the result are the record section of the batch. Headers are
made in the same way, one level below.

Invariants:

- The bytes are those that `wire.records.build_batch` makes of the same records, in particular: varints are as short as
  can be, the base timestamp is the first record's, `max_timestamp` the largest.
- Rows keep their order. Offset deltas are 0, 1, 2..., as an idempotent producer's must be.
- No batch, before compression, is larger than `batch_bytes_max`, unless one record alone is.
- What Kafka's own producer refuses (a timestamp before 1970, a header without a key) raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceflow.spark.columns import array_of, binary_array, binary_of, binary_scalar, ends_of, lengths_of, stable_order
from onceflow.spark.varints import NULL, ZERO, glued, interleaved, size_of, varints
from onceflow.wire import batch as wire_batch
from onceflow.wire.batch import ATTRIBUTES_AT, HEADER, HEADER_SIZE
from onceflow.wire.compression import Codec, compress

__all__ = ["BATCH_BYTES_MAX", "Packed", "Rows", "header_section", "pack", "pack_by_partition", "record_sizes"]

BATCH_BYTES_MAX: Final = 1_000_000
"""Below Kafka's default `max.message.bytes` of 1,048,588, even where compression makes random bytes longer."""

_NO_HEADERS: Final = binary_scalar(b"\x00")
"""The header count of a record without."""

Milliseconds = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Records to be: columns of the same length, in the order in which they are to be written."""

    values: pa.Array
    keys: pa.Array | None = None
    headers: pa.ListArray | None = None
    """Lists of structs of a key (a string, never null) and a value (binary, may be null). A null list is empty."""
    timestamps_ms: Milliseconds | None = None
    every_header: bytes | None = None
    """The headers of each and every row, as `header_section` makes them, if there is no column of headers."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", binary_of(self.values))
        if self.keys is not None:
            object.__setattr__(self, "keys", binary_of(self.keys))
        for name in ("keys", "headers", "timestamps_ms"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.values):
                raise ValueError(f"{len(column)} {name} for {len(self.values)} values.")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """The bytes of keys, values and headers. Of a slice: those of the slice."""
        columns = [self.values, self.keys, *(() if self.headers is None else self.headers.flatten().flatten())]
        return sum(_nbytes(binary_of(column)) for column in columns if column is not None)

    def take(self, indices: npt.NDArray[np.int64]) -> Rows:
        """These rows, in this order."""
        chosen = array_of(indices)
        return Rows(
            values=self.values.take(chosen),
            keys=None if self.keys is None else self.keys.take(chosen),
            headers=None if self.headers is None else self.headers.take(chosen),
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[indices],
            every_header=self.every_header,
        )

    def slice(self, start: int, length: int) -> Rows:
        """`length` rows from `start` on, without copying them."""
        return Rows(
            values=self.values.slice(start, length),
            keys=None if self.keys is None else self.keys.slice(start, length),
            headers=None if self.headers is None else self.headers.slice(start, length),
            timestamps_ms=None if self.timestamps_ms is None else self.timestamps_ms[start : start + length],
            every_header=self.every_header,
        )


def _nbytes(column: pa.Array) -> int:
    return int(np.maximum(lengths_of(column), 0).sum(dtype=np.int64))


def _by_partition(codes: npt.NDArray[np.integer[Any]]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """The rows ordered by partition, stably, and where each partition begins among them."""
    if not len(codes) or (codes == codes[0]).all():
        return np.arange(len(codes)), [0]
    order = stable_order(codes)
    ordered = codes[order]
    return order, [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()]


# --- batches


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A batch without its producer: ready but for what is known only when it is its turn to be sent."""

    codec: Codec
    base_timestamp: int
    max_timestamp: int
    count: int
    records: bytes | pa.Buffer
    """Compressed, if there is a codec. Not copied before it must be."""

    @property
    def size(self) -> int:
        """Of the sealed batch."""
        return HEADER_SIZE + len(self.records)

    def sealed(self, producer_id: int, epoch: int, base_sequence: int, transactional: bool) -> bytes:
        """The whole batch, to be sent as it is."""
        attributes = self.codec | (wire_batch.TRANSACTIONAL_BIT if transactional else 0)
        times = (self.base_timestamp, self.max_timestamp)
        tail = (attributes, self.count - 1, *times, producer_id, epoch, base_sequence, self.count)
        before = (0, self.size - wire_batch.OVERHEAD, -1, wire_batch.MAGIC)
        # The checksum is of the tail and the records, which are not yet side by side: the library takes them in turn.
        checked = google_crc32c.value(HEADER.pack(*before, 0, *tail)[ATTRIBUTES_AT:])
        checksum = google_crc32c.extend(checked, self.records)
        return b"".join((HEADER.pack(*before, checksum, *tail), self.records))


def pack(
    rows: Rows,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    now_ms: int,
) -> Iterator[Packed]:
    """The rows, all of one partition, in few batches. Without timestamps, `now_ms` is that of all rows."""
    return _pack(rows, [0, len(rows)], codec, level, batch_bytes_max, now_ms)


def pack_by_partition(
    rows: Rows,
    partitions: npt.NDArray[np.integer[Any]],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    now_ms: int,
) -> Iterator[tuple[int, Packed]]:
    """The rows of each partition in batches of their own, with the partition of each batch.

    Where partitions are many and get few rows each this is much cheaper than to `pack` those of each: most of the work
    is done once for all of them.
    """
    ordered, starts = _by_partition(partitions)
    if len(starts) > 1:
        rows, partitions = rows.take(ordered), partitions[ordered]
    start = 0
    for packed in _pack(rows, [*starts, len(rows)], codec, level, batch_bytes_max, now_ms):
        yield int(partitions[start]), packed
        start += packed.count


def record_sizes(rows: Rows, now_ms: int) -> Sizes:
    """What the record of each row takes at most, before compression and without the header of its batch."""
    return _Fields.of(rows, now_ms).sizes_at_most() if len(rows) else np.zeros(0, dtype=np.int64)


def _pack(
    rows: Rows, starts: list[int], codec: Codec, level: int | None, batch_bytes_max: int, now_ms: int
) -> Iterator[Packed]:
    """Batches of the rows, with a new one at each start at least; the last of these is the end."""
    if not len(rows):
        return
    fields = _Fields.of(rows, now_ms)
    cuts = _cuts(fields.sizes_at_most(), starts, batch_bytes_max - HEADER_SIZE)
    pieces = fields.pieces(cuts)
    for start, stop in pairwise(cuts):
        part = (each if isinstance(each, pa.Scalar) else each.slice(start, stop - start) for each in pieces)
        records = interleaved(*part).buffers()[2]
        yield Packed(
            codec=codec,
            base_timestamp=int(fields.timestamps[start]),
            max_timestamp=int(fields.timestamps[start:stop].max()),
            count=stop - start,
            records=records if codec == Codec.NONE else compress(codec, memoryview(records), level),
        )


def _cuts(sizes: Sizes, starts: list[int], room: int) -> list[int]:
    """The starts, and cuts between them, so that from one to the next there is one record or at most `room` bytes."""
    ends = np.cumsum(sizes)
    cuts = [0]
    for stop in starts[1:]:
        while cuts[-1] < stop:
            used = int(ends[cuts[-1]] - sizes[cuts[-1]])
            full = int(np.searchsorted(ends, used + room, side="right"))
            cuts.append(min(stop, max(cuts[-1] + 1, full)))
    return cuts


# --- records


@dataclass(frozen=True)
class _Fields:
    """At least one row, and what is needed more than once to make records of it."""

    timestamps: Milliseconds
    keys: pa.Array | None
    """None if every key is null."""
    key_lengths: npt.NDArray[np.int32] | None
    values: pa.Array
    value_lengths: npt.NDArray[np.int32]
    headers: pa.Array | pa.Scalar
    """The count and the headers of each row, as bytes."""
    payload_sizes: Sizes
    """What keys, values and headers take."""

    @classmethod
    def of(cls, rows: Rows, now_ms: int) -> _Fields:
        keys = None if rows.keys is None or rows.keys.null_count == len(rows) else rows.keys
        headers = _headers_of(rows)
        key_lengths = None if keys is None else lengths_of(keys)
        value_lengths = lengths_of(rows.values)
        sizes = np.maximum(value_lengths, 0).astype(np.int64)
        if key_lengths is not None:
            sizes += np.maximum(key_lengths, 0)
        sizes += len(headers.as_py()) if isinstance(headers, pa.Scalar) else lengths_of(headers)
        return cls(_timestamps(rows, now_ms), keys, key_lengths, rows.values, value_lengths, headers, sizes)

    def sizes_at_most(self) -> Sizes:
        """What the record of each row takes at most, whichever rows share its batch: every varint at its longest."""
        longest = 1 + size_of(int(np.ptp(self.timestamps))) + size_of(len(self.values))
        for lengths in (self.key_lengths, self.value_lengths):
            longest += 1 if lengths is None else size_of(int(lengths.max()))
        return self.payload_sizes + (longest + size_of(longest + int(self.payload_sizes.max())))

    def pieces(self, cuts: list[int]) -> list[pa.Array | pa.Scalar]:
        """The columns of bytes that are the records when interleaved, for batches that begin at the cuts."""
        count = len(self.values)
        first_rows = np.repeat(cuts[:-1], np.diff(cuts)) if len(cuts) > 2 else 0
        timestamps = varints(self.timestamps - self.timestamps[first_rows])
        offsets = varints(np.arange(count) - first_rows)
        key_lengths = NULL if self.key_lengths is None else varints(self.key_lengths)
        value_lengths = varints(self.value_lengths)
        sizes = self.payload_sizes + (1 + timestamps.sizes + offsets.sizes + key_lengths.sizes + value_lengths.sizes)
        front = (varints(sizes), ZERO, timestamps, offsets, key_lengths)
        if self.keys is None:
            return [glued(count, *front, value_lengths), self.values, self.headers]
        return [glued(count, *front), self.keys, glued(count, value_lengths), self.values, self.headers]


def _timestamps(rows: Rows, now_ms: int) -> Milliseconds:
    if rows.timestamps_ms is None:
        return np.full(len(rows), now_ms, dtype=np.int64)
    earliest = int(rows.timestamps_ms.min())
    if earliest < 0:
        raise ValueError(f"Kafka has no timestamps before 1970, and here is one of {earliest} ms.")
    return rows.timestamps_ms


# --- headers


def header_section(name: str, value: str) -> bytes:
    """One header as it stands in a record: the count, then the header."""
    both = [each.encode() for each in (name, value)]
    lengths = [glued(1, varints(np.array([len(each)])))[0].as_py() for each in both]
    count = glued(1, varints(np.array([1])))[0].as_py()
    return b"".join([count, lengths[0], both[0], lengths[1], both[1]])


def _headers_of(rows: Rows) -> pa.Array | pa.Scalar:
    if rows.headers is not None:
        return _headers(rows.headers)
    return _NO_HEADERS if rows.every_header is None else binary_scalar(rows.every_header)


def _headers(lists: pa.ListArray) -> pa.Array | pa.Scalar:
    """The count and the headers of each row, as bytes."""
    structs = lists.flatten()
    if not len(structs):
        return _NO_HEADERS
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    each = _single_headers(*(binary_of(column) for column in structs.flatten()))
    # The headers of a row stand side by side already: only the ends of rows are to be found among those of headers.
    ends = ends_of(each)[np.concatenate(([0], np.cumsum(counts)))]
    return interleaved(glued(len(counts), varints(counts)), binary_array(ends, each.buffers()[2]))


def _single_headers(names: pa.Array, contents: pa.Array) -> pa.Array:
    """Each header, of whichever row, as bytes."""
    if names.null_count:
        raise ValueError("A header has no key, and Kafka has no such headers.")
    lengths = [glued(len(names), varints(lengths_of(column))) for column in (names, contents)]
    return interleaved(lengths[0], names, lengths[1], contents)
