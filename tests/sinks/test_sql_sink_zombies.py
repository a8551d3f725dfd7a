"""A driver that does not know that it is over: it stood still while another one with its app id has taken over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceflow.sinks.databases import postgresql_session
from onceflow.spark.listening import Step
from onceflow.spark.problems import SinkError, TakenOver
from tests.support.sql_sink_cases import TOGETHER
from tests.support.sql_sink_places import Place
from tests.support.sql_sink_without_spark import POINTS, At, Driver, Job, name_of

NewJob = Callable[..., Job]
WAIT_S = 20.0


class Zombie:
    """A driver that stops somewhere, in a thread of its own, until it is told to go on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._stopped, self._awake = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)

    def stop_at(self, when: str, step: Step) -> None:
        """In micro-batch 1."""
        self._start(self.job.driver(At(when, step, self._stop)), lambda *_: None)

    def stop_in_task(self, number: int) -> None:
        """When the task before it has loaded its rows."""
        self._start(self.job.driver(), lambda task, _: self._stop() if task == number else None)

    def _start(self, driver: Driver, befall: Any) -> None:
        self._running = self._pool.submit(lambda: driver.run(1, befall=befall))
        assert self._stopped.wait(WAIT_S), self._running

    def _stop(self) -> None:
        self._stopped.set()
        assert self._awake.wait(60)

    def let_go(self) -> None:
        self._awake.set()
        self._pool.shutdown()

    def go_on(self) -> None:
        """To its end; raises what it ends with."""
        self.let_go()
        self._running.result(WAIT_S)


BEFORE_THE_TRANSACTION = [
    point for point in POINTS if point[1] in (Step.STAGE, Step.WRITE) or point == ("after", Step.PROGRESS)
]
TAKEN_OVER = "another run with the app id 'landing' has taken over.*batch 1 was not committed by this run"


@pytest.fixture
def zombie(place: Place, new_job: NewJob) -> Iterator[Zombie]:
    job = new_job(place, TOGETHER)
    job.driver().run(0)
    zombie = Zombie(job)
    yield zombie
    zombie.let_go()


@pytest.mark.parametrize(("when", "step"), BEFORE_THE_TRANSACTION, ids=name_of)
def test_a_zombie_is_told_that_another_run_has_taken_over_and_changes_nothing(
    zombie: Zombie, when: str, step: Step
) -> None:
    job = zombie.job
    zombie.stop_at(when, step)
    successor = job.driver().run(1)
    job.check(1)
    with pytest.raises(TakenOver, match=TAKEN_OVER):
        zombie.go_on()
    job.check(1)
    successor.run(2, 3)
    job.check(3)


@pytest.mark.parametrize("batches", [(1,), (1, 2, 3)])
def test_a_zombie_whose_tasks_are_still_loading_is_told_and_leaves_no_stage(
    zombie: Zombie, batches: tuple[int, ...]
) -> None:
    zombie.stop_in_task(1)
    zombie.job.driver().run(*batches)
    with pytest.raises(TakenOver, match=TAKEN_OVER):
        zombie.go_on()
    zombie.job.check(batches[-1])


def test_a_zombie_that_has_fenced_only_is_told_when_it_wants_to_stage(zombie: Zombie) -> None:
    """Its successor has fenced, and nothing else yet."""
    job = zombie.job
    zombie.stop_at("after", Step.PROGRESS)
    successor = Zombie(job)
    successor.stop_at("after", Step.FENCE)
    with pytest.raises(TakenOver, match=TAKEN_OVER):
        zombie.go_on()
    job.check(0)
    successor.go_on()
    job.check(1)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("step", [Step.VERIFY, Step.MERGE, Step.RECORD], ids=name_of)
def test_a_zombie_in_the_middle_of_its_transaction_is_ended_by_the_server_and_changes_nothing(
    zombie: Zombie, monkeypatch: pytest.MonkeyPatch, step: Step
) -> None:
    """It holds the row of the progress, so its successor has to wait until the server has lost patience with it."""
    monkeypatch.setattr(postgresql_session, "IDLE_IN_TRANSACTION_S", 1)
    job = zombie.job
    zombie.stop_at("after", step)
    job.driver().run(1)
    job.check(1)
    words = "the commit of batch 1 was not answered, and the other run" if step is Step.RECORD else TAKEN_OVER
    with pytest.raises(TakenOver, match=words):
        zombie.go_on()
    job.check(1)


def test_a_successor_that_cannot_wait_for_a_zombies_transaction_says_so_and_nothing_is_written(
    zombie: Zombie,
) -> None:
    job = zombie.job
    zombie.stop_at("after", Step.RECORD)
    with pytest.raises(SinkError, match=r"tried 2 times\). Nothing was written"):
        job.driver(lock_timeout_s=0.2, retries=1).run(1)
    assert job.found() == job.expected(0)
    zombie.go_on()  # which it is not: nobody has taken over
    job.check(1)
