"""A database as a further output of a reference pipeline, without Spark: what is read, looked at, judged, removed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines.judging_tables import Row
from onceflow.pipelines.reference import Expected
from onceflow.verify.history import History
from onceflow.verify.stage import NotDrained
from onceflow.verify.workloads import reference_tables
from onceflow.verify.workloads.reference_tables import LandedTables, Query, TableFindings
from tests.pipelines.clicks import PIPELINE
from tests.support.waiting import eventually


class Run:
    """Takes the place of a stage, with a database that a pipeline has landed in."""

    bootstrap = "127.0.0.1:1"
    prefix = "verify-1-"
    zero = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "history").mkdir()

    def named(self, name: str) -> str:
        return f"{self.prefix}{name}"

    @property
    def tables(self) -> LandedTables:
        stage: Any = self
        return LandedTables(stage, PIPELINE)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "landed.db", timeout=10)) as connection, connection:
            return connection.execute(statement, values).fetchall()

    def land(self, batch: int) -> None:
        """What `EXPECTED` leads to."""
        self.execute("CREATE TABLE IF NOT EXISTS onceflow_progress (app_id, epoch, query_id, batch_id, offsets, at_ms)")
        self.execute("INSERT INTO onceflow_progress (app_id, batch_id) VALUES ('verify-1-clicks', ?)", batch)
        self.execute("INSERT INTO verify_1_page_views VALUES ('a/1', 3)")
        self.execute("INSERT INTO verify_1_all_page_views VALUES ('a/1', 2), ('a/1', 3)")
        self.execute("INSERT INTO verify_1_site_views VALUES ('a', 3)")


EXPECTED = [
    [Expected("page_views", "a/1", {"page": "a/1", "views": 2})],
    [
        Expected("page_views", "a/1", {"page": "a/1", "views": 3}),
        Expected("site_views", "a", {"site": "a", "views": 3}),
    ],
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ONCEFLOW_SQL", f"sqlite:///{tmp_path}/landed.db")
    return Run(tmp_path)


def judged(found: list[Counter[Row]], run: Run) -> TableFindings:
    findings = TableFindings(PIPELINE)
    for number, expected in enumerate(EXPECTED):
        findings.hear(number, expected)
    findings.judge(found, History.load(sorted((run.folder / "history").glob("*.jsonl")), ()))
    return findings


def test_without_an_address_there_is_no_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEFLOW_SQL")
    with pytest.raises(ConfigError, match="ONCEFLOW_SQL does not say where the database is"):
        _ = run.tables


def test_what_has_landed_is_read_and_judged(run: Run) -> None:
    tables = run.tables
    run.land(1)
    findings = judged(tables.read(), run)
    assert list(findings.differences) == []
    assert {name: each.found for name, each in findings.tallies.items()} == {
        "page_views": 1,
        "all_page_views": 2,
        "site_views": 1,
    }


def test_a_row_that_is_missing_makes_the_run_inexact(run: Run) -> None:
    tables = run.tables
    run.land(1)
    run.execute("DELETE FROM verify_1_all_page_views WHERE views = 2")
    [difference] = judged(tables.read(), run).differences
    assert difference.kind == "row missing"
    assert '"views": 2' in difference.sentence


def test_tables_that_cannot_be_read_are_a_run_without_an_end(run: Run) -> None:
    tables = run.tables
    run.execute("DROP TABLE verify_1_page_views")
    with pytest.raises(NotDrained, match=r"the tables could not be read: .*page_views"):
        tables.read()


def looked(run: Run, tables: LandedTables) -> None:
    stage: Any = run
    query = Query(stage, tables)
    try:
        path = run.folder / "history" / "query.jsonl"
        eventually(lambda: path.exists() and b'"end":"ok"' in path.read_bytes(), "the database was looked at")
    finally:
        query.end()


def test_queries_that_see_whole_micro_batches_are_counted(run: Run) -> None:
    tables = run.tables
    run.land(1)
    looked(run, tables)
    findings = judged(tables.read(), run)
    assert list(findings.differences) == []
    assert findings.to_json()["queries"]["whole"] > 0  # type: ignore[index]


def test_a_query_that_sees_a_part_of_a_micro_batch_makes_the_run_inexact(run: Run) -> None:
    tables = run.tables
    run.land(1)
    run.execute("DELETE FROM verify_1_site_views")
    looked(run, tables)
    run.execute("INSERT INTO verify_1_site_views VALUES ('a', 3)")
    assert {each.kind for each in judged(tables.read(), run).differences} == {"not atomic"}


def test_micro_batches_that_no_query_saw_prove_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_tables, "MANY", 2)
    tables = run.tables
    run.land(1)
    assert {each.kind for each in judged(tables.read(), run).differences} == {"not looked at"}


def test_what_a_run_has_left_in_a_database_can_be_removed(run: Run) -> None:
    tables = run.tables
    run.land(1)
    run.execute("INSERT INTO onceflow_progress (app_id) VALUES ('somebody else')")
    tables.remove()
    assert run.execute("SELECT name FROM sqlite_master WHERE type = 'table'") == [("onceflow_progress",)]
    assert run.execute("SELECT app_id FROM onceflow_progress") == [("somebody else",)]
