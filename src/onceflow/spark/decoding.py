"""Record batches as rows of Spark: one Arrow batch, in the columns of Spark's own Kafka source.

    key binary | value binary | topic string | partition int | offset long | timestamp | timestampType int | [headers]

As there: `timestampType` is 0 for the producer's time and 1 for the broker's; a timestamp of -1 (none) is the
millisecond before 1970; a record without headers has null in their place; header keys that are not UTF-8 get
replacement characters.

Keys and values are copied once, by Arrow, from the buffer in which `unpacking` found them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import MalformedMessage
from onceflow.spark.columns import array_of, bits_of, repeated_text
from onceflow.spark.unpacking import Records, Spans, read_headers, unpack
from onceflow.wire.batch import BatchHeader

__all__ = ["SCHEMA", "SCHEMA_WITH_HEADERS", "arrow_batches", "schema", "to_arrow"]

Batch = tuple[BatchHeader, memoryview]

HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS: Final = SCHEMA.append(pa.field("headers", pa.list_(pa.field("element", HEADER))))

PART_BYTES: Final = 16 * 1024 * 1024
_MS_MAX: Final = (2**63 - 1) // 1000


def schema(include_headers: bool) -> pa.Schema:
    return SCHEMA_WITH_HEADERS if include_headers else SCHEMA


def to_arrow(
    batches: Iterable[Batch], start: int, end: int, *, topic: str, partition: int, include_headers: bool
) -> pa.RecordBatch | None:
    """The records with `start <= offset < end` of these batches, which are in order; None if there are none.

    Batches outside of the range and control batches are passed over unopened. All at once: `arrow_batches` is for what
    may unpack to much.
    """
    for records in unpack(_wanted(batches, start, end)):
        return _record_batch(_cut(records, start, end), topic, partition, include_headers)
    return None


def arrow_batches(
    batches: Iterable[Batch], start: int, end: int, *, topic: str, partition: int, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """The same in several Arrow batches if it is much: a fetch of packed records may unpack to many times its size."""
    for records in unpack(_wanted(batches, start, end), PART_BYTES):
        part = _record_batch(_cut(records, start, end), topic, partition, include_headers)
        if part is not None:
            yield part


def _wanted(batches: Iterable[Batch], start: int, end: int) -> Iterator[Batch]:
    for header, batch in batches:
        if header.last_offset_delta < 0:  # or it would seem to end before it begins, and be passed over in silence
            raise MalformedMessage(f"The batch at offset {header.base_offset} ends before it begins.")
        if header.last_offset >= start and header.base_offset < end and not header.is_control:
            yield header, batch


def _cut(records: Records, start: int, end: int) -> Records:
    first, last = np.searchsorted(records.offsets, (start, end)).tolist()
    return records if last - first == len(records) else records[first:last]


def _record_batch(records: Records, topic: str, partition: int, include_headers: bool) -> pa.RecordBatch | None:
    if not len(records):
        return None
    columns = [
        _binary(records.buffer, records.keys),
        _binary(records.buffer, records.values),
        repeated_text(topic, len(records)),
        array_of(np.full(len(records), partition, dtype=np.int32)),
        array_of(records.offsets),
        _timestamps(records),
        array_of(records.append_times.astype(np.int32)),
    ]
    if include_headers:
        columns.append(_headers(records))
    return pa.RecordBatch.from_arrays(columns, schema=schema(include_headers))


def _binary(buffer: bytes, spans: Spans) -> pa.Array:
    """Takes every other of the strings that the bounds cut the buffer into."""
    count = len(spans.at)
    is_null = spans.sizes < 0
    if is_null.all():
        return pa.nulls(count, pa.binary())
    bounds = np.empty((count, 2), dtype=np.int32)
    bounds[:, 0] = spans.at
    bounds[:, 1] = spans.ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    taken = pc.take(pieces, array_of(np.arange(0, 2 * count, 2, dtype=np.int32)), boundscheck=False)
    if not is_null.any():
        return taken
    return pa.Array.from_buffers(pa.binary(), count, [bits_of(~is_null), *taken.buffers()[1:]])


def _timestamps(records: Records) -> pa.Array:
    """In microseconds, which have room for 292,000 years: what lies beyond cannot be a row."""
    smallest, largest = int(records.timestamps.min()), int(records.timestamps.max())
    if not -_MS_MAX <= smallest <= largest <= _MS_MAX:
        raise MalformedMessage(
            f"A record between the offsets {records.offsets[0]} and {records.offsets[-1]} has a timestamp (ms) "
            f"that does not fit a timestamp of Spark: {smallest if smallest < -_MS_MAX else largest}."
        )
    return array_of(records.timestamps * 1000, pa.timestamp("us", tz="UTC"))


def _headers(records: Records) -> pa.Array:
    has_any = records.header_counts > 0
    if not has_any.any():
        return pa.nulls(len(records), SCHEMA_WITH_HEADERS.field("headers").type)
    found = read_headers(records)
    keys = _text(_binary(records.buffer, found.keys))
    elements = pa.StructArray.from_arrays([keys, _binary(records.buffer, found.values)], fields=list(HEADER))
    return pa.Array.from_buffers(
        SCHEMA_WITH_HEADERS.field("headers").type,
        len(records),
        [bits_of(has_any), pa.py_buffer(found.first.astype(np.int32))],
        children=[elements],
    )


def _text(array: pa.Array) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:  # a producer that is not Java's may have written any bytes
        return pa.array([key.decode("utf-8", "replace") for key in array.to_pylist()], pa.string())
