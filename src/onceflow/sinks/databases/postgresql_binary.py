"""Arrow to COPY in PostgreSQL's binary format, without a row ever being a Python object.

The server has nothing to parse, which is 40 % of what it costs it to load CSV. But each value must be in the form of
its column's type, exactly, so this is for the types below. Where a table has any other column, all of it goes as CSV
(`postgresql_copy.py`), which the server reads into whatever there is. What is in the table is the same both ways, and
so is what is refused.

A row is a number of fields, and each field a length (-1: NULL) and as many bytes, all big-endian. Fields of fixed
width that lie side by side are one NumPy record, filled a column at a time; texts, and columns with NULLs, are joined
in between, a whole column at once.

The server believes what it gets, so what it would take for something else is looked for here: dates and times that it
does not have (`moments`), and NUL in texts, which it would refuse without a word about the column.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.sinks.databases.database import Column, Kind
from onceflow.sinks.databases.postgresql_copy import moments, refuse_nul

__all__ = ["Oid", "binary_of", "can_be_binary"]


class Oid(enum.IntEnum):
    """Types by their numbers, the same in every PostgreSQL. By name, a domain could pass for one of them."""

    BOOLEAN = 16
    BYTEA = 17
    BIGINT = 20
    SMALLINT = 21
    INTEGER = 23
    TEXT = 25
    JSON = 114
    REAL = 700
    DOUBLE = 701
    VARCHAR = 1043
    DATE = 1082
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    NUMERIC = 1700
    JSONB = 3802


_ROWS_AT_ONCE: Final = 5_000
"""Half a megabyte: what is written is still in the processor's cache when it is joined."""
_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER: Final = b"\xff\xff"
_EPOCH_US: Final = 946_684_800_000_000
_EPOCH_DAYS: Final = 10_957
"""PostgreSQL counts from the year 2000."""
_DIGITS_IN_64_BITS: Final = 18
_NEGATIVE: Final = 0x4000
_NULL: Final = pa.scalar(b"\xff\xff\xff\xff", pa.large_binary())
_NO_BYTES: Final = pa.scalar(b"", pa.large_binary())
_JSONB_VERSION: Final = pa.scalar(b"\x01", pa.large_binary())

_NUMBERS: Final = {
    Oid.SMALLINT: (">i2", pa.int16()),
    Oid.INTEGER: (">i4", pa.int32()),
    Oid.BIGINT: (">i8", pa.int64()),
    Oid.REAL: (">f4", pa.float32()),
    Oid.DOUBLE: (">f8", pa.float64()),
}
_TEXTS: Final = frozenset({Oid.TEXT, Oid.VARCHAR, Oid.JSON, Oid.JSONB})
_FITTING: Final = {
    "boolean": {Oid.BOOLEAN},
    "smallint": {Oid.SMALLINT, Oid.INTEGER, Oid.BIGINT},
    "integer": {Oid.INTEGER, Oid.BIGINT},
    "bigint": {Oid.BIGINT},
    "real": {Oid.REAL, Oid.DOUBLE},
    "double": {Oid.DOUBLE},
    "decimal": {Oid.NUMERIC},
    "text": {Oid.TEXT, Oid.VARCHAR},
    "json": _TEXTS,
    "binary": {Oid.BYTEA},
    "date": {Oid.DATE},
    "timestamp": {Oid.TIMESTAMPTZ},
    "timestamp_ntz": {Oid.TIMESTAMP},
}
Part = tuple[str, Any]
"""A field of a NumPy record: its type, and the values."""


def can_be_binary(columns: Sequence[Column], types: Sequence[int]) -> bool:
    """Whether columns of these kinds can be written for columns of these types (`pg_attribute.atttypid`)."""
    return len(columns) == len(types) and all(
        type_ in _FITTING.get(column.kind.name, ()) and _is_usual(column.kind)
        for column, type_ in zip(columns, types, strict=True)
    )


def _is_usual(kind: Kind) -> bool:
    """Spark can be told to allow decimals with a negative scale."""
    return kind.name != "decimal" or 0 <= kind.scale <= kind.precision


def binary_of(batches: Iterable[Any], types: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """All that COPY is to be sent, and how many rows each piece has."""
    yield _HEADER, 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            piece = batch.slice(start, _ROWS_AT_ONCE)
            yield _Piece(piece).written(types), piece.num_rows
    yield _TRAILER, 0


class _Piece:
    """Rows on their way: blocks of fixed width, and what varies between them."""

    def __init__(self, piece: Any) -> None:
        self._piece = piece
        self._rows: int = piece.num_rows
        self._parts: list[Part] = [(">i2", piece.num_columns)]
        self._blocks: list[Any] = []

    def written(self, types: Sequence[int]) -> bytes:
        for name, column, type_ in zip(self._piece.schema.names, self._piece.columns, types, strict=True):
            if type_ in _TEXTS or type_ == Oid.BYTEA:
                self._add_bytes(column.cast(pa.large_binary()), type_)
            else:
                self._add_fixed(name, column, type_)
        self._end_block()
        return _bytes_of(pc.binary_join_element_wise(*self._blocks, _NO_BYTES))

    def _add_fixed(self, name: str, column: Any, type_: int) -> None:
        if column.null_count == 0:
            self._parts += _parts(name, column, type_)
            return
        self._end_block()
        values = _block(self._rows, _parts(name, pc.fill_null(column, _nothing(column.type)), type_))
        self._blocks.append(pc.if_else(column.is_valid(), values, _NULL))

    def _add_bytes(self, column: Any, type_: int) -> None:
        if type_ in _TEXTS and b"\0" in _bytes_of(column):
            refuse_nul(self._piece)
        if type_ == Oid.JSONB:
            column = pc.binary_join_element_wise(_JSONB_VERSION, column, _NO_BYTES)
        self._parts.append((">i4", pc.fill_null(pc.binary_length(column), -1).to_numpy()))
        self._end_block()
        self._blocks.append(pc.fill_null(column, _NO_BYTES))

    def _end_block(self) -> None:
        if self._parts:
            self._blocks.append(_block(self._rows, self._parts))
            self._parts = []


def _block(rows: int, parts: Sequence[Part]) -> Any:
    record = np.empty(rows, np.dtype([(str(number), kind) for number, (kind, _) in enumerate(parts)]))
    for number, (_, values) in enumerate(parts):
        record[str(number)] = values
    width = pa.binary(record.dtype.itemsize)
    return pa.Array.from_buffers(width, rows, [None, pa.py_buffer(record)]).cast(pa.large_binary())


def _parts(name: str, column: Any, type_: int) -> list[Part]:
    """The length of the field and its value."""
    if type_ == Oid.BOOLEAN:
        return [(">i4", 1), ("u1", _values(column.cast(pa.uint8()), "u1"))]
    if type_ == Oid.DATE:
        return [(">i4", 4), (">i4", _values(moments(name, column), "i4") - _EPOCH_DAYS)]
    if type_ in (Oid.TIMESTAMP, Oid.TIMESTAMPTZ):
        return [(">i4", 8), (">i8", _values(moments(name, column), "i8") - _EPOCH_US)]
    if type_ == Oid.NUMERIC:
        return _numeric(column)
    kind, arrow = _NUMBERS[Oid(type_)]
    values = _values(column.cast(arrow), kind[1:])
    return [(">i4", values.itemsize), (kind, _one_nan(values) if kind[1] == "f" else values)]


def _one_nan(values: Any) -> Any:
    """There are many, and processors make negative ones. CSV has one, and so has the table then."""
    is_nan = np.isnan(values)
    return np.where(is_nan, values.dtype.type(np.nan), values) if is_nan.any() else values


def _nothing(type_: Any) -> Any:
    """In place of NULL, until the block is made."""
    return pa.scalar(False if pa.types.is_boolean(type_) else 0, type_)


# --- decimals


def _numeric(column: Any) -> list[Part]:
    """Groups of four decimal digits, from the decimal point in both directions, always as many as could be needed: the
    server leaves out those that are zero."""
    precision, scale = column.type.precision, column.type.scale
    limbs, is_negative = _limbs(column.cast(pa.decimal128(precision, scale)))
    groups = []
    if scale % 4:
        limbs, last = _divided(limbs, 10 ** (scale % 4))
        groups.append(last * 10 ** (4 - scale % 4))
    whole = -(-(precision - scale) // 4)
    for _ in range(scale // 4 + whole):
        limbs, group = _divided(limbs, 10_000)
        groups.append(group)
    count = len(groups)
    head: list[Part] = [(">i4", 8 + 2 * count), (">i2", count), (">i2", whole - 1)]
    sign = np.where(is_negative, _NEGATIVE, 0)
    return [*head, (">u2", sign), (">i2", scale), *((">i2", group) for group in reversed(groups))]


def _limbs(column: Any) -> tuple[list[Any], Any]:
    """What the digits say, without the sign: the numbers themselves where 64 bits hold them, otherwise four times 32
    bits of each, the highest first. And which are negative."""
    halves = _values(column, "u8", width=2)
    lower, upper = halves[0::2], halves[1::2]
    is_negative = upper >> 63 != 0
    lower = np.where(is_negative, ~lower + 1, lower)
    if column.type.precision <= _DIGITS_IN_64_BITS:
        return [lower], is_negative
    upper = np.where(is_negative, ~upper + (lower == 0), upper)
    return [half for each in (upper, lower) for half in (each >> 32, each & 0xFFFF_FFFF)], is_negative


def _divided(limbs: list[Any], by: int) -> tuple[list[Any], Any]:
    """As by hand: what is left of a limb goes before the next one."""
    quotients = []
    rest: Any = 0
    for limb in limbs:
        number = (rest << 32) + limb
        quotients.append(number // by)
        rest = number - quotients[-1] * by
    return quotients, rest


# --- buffers


def _values(column: Any, kind: str, width: int = 1) -> Any:
    """Without a copy. `width` is how many of them make a value."""
    begin, end = column.offset * width, (column.offset + len(column)) * width
    return np.frombuffer(column.buffers()[1], dtype=kind)[begin:end]


def _bytes_of(texts: Any) -> bytes:
    """Of all of them. A slice shares its buffers with what it is a slice of."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return bytes(memoryview(data or b"")[ends[0] : ends[-1]])
