"""A database that does not answer: a COMMIT that is lost, an answer to it that is lost, a server that is restarted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceflow.ports import ReservedPort
from onceflow.sinks.databases.database import Gone
from onceflow.sinks.databases.postgresql import PostgreSql
from onceflow.spark.listening import Step
from onceflow.spark.problems import CommitUnknown, SinkError
from tests.support.database_proxy import DatabaseProxy
from tests.support.postgresql import PostgreSQL
from tests.support.sql_sink_cases import APPEND, TOGETHER
from tests.support.sql_sink_places import PostgresqlPlace
from tests.support.sql_sink_without_spark import At, Job, name_of

NewJob = Callable[..., Job]


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[DatabaseProxy]:
    with DatabaseProxy(postgresql.port) as proxy:
        yield proxy


@pytest.fixture
def job(proxy: DatabaseProxy, database: str, new_job: NewJob) -> Job:
    """Its first micro-batch is committed; its way to the database is through the proxy."""
    job = new_job(PostgresqlPlace(proxy.url(database), looked_at_by=database), TOGETHER)
    job.driver().run(0)
    return job


# --- messages that are lost

WITH_A_COMMIT = [
    *(pytest.param(step, marks=pytest.mark.faults) for step in (Step.FENCE, Step.STAGE, Step.WRITE)),
    Step.COMMIT,
]


@pytest.mark.parametrize("what", ["lose_next_commit", "lose_next_commit_answer"])
@pytest.mark.parametrize("step", WITH_A_COMMIT, ids=name_of)
def test_a_lost_commit_or_a_lost_answer_to_it_changes_nothing_in_the_end(
    job: Job, proxy: DatabaseProxy, step: Step, what: str
) -> None:
    lost = []
    driver = job.driver(At("before", step, lambda: lost.append(getattr(proxy, what)()))).run(1)
    assert lost[0].is_set()
    assert [each.attempts for each in driver.results] == [2 if step is Step.WRITE else 1]
    job.check(1)
    driver.run(2, 3)
    job.check(3)


@pytest.mark.faults
@pytest.mark.parametrize("step", list(Step), ids=name_of)
def test_a_connection_that_breaks_before_any_step_is_made_again(job: Job, proxy: DatabaseProxy, step: Step) -> None:
    job.driver(At("before", step, proxy.cut)).run(1)
    job.check(1)


@pytest.mark.parametrize("what", ["lose_next_commit", "lose_next_commit_answer"])
def test_a_commit_of_which_nobody_can_be_asked_is_unknown_and_the_next_driver_finds_out(
    job: Job, proxy: DatabaseProxy, what: str
) -> None:
    def nobody(*_: object, **__: object) -> Any:
        raise Gone("No connection to be had")

    def lose() -> None:
        getattr(proxy, what)()
        patch.setattr(PostgreSql, "connect", nobody)

    driver = job.driver(At("before", Step.COMMIT, lose), outage_s=0.2)
    words = "as a whole or not at all. Start the query again"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(CommitUnknown, match=words):
        driver.run(1)
    was_committed = what == "lose_next_commit_answer"
    assert job.found() == job.expected(1 if was_committed else 0)
    driver.restarted().run(1, 2)
    assert driver.skipped == ([1] if was_committed else [])
    job.check(2)


def test_a_row_of_the_progress_that_somebody_deletes_is_an_error_and_nothing_is_written(job: Job) -> None:
    driver = job.driver(At("before", Step.VERIFY, lambda: job.place.execute("DELETE FROM onceflow_progress")))
    with pytest.raises(SinkError, match=r"the row of 'landing' in onceflow_progress was deleted.*1 was not written"):
        driver.run(1)
    assert job.found() == job.expected(0)
    assert job.place.stages() == []


def test_a_stage_that_somebody_drops_is_made_again(job: Job) -> None:
    def drop() -> None:
        for name in job.place.stages():
            job.place.execute(f"DROP TABLE {name}")

    driver = job.driver(At("before", Step.VERIFY, drop)).run(1)
    assert [each.attempts for each in driver.results] == [2]
    job.check(1)


# --- a server that is restarted


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with PostgreSQL() as server:
        yield server


def cut_power(server: PostgreSQL) -> None:
    server.kill()
    server.start()


RESTARTS: dict[str, Callable[[PostgreSQL], None]] = {
    "fast": lambda server: server.restart("fast"),
    "immediate": lambda server: server.restart("immediate"),
    "killed": cut_power,
}
DAILY = {("killed", Step.WRITE), ("immediate", Step.RECORD)}
RESTARTS_AFTER = [
    pytest.param(*point, marks=[] if point in DAILY else pytest.mark.faults)
    for point in itertools.product(RESTARTS, Step)
]


@pytest.mark.parametrize(("how", "step"), RESTARTS_AFTER, ids=name_of)
def test_a_server_that_is_restarted_after_any_step_loses_and_doubles_nothing(
    server: PostgreSQL, new_job: NewJob, how: str, step: Step
) -> None:
    job = new_job(PostgresqlPlace(server.new_database()), TOGETHER)
    job.driver().run(0)
    driver = job.driver(At("after", step, lambda: RESTARTS[how](server))).run(1)
    is_emptied = how != "fast" and step in (Step.STAGE, Step.WRITE, Step.VERIFY, Step.MERGE, Step.RECORD)
    is_loaded = step is not Step.STAGE
    assert [each.attempts for each in driver.results] == [2 if is_emptied and is_loaded else 1]
    job.check(1)
    driver.run(2, 3)
    job.check(3)


def test_a_server_that_is_away_for_longer_than_allowed_is_an_error_and_nothing_is_written(new_job: NewJob) -> None:
    nobody = ReservedPort()
    job = new_job(PostgresqlPlace(f"postgresql://ann:secret-word@127.0.0.1:{nobody.number}/sales"), APPEND)
    with pytest.raises(SinkError, match=r"No connection to postgresql://ann@127\.0\.0\.1.*\(for 0\.3 s\)") as away:
        job.driver(outage_s=0.3).run(0)
    assert "Nothing was written" in str(away.value)
    assert "secret-word" not in str(away.value)
