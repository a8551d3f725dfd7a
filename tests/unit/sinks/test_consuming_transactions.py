"""What a transaction comes to when the database does not do what it is asked for: done once, or known not to be done.

The database is SQLite, with a hand on its COMMIT and on its connections.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceflow.sinks import consumer_transactions
from onceflow.sinks.consumer_offsets import Held, Move, Superseded
from onceflow.sinks.consumer_settings import ConsumeSettings
from onceflow.sinks.consumer_transactions import Stopped, Transactions, Work
from onceflow.sinks.databases.database import Again, Gone, Refused
from onceflow.sinks.databases.sqlite import Sqlite
from onceflow.sinks.databases.sqlite_session import SqliteSession
from onceflow.spark.problems import BatchFailed, CommitUnknown, SinkError

A, B = ("orders", 0), ("orders", 1)


class FragileSession(SqliteSession):
    database: FragileSqlite

    def commit(self) -> None:
        fate = self.database.commits.pop(0) if self.database.commits else None
        if fate == "lost":
            self.close()
            raise Gone("before the COMMIT")
        super().commit()
        if fate == "unanswered":
            self.close()
            raise Gone("after the COMMIT")
        if fate is not None:
            raise AssertionError(fate)


class FragileSqlite(Sqlite):
    """`commits`: what becomes of the next ones. `connects`: what the next attempts to connect raise."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.commits: list[str | None] = []
        self.connects: list[Exception | None] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def connect(self, *, lock_timeout_s: float, statement_timeout_s: float | None = None) -> SqliteSession:
        self.meanwhile()
        problem = self.connects.pop(0) if self.connects else None
        if problem is not None:
            raise problem
        session = FragileSession(self.path, lock_timeout_s=lock_timeout_s)
        session.database = self
        return session


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_transactions, "BACKOFF_S", 0.0)


@pytest.fixture
def database(tmp_path: Path) -> FragileSqlite:
    return FragileSqlite(f"sqlite:///{tmp_path}/landed.db")


class Setting:
    """Transactions with a function that writes down what it gets, after `raising` the problems that it was given."""

    def __init__(self, database: FragileSqlite, **settings: Any) -> None:
        given = {"topics": ("orders",), "group": "g", "bootstrap_servers": "127.0.0.1:1", "patience_s": 5, **settings}
        self.database = database
        self.raising: list[Exception] = []
        self.is_stopping = False
        self.calls = 0
        self.transactions = Transactions(database, ConsumeSettings(**given), self._land, lambda: self.is_stopping)
        self.transactions.begin({A: 0, B: 0})
        self._query("CREATE TABLE IF NOT EXISTS landed (value text)")
        self.held = self.transactions.fence([A, B])

    def _land(self, cursor: Any, records: list[str]) -> None:
        self.calls += 1
        cursor.executemany("INSERT INTO landed VALUES (?)", [[each] for each in records])
        if self.raising:
            raise self.raising.pop(0)

    def apply(self, *records: str) -> None:
        end = self.held[A].next_offset + len(records)
        self.transactions.apply(Work({A: Move(self.held[A], end)}, list(records)))
        self.held[A] = Held(self.held[A].epoch, end)

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        session = SqliteSession(self.database.path, lock_timeout_s=1)
        try:
            return session.execute(statement).rows
        finally:
            session.close()

    @property
    def rows(self) -> list[str]:
        return [value for (value,) in self._query("SELECT value FROM landed ORDER BY rowid")]

    @property
    def position(self) -> int:
        return int(self._query('SELECT next_offset FROM onceflow_offsets WHERE "partition" = 0')[0][0])


def sqlite_error(name: str) -> Exception:
    import sqlite3

    problem = sqlite3.OperationalError("as planned")
    problem.sqlite_errorname = name
    return problem


def test_records_and_offsets_are_committed_together(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.apply("a", "b")
    setting.apply("c")
    assert (setting.rows, setting.position, setting.calls) == (["a", "b", "c"], 3, 2)


def test_work_without_records_moves_the_offsets_and_calls_nobody(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.transactions.apply(Work({A: Move(setting.held[A], 9)}, []))
    assert (setting.rows, setting.position, setting.calls) == ([], 9, 0)


def test_a_group_starts_over_once_in_another_topic_whoever_notices(database: FragileSqlite) -> None:
    setting = Setting(database)
    assert setting.transactions.begin_topics({"orders": "first"}) == {"orders": "first"}
    setting.apply("a", "b")
    assert setting.transactions.start_over("orders", "first", "second", {A: 0, B: 0}) == "second"
    setting.held = setting.transactions.fence([A, B])
    setting.apply("c")
    assert setting.transactions.start_over("orders", "first", "second", {A: 0, B: 0}) == "second"
    assert setting.position == 1


def test_who_missed_one_of_two_new_topics_is_told_of_which_the_offsets_are(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.transactions.begin_topics({"orders": "first"})
    setting.transactions.start_over("orders", "first", "second", {A: 0, B: 0})
    setting.held = setting.transactions.fence([A, B])
    setting.apply("a")
    assert setting.transactions.start_over("orders", "first", "third", {A: 0, B: 0}) == "second"
    assert setting.position == 1
    assert setting.transactions.start_over("orders", "second", "third", {A: 0, B: 0}) == "third"
    assert setting.position == 0


def test_a_commit_that_was_done_and_not_answered_is_not_done_again(database: FragileSqlite) -> None:
    setting = Setting(database)
    database.commits = ["unanswered"]
    setting.apply("a", "b")
    assert (setting.rows, setting.position, setting.calls) == (["a", "b"], 2, 1)


def test_a_commit_that_was_lost_is_done_again(database: FragileSqlite) -> None:
    setting = Setting(database)
    database.commits = ["lost", None, "lost"]  # the second is of the transaction that looks
    setting.apply("a", "b")
    assert (setting.rows, setting.position, setting.calls) == (["a", "b"], 2, 3)


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_after_a_commit_without_an_answer_a_partition_may_be_somebody_elses(database: FragileSqlite, fate: str) -> None:
    setting = Setting(database)
    heir = Setting(FragileSqlite(database.url))
    setting.held = setting.transactions.fence([A, B])
    database.commits = [fate]
    database.meanwhile = lambda: heir.transactions.fence([A, B])
    with pytest.raises(Superseded):
        setting.apply("a", "b")
    assert setting.calls == 1
    assert setting.rows == (["a", "b"] if fate == "unanswered" else [])
    assert heir.transactions.positions()[A] == len(setting.rows), "the heir knows what became of it"


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_if_it_cannot_be_found_out_the_next_start_does(database: FragileSqlite, fate: str) -> None:
    setting = Setting(database, patience_s=0)
    database.commits = [fate]
    database.connects = [Gone("away")]
    with pytest.raises(CommitUnknown, match=r"COMMIT of 2 records \(orders-0 0 to 1\) was not answered.*or nothing"):
        setting.apply("a", "b")
    again = Setting(database)
    assert again.held[A].next_offset == len(setting.rows) == (2 if fate == "unanswered" else 0)


def test_a_lost_connection_is_made_anew_and_nothing_is_there_twice(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.transactions.close()
    database.connects = [Gone("away"), Gone("still away")]
    setting.apply("a")
    assert (setting.rows, setting.position) == (["a"], 1)


def test_a_database_that_stays_away_is_an_error(database: FragileSqlite) -> None:
    setting = Setting(database, patience_s=0)
    setting.transactions.close()
    database.connects = [Gone("it is away.")]
    with pytest.raises(BatchFailed, match=r"nothing of 1 record .*, which did not answer for 0 s: it is away"):
        setting.apply("a")
    setting.transactions.close()
    database.connects = [Gone("it is away.")]
    with pytest.raises(SinkError, match=r"was not to be had for 0 s: it is away\. Nothing was written"):
        setting.transactions.fence([A])


def test_waiting_ends_when_the_caller_wants_to_end(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.transactions.close()
    setting.is_stopping = True
    database.connects = [Gone("away")]
    with pytest.raises(Stopped):
        setting.apply("a")
    assert setting.rows == []


def test_a_busy_database_is_tried_as_often_as_told(database: FragileSqlite) -> None:
    setting = Setting(database, retries=2)
    setting.raising = [sqlite_error("SQLITE_BUSY"), sqlite_error("SQLITE_LOCKED_SHAREDCACHE")]
    setting.apply("a")
    assert (setting.rows, setting.position, setting.calls) == (["a"], 1, 3)
    setting.raising = [sqlite_error("SQLITE_BUSY") for _ in range(3)]
    with pytest.raises(BatchFailed, match="tried 3 times: as planned"):
        setting.apply("b")
    assert (setting.rows, setting.position) == (["a"], 1)


def test_what_the_function_raises_comes_out_unchanged_and_nothing_is_written(database: FragileSqlite) -> None:
    setting = Setting(database)
    for problem in (ValueError("mine"), sqlite_error("SQLITE_CONSTRAINT_UNIQUE"), KeyError("x")):
        setting.raising = [problem]
        with pytest.raises(type(problem)) as raised:
            setting.apply("a")
        assert raised.value is problem
    assert (setting.rows, setting.position, setting.calls) == ([], 0, 3)


def test_a_refusal_at_connecting_is_not_tried_again(database: FragileSqlite) -> None:
    setting = Setting(database)
    setting.transactions.close()
    database.connects = [Refused("not for you.")]
    with pytest.raises(SinkError, match=r"landed\.db: not for you\. Nothing was written$"):
        setting.transactions.fence([A])
    assert database.connects == []


def test_locks_are_waited_for_with_patience_when_partitions_are_fenced(database: FragileSqlite) -> None:
    """A process that hangs in its transaction may hold them for longer than a few tries take."""
    setting = Setting(database, retries=0)
    setting.transactions.close()
    database.connects = [Again("locked")] * 5
    assert setting.transactions.fence([A])[A].epoch == 2


def test_work_says_what_it_is_about() -> None:
    held = Held(1, 10)
    moves = {("t", partition): Move(held, 12) for partition in range(7)}
    assert str(Work({A: Move(held, 11)}, ["r"])) == "1 record (orders-0 10 to 10)"
    assert str(Work(moves, ["r"] * 14)).endswith("t-4 10 to 11 and 2 more partitions)")
