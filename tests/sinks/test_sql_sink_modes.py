"""What is in the tables after each micro-batch, in every mode, against an oracle in plain Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.sinks.tables import Table
from onceflow.spark.problems import CheckpointMismatch, SinkError
from tests.support.sql_sink_cases import (
    APPEND,
    BY_POSITION,
    CASES,
    DELETE_WITHOUT_ORDER,
    INCREMENT,
    TOGETHER,
    UPSERT,
    Case,
)
from tests.support.sql_sink_places import Place
from tests.support.sql_sink_without_spark import Job

NewJob = Callable[..., Job]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tables_are_what_the_oracle_says_after_each_micro_batch(place: Place, new_job: NewJob, case: Case) -> None:
    job = new_job(place, case)
    driver = job.driver()
    for number in range(len(case.batches)):
        driver.run(number)
        job.check(number)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_micro_batch_that_runs_again_changes_nothing(place: Place, new_job: NewJob, case: Case) -> None:
    job = new_job(place, case)
    for number in range(len(case.batches)):
        job.driver().run(number)
        again = job.driver().run(number)
        assert again.skipped == [number]
        job.check(number)


def test_only_the_micro_batch_that_was_committed_last_is_skipped(place: Place, new_job: NewJob) -> None:
    """An older checkpoint has other records under the numbers that were used before, or may have."""
    job = new_job(place, TOGETHER)
    job.driver().run(0, 1, 2)
    with pytest.raises(CheckpointMismatch, match=r"batch 2 of 'landing' was committed last.*Nothing was written"):
        job.driver().run(1)
    job.check(2)
    again = job.driver().run(2, 3)
    assert again.skipped == [2]
    job.check(3)


def test_result_says_how_many_rows_came_and_how_many_changed(place: Place, new_job: NewJob) -> None:
    [first, second] = new_job(place, UPSERT).driver().run(0, 1).results
    assert (first.rows, first.tables, first.tasks, first.attempts) == (3, {"people": 3}, 2, 1)
    assert (second.rows, second.tables) == (3, {"people": 3})


def test_apps_in_one_database_do_not_know_each_other(place: Place, new_job: NewJob) -> None:
    one, other = new_job(place, INCREMENT), new_job(place, UPSERT, app_id="other", query_id="query-2")
    first, second = one.driver(), other.driver()
    for number in range(3):
        first.run(number)
        second.run(number)
    one.check(2)
    other.check(2)


def test_increment_ignores_a_batch_that_the_row_knows_even_if_the_progress_is_lost(
    place: Place, new_job: NewJob
) -> None:
    job = new_job(place, INCREMENT)
    job.driver().run(0, 1)
    place.execute("DELETE FROM onceflow_progress")
    with pytest.raises(CheckpointMismatch, match="batch 1 is next, and the database knows nothing of an app"):
        job.driver().run(1)
    job.driver(missing_batches="accept").run(1)
    job.check(1)


def test_increment_by_position_ignores_records_that_another_app_has_added(place: Place, new_job: NewJob) -> None:
    one, other = new_job(place, BY_POSITION), new_job(place, BY_POSITION, app_id="other", query_id="query-2")
    one.driver().run(0, 1)
    other.driver().run(0, 1, 2, 3)
    one.driver().run(1, 2, 3)
    other.check(3)


def with_rows(case: Case, **changed: object) -> Case:
    """The same table, and one micro-batch with these rows."""
    [table] = case.tables
    arguments = {**vars(table), **{name: value for name, value in changed.items() if name != "rows"}}
    return Case(case.name, [Table(**arguments)], case.schemas, [case.batches[0], {table.name: changed["rows"]}])  # type: ignore[arg-type, dict-item]


REFUSED = {
    "two rows with one key": (
        with_rows(UPSERT, rows=[[(7, "a", 1.0)], [(7, "b", 1.0)]]),
        "2 rows for people have the key id=7.*order_by",
    ),
    "a row and its deletion": (
        with_rows(DELETE_WITHOUT_ORDER, rows=[[(7, True, "x", None)], [(7, False, "x", "new")]]),
        "2 rows for flags have the key a=7, b='x'.*order_by",
    ),
    "order_by does not decide": (
        with_rows(UPSERT, order_by=["amount"], rows=[[(7, "a", 1.0), (7, "b", 1.0), (7, "c", 0.0)]]),
        "2 rows for people have the key id=7.*does not say which",
    ),
    "no key": (with_rows(UPSERT, rows=[[(8, "a", 1.0), (None, "b", 1.0)]]), "people has no value in one of id"),
    "increment without key": (with_rows(INCREMENT, rows=[[(None, 1, 1.0)]]), "counts has no value in one of word"),
    "increment without offset": (
        with_rows(BY_POSITION, rows=[[("a", 1, 0, None)]]),
        "clicks has no value in one of page, partition, offset",
    ),
    "two partitions in a batch": (
        with_rows(BY_POSITION, rows=[[("z", 1, 0, 5), ("z", 1, 1, 5)]]),
        "page='z' of clicks are in partitions 0 and 1",
    ),
    "another partition than the table's": (
        with_rows(BY_POSITION, rows=[[("a", 1, 1, 5)]]),
        "page='a' of clicks are in partitions 0 and 1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_contradict_each_other_are_refused_and_nothing_is_written(
    place: Place, new_job: NewJob, what: str
) -> None:
    case, words = REFUSED[what]
    job = new_job(place, case)
    driver = job.driver().run(0)
    with pytest.raises(SinkError, match=words) as refused:
        driver.run(1)
    assert "Nothing of batch 1 was written" in str(refused.value)
    job.check(0)


def test_value_that_cannot_be_kept_is_refused_and_nothing_is_written(place: Place, new_job: NewJob) -> None:
    job = new_job(place, APPEND)
    place.execute("CREATE TABLE events (id bigint CHECK (id < 100), name text, amount double precision)")
    job.driver().run(0)
    wrong = new_job(place, with_rows(APPEND, rows=[[(1, "a", 1.0)], [(100, "b", 1.0)]]))
    with pytest.raises(SinkError, match=r"(?i)check") as refused:
        wrong.driver().run(1)
    assert "Nothing of batch 1 was written" in str(refused.value)
    job.check(0)
