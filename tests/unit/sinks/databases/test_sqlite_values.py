"""Hard values of every kind come back as they were, or are refused; and so are columns that would change them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from onceflow.sinks.databases.database import Column, Kind, Refused, Session, Stage, TableColumn, TableName
from onceflow.sinks.databases.sqlite import Sqlite
from onceflow.sinks.databases.sqlite_values import SqliteColumn, as_lists

UTC: Final = datetime.UTC
TABLE: Final = TableName(None, "t")
STAGE: Final = TableName(None, "stage")


@pytest.fixture
def database(tmp_path: Path) -> Sqlite:
    return Sqlite(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def session(database: Sqlite) -> Iterator[Session]:
    session = database.connect(lock_timeout_s=5)
    session.execute("PRAGMA synchronous=OFF")  # many small tables, and none of them must survive anything
    yield session
    session.close()


VALUES: Final[list[tuple[Kind, Any, list[Any], list[Any]]]] = [
    (Kind("boolean"), pa.bool_(), [True, False, None], [1, 0, None]),
    (Kind("smallint"), pa.int8(), [-128, 127, None], [-128, 127, None]),
    (Kind("smallint"), pa.int16(), [-(2**15), 2**15 - 1, None], [-(2**15), 2**15 - 1, None]),
    (Kind("integer"), pa.int32(), [-(2**31), 2**31 - 1, 0], [-(2**31), 2**31 - 1, 0]),
    (
        Kind("bigint"),
        pa.int64(),
        [-(2**63), 2**63 - 1, 2**53 + 1, None, 0],
        [-(2**63), 2**63 - 1, 2**53 + 1, None, 0],
    ),
    (Kind("real"), pa.float32(), [1.5, 3.4028234663852886e38, None], [1.5, 3.4028234663852886e38, None]),
    (Kind("real"), pa.float32(), [math.inf, -math.inf], [math.inf, -math.inf]),
    (
        Kind("double"),
        pa.float64(),
        [0.1, 5e-324, 1.7976931348623157e308, -math.inf, 2.0, 1e15, None],
        [0.1, 5e-324, 1.7976931348623157e308, -math.inf, 2.0, 1e15, None],
    ),
    (
        Kind("decimal", 12, 2),
        pa.decimal128(12, 2),
        [Decimal("0.10"), Decimal("-9999999999.99"), Decimal("0"), Decimal("12.50"), None],
        ["0.10", "-9999999999.99", "0.00", "12.50", None],
    ),
    (
        Kind("decimal", 38, 18),
        pa.decimal128(38, 18),
        [Decimal("0.000000000000000001"), Decimal("0"), Decimal("-99999999999999999999.999999999999999999"), None],
        ["0.000000000000000001", "0.000000000000000000", "-99999999999999999999.999999999999999999", None],
    ),
    (Kind("decimal", 18, 0), pa.decimal128(18, 0), [Decimal(10**18 - 1), Decimal(-5)], [str(10**18 - 1), "-5"]),
    (Kind("decimal", 38, 0), pa.decimal128(38, 0), [Decimal(10**38 - 1)], [str(10**38 - 1)]),
    (
        Kind("text"),
        pa.string(),
        ["", "12", "1.0", "1e5", " 7 ", "NULL", "a\0b", "größe", "😀", "x" * 100_000, "it's", None],
        ["", "12", "1.0", "1e5", " 7 ", "NULL", "a\0b", "größe", "😀", "x" * 100_000, "it's", None],
    ),
    (Kind("text"), pa.large_string(), ["12", None], ["12", None]),
    (Kind("json"), pa.string(), ["[1, 2]", '{"a": null}', "12", None], ["[1, 2]", '{"a": null}', "12", None]),
    (Kind("binary"), pa.binary(), [b"", b"\0\xff", b"12", None], [b"", b"\0\xff", b"12", None]),
    (
        Kind("date"),
        pa.date32(),
        [datetime.date.min, datetime.date.max, datetime.date(1969, 12, 31), None],
        ["0001-01-01", "9999-12-31", "1969-12-31", None],
    ),
    (
        Kind("timestamp"),
        pa.timestamp("us", "UTC"),
        [datetime.datetime.min.replace(tzinfo=UTC), datetime.datetime.max.replace(tzinfo=UTC), None],
        ["0001-01-01T00:00:00.000000+00:00", "9999-12-31T23:59:59.999999+00:00", None],
    ),
    (
        Kind("timestamp"),
        pa.timestamp("us", "America/New_York"),
        [datetime.datetime(2024, 2, 29, 23, 0, tzinfo=UTC), datetime.datetime(1969, 12, 31, 23, 59, 59, 1, UTC)],
        ["2024-02-29T23:00:00.000000+00:00", "1969-12-31T23:59:59.000001+00:00"],
    ),
    (
        Kind("timestamp_ntz"),
        pa.timestamp("us"),
        [datetime.datetime(2024, 2, 29, 23, 0), datetime.datetime(1, 1, 1, 0, 0, 0, 1), None],
        ["2024-02-29T23:00:00.000000", "0001-01-01T00:00:00.000001", None],
    ),
]

DECLARED: Final = [
    "", "INTEGER", "INT", "BIGINT", "BOOLEAN", "NUMERIC", "DECIMAL(12,2)", "REAL", "DOUBLE PRECISION", "FLOAT", "TEXT",
    "VARCHAR(20)", "CLOB", "BLOB", "DATE", "DATETIME", "TIMESTAMP", "JSON", "ANY", "POINT", "STRING",
]  # fmt: skip
STRICT: Final = ["INT", "INTEGER", "REAL", "TEXT", "BLOB", "ANY"]


def landed(database: Sqlite, session: Session, kind: Kind, arrow: pa.DataType, given: list[Any]) -> list[Any]:
    """Through a stage into the table `t`, and back."""
    stage = Stage(STAGE, (Column("v", kind),))
    with session.transaction():
        database.create_stage(session, stage, TABLE)
    half = len(given) // 2
    batches = [pa.record_batch([pa.array(part, arrow)], ["v"]) for part in (given[:half], given[half:])]
    assert database.load(stage, 0, 1, batches) == len(given)
    database.gather(session, stage)
    with session.transaction():
        session.execute('INSERT INTO t SELECT * FROM "stage" ORDER BY rowid')
    database.drop_stage(session, STAGE)
    return [value for (value,) in session.execute("SELECT v FROM t ORDER BY rowid").rows]


def same(found: list[Any], expected: list[Any]) -> bool:
    return found == expected and list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize(("kind", "arrow", "given", "expected"), VALUES, ids=lambda value: str(value)[:30])
def test_hard_values_come_back_from_a_table_of_our_own(
    database: Sqlite, session: Session, kind: Kind, arrow: pa.DataType, given: list[Any], expected: list[Any]
) -> None:
    session.execute(f"CREATE TABLE t (v {database.type_for(kind)})")
    (there,) = database.columns(session, TABLE) or []
    assert database.misfit(Column("v", kind), there) is None
    assert same(landed(database, session, kind, arrow, given), expected)


@pytest.mark.parametrize(("kind", "arrow", "given", "expected"), VALUES, ids=lambda value: str(value)[:30])
def test_a_column_that_fits_keeps_hard_values(
    database: Sqlite, session: Session, kind: Kind, arrow: pa.DataType, given: list[Any], expected: list[Any]
) -> None:
    """Equal to SQLite, and so to whoever reads: a whole number may be a float, and a decimal a whole number."""
    tables = [(declared, "") for declared in DECLARED] + [(declared, "STRICT") for declared in STRICT]
    fitting = 0
    for declared, strict in tables:
        session.execute("DROP TABLE IF EXISTS t")
        session.execute(f"CREATE TABLE t (v {declared}) {strict}")
        (there,) = database.columns(session, TABLE) or []
        if database.misfit(Column("v", kind), there) is None:
            fitting += 1
            found = landed(database, session, kind, arrow, given)
            if kind.name == "decimal" and any(isinstance(value, int) for value in found):
                found = [None if value is None else str(value) for value in found]
            assert found == expected, (declared, strict)
    assert fitting >= 3


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        ("text", "INTEGER"), ("text", "NUMERIC"), ("text", "REAL"), ("text", "STRING"), ("text", "DATE"),
        ("json", "JSON"), ("decimal", "DECIMAL(12,2)"), ("decimal", "REAL"), ("decimal", "INTEGER"),
        ("bigint", "REAL"), ("bigint", "TEXT"), ("boolean", "TEXT"), ("double", "INTEGER"), ("double", "VARCHAR(20)"),
        ("binary", "TEXT"), ("binary", "INTEGER"), ("timestamp", "INTEGER"), ("date", "REAL"),
    ],
)  # fmt: skip
def test_a_column_that_would_change_values_is_refused(database: Sqlite, kind: str, declared: str) -> None:
    problem = database.misfit(Column("v", Kind(kind, 12, 2)), TableColumn("v", declared))
    assert problem is not None
    assert declared in problem
    assert database.type_for(Kind(kind)) in problem


@pytest.mark.parametrize(
    ("kind", "declared"), [("text", "BLOB"), ("text", "INT"), ("bigint", "TEXT"), ("double", "INT"), ("date", "BLOB")]
)
def test_a_strict_table_has_rules_of_its_own(database: Sqlite, kind: str, declared: str) -> None:
    assert database.misfit(Column("v", Kind(kind)), SqliteColumn("v", declared, is_strict=True)) is not None
    assert database.misfit(Column("v", Kind(kind)), SqliteColumn("v", "ANY", is_strict=True)) is None


def test_decimals_of_more_than_18_digits_are_no_integers(database: Sqlite) -> None:
    assert database.misfit(Column("v", Kind("decimal", 18, 0)), TableColumn("v", "INTEGER")) is None
    assert database.misfit(Column("v", Kind("decimal", 19, 0)), TableColumn("v", "INTEGER")) is not None


def test_only_decimals_are_numbers_kept_as_text(database: Sqlite) -> None:
    kept = [name for name in ("bigint", "double", "decimal", "timestamp") if database.keeps_as_text(Kind(name))]
    assert kept == ["decimal"]


def test_an_unknown_kind_has_no_type(database: Sqlite) -> None:
    with pytest.raises(Refused, match="no type for interval"):
        database.type_for(Kind("interval"))


FAR = 290_000 * 365 * 86_400 * 1_000_000


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("double", pa.array([1.0, None, math.nan]), "row 5 of a task has NaN"),
        ("real", pa.array([1.0, 2.0, math.nan], pa.float32()), "row 5 of a task has NaN"),
        ("date", pa.array([0, None, 2932897], pa.date32()), "row 5 of a task has a year outside of 1 to 9999"),
        ("date", pa.array([0, -719163, 0], pa.date32()), "row 4 of a task has a year outside of 1 to 9999"),
        ("timestamp", pa.array([0, None, -FAR], pa.timestamp("us", "UTC")), "row 5 of a task has a year outside"),
        ("timestamp_ntz", pa.array([0, FAR, 0], pa.timestamp("us")), "row 4 of a task has a year outside"),
    ],
)
def test_a_value_that_cannot_be_kept_is_named_and_nothing_is_staged(
    database: Sqlite, session: Session, kind: str, values: pa.Array, message: str
) -> None:
    stage = Stage(STAGE, (Column("id", Kind("bigint")), Column("v", Kind(kind))))
    with session.transaction():
        database.create_stage(session, stage, TABLE)
    ids = pa.array([1, 2, 3])
    good = pa.record_batch([ids, pa.nulls(3, values.type)], ["id", "v"])
    with pytest.raises(Refused, match=f"{message}.* in column 'v'"):
        database.load(stage, 0, 1, [good, pa.record_batch([ids, values], ["id", "v"])])
    database.gather(session, stage)
    with session.transaction():
        assert database.seal(session, stage) == []
        assert session.execute('SELECT * FROM "stage"').rows == []


def test_times_sort_as_text() -> None:
    years, microseconds = (1, 999, 1970, 9999), (0, 1, 100_000)
    moments = [datetime.datetime(year, 1, 1, 0, 0, 0, us, UTC) for year in years for us in microseconds]
    batch = pa.record_batch([pa.array(moments, pa.timestamp("us", "UTC"))], ["v"])
    (texts,) = as_lists(batch, [Column("v", Kind("timestamp"))], 0)
    assert sorted(texts) == texts
