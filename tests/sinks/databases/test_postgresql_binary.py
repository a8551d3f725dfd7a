"""Binary COPY leaves what CSV leaves: the server's own binary dump of the table is the same, byte by byte."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sinks.databases import postgresql_binary, postgresql_copy
from onceflow.sinks.databases.database import Column, Kind, Stage, TableName
from onceflow.sinks.databases.postgresql import PostgreSql
from onceflow.sinks.databases.postgresql_binary import Oid
from tests.support.effort import examples
from tests.support.postgresql import PostgreSQL

EXACT = Context(prec=100)
TARGET = TableName(None, "target")
STAGE = TableName(None, "onceflow_stage_1")
DAYS = st.integers(-2_440_588, 2_145_042_905) | st.integers(-800_000, 3_000_000)
MICROSECONDS = st.integers(-210_866_803_200_000_000, 2**63 - 1) | st.integers(-(10**17), 3 * 10**17)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
JSON = st.sampled_from(['{"a": [1, null, "x\\n"]}', "[]", " 1.50 ", '"é😀"', "null", '{"b":1,"a":2,"b":3}'])
UTC, TOKYO = pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo")

# A kind, Arrow's type, the type of the column, and values (numbers for times: Python's own end with the year 9999).
CASES: dict[str, tuple[Kind, Any, str, st.SearchStrategy[Any]]] = {
    "boolean": (Kind("boolean"), pa.bool_(), "boolean", st.booleans()),
    "tinyint": (Kind("smallint"), pa.int8(), "smallint", st.integers(-(2**7), 2**7 - 1)),
    "smallint": (Kind("smallint"), pa.int16(), "smallint", st.integers(-(2**15), 2**15 - 1)),
    "smallint as integer": (Kind("smallint"), pa.int16(), "integer", st.integers(-(2**15), 2**15 - 1)),
    "smallint as bigint": (Kind("smallint"), pa.int16(), "bigint", st.integers(-(2**15), 2**15 - 1)),
    "integer": (Kind("integer"), pa.int32(), "integer", st.integers(-(2**31), 2**31 - 1)),
    "integer as bigint": (Kind("integer"), pa.int32(), "bigint", st.integers(-(2**31), 2**31 - 1)),
    "bigint": (Kind("bigint"), pa.int64(), "bigint", st.integers(-(2**63), 2**63 - 1)),
    "real": (Kind("real"), pa.float32(), "real", st.floats(width=32)),
    "real as double": (Kind("real"), pa.float32(), "double precision", st.floats(width=32)),
    "double": (Kind("double"), pa.float64(), "double precision", st.floats()),
    "text": (Kind("text"), pa.string(), "text", TEXTS),
    "large text": (Kind("text"), pa.large_string(), "text", TEXTS),
    "text as varchar": (Kind("text"), pa.string(), "character varying", TEXTS),
    "text as varchar(9)": (Kind("text"), pa.string(), "character varying(9)", TEXTS.map(lambda text: text[:9])),
    "json": (Kind("json"), pa.string(), "jsonb", JSON),
    "json as json": (Kind("json"), pa.string(), "json", JSON),
    "json as text": (Kind("json"), pa.string(), "text", JSON),
    "binary": (Kind("binary"), pa.binary(), "bytea", st.binary()),
    "large binary": (Kind("binary"), pa.large_binary(), "bytea", st.binary()),
    "date": (Kind("date"), pa.date32(), "date", DAYS),
    "timestamp": (Kind("timestamp"), UTC, "timestamp with time zone", MICROSECONDS),
    "timestamp in a zone": (Kind("timestamp"), TOKYO, "timestamp(6) with time zone", MICROSECONDS),
    "timestamp_ntz": (Kind("timestamp_ntz"), pa.timestamp("us"), "timestamp without time zone", MICROSECONDS),
}


@pytest.fixture(scope="module")
def server(postgresql: PostgreSQL) -> PostgreSql:
    return PostgreSql(postgresql.new_database())


def stage_of(database: PostgreSql, kinds: Sequence[Kind], types: Sequence[str]) -> Stage:
    """A fresh stage for a fresh target, with columns c0, c1 and so on."""
    stage = Stage(STAGE, tuple(Column(f"c{at}", kind) for at, kind in enumerate(kinds)))
    session = database.connect(lock_timeout_s=5)
    try:
        database.drop_stage(session, STAGE)
        session.execute("DROP TABLE IF EXISTS target")
        session.execute(f"CREATE TABLE target ({', '.join(f'c{at} {type_}' for at, type_ in enumerate(types))})")
        with session.transaction():
            database.create_stage(session, stage, TARGET)
    finally:
        session.close()
    return stage


def left_by(database: PostgreSql, stage: Stage, batches: Sequence[Any], *, is_binary: bool) -> tuple[bytes, int]:
    """What is in the stage after a load with one of the formats and never the other, and how many rows it counted."""
    with pytest.MonkeyPatch.context() as patch, psycopg.connect(database.url) as connection:
        connection.execute("TRUNCATE onceflow_stage_1")
        connection.commit()
        if is_binary:
            patch.setattr(postgresql_copy, "csv_of", None)
        else:
            patch.setattr(postgresql_binary, "can_be_binary", lambda columns, types: False)
        rows = database.load(stage, 0, 0, batches)
        with connection.cursor() as cursor, cursor.copy("COPY onceflow_stage_1 TO STDOUT (FORMAT binary)") as copy:
            return b"".join(bytes(each) for each in copy), rows


def check_both_ways(database: PostgreSql, stage: Stage, batches: Sequence[Any]) -> None:
    binary, rows = left_by(database, stage, batches, is_binary=True)
    assert rows == sum(batch.num_rows for batch in batches)
    assert (binary, rows) == left_by(database, stage, batches, is_binary=False)


def array_of(values: list[Any], type_: Any) -> Any:
    if pa.types.is_date(type_):
        return pa.array(values, pa.int32()).view(type_)
    return pa.array(values, pa.int64()).view(type_) if pa.types.is_timestamp(type_) else pa.array(values, type_)


def in_pieces(batch: Any, cuts: list[int]) -> list[Any]:
    """Slices of it, with empty ones: their values lie somewhere inside of its buffers."""
    bounds = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    return [batch.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


def drawn(data: st.DataObject, names: Iterable[str], rows: int) -> Any:
    """A batch with a column for each name, some with NULLs and some without."""
    arrays = []
    for name in names:
        _, arrow, _, values = CASES[name]
        some = values | st.none() if data.draw(st.booleans()) else values
        arrays.append(array_of(data.draw(st.lists(some, min_size=rows, max_size=rows)), arrow))
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{at}" for at in range(len(arrays))])


def stage_for(database: PostgreSql, names: Sequence[str]) -> Stage:
    return stage_of(database, [CASES[name][0] for name in names], [CASES[name][2] for name in names])


@pytest.mark.parametrize("names", [list(CASES)[at : at + 8] for at in range(0, len(CASES), 8)], ids=", ".join)
def test_columns_of_every_kind_are_the_same_both_ways(server: PostgreSql, names: list[str]) -> None:
    stage = stage_for(server, names)

    @given(data=st.data(), rows=st.integers(0, 20), cuts=st.lists(st.integers(0, 20), max_size=3))
    @examples(10, soak=250)
    def check(data: st.DataObject, rows: int, cuts: list[int]) -> None:
        check_both_ways(server, stage, in_pieces(drawn(data, names, rows), cuts))

    check()


@given(data=st.data(), names=st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=8))
@examples(10, soak=150)
def test_columns_in_any_order_are_the_same_both_ways(server: PostgreSql, data: st.DataObject, names: list[str]) -> None:
    check_both_ways(server, stage_for(server, names), [drawn(data, names, 5)])


def decimals(numbers: Sequence[int | None], precision: int, scale: int) -> Any:
    values = [None if number is None else Decimal(number).scaleb(-scale, EXACT) for number in numbers]
    return pa.array(values, pa.decimal128(precision, scale))


@pytest.mark.parametrize("has_modifiers", [True, False])
@pytest.mark.parametrize("precision", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 18, 19, 20, 28, 37, 38])
def test_decimals_of_every_scale_are_the_same_both_ways_and_read_back(
    server: PostgreSql, precision: int, has_modifiers: bool
) -> None:
    largest = 10**precision - 1
    numbers = [0, 1, -1, largest, -largest, largest // 7, -(largest // 3), 10 ** (precision // 2), None]
    scales = range(precision + 1)
    kinds = [Kind("decimal", precision, scale) for scale in scales]
    stage = stage_of(server, kinds, [server.type_for(kind) if has_modifiers else "numeric" for kind in kinds])
    arrays = [decimals(numbers, precision, scale) for scale in scales]
    batch = pa.RecordBatch.from_arrays(arrays, names=[each.name for each in stage.columns])
    check_both_ways(server, stage, [batch.slice(0, 4), batch.slice(4)])
    with psycopg.connect(server.url) as connection:
        found = connection.execute("SELECT * FROM onceflow_stage_1").fetchall()
    columns = [[each.as_py() for each in array] for array in arrays]
    assert [[str(each) for each in column] for column in zip(*found, strict=True)] == [
        [str(each) for each in column] for column in columns
    ]


def test_any_decimal_is_the_same_both_ways(server: PostgreSql) -> None:
    scales = [0, 1, 2, 3, 4, 6, 18, 37, 38]
    stage = stage_of(server, [Kind("decimal", 38, scale) for scale in scales], ["numeric"] * len(scales))
    some = st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(2**64), 2**64) | st.none()

    @given(numbers=st.lists(some, max_size=30))
    @examples(10, soak=250)
    def check(numbers: list[int | None]) -> None:
        arrays = [decimals(numbers, 38, scale) for scale in scales]
        check_both_ways(server, stage, [pa.RecordBatch.from_arrays(arrays, [each.name for each in stage.columns])])

    check()


def test_many_rows_in_many_pieces_are_the_same_both_ways(server: PostgreSql) -> None:
    count = 23_456
    columns = {
        "c0": pa.array([None if at % 11 == 0 else f"text {at}" for at in range(count)]),
        "c1": pa.array([None if at % 5_000 == 4_999 else at for at in range(count)], pa.int64()),
        "c2": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=at) for at in range(count)], UTC),
    }
    stage = stage_of(
        server,
        [Kind("text"), Kind("bigint"), Kind("timestamp")],
        ["character varying(20)", "bigint", "timestamp with time zone"],
    )
    check_both_ways(server, stage, in_pieces(pa.record_batch(columns), [1, 10_000, 10_000, 20_001]))


def test_the_numbers_of_the_types_are_those_of_the_server(server: PostgreSql) -> None:
    with psycopg.connect(server.url) as connection:
        rows = connection.execute(
            "SELECT oid, upper(format_type(oid, NULL)) FROM pg_type WHERE oid = ANY (%s)", (list(Oid),)
        ).fetchall()
    longer = {
        Oid.DOUBLE: "DOUBLE PRECISION",
        Oid.VARCHAR: "CHARACTER VARYING",
        Oid.TIMESTAMP: "TIMESTAMP WITHOUT TIME ZONE",
        Oid.TIMESTAMPTZ: "TIMESTAMP WITH TIME ZONE",
    }
    assert dict(rows) == {int(each): longer.get(each, each.name) for each in Oid}


def test_a_domain_that_has_the_name_of_a_type_is_left_to_the_server(postgresql: PostgreSQL) -> None:
    database = PostgreSql(postgresql.new_database())
    with psycopg.connect(database.url) as connection:
        connection.execute("CREATE DOMAIN public.date AS integer")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET search_path = public, pg_catalog".encode())
    stage = stage_of(database, [Kind("integer")], ["date"])
    database.load(stage, 0, 0, [pa.record_batch({"c0": pa.array([5], pa.int32())})])
    with psycopg.connect(database.url) as connection:
        assert connection.execute("SELECT c0 + 1 FROM onceflow_stage_1").fetchall() == [(6,)]
