"""Arrow to COPY, without a row ever being a Python object.

CSV, since there the server parses: one way into a column of any type, be it uuid, jsonb, an enum or numeric. Arrow
writes CSV that tells NULL (nothing) from an empty text (`""`), and floats with the digits that bring back the same
float. Three kinds of columns are prepared for it:

- **binary** becomes hex, two characters for each byte at once.
- **timestamp**: Arrow is slow at writing a zone. It writes the time in UTC, and the session of the load is in UTC.
- **real** is widened: 0.1 as a float is not the 0.1 of a double, and the column may be a double.

PostgreSQL's text cannot hold a NUL, and its answer does not name the column. One look through the bytes does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from onceflow.sinks.databases.database import Refused

__all__ = ["csv_of"]

_ROWS_AT_ONCE: Final = 20_000
"""Some megabytes: what is being written fits the processor's caches, and the server is never without work for long."""
_OPTIONS: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2")

_PREFIX: Final = pa.scalar("\\x", pa.large_string())
_NOTHING: Final = pa.scalar("", pa.large_string())


def csv_of(batches: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
    """CSV of the batches and how many rows it has, in pieces."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            piece = batch.slice(start, _ROWS_AT_ONCE)
            yield _csv(piece), piece.num_rows


def _csv(piece: Any) -> bytes:
    names = [str(number) for number in range(piece.num_columns)]
    columns = [_prepared(column) for column in piece.columns]
    out = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names), out, _OPTIONS)
    written: bytes = out.getvalue().to_pybytes()
    if b"\0" in written:
        raise _nul(piece)
    return written


def _prepared(column: Any) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _without_zone(column)
    if pa.types.is_float32(kind):
        return column.cast(pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hex(column.cast(pa.large_binary()))
    return column


def _without_zone(column: Any) -> Any:
    return column.cast(pa.timestamp("us", column.type.tz)).view(pa.timestamp("us"))


def _hex(column: Any) -> Any:
    """`\\x` and two characters for each byte."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    characters = _HEX[np.frombuffer(data or b"", dtype=np.uint8)[ends[0] : ends[-1]]]
    moved = (ends - ends[0]) * 2
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(moved), pa.py_buffer(characters))
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise(_PREFIX, texts, _NOTHING), None)


def _nul(piece: Any) -> Refused:
    names = [
        name
        for name, column in zip(piece.schema.names, piece.columns, strict=True)
        if (pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
        and pc.any(pc.match_substring(column, "\0")).as_py()
    ]
    return Refused(
        f"PostgreSQL cannot hold a NUL character in a text, and there is one in column {', '.join(names)}: remove it "
        f"in Spark with regexp_replace({names[0] if names else '...'}, '\\\\x00', ''), or write the column as binary"
    )
