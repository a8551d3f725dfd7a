"""Arrow into a real PostgreSQL and back: every value as it was, in both formats of COPY."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sinks.databases import postgresql_binary
from onceflow.sinks.databases.database import Again, Column, Kind, Loaded, Refused, Stage, TableName
from onceflow.sinks.databases.postgresql import PostgreSql
from tests.support.effort import examples
from tests.support.postgresql import PostgreSQL

UTC = dt.UTC
ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double": pa.float64(),
    "text": pa.string(),
    "json": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "America/New_York"),
    "timestamp_ntz": pa.timestamp("us"),
}
TARGET = TableName(None, "target")
STAGE = TableName(None, "onceflow_stage_1")


@pytest.fixture(scope="module", params=["the fastest", "csv"])
def server(postgresql: PostgreSQL, request: pytest.FixtureRequest) -> Iterator[PostgreSql]:
    """A column that only the server can parse makes all of them CSV, so each kind must pass both ways."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "csv":
            patch.setattr(postgresql_binary, "can_be_binary", lambda columns, types: False)
        yield PostgreSql(postgresql.new_database())


def arrow_type(kind: Kind) -> Any:
    return pa.decimal128(kind.precision, kind.scale) if kind.name == "decimal" else ARROW[kind.name]


def batch_of(columns: dict[str, tuple[Kind, list[Any]]]) -> Any:
    return pa.record_batch({name: pa.array(values, arrow_type(kind)) for name, (kind, values) in columns.items()})


def stage_of(database: PostgreSql, columns: dict[str, Kind], types: dict[str, str] | None = None) -> Stage:
    """A fresh stage for a fresh target with these columns, or those types of PostgreSQL's."""
    stage = Stage(STAGE, tuple(Column(name, kind) for name, kind in columns.items()))
    declared = {name: database.type_for(kind) for name, kind in columns.items()} | (types or {})
    session = database.connect(lock_timeout_s=5)
    try:
        database.drop_stage(session, STAGE)
        session.execute("DROP TABLE IF EXISTS target")
        session.execute(f"CREATE TABLE target ({', '.join(f'{database.quoted(n)} {t}' for n, t in declared.items())})")
        with session.transaction():
            database.create_stage(session, stage, TARGET)
    finally:
        session.close()
    return stage


def staged(database: PostgreSql, columns: str = "*") -> list[tuple[Any, ...]]:
    with psycopg.connect(database.url) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'")
        return connection.execute(f"SELECT {columns} FROM onceflow_stage_1".encode()).fetchall()


def round_trip(database: PostgreSql, kind: Kind, values: list[Any], type_there: str | None = None) -> list[Any]:
    """What PostgreSQL has of a column, in the order in which it was loaded."""
    stage = stage_of(database, {"n": Kind("integer"), "x": kind}, {"x": type_there} if type_there else None)
    batch = batch_of({"n": (Kind("integer"), list(range(len(values)))), "x": (kind, values)})
    assert database.load(stage, 0, 0, [batch]) == len(values)
    return [value for _, value in sorted(staged(database, "n, x"), key=lambda row: row[0])]


HARD_VALUES = {
    "boolean": [True, False],
    "smallint": [-(2**15), 2**15 - 1, 0],
    "integer": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "text": [
        *("", " ", '"', '""', "'", ",", "\n", "\r", "\r\n", "\t", "\\", "\\N", "\\.", "a\n\\.\nb", "NULL", "null"),
        *("\\x41", "é", "😀", "\u2028", 'a,b"c\nd', "x" * 100_000, "\x01\x7f", "%s ? $1"),
    ],
    "binary": [b"", bytes(range(256)), b"\0", b"\\x00", b"\xff" * 10_000],
    "date": [
        *(dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(1969, 12, 31), dt.date(2024, 2, 29)),
        dt.date(9999, 12, 31),
    ],
    "timestamp": [
        *(dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        *(dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), dt.datetime(2024, 11, 3, 5, 30, tzinfo=UTC)),
        dt.datetime(2024, 11, 3, 6, 30, tzinfo=UTC),  # the hour that New York has twice
    ],
    "timestamp_ntz": [
        *(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
        *(dt.datetime(1969, 12, 31, 23, 59, 59, 1), dt.datetime(2024, 3, 10, 2, 30)),  # an hour that New York skips
    ],
    "json": ['{"a": [1, null, "x\\n"]}', "[]", '"text"', "null"],
}


@pytest.mark.parametrize("name", [name for name in HARD_VALUES if name != "json"])
def test_every_hard_value_comes_back_as_it_was(server: PostgreSql, name: str) -> None:
    values = [None, *HARD_VALUES[name], None]
    assert round_trip(server, Kind(name), values) == values


def test_json_text_becomes_jsonb_and_null_is_not_the_json_null(server: PostgreSql) -> None:
    values = [*HARD_VALUES["json"], None]
    assert round_trip(server, Kind("json"), values) == [{"a": [1, None, "x\n"]}, [], "text", None, None]
    assert staged(server, "count(*) FILTER (WHERE x IS NULL)") == [(1,)]


def test_doubles_come_back_bit_by_bit(server: PostgreSql) -> None:
    values = [0.1, -0.0, 0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1e22, 1 / 3, -123456789.123]
    assert [bits(value) for value in round_trip(server, Kind("double"), values)] == [bits(value) for value in values]
    assert math.isnan(round_trip(server, Kind("double"), [math.nan])[0])


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


@pytest.mark.parametrize("type_there", ["real", "double precision"])
def test_a_float_has_the_same_value_in_a_real_and_in_a_double(server: PostgreSql, type_there: str) -> None:
    values = [struct.unpack(">f", struct.pack(">f", value))[0] for value in (0.1, 1e-45, 3.4e38, 16777217.0, -1 / 3)]
    round_trip(server, Kind("real"), values, type_there)
    found = staged(server, "n, x::double precision")
    assert [value for _, value in sorted(found)] == values


def test_decimals_keep_every_digit(server: PostgreSql) -> None:
    kind = Kind("decimal", 38, 18)
    largest = Decimal("99999999999999999999.999999999999999999")
    small = [Decimal("1E-18"), Decimal("-1E-18"), Decimal("0E-18"), Decimal("0.000001")]
    values = [largest, largest.copy_negate(), *small, None]
    assert round_trip(server, kind, values) == values
    whole = [Decimal(10**38 - 1), Decimal(0), None]
    assert round_trip(server, Kind("decimal", 38, 0), whole) == whole
    assert round_trip(server, kind, values, "numeric") == values


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


@given(values=st.lists(TEXTS | st.none(), max_size=30))
@examples(20, soak=600)
def test_any_text_comes_back(server: PostgreSql, values: list[str | None]) -> None:
    assert round_trip(server, Kind("text"), values) == values


@given(
    values=st.lists(
        st.tuples(
            st.floats(allow_nan=False) | st.none(),
            st.binary() | st.none(),
            st.decimals(min_value=-(10**8), max_value=10**8, places=4) | st.none(),
            st.datetimes(timezones=st.just(UTC)) | st.none(),
            st.dates() | st.none(),
            st.booleans() | st.none(),
        ),
        max_size=30,
    )
)
@examples(20, soak=600)
def test_any_row_comes_back(server: PostgreSql, values: list[tuple[Any, ...]]) -> None:
    kinds = [Kind("double"), Kind("binary"), Kind("decimal", 14, 4), Kind("timestamp"), Kind("date"), Kind("boolean")]
    numbers = {"n": (Kind("integer"), list(range(len(values))))}
    columns = {f"c{at}": (kind, [row[at] for row in values]) for at, kind in enumerate(kinds)}
    stage = stage_of(server, {name: kind for name, (kind, _) in (numbers | columns).items()})
    server.load(stage, 0, 0, [batch_of(numbers | columns)])
    assert [row[1:] for row in sorted(staged(server), key=lambda row: row[0])] == values


def test_a_column_alone_that_is_all_null_has_its_rows(server: PostgreSql) -> None:
    stage = stage_of(server, {"x": Kind("text")})
    batch = batch_of({"x": (Kind("text"), [None, "", None])})
    assert server.load(stage, 0, 0, [batch]) == 3
    assert sorted(staged(server), key=str) == [("",), (None,), (None,)]


@pytest.mark.parametrize("values", [[None, None], [b"ab", None, b"", b"\x00\xff", b"c"]])
def test_a_slice_of_a_binary_column_is_that_slice(server: PostgreSql, values: list[bytes | None]) -> None:
    stage = stage_of(server, {"x": Kind("binary")})
    batch = batch_of({"x": (Kind("binary"), [b"before", *values, b"after"])}).slice(1, len(values))
    server.load(stage, 0, 0, [batch])
    assert sorted(staged(server), key=str) == sorted([(value,) for value in values], key=str)


def test_large_arrow_types_are_taken_too(server: PostgreSql) -> None:
    stage = stage_of(server, {"t": Kind("text"), "b": Kind("binary")})
    batch = pa.record_batch({"t": pa.array(["ä"], pa.large_string()), "b": pa.array([b"\1"], pa.large_binary())})
    server.load(stage, 0, 0, [batch])
    assert staged(server) == [("ä", b"\1")]


@pytest.mark.parametrize(
    ("type_there", "value"),
    [
        ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
        ("inet", "10.0.0.1/8"),
        ("character varying(5)", "abcde"),
        ("json", '{"a":1}'),
        ("integer[]", "{1,2}"),
        ("interval", "1 day"),
    ],
)
def test_text_goes_into_types_that_the_server_parses(server: PostgreSql, type_there: str, value: str) -> None:
    stage = stage_of(server, {"x": Kind("text")}, {"x": type_there})
    server.load(stage, 0, 0, [batch_of({"x": (Kind("text"), [value])})])
    assert staged(server, f"x = '{value}'::{type_there}" if type_there != "json" else "x->>'a' = '1'") == [(True,)]


def test_no_batches_and_empty_batches_leave_a_line_with_no_rows(server: PostgreSql) -> None:
    stage = stage_of(server, {"b": Kind("binary"), "x": Kind("timestamp")})
    empty = batch_of({"b": (Kind("binary"), []), "x": (Kind("timestamp"), [])})
    assert server.load(stage, 1, 10, []) == 0
    assert server.load(stage, 2, 11, [empty, empty]) == 0
    assert sorted(sealed(server, stage)) == [Loaded(1, 10, 0), Loaded(2, 11, 0)]


def test_several_batches_are_one_load(server: PostgreSql) -> None:
    stage = stage_of(server, {"x": Kind("bigint")})
    sizes = [3, 0, 45_000, 1]
    batches = (batch_of({"x": (Kind("bigint"), list(range(size)))}) for size in sizes)
    assert server.load(stage, 7, 2**40, batches) == 45_004
    assert sealed(server, stage) == [Loaded(7, 2**40, 45_004)]
    assert staged(server, "count(*)") == [(45_004,)]


def test_names_that_need_quotes_are_names(server: PostgreSql) -> None:
    names = ['a"b', "select", "per%cent", "what?", "größe", "A b"]
    stage = stage_of(server, {name: Kind("integer") for name in names})
    server.load(stage, 0, 0, [batch_of({name: (Kind("integer"), [at]) for at, name in enumerate(names)})])
    assert staged(server) == [(0, 1, 2, 3, 4, 5)]


def test_a_task_that_breaks_leaves_nothing(server: PostgreSql) -> None:
    stage = stage_of(server, {"x": Kind("bigint")})

    def broken() -> Iterator[Any]:
        yield batch_of({"x": (Kind("bigint"), list(range(50_000)))})
        raise ZeroDivisionError("of the task's own")

    with pytest.raises(ZeroDivisionError, match="of the task's own"):
        server.load(stage, 0, 0, broken())
    assert (sealed(server, stage), staged(server)) == ([], [])


def test_a_nul_in_a_text_is_refused_with_the_name_of_the_column(server: PostgreSql) -> None:
    kinds = {"fine": Kind("text"), "bad": Kind("text"), "binary": Kind("binary")}
    stage = stage_of(server, kinds)
    columns = {"fine": (Kind("text"), ["a"]), "bad": (Kind("text"), ["a\0b"]), "binary": (Kind("binary"), [b"\0"])}
    with pytest.raises(Refused, match=r"NUL character in a text, and there is one in column bad:"):
        server.load(stage, 0, 0, [batch_of(columns)])
    assert (sealed(server, stage), staged(server)) == ([], [])


@pytest.mark.parametrize(
    ("kind", "value", "type_there", "words"),
    [
        (Kind("text"), "abcdef", "character varying(5)", "column x.*too long for its column"),
        (Kind("text"), "no uuid", "uuid", 'column x: "no uuid".*does not fit its column'),
        (Kind("json"), "{", "jsonb", "column x.*does not fit its column"),
        (Kind("json"), "{", "json", "column x.*does not fit its column"),
        (Kind("decimal", 9, 2), Decimal("1000.00"), "numeric(5,2)", "column x.*too large for its column"),
        (Kind("decimal", 38, 2), Decimal("1000.00"), "numeric(5,2)", "column x.*too large for its column"),
        (Kind("bigint"), 2**40, "integer", 'column x: "1099511627776".*too large for its column'),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(
    server: PostgreSql, kind: Kind, value: Any, type_there: str, words: str
) -> None:
    stage = stage_of(server, {"x": kind}, {"x": type_there})
    batch = batch_of({"x": (kind, [value])})
    with pytest.raises(Refused, match=words):
        server.load(stage, 0, 0, [batch])
    assert (sealed(server, stage), staged(server)) == ([], [])


@pytest.mark.parametrize(
    ("days", "date"),
    [
        (-719_163, "0001-12-31 BC"),  # for Spark 0000-12-31
        (-999_999, "0769-02-05 BC"),
        (2_932_897, "10000-01-01"),
        (11_248_738, "32768-01-01"),
        (-2_440_588, "4714-11-24 BC"),
        (2_145_042_905, "5874897-12-31"),
    ],
)
def test_a_date_of_another_year_than_1_to_9999_is_that_date(server: PostgreSql, days: int, date: str) -> None:
    values = pa.array([None, days, 0], pa.int32()).view(pa.date32())
    server.load(stage_of(server, {"x": Kind("date")}), 0, 0, [pa.record_batch({"x": values})])
    assert staged(server, "x::text, x - date '1970-01-01'") == [(None, None), (date, days), ("1970-01-01", 0)]


@pytest.mark.parametrize("name", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize(
    ("microseconds", "moment"),
    [
        (-62_135_596_800_000_001, "0001-12-31 23:59:59.999999 BC"),
        (-210_866_803_200_000_000, "4714-11-24 00:00:00 BC"),
        (253_402_300_800_000_001, "10000-01-01 00:00:00.000001"),
        (971_890_963_200_000_000, "32768-01-01 00:00:00"),
        (2**63 - 1, "294247-01-10 04:00:54.775807"),
    ],
)
def test_a_timestamp_of_another_year_than_1_to_9999_is_that_moment(
    server: PostgreSql, name: str, microseconds: int, moment: str
) -> None:
    values = pa.array([None, microseconds, 1], pa.int64()).view(ARROW[name])
    server.load(stage_of(server, {"x": Kind(name)}), 0, 0, [pa.record_batch({"x": values})])
    found = staged(server, "replace(x::text, '+00', '')")
    assert found == [(None,), (moment,), ("1970-01-01 00:00:00.000001",)]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("date", -(2**31)), ("date", 2**31 - 1), ("date", -2_440_589), ("date", 2_145_042_906)),
        *(("timestamp", -(2**63)), ("timestamp_ntz", -(2**63)), ("timestamp", -210_866_803_200_000_001)),
    ],
)
def test_a_time_that_postgresql_does_not_have_is_refused_with_its_column(
    server: PostgreSql, name: str, number: int
) -> None:
    stage = stage_of(server, {"fine": Kind(name), "since": Kind(name)})
    whole = pa.int32() if name == "date" else pa.int64()
    fine, bad = (pa.array([each], whole).view(ARROW[name]) for each in (0, number))
    with pytest.raises(Refused, match=r"PostgreSQL holds dates and times from 4714-11-24 BC .*column since has"):
        server.load(stage, 0, 0, [pa.record_batch({"fine": fine, "since": bad})])
    assert (sealed(server, stage), staged(server)) == ([], [])


def test_a_load_into_a_stage_that_was_dropped_is_worth_another_try_with_another_stage(server: PostgreSql) -> None:
    stage = stage_of(server, {"x": Kind("bigint")})
    session = server.connect(lock_timeout_s=5)
    server.drop_stage(session, stage.name)
    session.close()
    with pytest.raises(Again, match="The staging table onceflow_stage_1 is not there any more"):
        server.load(stage, 0, 0, [])


def test_an_encoding_in_the_address_changes_no_text(server: PostgreSql) -> None:
    other = PostgreSql(f"{server.url}?client_encoding=LATIN1")
    stage = stage_of(other, {"x": Kind("text")})
    other.load(stage, 0, 0, [batch_of({"x": (Kind("text"), ["é😀"])})])
    assert staged(server) == [("é😀",)]


@pytest.mark.parametrize("setting", ["TimeZone = 'Asia/Tokyo'", "DateStyle = 'SQL, DMY'", "extra_float_digits = -10"])
def test_settings_of_the_role_change_no_value(postgresql: PostgreSQL, setting: str) -> None:
    database = PostgreSql(postgresql.new_database())
    with psycopg.connect(database.url) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    moment = dt.datetime(2024, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
    assert round_trip(database, Kind("timestamp"), [moment]) == [moment]
    date = dt.date(11, 12, 10)
    round_trip(database, Kind("date"), [date])
    assert staged(database, "x = make_date(11, 12, 10)") == [(True,)]


def sealed(database: PostgreSql, stage: Stage) -> list[Loaded]:
    session = database.connect(lock_timeout_s=5)
    try:
        with session.transaction():
            return database.seal(session, stage)
    finally:
        session.close()


def test_batches_are_taken_one_at_a_time(server: PostgreSql) -> None:
    """A task may have more rows than fit its memory."""
    stage = stage_of(server, {"x": Kind("bigint")})
    alive: list[int] = []

    def batches() -> Iterable[Any]:
        for _ in range(5):
            alive.append(pa.total_allocated_bytes())
            yield batch_of({"x": (Kind("bigint"), list(range(100_000)))})

    before = pa.total_allocated_bytes()
    server.load(stage, 0, 0, batches())
    assert max(alive) - before < 3_000_000
