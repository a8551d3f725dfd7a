"""A driver that dies before, in and after each step, and tasks that do.

The next driver runs the micro-batch again. In the end the tables are what the oracle says, the progress is right, and
no stage is left.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from onceflow.sinks import landing, spark_rows
from onceflow.sinks.databases.database import Again
from onceflow.spark.listening import Step
from onceflow.spark.problems import BatchFailed
from tests.support.sql_sink_cases import CASES, TOGETHER, UPSERT, Case
from tests.support.sql_sink_places import Place
from tests.support.sql_sink_without_spark import POINTS, At, Driver, Job, in_a_process_that_is_killed, name_of
from tests.support.waiting import eventually

NewJob = Callable[..., Job]
WAIT_S = 20.0


DAILY = [("after", Step.STAGE), ("after", Step.MERGE), ("after", Step.COMMIT)]
MORE_DAILY = [*DAILY, ("after", Step.WRITE), ("after", Step.RECORD)]
SOME_POINTS = [pytest.param(*point, marks=[] if point in DAILY else pytest.mark.faults) for point in POINTS]
MORE_POINTS = [pytest.param(*point, marks=[] if point in MORE_DAILY else pytest.mark.faults) for point in POINTS]
"""`make test` kills after the steps of `MORE_DAILY`, and interrupts after those of `DAILY`; `make faults` has all."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_what_a_dead_driver_left(job: Job, when: str, step: Step) -> None:
    """Micro-batch 1 as a whole if it was committed, and otherwise nothing of it."""
    last = 1 if (when, step) == ("after", Step.COMMIT) else 0
    assert job.found() == job.expected(last)
    job.check_progress(last)


def go_on(job: Job, *, was_committed: bool) -> None:
    """The next driver begins with the micro-batch in which the last one died."""
    driver = job.driver().run(1)
    assert driver.skipped == ([1] if was_committed else [])
    job.check(1)
    driver.run(2, 3)
    job.check(3)


@pytest.mark.parametrize(("when", "step"), MORE_POINTS, ids=name_of)
def test_a_driver_killed_before_and_after_each_step_loses_and_doubles_nothing(
    place: Place, new_job: NewJob, when: str, step: Step
) -> None:
    job = new_job(place, TOGETHER)
    job.driver().run(0).sink.close()
    in_a_process_that_is_killed(lambda: job.driver(At(when, step, kill)).run(1))
    check_what_a_dead_driver_left(job, when, step)
    go_on(job, was_committed=(when, step) == ("after", Step.COMMIT))


@pytest.mark.faults
@pytest.mark.parametrize("case", [case for case in CASES if len(case.batches) > 3], ids=str)
@pytest.mark.parametrize(("when", "step"), [("after", Step.RECORD), ("after", Step.COMMIT)], ids=name_of)
def test_a_driver_killed_next_to_its_commit_loses_and_doubles_nothing_in_any_mode(
    place: Place, new_job: NewJob, when: str, step: Step, case: Case
) -> None:
    job = new_job(place, case)
    job.driver().run(0).sink.close()
    in_a_process_that_is_killed(lambda: job.driver(At(when, step, kill)).run(1))
    check_what_a_dead_driver_left(job, when, step)
    go_on(job, was_committed=step is Step.COMMIT)


def test_a_driver_killed_while_tasks_load_leaves_a_stage_that_the_next_one_drops(place: Place, new_job: NewJob) -> None:
    job = new_job(place, UPSERT)
    job.driver().run(0).sink.close()
    in_a_process_that_is_killed(lambda: job.driver().run(1, befall=lambda task, _: kill() if task == 1 else None))
    assert place.stages() != []
    check_what_a_dead_driver_left(job, "before", Step.VERIFY)
    go_on(job, was_committed=False)


@pytest.mark.parametrize("merged", [pytest.param(0, marks=pytest.mark.faults), 1, 2])
def test_a_driver_killed_between_the_tables_of_a_merge_has_changed_none(
    place: Place, new_job: NewJob, monkeypatch: pytest.MonkeyPatch, merged: int
) -> None:
    job = new_job(place, TOGETHER)
    job.driver().run(0).sink.close()
    whole, so_far = landing.merge, []

    def merge(*arguments: Any) -> int:
        if len(so_far) == merged:
            kill()
        so_far.append(arguments)
        return whole(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(landing, "merge", merge)
        in_a_process_that_is_killed(lambda: job.driver().run(1))
    check_what_a_dead_driver_left(job, "before", Step.RECORD)
    go_on(job, was_committed=False)


@pytest.mark.faults
def test_a_driver_killed_before_its_first_micro_batch_leaves_nothing_in_the_way(place: Place, new_job: NewJob) -> None:
    job = new_job(place, TOGETHER)
    for when, step in POINTS[:-1]:
        in_a_process_that_is_killed(lambda when=when, step=step: job.driver(At(when, step, kill)).run(0))  # type: ignore[misc]
    job.driver().run(0)
    job.check(0)


class Interrupted(BaseException):
    """As Ctrl-C, or a thread of Spark's that is interrupted."""


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize(("when", "step"), SOME_POINTS, ids=name_of)
def test_a_driver_interrupted_before_and_after_each_step_can_go_on_with_the_same_sink(
    place: Place, new_job: NewJob, when: str, step: Step
) -> None:
    job = new_job(place, TOGETHER)
    job.driver().run(0)
    driver = job.driver(At(when, step, interrupt))
    with pytest.raises(Interrupted):
        driver.run(1)
    check_what_a_dead_driver_left(job, when, step)
    driver.restarted().run(1, 2, 3)
    assert driver.skipped == ([1] if (when, step) == ("after", Step.COMMIT) else [])
    job.check(3)


# --- tasks


def test_an_attempt_that_spark_does_not_count_makes_the_batch_run_again(place: Place, new_job: NewJob) -> None:
    """Its executor was lost when it had loaded everything, so its rows are in the stage twice."""
    job = new_job(place, TOGETHER)
    lost = iter(["lost"])
    driver = job.driver().run(0, befall=lambda *_: next(lost, None))
    assert [each.attempts for each in driver.results] == [2]
    job.check(0)


def test_attempts_that_spark_does_not_count_are_an_error_in_the_end(place: Place, new_job: NewJob) -> None:
    job = new_job(place, UPSERT)
    driver = job.driver(retries=2).run(0)
    with pytest.raises(BatchFailed, match=r"failed 3 times; nothing of it is there.*Spark does not count"):
        driver.run(1, befall=lambda task, attempt: "lost" if attempt == 1 else None)
    job.check(0)


@pytest.mark.parametrize("said", [True, None], ids=["again", "not known"])
def test_stage_that_spark_ran_again_makes_the_batch_run_again(
    place: Place, new_job: NewJob, monkeypatch: pytest.MonkeyPatch, said: bool | None
) -> None:
    """Each attempt at a task fits what Spark counts, and still the rows of two attempts at the stage may be mixed."""
    job = new_job(place, UPSERT)
    answers = iter([said])
    monkeypatch.setattr(spark_rows, "was_run_again", lambda *_: next(answers, False))
    driver = job.driver().run(0)
    assert [each.attempts for each in driver.results] == [2]
    job.check(0)


def test_stage_that_is_run_again_each_time_is_an_error_in_the_end(
    place: Place, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = new_job(place, UPSERT)
    monkeypatch.setattr(spark_rows, "was_run_again", lambda *_: True)
    with pytest.raises(BatchFailed, match=r"failed 2 times; nothing of it is there.*Spark has run stage 0 again"):
        job.driver(retries=1).run(0)
    job.check(-1)


def test_a_task_that_fails_and_is_repeated_by_spark_costs_nothing(place: Place, new_job: NewJob) -> None:
    job = new_job(place, TOGETHER)
    driver = job.driver().run(0, befall=lambda _, attempt: "throws" if attempt < 3 else None)
    assert [each.attempts for each in driver.results] == [1]
    job.check(0)


def test_a_task_that_always_fails_is_an_error_and_nothing_is_written(place: Place, new_job: NewJob) -> None:
    job = new_job(place, TOGETHER)
    driver = job.driver(retries=1).run(0)
    with pytest.raises(BatchFailed, match=r"failed 2 times; nothing of it is there.*Task 0 failed 4 times"):
        driver.run(1, befall=lambda *_: "throws")
    job.check(0)
    driver.restarted().run(1)
    job.check(1)


def test_a_stage_without_the_rows_of_a_task_makes_the_batch_run_again(
    place: Place, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = new_job(place, UPSERT)
    driver = job.driver().run(0)
    database = driver.sink._landing.database
    load, forgotten = type(database).load, []

    def forgetful(self: Any, stage: Any, task: int, attempt: int, batches: Any) -> int:
        if task == 1 and not forgotten:
            forgotten.append(task)
            return sum(each.num_rows for each in batches)
        return load(self, stage, task, attempt, batches)

    monkeypatch.setattr(type(database), "load", forgetful)
    driver.run(1)
    assert [each.attempts for each in driver.results] == [1, 2]
    job.check(1)


class LateAttempt:
    """An attempt that Spark has given up, which loads still while the driver goes on to merge."""

    def __init__(self, driver: Driver, patch: pytest.MonkeyPatch) -> None:
        self._database = driver.sink._landing.database
        self._load = type(self._database).load
        self._pool = ThreadPoolExecutor(1)
        self._begun, self._go = threading.Event(), threading.Event()
        self._stages: list[Any] = []

        def load(database: Any, stage: Any, *rest: Any) -> int:
            self._stages.append(stage)
            return self._load(database, stage, *rest)

        patch.setattr(type(self._database), "load", load)

    def begin(self) -> None:
        self._loading = self._pool.submit(self._load, self._database, self._stages[0], 0, 9999, self._batches())
        assert self._begun.wait(WAIT_S)

    def _batches(self) -> Iterator[Any]:
        yield pa.RecordBatch.from_pydict({"id": [77], "name": ["late"], "amount": [1.0]})
        self._begun.set()
        assert self._go.wait(60)

    def end_when(self, it_is_time: Callable[[], bool]) -> None:
        eventually(it_is_time, "it is time for the late attempt to end")
        self._go.set()

    def result(self) -> int:
        self._pool.shutdown()
        return self._loading.result(WAIT_S)


def test_an_attempt_that_ends_while_the_driver_merges_is_not_part_of_it(
    place: Place, new_job: NewJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL makes the merge wait for it, and it is found to be too much; in SQLite it finds its stage closed."""
    job = new_job(place, UPSERT)
    committed = At("after", Step.COMMIT, lambda: None)
    driver = job.driver(At("after", Step.WRITE, lambda: late.begin()), committed)
    late = LateAttempt(driver, monkeypatch)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as pool:
        if place.name == "postgresql":
            ended = pool.submit(late.end_when, lambda: late._begun.is_set() and place.execute(waiting) != [(0,)])
        else:
            ended = pool.submit(late.end_when, lambda: committed.has_happened)
        driver.run(0)
        ended.result(WAIT_S)
    if place.name == "postgresql":
        assert late.result() == 1
        assert [each.attempts for each in driver.results] == [2]
    else:
        with pytest.raises(Again, match="too late"):
            late.result()
        assert [each.attempts for each in driver.results] == [1]
    job.check(0)
