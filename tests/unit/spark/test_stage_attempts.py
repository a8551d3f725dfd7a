"""How often a stage was run, as Spark's scheduler, status store and status tracker tell it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceflow.spark import stage_attempts as module
from onceflow.spark.stage_attempts import StageAttempts, was_run_again


class Stage:
    """The scheduler's object: it outlives the scheduler's table of stages."""

    def __init__(self) -> None:
        self.attempt = 0

    def latestInfo(self) -> Any:  # noqa: N802 - the names are Spark's
        return SimpleNamespace(attemptNumber=lambda: self.attempt)


class Spark:
    """As much of a session as is asked."""

    def __init__(self, scheduled: dict[int, Stage] | None = None, heard: list[tuple[str, int]] | None = None) -> None:
        self.scheduled = scheduled
        self.heard = heard
        """What the status store says, one time after the other."""
        self.tracked: Any = None
        self.sparkContext = self
        self._jsc = SimpleNamespace(sc=lambda: self)

    def dagScheduler(self) -> Any:  # noqa: N802
        if self.scheduled is None:
            raise RuntimeError("Method dagScheduler([]) does not exist")
        return SimpleNamespace(stageIdToStage=lambda: SimpleNamespace(get=self._option))

    def _option(self, number: int) -> Any:
        assert self.scheduled is not None
        found = self.scheduled.get(number)
        return SimpleNamespace(isDefined=lambda: found is not None, get=lambda: found)

    def statusStore(self) -> Any:  # noqa: N802
        if self.heard is None:
            raise RuntimeError("Method statusStore([]) does not exist")
        return SimpleNamespace(lastStageAttempt=self._last)

    def _last(self, number: int) -> Any:
        assert self.heard is not None
        status, attempt = self.heard.pop(0) if len(self.heard) > 1 else self.heard[0]
        return SimpleNamespace(status=lambda: SimpleNamespace(toString=lambda: status), attemptId=lambda: attempt)

    def statusTracker(self) -> Any:  # noqa: N802
        return SimpleNamespace(getStageInfo=lambda _: self.tracked)


def test_scheduler_is_asked_each_time() -> None:
    stage = Stage()
    attempts = StageAttempts(Spark({7: stage}))
    assert attempts.newest(7) == 0
    stage.attempt = 1
    assert attempts.newest(7) == 1
    attempts.close()


def test_stage_that_the_scheduler_has_forgotten_is_over() -> None:
    attempts = StageAttempts(Spark({}))
    assert attempts.newest(7) == 0
    attempts.close()


def test_status_tracker_is_asked_where_the_scheduler_cannot_be() -> None:
    spark = Spark()
    spark.tracked = SimpleNamespace(currentAttemptId=2)
    attempts = StageAttempts(spark)
    assert attempts.newest(7) == 2
    attempts.close()


def test_another_session_needs_another_one_to_ask() -> None:
    spark = Spark()
    attempts = StageAttempts(spark)
    assert attempts.is_of(spark)
    assert not attempts.is_of(Spark())
    attempts.close()


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        ([("COMPLETE", 0)], False),
        ([("ACTIVE", 0), ("ACTIVE", 0), ("COMPLETE", 0)], False),
        ([("COMPLETE", 1)], True),
        ([("FAILED", 0), ("ACTIVE", 1)], True),
    ],
)
def test_status_store_is_waited_for_until_it_has_heard_of_the_success(
    heard: list[tuple[str, int]], expected: bool
) -> None:
    assert was_run_again(Spark(heard=heard), 7) is expected


def test_status_store_that_does_not_hear_of_it_is_not_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARD_WITHIN_S", 0.02)
    assert was_run_again(Spark(heard=[("ACTIVE", 0)]), 7) is None


def test_status_tracker_tells_where_there_is_no_status_store() -> None:
    spark = Spark()
    spark.tracked = SimpleNamespace(currentAttemptId=0, numTasks=3, numCompletedTasks=3)
    assert was_run_again(spark, 7) is False
    spark.tracked.currentAttemptId = 1
    assert was_run_again(spark, 7) is True
