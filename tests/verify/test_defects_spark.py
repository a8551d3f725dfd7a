"""Each deliberate defect of the Spark sink is found, and named for what it does; without it the same course of events
is clean.

The sink and its tasks are the real ones, and so is the broker; only Spark is not there (`sink_without_spark.py`), so
that a driver can be stopped at the step that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onceflow.spark import CommitUnknown, TakenOver
from onceflow.spark.listening import Step
from onceflow.verify.anomalies import check
from onceflow.verify.lossy_proxy import PASS, Action, Fate, Frame, Hooks, LossyProxy
from tests.conformance.test_shared_transaction import ThroughProxy
from tests.support.brokers import Shared, running_broker
from tests.support.defects.spark import DEFECTS
from tests.support.sink_without_spark import BATCHES, PER_BATCH, Driver, Job, without_spark

INIT_PRODUCER_ID, END_TXN = 22, 26


@pytest.fixture
def bootstrap(shared: Shared) -> str:
    return running_broker("onceflow", shared).bootstrap


@pytest.fixture
def job(bootstrap: str, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with without_spark(monkeypatch):
        job = Job(bootstrap, new_name(), tmp_path)
        yield job
        job.close()


# Each returns the driver that trouble befalls.


def killed_before_its_commit(job: Job, _: str) -> Driver:
    first = stopped_before_its_commit(job)
    assert job.driver().run(0, 1).problem is None
    return first


def zombie_that_commits_while_its_successor_takes_over(job: Job, _: str) -> Driver:
    first = stopped_before_its_commit(job)
    assert job.driver(after_first_step=first.go_on).run(0, 1).problem is None
    return first


def zombie_that_commits_after_its_successor(job: Job, _: str) -> Driver:
    first = stopped_before_its_commit(job)
    assert job.driver().run(0, 1).problem is None
    first.go_on()
    return first


def executor_lost_after_its_task_has_written(job: Job, _: str) -> Driver:
    first_attempt = (1, 0, 1)
    return job.driver().run(0, 1, trouble=lambda *which: "lost" if which == first_attempt else None)


def task_that_fails_whenever_it_is_tried_in_the_first_run(job: Job, _: str) -> Driver:
    return job.driver().run(0, 1, trouble=lambda run, task, _: "throws" if (run, task) == (1, 1) else None)


def commit_that_is_done_and_never_answered(job: Job, bootstrap: str) -> Driver:
    host, _, port = bootstrap.rpartition(":")
    with LossyProxy((host, int(port))) as proxy:
        first = stopped_before_its_commit(job, cluster=ThroughProxy(proxy), patience_ms=1000)
        proxy.plan = Hooks(request=_heals(proxy), response=_loses_ends)
        first.go_on()
    assert job.driver().run(0, 1).problem is None
    return first


def stopped_before_its_commit(job: Job, **settings: Any) -> Driver:
    """Of micro-batch 0: everything is written, and the transaction is open."""
    driver = job.driver(pauses_before=Step.COMMIT, **settings)
    driver.start(0)
    driver.await_pause()
    return driver


def _loses_ends(frame: Frame) -> Action:
    return Action(Fate.SWALLOW) if frame.api_key == END_TXN else PASS


def _heals(proxy: LossyProxy) -> Callable[[Frame], Action]:
    """When the driver stops asking, and takes a new epoch."""

    def look(frame: Frame) -> Action:
        if frame.api_key == INIT_PRODUCER_ID:
            proxy.plan = Hooks()
        return PASS

    return look


class Scenario(NamedTuple):
    play: Callable[[Job, str], Driver]
    ends_with: type[Exception] | None
    """What becomes of the driver if there is no defect."""
    attempts: list[int]
    """Likewise: how many it takes for each micro-batch that it commits."""


SCENARIOS = {
    "progress record outside the transaction": Scenario(killed_before_its_commit, None, []),
    "progress read before fencing": Scenario(zombie_that_commits_while_its_successor_takes_over, TakenOver, []),
    "a transactional id of its own for every run": Scenario(zombie_that_commits_after_its_successor, TakenOver, []),
    "retried task allowed to write": Scenario(executor_lost_after_its_task_has_written, None, [2, 2]),
    "commit although a task failed": Scenario(task_that_fails_whenever_it_is_tried_in_the_first_run, None, [2, 2]),
    "unanswered commit taken for a failure": Scenario(commit_that_is_done_and_never_answered, CommitUnknown, []),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_verdict_names_what_a_defect_does(
    name: str, job: Job, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DEFECTS[name].switch_on(monkeypatch)
    SCENARIOS[name].play(job, bootstrap)
    assert DEFECTS[name].anomaly in {each.name for each in check(job.history())}


@pytest.mark.parametrize("name", DEFECTS)
def test_without_the_defect_the_same_course_of_events_is_clean(name: str, job: Job, bootstrap: str) -> None:
    scenario = SCENARIOS[name]
    driver = scenario.play(job, bootstrap)
    assert driver.problem is None if scenario.ends_with is None else isinstance(driver.problem, scenario.ends_with)
    assert driver.attempts == scenario.attempts
    history = job.history()
    assert check(history) == []
    assert sum(seen.topic.endswith("-output") for seen in history.final) == BATCHES * PER_BATCH
