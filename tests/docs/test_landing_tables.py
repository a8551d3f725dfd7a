"""The guide to landing: the modes, types and refusals that it shows are those of the code. Without Spark."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark_types

from onceflow.errors import ConfigError
from onceflow.sinks import write
from onceflow.sinks.databases import Database, open_database
from onceflow.sinks.spark_rows import columns_of
from tests.docs.landing_page import table
from tests.support.brokers import Shared
from tests.support.postgresql import PostgreSQL, shared_postgresql
from tests.support.sql_sink_without_spark import Frame, without_spark

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="session")
def postgresql(shared: Shared) -> PostgreSQL:
    return shared_postgresql(shared)


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty one."""
    if request.param == "sqlite":
        return open_database(f"sqlite:///{tmp_path}/shop.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return open_database(server.new_database())


def asked(database: Database, statement: str) -> Rows:
    session = database.connect(lock_timeout_s=5)
    try:
        return session.execute(statement).rows
    finally:
        session.close()


# --- the modes, without Spark

NAMED, VERSIONED = "id bigint, name string", "id bigint, name string, version bigint"
VIEWS = "page string, views bigint"


@dataclasses.dataclass(frozen=True)
class Shown:
    """A row of a table that shows a mode: before, micro-batch, after."""

    title: str
    mode: str
    schema: str
    settings: dict[str, Any]
    kept: str
    first: tuple[str, str] = ("", "")
    """The mode and schema with which the rows come that are there before, if others."""

    def __str__(self) -> str:
        return f"{self.title}: {self.mode}"


SHOWN = [
    Shown("Modes", "append", NAMED, {}, "id, name"),
    Shown("Modes", "upsert", NAMED, {"key": ["id"]}, "id, name"),
    Shown(
        "Modes", "delete_and_upsert", f"{NAMED}, deleted boolean", {"key": ["id"]}, "id, name", first=("upsert", NAMED)
    ),
    Shown("Modes", "increment", VIEWS, {"key": ["page"]}, "page, views"),
    Shown("Modes, order_by", "upsert", VERSIONED, {"key": ["id"], "order_by": ["version"]}, "id, name, version"),
    Shown(
        "Counters",
        "increment",
        f"{VIEWS}, partition int, offset bigint",
        {"key": ["page"], "position": ("partition", "offset")},
        "page, views, onceflow_partition, onceflow_offset",
    ),
]
_READ = {"bigint": int, "int": int, "string": str, "boolean": lambda text: text == "true"}


def parsed(cell: str, schema: str) -> Rows:
    kinds = [_READ[each.split()[1]] for each in schema.split(",")]
    return [tuple(read(text) for read, text in zip(kinds, row.split(), strict=True)) for row in cell.split("<br>")]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_each_mode_does_what_its_table_shows(shown: Shown, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    title, _, with_order = shown.title.partition(", ")
    rows = [cells[1:] for cells in table(title, "mode") if cells[0] == f"`{shown.mode}`"]
    before, batch, after = rows[1 if with_order else 0]
    mode, schema = shown.first if shown.first[0] else (shown.mode, shown.schema)
    settings = {"url": database, "table": "things", "app_id": "shown"}
    with without_spark(monkeypatch):
        key_alone = {"key": shown.settings["key"]} if mode == "upsert" else shown.settings
        write(Frame(schema, [parsed(before, schema)]), **settings, **key_alone, mode=mode, create_table=True)
        tasks = [[row] for row in parsed(batch, shown.schema)]
        write(Frame(shown.schema, tasks), **settings, **shown.settings, mode=shown.mode)
    found = asked(database, f"SELECT {shown.kept} FROM things")
    assert sorted(found) == sorted(parsed(after, ", ".join(_kinds(shown))))


def _kinds(shown: Shown) -> list[str]:
    """Names and kinds of the columns that are kept."""
    return shown.schema.split(", ")[: len(shown.kept.split(", "))]


def test_every_mode_is_shown() -> None:
    assert {cells[0].strip("`") for cells in table("Modes", "mode")} == {each.mode for each in SHOWN}


# --- types, and what is refused

_SPARK = {
    "boolean": spark_types.BooleanType(),
    "tinyint": spark_types.ByteType(),
    "smallint": spark_types.ShortType(),
    "int": spark_types.IntegerType(),
    "bigint": spark_types.LongType(),
    "float": spark_types.FloatType(),
    "double": spark_types.DoubleType(),
    "decimal(12,2)": spark_types.DecimalType(12, 2),
    "string": spark_types.StringType(),
    "binary": spark_types.BinaryType(),
    "date": spark_types.DateType(),
    "timestamp": spark_types.TimestampType(),
    "timestamp_ntz": spark_types.TimestampNTZType(),
    "array": spark_types.ArrayType(spark_types.StringType()),
    "map": spark_types.MapType(spark_types.StringType(), spark_types.LongType()),
    "struct": spark_types.StructType(),
}


def test_the_types_are_those_that_tables_are_created_with() -> None:
    told = {name.strip(): cells[1:] for cells in table("Tables and types", "Spark") for name in _names(cells[0])}
    assert told.keys() == _SPARK.keys()
    places = [open_database("postgresql://host/shop"), open_database("sqlite:///shop.db")]
    for name, type_ in _SPARK.items():
        [column] = columns_of(spark_types.StructType([spark_types.StructField("it", type_)]))
        assert [each.type_for(column.kind) for each in places] == told[name], name


def _names(cell: str) -> list[str]:
    return [cell] if "(" in cell else cell.split(",")


@pytest.mark.parametrize(
    "type_", [spark_types.DayTimeIntervalType(), spark_types.YearMonthIntervalType(), spark_types.NullType()], ids=str
)
def test_types_without_a_counterpart_are_refused(type_: spark_types.DataType) -> None:
    with pytest.raises(ConfigError, match="cast it in Spark"):
        columns_of(spark_types.StructType([spark_types.StructField("it", type_)]))


@pytest.mark.parametrize("number", range(3))
def test_tables_that_do_not_fit_are_refused_in_the_words_of_the_page(number: int, database: Database) -> None:
    rows, there, error = table("Tables and types", "rows")[number]
    schema, _, key = rows.partition(" with ")
    asked(database, f"CREATE TABLE things ({there.strip('`')})")
    settings = {"key": ["name"], "mode": "upsert"} if key else {}
    if database.shown.startswith("sqlite"):
        error = error.replace('"nme" text', '"nme" TEXT')
    with pytest.raises(ConfigError, match=f"^{re.escape(error)}$"):
        write(Frame(schema.strip("`"), [[]]), url=database, table="things", app_id="refused", **settings)
    assert asked(database, "SELECT count(*) FROM things") == [(0,)]
