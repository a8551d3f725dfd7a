"""Arrow to COPY as CSV, without a row ever being a Python object; and what no COPY can bring into PostgreSQL.

With CSV the server parses: one way into a column of any type, be it uuid, an enum or an array. Where all columns are of
the common types, `postgresql_binary.py` is faster, and must leave the same in the table. Arrow writes CSV that tells
NULL (nothing) from an empty text (`""`), and floats with the digits that bring back the same float. Some columns are
prepared for it:

- **binary** becomes hex, two characters for each byte at once.
- **timestamp**: Arrow is slow at writing a zone. It writes the time in UTC, and the session of the load is in UTC.
- **date, timestamp**: where years have other than four digits, Arrow and PostgreSQL do not write them alike (the year
  before 1 is 0 for Spark and "1 BC" there), so such columns are written as Julian days, which are only counted.
- **real** is widened: 0.1 as a float is not the 0.1 of a double, and the column may be a double.

Refused here, since PostgreSQL's answer would name no column, or be another value: a NUL in a text, and dates and times
before 4714-11-24 BC or (dates) after the year 5874897. The numbers beyond these mean infinity, or wrap around.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from onceflow.sinks.databases.database import Refused

__all__ = ["csv_of", "moments", "refuse_nul"]

_ROWS_AT_ONCE: Final = 20_000
"""Some megabytes: what is being written fits the processor's caches, and the server is never without work for long."""
_OPTIONS: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
_HEX: Final = np.array([f"{byte:02x}".encode() for byte in range(256)], dtype="S2")

_DAYS_HELD: Final = (-2_440_588, 2_145_042_905)
"""The first and the last date that PostgreSQL has, from 1970: Julian day 0, and the end of the year 5874897."""
_MICROSECONDS_HELD: Final = (-210_866_803_200_000_000, 2**63 - 1)
"""It begins with Julian day 0 too, and ends after all that Arrow's 64 bits reach (the year 294247)."""
_DAYS_OF_FOUR_DIGITS: Final = (-719_162, 2_932_896)
_MICROSECONDS_A_DAY: Final = 86_400_000_000
_JULIAN_1970: Final = 2_440_588

_PREFIX: Final = pa.scalar("\\x", pa.large_string())
_NOTHING: Final = pa.scalar("", pa.large_string())


def csv_of(batches: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
    """CSV of the batches and how many rows it has, in pieces."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            piece = batch.slice(start, _ROWS_AT_ONCE)
            yield _csv(piece), piece.num_rows


def _csv(piece: Any) -> bytes:
    numbers = [str(number) for number in range(piece.num_columns)]
    columns = [_prepared(*named) for named in zip(piece.schema.names, piece.columns, strict=True)]
    out = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, numbers), out, _OPTIONS)
    written: bytes = out.getvalue().to_pybytes()
    if b"\0" in written:
        refuse_nul(piece)
    return written


def _prepared(name: str, column: Any) -> Any:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _written_moments(moments(name, column), kind)
    if pa.types.is_float32(kind):
        return column.cast(pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hex(column.cast(pa.large_binary()))
    return column


def _hex(column: Any) -> Any:
    """`\\x` and two characters for each byte."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    characters = _HEX[np.frombuffer(data or b"", dtype=np.uint8)[ends[0] : ends[-1]]]
    moved = (ends - ends[0]) * 2
    texts = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(moved), pa.py_buffer(characters))
    return pc.if_else(column.is_valid(), pc.binary_join_element_wise(_PREFIX, texts, _NOTHING), None)


# --- dates and timestamps


def moments(name: str, column: Any) -> Any:
    """A column of dates or timestamps as days (32 bits) or microseconds (64 bits) from 1970. Raises `Refused` for what
    PostgreSQL does not have."""
    if pa.types.is_date(column.type):
        days = column.cast(pa.date32()).view(pa.int32())
        if _is_beyond(_DAYS_HELD, days):
            raise _refused(name, "a date", "4714-11-24 BC to 5874897-12-31")
        return days
    microseconds = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    if _is_beyond(_MICROSECONDS_HELD, microseconds):
        raise _refused(name, "a timestamp", "4714-11-24 BC on")
    return microseconds


def _is_beyond(limits: tuple[int, int], numbers: Any) -> bool:
    found = pc.min_max(numbers).as_py()
    return found["min"] is not None and (found["min"] < limits[0] or found["max"] > limits[1])


def _refused(name: str, what: str, held: str) -> Refused:
    return Refused(
        f"PostgreSQL holds dates and times from {held}, and column {name} has {what} outside of it: correct or filter "
        "such rows in Spark, or write the column as text"
    )


def _written_moments(numbers: Any, kind: Any) -> Any:
    first, last = _DAYS_OF_FOUR_DIGITS
    if pa.types.is_date(kind):
        return numbers.view(pa.date32()) if not _is_beyond((first, last), numbers) else _julian(numbers)
    if _is_beyond((first * _MICROSECONDS_A_DAY, (last + 1) * _MICROSECONDS_A_DAY - 1), numbers):
        return _julian(numbers, _MICROSECONDS_A_DAY)
    return numbers.view(pa.timestamp("us"))


def _julian(numbers: Any, a_day: int = 1) -> Any:
    """`J2440588`, or with the time: `J2440588 12:34:56.000000`. PostgreSQL reads it as it reads any date."""
    counted = pc.fill_null(numbers.cast(pa.int64()), 0).to_numpy()
    days, rest = np.divmod(counted, a_day)
    texts = pc.binary_join_element_wise("J", pa.array(days + _JULIAN_1970).cast(pa.string()), "")
    if a_day > 1:
        texts = pc.binary_join_element_wise(texts, pa.array(rest).view(pa.time64("us")).cast(pa.string()), " ")
    return pc.if_else(numbers.is_valid(), texts, None)


# --- texts


def refuse_nul(piece: Any) -> None:
    """Raises `Refused` with the columns in whose texts there is a NUL, if there are any."""
    names = [
        name
        for name, column in zip(piece.schema.names, piece.columns, strict=True)
        if (pa.types.is_string(column.type) or pa.types.is_large_string(column.type))
        and pc.any(pc.match_substring(column, "\0")).as_py()
    ]
    if names:
        raise Refused(
            f"PostgreSQL cannot hold a NUL character in a text, and there is one in column {', '.join(names)}: remove "
            f"it in Spark with regexp_replace({names[0]}, '\\\\x00', ''), or write the column as binary"
        )
