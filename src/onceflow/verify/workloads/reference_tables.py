"""The database as a further output of a reference pipeline: looked at while it runs, read and judged in the end.

Where it is comes from the environment (`ONCEFLOW_SQL`), as it does for the driver: an address may hold a password, and
settings of workers are on their command lines.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Final

from onceflow.errors import ConfigError
from onceflow.pipelines.job import JobSettings
from onceflow.pipelines.judging import Differences, Tally
from onceflow.pipelines.judging_tables import ExpectedTable, Looks, Row, compare_table, counting, rows_in
from onceflow.pipelines.landing import check_database
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.reference import Expected
from onceflow.pipelines.tables import SQL_VARIABLE, table_name
from onceflow.sinks.databases.database import Session, TableName, Trouble
from onceflow.sinks.progress_table import NAME as PROGRESS
from onceflow.verify.history import History, Outcome, Recorder
from onceflow.verify.stage import NotDrained, Stage

__all__ = ["LandedTables", "Query", "TableFindings"]

LOOK_EVERY_S: Final = 0.2
LOCK_S: Final = 1.0
LOOKOUT: Final = "query"
MANY: Final = 5
"""Of so many micro-batches a query must have seen some become visible."""


class LandedTables:
    """Those of one run."""

    def __init__(self, stage: Stage, pipeline: Pipeline) -> None:
        url = os.environ.get(SQL_VARIABLE)
        if not url:
            raise ConfigError(f"{SQL_VARIABLE} does not say where the database is")
        self._lands = pipeline.lands
        self._app_id = stage.named(pipeline.name)
        settings = JobSettings(bootstrap=stage.bootstrap, checkpoint="", prefix=stage.prefix, sql=url)
        self.database = check_database(pipeline, settings)
        self.names = [table_name(lands, stage.prefix) for lands in pipeline.lands]

    def read(self) -> list[Counter[Row]]:
        """The rows of each table. Raises `NotDrained`."""
        try:
            with closing(self.connect()) as session:
                return [
                    rows_in(session, self.database, lands, name)
                    for lands, name in zip(self._lands, self.names, strict=True)
                ]
        except Trouble as trouble:
            raise NotDrained(f"the tables could not be read: {trouble}") from None

    def connect(self) -> Session:
        return self.database.connect(lock_timeout_s=LOCK_S)

    def look(self, session: Session) -> tuple[int | None, list[int]]:
        """The newest micro-batch, and how many rows each table has. Raises `Trouble`."""
        statement = counting(self.database, self.names, TableName(None, PROGRESS))
        [(batch, *counts)] = session.execute(statement, [self._app_id]).rows
        return batch, counts

    def remove(self) -> None:
        """The database may be somebody's."""
        with suppress(Trouble), closing(self.connect()) as session:
            for name in self.names:
                session.execute(f"DROP TABLE IF EXISTS {self.database.quoted(TableName.parse(name))}")
            progress = self.database.quoted(TableName(None, PROGRESS))
            session.execute(f"DELETE FROM {progress} WHERE app_id = ?", [self._app_id])


class Query:
    """Asks the database again and again, in one statement, how far the app has come and how many rows there are."""

    def __init__(self, stage: Stage, tables: LandedTables) -> None:
        self._tables = tables
        self._recorder = Recorder(stage.folder / "history" / f"{LOOKOUT}.jsonl", LOOKOUT, stage.zero)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=LOOKOUT, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(Trouble), closing(self._tables.connect()) as session:
                while not self._over.wait(LOOK_EVERY_S):
                    self._look(session)
            self._over.wait(LOOK_EVERY_S)

    def _look(self, session: Session) -> None:
        """Raises `Trouble`: the database is away, or the tables are not there yet."""
        began = self._recorder.now()
        batch, counts = self._tables.look(session)
        op = self._recorder.begin("query", since=began, batch=batch, rows=counts)
        self._recorder.end(op, Outcome.OK)


class TableFindings:
    """What the tables must be, as the oracle speaks; and in the end what they are."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._expected = [ExpectedTable(lands) for lands in pipeline.lands]
        self.tallies: dict[str, Tally] = {}
        self.differences = Differences()
        self._looks = Looks(self._expected, self.differences)

    def hear(self, number: int, expected: Sequence[Expected]) -> None:
        for each in self._expected:
            each.hear(number, expected)

    def judge(self, found: Iterable[Counter[Row]], history: History) -> None:
        for expected, rows in zip(self._expected, found, strict=True):
            self.tallies[expected.lands.table] = compare_table(expected, rows, self.differences)
        for each in history.of("query"):
            self._looks.look(each.asked["batch"], each.asked["rows"], f"at {each.began:.3f} s")
        batches = len(self._expected[0].counts)
        if batches >= MANY and len(self._looks.batches) < 2:
            sentence = f"{batches} micro-batches landed, and no two queries in the database saw different ones."
            self.differences.add("not looked at", sentence)

    def to_json(self) -> Mapping[str, object]:
        return {
            "tables": {name: asdict(each) for name, each in self.tallies.items()},
            "queries": {"whole": self._looks.whole, "torn": self._looks.torn},
        }
