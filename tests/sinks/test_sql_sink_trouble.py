"""What passes and is tried again, within bounds; and what does not pass, and is a clear error with nothing half there.

Deadlocks and locks are those of real transactions. A session of landing's is READ COMMITTED, where a serialization
failure has no cause, so a trigger says it.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceflow.sinks.tables import Table
from onceflow.spark.listening import Step
from onceflow.spark.problems import SinkError
from tests.support.postgresql import PostgreSQL
from tests.support.sql_sink_cases import APPEND, UPSERT, Case
from tests.support.sql_sink_places import Place, PostgresqlPlace, SqlitePlace
from tests.support.sql_sink_without_spark import At, Driver, Job
from tests.support.tmpfs import Tmpfs, can_mount_tmpfs
from tests.support.waiting import eventually

NewJob = Callable[..., Job]
TRIED_AGAIN = "trying again"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def upserts(database: str, new_job: NewJob) -> Job:
    """In PostgreSQL, its first micro-batch is committed."""
    job = new_job(PostgresqlPlace(database), UPSERT)
    job.driver().run(0)
    return job


def times_tried_again(caplog: pytest.LogCaptureFixture) -> int:
    return sum(TRIED_AGAIN in each.getMessage() for each in caplog.records)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "onceflow.sinks")


# --- what passes


def test_a_deadlock_is_tried_again(upserts: Job, caplog: pytest.LogCaptureFixture) -> None:
    """Micro-batch 1 changes row 2, then row 3. Somebody has row 3 and wants row 2, and is more patient than we are."""
    with psycopg.connect(upserts.place.url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SET deadlock_timeout = '20s'")
        other.execute("UPDATE people SET name = 'theirs' WHERE id = 3")
        landing = pool.submit(upserts.driver().run, 1)
        eventually(lambda: is_waiting(upserts), "the merge waits for row 3")
        other.execute("UPDATE people SET name = 'theirs' WHERE id = 2")
        other.commit()
        landing.result(20)
    assert "deadlock" in caplog.text
    assert times_tried_again(caplog) == 1
    upserts.check(1)


def is_waiting(job: Job) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onceflow' AND wait_event_type = 'Lock'"
    return job.place.execute(waiting) != [(0,)]


FAILS = """
    CREATE SEQUENCE times;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('times') <= {times} THEN
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER fails AFTER INSERT OR UPDATE ON people FOR EACH STATEMENT EXECUTE FUNCTION fail();
"""


def test_serialization_failures_are_tried_again(upserts: Job, caplog: pytest.LogCaptureFixture) -> None:
    upserts.place.execute(FAILS.format(times=3))  # a statement that inserts and updates fires twice
    upserts.driver(retries=3).run(1)
    assert times_tried_again(caplog) == 3
    upserts.check(1)


def test_serialization_failures_without_end_are_an_error_and_nothing_is_written(upserts: Job) -> None:
    upserts.place.execute(FAILS.format(times=1000))
    with pytest.raises(SinkError, match=r"serialization failure.*tried 3 times\)\. Nothing of batch 1 was written"):
        upserts.driver(retries=2).run(1)
    upserts.check(0)


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_another_isolation_level_of_the_database_and_a_writer_in_the_way_change_nothing(
    upserts: Job, level: str
) -> None:
    name = upserts.place.url.rpartition("/")[2]
    upserts.place.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")

    def change() -> None:
        upserts.place.execute("UPDATE people SET name = 'theirs'", "UPDATE onceflow_progress SET at_ms = 0")

    driver = upserts.driver(At("before", Step.VERIFY, change)).run(1)
    assert [each.attempts for each in driver.results] == [1]
    assert dict(upserts.place.execute("SELECT id, name FROM people")) == {1: "theirs", 2: None, 3: "c", 4: "d"}


class Holder:
    """Somebody who holds a lock that landing needs."""

    def __init__(self, place: Place, table: str) -> None:
        if isinstance(place, SqlitePlace):
            self._connection: Any = sqlite3.connect(place.path, isolation_level=None, check_same_thread=False)
            self._connection.execute("BEGIN IMMEDIATE")
        else:
            self._connection = psycopg.connect(place.url)
            self._connection.execute(f"LOCK TABLE {table}")

    def let_go(self) -> None:
        self._connection.rollback()
        self._connection.close()


@pytest.mark.parametrize("table", ["people", "onceflow_progress"])
def test_a_lock_that_is_held_for_too_long_is_an_error_and_nothing_is_written(
    place: Place, new_job: NewJob, table: str
) -> None:
    job = new_job(place, UPSERT)
    driver = job.driver(retries=2, lock_timeout_s=0.1).run(0)
    holder = Holder(place, table)
    try:
        with pytest.raises(SinkError, match=r"(lock|writes into).*\(tried 3 times\)\. Nothing of batch 1 was written"):
            driver.run(1)
    finally:
        holder.let_go()
    job.check(0)
    driver.restarted().run(1)
    job.check(1)


def test_a_lock_that_is_given_back_in_time_is_waited_for(
    place: Place, new_job: NewJob, caplog: pytest.LogCaptureFixture
) -> None:
    job = new_job(place, UPSERT)
    driver = job.driver(retries=1000, lock_timeout_s=0.1).run(0)
    holder = Holder(place, "onceflow_progress")
    with ThreadPoolExecutor(1) as pool:
        try:
            landing = pool.submit(driver.run, 1)
            eventually(lambda: times_tried_again(caplog) >= 2, "it was tried twice")
        finally:
            holder.let_go()
        landing.result(20)
    job.check(1)


# --- what does not pass


def refused(driver: Driver, words: str, batch: int = 1) -> str:
    """The error, which says that nothing was written."""
    with pytest.raises(SinkError, match=words) as problem:
        driver.run(batch)
    message = str(problem.value)
    assert "Nothing" in message
    assert "was written" in message
    assert "right-password" not in message
    assert ".." not in message
    return message


CONSTRAINTS = {
    "check": ("CREATE TABLE events (id bigint CHECK (id < 100), name text, amount double precision)", "(?i)check"),
    "unique": ("CREATE TABLE events (id bigint UNIQUE, name text, amount double precision)", "(?i)unique|already"),
    "foreign key": (
        "CREATE TABLE events (id bigint REFERENCES known (id), name text, amount double precision)",
        "(?i)foreign key|refers",
    ),
    "not null": ("CREATE TABLE events (id bigint, name text NOT NULL, amount double precision)", "must have a value"),
}


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_row_that_breaks_a_constraint_is_an_error_and_nothing_of_its_batch_is_there(
    place: Place, new_job: NewJob, constraint: str
) -> None:
    statement, words = CONSTRAINTS[constraint]
    place.execute("CREATE TABLE known (id bigint PRIMARY KEY)", "INSERT INTO known VALUES (1), (2), (3)", statement)
    good, wrong = [(1, "a", None), (2, "b", None)], [(3, "c", None), (100, None, None), (1, "d", None)]
    if constraint == "check":
        wrong = wrong[:2]
    case = Case("", [Table("events")], APPEND.schemas, [{"events": [good]}, {"events": [[], wrong]}])
    job = new_job(place, case)
    refused(job.driver().run(0), words)
    job.check(0)


RIGHTS = {
    "no right to create tables": ["GRANT INSERT, SELECT, UPDATE ON people TO {role}"],
    "no right to insert": ["GRANT CREATE ON SCHEMA public TO {role}", "GRANT SELECT ON people TO {role}"],
    "no right to update": ["GRANT CREATE ON SCHEMA public TO {role}", "GRANT SELECT, INSERT ON people TO {role}"],
    "no right to read": ["GRANT CREATE ON SCHEMA public TO {role}", "GRANT INSERT, UPDATE ON people TO {role}"],
}


@pytest.mark.parametrize("what", RIGHTS)
def test_a_right_that_is_missing_is_an_error_that_says_which_and_nothing_is_written(
    postgresql: PostgreSQL, database: str, new_job: NewJob, what: str
) -> None:
    owner = PostgresqlPlace(database)
    owner.execute("CREATE TABLE people (id bigint PRIMARY KEY, name text, amount double precision)")
    role = f"role_{what.replace(' ', '_')}"
    url = postgresql.new_role(role, "right-password", database)
    owner.execute("SELECT 1", *(each.format(role=role) for each in RIGHTS[what]))
    job = new_job(PostgresqlPlace(url, looked_at_by=database), UPSERT)
    message = refused(job.driver(), "permission denied", batch=0)
    assert "GRANT" in message
    assert role in message
    job.check(-1)
    if what != "no right to create tables":
        assert owner.tables() == ["people"], "it was known before anything was made"


def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(
    postgresql: PostgreSQL, database: str, new_job: NewJob
) -> None:
    wrong = database.replace("right-password", "wrong-password")
    job = new_job(PostgresqlPlace(wrong, looked_at_by=database), UPSERT)
    message = refused(job.driver(), "password authentication failed", batch=0)
    assert "wrong-password" not in message
    assert PostgresqlPlace(database).tables() == []


def test_an_unknown_host_is_an_error_that_names_it(new_job: NewJob) -> None:
    job = new_job(PostgresqlPlace("postgresql://ann:secret@no-such-host.invalid/sales"), UPSERT)
    message = refused(job.driver(outage_s=0.3), r"no-such-host\.invalid", batch=0)
    assert "secret" not in message


# --- a full disk

needs_a_small_disk = pytest.mark.skipif(
    not can_mount_tmpfs(), reason="neither root nor user namespaces: a small disk cannot be mounted"
)
FULL_BEFORE = pytest.mark.parametrize(
    "step",
    [Step.WRITE, *(pytest.param(step, marks=pytest.mark.faults) for step in (Step.STAGE, Step.VERIFY, Step.MERGE))],
    ids=lambda each: each.name,
)


@needs_a_small_disk
@FULL_BEFORE
def test_a_full_disk_of_postgresql_is_an_error_nothing_is_half_there_and_room_helps(
    new_job: NewJob, small_disk: tuple[Tmpfs, PostgreSQL], step: Step
) -> None:
    rows = [(number, "x" * 1000, 1.0) for number in range(800)]
    case = Case("", [Table("events", create=True)], APPEND.schemas, [APPEND.batches[0], {"events": [rows]}])
    disk, server = small_disk
    job = new_job(PostgresqlPlace(server.new_database()), case)
    job.driver().run(0)
    driver = job.driver(At("before", step, disk.fill))
    refused(driver, "The server's disk is full")
    disk.free()
    assert job.found() == job.expected(0)
    driver.restarted().run(1)
    job.check(1)
    job.place.execute("DROP TABLE events")


@pytest.fixture(scope="module")
def small_disk() -> Iterator[tuple[Tmpfs, PostgreSQL]]:
    """A disk, and a server that keeps tables there."""
    with Tmpfs(size_kb=32_768) as disk, PostgreSQL(prefix=disk.enter) as server:
        small = server.new_tablespace(disk.path / "small", seen=disk.seen / "small")
        server.settings["default_tablespace"] = small
        server.restart()
        yield disk, server


@needs_a_small_disk
@FULL_BEFORE
def test_a_full_disk_of_sqlite_is_an_error_nothing_is_half_there_and_room_helps(step: Step) -> None:
    with Tmpfs(size_kb=8192) as disk:
        program = [sys.executable, "-m", "tests.sinks.programs.sqlite_on_a_full_disk"]
        command = [*disk.enter, *program, str(disk.path / "sqlite"), "before", step.name]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SQLITE_TMPDIR": str(disk.path)}
        run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
