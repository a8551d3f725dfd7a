"""Arrow in the form of PostgreSQL's binary COPY, read again by a few lines that know the format and nothing else."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sinks.databases.database import Column, Kind, Refused
from onceflow.sinks.databases.postgresql_binary import Oid, binary_of, can_be_binary
from onceflow.sinks.databases.postgresql_copy import csv_of

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
EXACT = Context(prec=100)


def rows_of(written: bytes) -> Iterator[list[bytes | None]]:
    """The fields of each row, up to the trailer, after which there is nothing."""
    assert written.startswith(SIGNATURE)
    at = len(SIGNATURE)
    while (count := struct.unpack_from(">h", written, at)[0]) >= 0:
        at += 2
        fields: list[bytes | None] = []
        for _ in range(count):
            (length,) = struct.unpack_from(">i", written, at)
            at += 4
            fields.append(None if length == -1 else written[at : at + length])
            at += max(length, 0)
        yield fields
    assert written[at:] == b"\xff\xff"


def fields_of(column: Any, type_: int) -> list[bytes | None]:
    """What is written of a column that is between two others."""
    count = len(column)
    batch = pa.record_batch({"n": pa.array(range(count), pa.int32()), "x": column, "t": pa.array(["t"] * count)})
    pieces = list(binary_of([batch], [Oid.INTEGER, type_, Oid.TEXT]))
    assert sum(rows for _, rows in pieces) == count
    rows = list(rows_of(b"".join(piece for piece, _ in pieces)))
    assert [(row[0], row[2]) for row in rows] == [(struct.pack(">i", number), b"t") for number in range(count)]
    return [row[1] for row in rows]


def numeric(field: bytes | None) -> tuple[int, int] | None:
    """As the server's numeric_recv reads it: the digits as one number, and how many of them are behind the point."""
    if field is None:
        return None
    count, weight, sign, scale, *groups = struct.unpack(f">HhHH{(len(field) - 8) // 2}h", field)
    assert count == len(groups)
    assert sign in (0, 0x4000)
    assert all(0 <= group < 10_000 for group in groups)
    whole = sum(group * 10_000 ** (count - 1 - at) for at, group in enumerate(groups))
    digits, cut_off = divmod(whole * 10**scale, 10_000 ** (count - 1 - weight))
    assert cut_off == 0
    return -digits if sign else digits, scale


def decimals(numbers: list[int | None], precision: int, scale: int) -> Any:
    values = [None if number is None else Decimal(number).scaleb(-scale, EXACT) for number in numbers]
    return pa.array(values, pa.decimal128(precision, scale))


def as_written(numbers: list[int | None], scale: int) -> list[tuple[int, int] | None]:
    return [None if number is None else (number, scale) for number in numbers]


INTEGERS = [
    ("smallint", pa.int8(), Oid.SMALLINT, ">h", 8),
    ("smallint", pa.int16(), Oid.SMALLINT, ">h", 16),
    ("smallint", pa.int16(), Oid.INTEGER, ">i", 16),
    ("smallint", pa.int16(), Oid.BIGINT, ">q", 16),
    ("integer", pa.int32(), Oid.INTEGER, ">i", 32),
    ("integer", pa.int32(), Oid.BIGINT, ">q", 32),
    ("bigint", pa.int64(), Oid.BIGINT, ">q", 64),
]


@pytest.mark.parametrize(("kind", "arrow", "type_", "form", "bits"), INTEGERS)
def test_integers_are_as_wide_as_their_column(kind: str, arrow: Any, type_: Oid, form: str, bits: int) -> None:
    assert can_be_binary([Column("x", Kind(kind))], [type_])
    values = [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]
    assert fields_of(pa.array(values, arrow), type_) == [struct.pack(form, value) for value in values]
    assert fields_of(pa.array([None, 5, None], arrow), type_) == [None, struct.pack(form, 5), None]


@pytest.mark.parametrize("precision", range(1, 39))
def test_decimals_of_every_precision_and_scale_keep_every_digit(precision: int) -> None:
    largest = 10**precision - 1
    numbers = {0, 1, largest, largest // 2, largest // 7, 10 ** (precision - 1), *(10**at for at in range(precision))}
    signed: list[int | None] = sorted({sign * number for number in numbers for sign in (1, -1)})
    for scale, values in itertools.product(range(precision + 1), (signed, [None, *signed, None])):
        assert can_be_binary([Column("x", Kind("decimal", precision, scale))], [Oid.NUMERIC])
        fields = fields_of(decimals(values, precision, scale), Oid.NUMERIC)
        assert list(map(numeric, fields)) == as_written(values, scale)


@given(
    numbers=st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(2**64), 2**64) | st.none(), max_size=20),
    scale=st.integers(0, 38),
)
def test_any_decimal_of_38_digits_keeps_every_digit(numbers: list[int | None], scale: int) -> None:
    fields = fields_of(decimals(numbers, 38, scale), Oid.NUMERIC)
    assert list(map(numeric, fields)) == as_written(numbers, scale)


def test_a_decimal_that_arrow_keeps_in_another_width_is_the_same() -> None:
    values = [Decimal("-12345.67"), None, Decimal("0.01")]
    fields = fields_of(pa.array(values, pa.decimal256(9, 2)), Oid.NUMERIC)
    assert list(map(numeric, fields)) == [(-1234567, 2), None, (1, 2)]


def test_zero_has_no_sign_and_a_number_has_the_scale_of_its_column() -> None:
    (field,) = fields_of(pa.array([Decimal("-0.00")], pa.decimal128(5, 2)), Oid.NUMERIC)
    assert field == struct.pack(">HhHHhh", 2, 0, 0, 2, 0, 0)


@pytest.mark.parametrize(("arrow", "type_", "form"), [(pa.float32(), Oid.REAL, ">f"), (pa.float64(), Oid.DOUBLE, ">d")])
def test_floats_keep_the_sign_of_zero_and_infinity_and_there_is_one_nan(arrow: Any, type_: Oid, form: str) -> None:
    values = [0.0, -0.0, float("inf"), -float("inf"), 1.5]
    assert fields_of(pa.array(values, arrow), type_) == [struct.pack(form, value) for value in values]
    odd = {">f": ("<I", [0xFFC00000, 0x7FC00001, 0x7F800001]), ">d": ("<Q", [0xFFF8 << 48, (0x7FF8 << 48) + 1])}
    pattern, nans = odd[form]
    buffer = pa.py_buffer(b"".join(struct.pack(pattern, each) for each in nans))
    column = pa.Array.from_buffers(arrow, len(nans), [None, buffer])
    assert fields_of(column, type_) == [struct.pack(form, float("nan"))] * len(nans)


def test_texts_json_and_bytes_have_their_length_before_them() -> None:
    assert fields_of(pa.array(["", "é", None]), Oid.TEXT) == [b"", "é".encode(), None]
    assert fields_of(pa.array(["[]", None, "1"]), Oid.JSON) == [b"[]", None, b"1"]
    assert fields_of(pa.array(["[]", None, "1"]), Oid.JSONB) == [b"\x01[]", None, b"\x011"]
    assert fields_of(pa.array([b"\0", None, b""]), Oid.BYTEA) == [b"\0", None, b""]
    assert fields_of(pa.array([b"ab", None, b"cd"], pa.binary(2)), Oid.BYTEA) == [b"ab", None, b"cd"]
    assert fields_of(pa.array([True, None, False]), Oid.BOOLEAN) == [b"\x01", None, b"\0"]


def days(*values: int | None) -> Any:
    return pa.array(values, pa.int32()).view(pa.date32())


def instants(*values: int | None, zone: str | None = None) -> Any:
    return pa.array(values, pa.int64()).view(pa.timestamp("us", zone))


def test_dates_and_times_are_counted_from_the_year_2000() -> None:
    assert fields_of(days(10_957, None, 0, -2_440_588, 2_145_042_905), Oid.DATE) == [
        *(struct.pack(">i", 0), None, struct.pack(">i", -10_957)),
        *(struct.pack(">i", -2_451_545), struct.pack(">i", 2_145_031_948)),
    ]
    second = 946_684_800_000_000
    expected = [struct.pack(">q", 0), None, struct.pack(">q", -second), struct.pack(">q", 2**63 - 1 - second)]
    assert fields_of(instants(second, None, 0, 2**63 - 1), Oid.TIMESTAMP) == expected
    assert fields_of(instants(second, None, 0, 2**63 - 1, zone="Asia/Tokyo"), Oid.TIMESTAMPTZ) == expected


OUT_OF_RANGE = [
    *((days(value), Oid.DATE, "a date") for value in (-(2**31), -(2**31) + 10_956, -2_440_589)),
    *((days(value), Oid.DATE, "a date") for value in (2_145_042_906, 2**31 - 1)),
    *((instants(value), Oid.TIMESTAMP, "a timestamp") for value in (-(2**63), -210_866_803_200_000_001)),
    (instants(-(2**63), zone="UTC"), Oid.TIMESTAMPTZ, "a timestamp"),
]


@pytest.mark.parametrize(("column", "type_", "what"), OUT_OF_RANGE)
@pytest.mark.parametrize("form", ["binary", "csv"])
def test_what_postgresql_would_take_for_infinity_or_another_time_is_refused(
    column: Any, type_: Oid, what: str, form: str
) -> None:
    nulls = pa.nulls(1, column.type)
    batch = pa.record_batch({"since": pa.concat_arrays([nulls, column, nulls])})
    with pytest.raises(Refused, match=rf"from 4714-11-24 BC .*and column since has {what} outside of it: .*in Spark"):
        list(binary_of([batch], [type_]) if form == "binary" else csv_of([batch]))


@pytest.mark.parametrize("type_", [Oid.TEXT, Oid.VARCHAR, Oid.JSON, Oid.JSONB])
def test_a_nul_in_a_text_is_refused_with_the_name_of_the_column(type_: Oid) -> None:
    batch = pa.record_batch({"fine": pa.array(["a"]), "bad": pa.array(["a\0b"])})
    with pytest.raises(Refused, match=r"NUL character in a text, and there is one in column bad:"):
        list(binary_of([batch], [Oid.TEXT, type_]))


def test_what_is_behind_a_null_is_not_looked_at() -> None:
    offsets, data = struct.pack("<iii", 0, 2, 3), b"\0\0a"
    is_valid = pa.py_buffer(b"\x02")
    hidden = pa.Array.from_buffers(pa.string(), 2, [is_valid, pa.py_buffer(offsets), pa.py_buffer(data)])
    assert fields_of(hidden, Oid.TEXT) == [None, b"a"]
    date = pa.Array.from_buffers(pa.date32(), 2, [is_valid, pa.py_buffer(struct.pack("<ii", -(2**31), 10_957))])
    assert fields_of(date, Oid.DATE) == [None, bytes(4)]


def test_slices_batches_and_pieces_are_one_stream() -> None:
    numbers = list(itertools.chain(range(12_000), [None], range(3)))
    texts = [None if number is None or number % 7 == 0 else "x" * (number % 5) for number in numbers]
    whole = pa.record_batch({"n": pa.array(numbers, pa.int32()), "t": pa.array(texts)})
    cuts = [(0, 1), (1, 0), (1, 11_000), (11_001, 2_000)]
    pieces = list(binary_of((whole.slice(*cut) for cut in cuts), [Oid.INTEGER, Oid.TEXT]))
    assert sum(rows for _, rows in pieces) == len(numbers)
    assert list(rows_of(b"".join(piece for piece, _ in pieces))) == [
        [None if number is None else struct.pack(">i", number), None if text is None else text.encode()]
        for number, text in zip(numbers, texts, strict=True)
    ]


def test_no_batches_are_a_stream_without_rows() -> None:
    empty = pa.record_batch({"x": pa.array([], pa.string())})
    for batches in ([], [empty, empty]):
        assert b"".join(piece for piece, _ in binary_of(batches, [Oid.TEXT])) == SIGNATURE + b"\xff\xff"


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        (Kind("text"), 2950),  # uuid
        (Kind("text"), 1042),  # character(n) pads
        (Kind("text"), Oid.JSONB),
        (Kind("bigint"), Oid.INTEGER),
        (Kind("bigint"), Oid.NUMERIC),
        (Kind("smallint"), Oid.REAL),
        (Kind("double"), Oid.REAL),
        (Kind("decimal", 9, 0), Oid.BIGINT),
        (Kind("decimal", 5, -2), Oid.NUMERIC),
        (Kind("timestamp"), Oid.TIMESTAMP),
        (Kind("timestamp_ntz"), Oid.TIMESTAMPTZ),
        (Kind("something new"), Oid.TEXT),
    ],
)
def test_one_column_that_the_server_must_parse_makes_all_of_them_csv(kind: Kind, type_: int) -> None:
    assert can_be_binary([Column("n", Kind("integer"))], [Oid.INTEGER])
    assert not can_be_binary([Column("n", Kind("integer")), Column("x", kind)], [Oid.INTEGER, type_])


def test_a_table_with_other_columns_than_the_rows_is_not_guessed_at() -> None:
    assert not can_be_binary([Column("n", Kind("integer"))], [])
    assert not can_be_binary([Column("n", Kind("integer"))], [Oid.INTEGER, Oid.INTEGER])
