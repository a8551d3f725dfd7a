"""Tables that do not fit the rows are refused before anything is written; those that are asked for are created."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks.tables import Table
from onceflow.spark.listening import Step
from tests.support.sql_sink_cases import Case
from tests.support.sql_sink_places import Place
from tests.support.sql_sink_without_spark import At, Job

NewJob = Callable[..., Job]
SCHEMA = "id bigint, name string, n int"
GOOD = "CREATE TABLE t (id bigint PRIMARY KEY, name text, n integer)"


def upsert(**more: object) -> Table:
    return Table("t", key=["id"], mode="upsert", **more)  # type: ignore[arg-type]


REFUSED = {
    "no table": (None, Table("t"), SCHEMA, "there is no table t in .*create_table=True.*: CREATE TABLE"),
    "no such column": (
        "CREATE TABLE t (id bigint, names text, n integer)",
        Table("t"),
        SCHEMA,
        r"t has no column 'name' \(it has 'names'\): ALTER TABLE \"t\" ADD COLUMN \"name\" ",
    ),
    "a type that cannot hold it": (
        "CREATE TABLE t (id bigint, name integer, n integer)",
        Table("t"),
        SCHEMA,
        "column 'name' of t: ",
    ),
    "a column that must have a value": (
        "CREATE TABLE t (id bigint, name text, n integer, born date NOT NULL)",
        Table("t"),
        SCHEMA,
        "column 'born' of t must have a value, and the rows bring none",
    ),
    "a key that is not unique": (
        "CREATE TABLE t (id bigint, name text, n integer)",
        upsert(),
        SCHEMA,
        r"key=\['id'\] is not unique in t: CREATE UNIQUE INDEX",
    ),
    "a key that is only a part of a unique one": (
        "CREATE TABLE t (id bigint, name text, n integer, UNIQUE (id, name))",
        upsert(),
        SCHEMA,
        r"key=\['id'\] is not unique in t",
    ),
    "no bookkeeping": (
        "CREATE TABLE t (id bigint PRIMARY KEY, n bigint)",
        Table("t", key=["id"], mode="increment"),
        "id bigint, n bigint",
        "t has no column 'onceflow_query', which mode='increment' needs.*ALTER TABLE",
    ),
    "no bookkeeping for positions": (
        "CREATE TABLE t (id bigint PRIMARY KEY, n bigint)",
        Table("t", key=["id"], mode="increment", position=("p", "o")),
        "id bigint, n bigint, p int, o bigint",
        "t has no column 'onceflow_partition', which mode='increment' needs",
    ),
    "no column of the key": (GOOD, Table("t", key=["ids"], mode="upsert"), SCHEMA, "'ids': did you mean 'id'?"),
    "no column of order_by": (GOOD, upsert(order_by=["at"]), SCHEMA, "no column 'at': they have id, name, n"),
    "deleted is not boolean": (
        GOOD,
        Table("t", key=["id"], mode="delete_and_upsert", deleted="n"),
        SCHEMA,
        "column 'n' for t is integer, and must be boolean",
    ),
    "no deleted": (GOOD, Table("t", key=["id"], mode="delete_and_upsert"), SCHEMA, "have no column 'deleted'"),
    "a text that is to be added": (GOOD, Table("t", key=["id"], mode="increment"), SCHEMA, "'name' for t is text"),
    "nothing to add": (GOOD, Table("t", key=["id"], mode="increment"), "id bigint", "there is no column to add"),
    "a position that is no number": (
        GOOD,
        Table("t", key=["id"], mode="increment", position=("p", "o")),
        "id bigint, n bigint, p string, o bigint",
        "column 'p' is text; a position is two whole numbers",
    ),
    "the sink's own column": (
        GOOD,
        Table("t", key=["id"], mode="increment"),
        "id bigint, onceflow_batch bigint",
        "column 'onceflow_batch' of t is the sink's own",
    ),
    "an array as key": (GOOD, Table("t", key=["a"], mode="upsert"), "a array<int>, n int", "it cannot be compared"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_table_that_does_not_fit_is_refused_and_nothing_is_created(place: Place, new_job: NewJob, what: str) -> None:
    statement, table, schema, words = REFUSED[what]
    place.execute(statement or "SELECT 1")
    job = new_job(place, Case("", [table], {"t": schema}, [{"t": [[]]}]))
    with pytest.raises(ConfigError, match=words) as refused:
        job.driver().run(0)
    assert str(refused.value).endswith("Nothing was written")
    assert place.tables() == ([] if statement is None else ["t"])
    assert place.stages() == []


def test_of_several_tables_one_that_does_not_fit_keeps_all_from_being_written(place: Place, new_job: NewJob) -> None:
    place.execute("CREATE TABLE good (id bigint)", "CREATE TABLE bad (other bigint)")
    tables = [Table(name, rows=lambda frame, name=name: frame.parts[name]) for name in ("good", "bad")]  # type: ignore[misc]
    schemas = {"good": "id bigint", "bad": "id bigint"}
    job = new_job(place, Case("", tables, schemas, [{"good": [[(1,)]], "bad": [[(1,)]]}]))
    with pytest.raises(ConfigError, match="bad has no column 'id'"):
        job.driver().run(0)
    assert place.rows("good") == []
    assert place.progress(job.app_id) is None


def test_a_decimal_that_sqlite_keeps_as_text_cannot_be_added_there(place: Place, new_job: NewJob) -> None:
    table = Table("t", key=["id"], mode="increment", create=True)
    job = new_job(place, Case("", [table], {"t": "id bigint, price decimal"}, [{"t": [[]]}]))
    if place.name == "postgresql":
        job.driver().run(0)
        job.check_progress(0)
        return
    with pytest.raises(ConfigError, match="keeps as text, so it can neither add nor compare it"):
        job.driver().run(0)


def test_columns_that_rows_do_not_bring_keep_their_defaults(place: Place, new_job: NewJob) -> None:
    place.execute("CREATE TABLE t (id bigint PRIMARY KEY, origin text DEFAULT 'here' NOT NULL, note text)")
    job = new_job(place, Case("", [upsert()], {"t": "id bigint"}, [{"t": [[(1,), (2,)]]}]))
    job.driver().run(0)
    assert place.rows("t", ["id", "origin", "note"]) == [(1, "here", None), (2, "here", None)]


def test_a_table_that_was_created_by_the_sink_fits_the_next_time(place: Place, new_job: NewJob) -> None:
    case = Case("", [upsert(create=True)], {"t": SCHEMA}, [{"t": [[(1, "a", 1)]]}, {"t": [[(1, "b", 2)]]}])
    job = new_job(place, case)
    job.driver().run(0)
    job.driver().run(1)
    job.check(1)


def test_names_that_need_quotes_are_names(place: Place, new_job: NewJob) -> None:
    table = Table('odd "name"', key=["group"], mode="upsert", order_by=["select"], create=True)
    rows = [(1, 1, "a"), (1, 2, "b")]
    case = Case("", [table], {table.name: 'group bigint, select int, we"ird string'}, [{table.name: [rows]}])
    new_job(place, case).driver().run(0)
    assert place.execute('SELECT "group", "select", "we""ird" FROM "odd ""name"""') == [(1, 2, "b")]


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_stages_and_progress_are_in_the_schema_of_the_first_table(place: Place, new_job: NewJob) -> None:
    place.execute("CREATE SCHEMA sales", "CREATE TABLE sales.t (id bigint PRIMARY KEY)")
    schemas = "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class WHERE relname LIKE 'onceflow_%'"
    seen: list[object] = []
    look = At("after", Step.WRITE, lambda: seen.extend(place.execute(schemas)))
    table = Table("sales.t", key=["id"], mode="upsert")
    job = new_job(place, Case("", [table], {table.name: "id bigint"}, [{table.name: [[(1,)]]}]))
    job.driver(look).run(0)
    assert seen == [("sales",)]
    assert place.rows("sales.t") == [(1,)]
    assert place.stages() == []
