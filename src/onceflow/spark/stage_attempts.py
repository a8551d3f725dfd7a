"""How often Spark has begun to run a stage: the scheduler knows, and PySpark does not tell its tasks.

Spark runs a stage again when shuffle files that it had read are gone, with an executor for example. Two ways to ask:

- `StageAttempts`, while the stage runs: the scheduler's own object of the stage. The number in there goes up before any
  task of the next attempt is started, so whoever sees 0 is told about a task of the first attempt.
- `was_run_again`, when the job is over and the scheduler has forgotten it: what Spark's status store has heard. Events
  reach it a moment later, so it is waited for until it has heard of the stage's success.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

__all__ = ["StageAttempts", "was_run_again"]

log = logging.getLogger("onceflow.spark")

HEARD_WITHIN_S: Final = 30.0
HEARD_POLL_S: Final = 0.002
HEARD_POLL_MAX_S: Final = 0.1


class StageAttempts:
    """Asks the scheduler, for the threads that serve tasks. They come and go, and the JVM keeps a thread for each
    Python thread that talks to it: so one of ours does that for all."""

    def __init__(self, spark: Any) -> None:
        self._context = spark.sparkContext
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onceflow-stages")
        self._stages: dict[int, Any] = {}
        self._has_scheduler = True

    def is_of(self, spark: Any) -> bool:
        """A session may have ended, and another one begun."""
        return self._context is spark.sparkContext

    def newest(self, stage: int) -> int:
        """The newest attempt at a stage, from 0."""
        return self._thread.submit(self._ask, stage).result()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, number: int) -> int:
        if self._has_scheduler:
            try:
                return self._ask_scheduler(number)
            except Exception as problem:  # not Spark's own scheduler, or another Spark than those that were tried
                self._has_scheduler = False
                log.warning(
                    "the scheduler cannot be asked for the attempts at a stage (%s): the status tracker is asked, "
                    "which knows of a stage that is run again a moment later",
                    problem,
                )
        info = self._context.statusTracker().getStageInfo(number)
        return 0 if info is None else int(info.currentAttemptId)

    def _ask_scheduler(self, number: int) -> int:
        stage = self._stages.get(number)
        if stage is None:
            found = self._context._jsc.sc().dagScheduler().stageIdToStage().get(number)
            if not found.isDefined():
                return 0  # the job is over, and so is the run: nobody is let in any more
            stage = found.get()
            self._stages = {number: stage}  # those before are over
        return int(stage.latestInfo().attemptNumber())


def was_run_again(spark: Any, stage: int) -> bool | None:
    """Whether a stage that has succeeded was run more than once; None if Spark does not say so in time."""
    deadline = time.monotonic() + HEARD_WITHIN_S
    wait = HEARD_POLL_S
    while True:
        is_complete, attempt = _last_attempt(spark.sparkContext, stage)
        if attempt > 0:
            return True
        if is_complete:
            return False
        if time.monotonic() > deadline:
            return None
        time.sleep(wait)
        wait = min(2 * wait, HEARD_POLL_MAX_S)


def _last_attempt(context: Any, stage: int) -> tuple[bool, int]:
    from py4j.protocol import Py4JJavaError

    try:
        last = context._jsc.sc().statusStore().lastStageAttempt(stage)
        return str(last.status().toString()) == "COMPLETE", int(last.attemptId())
    except Py4JJavaError:  # it has not heard of the stage yet
        return False, 0
    except Exception:  # another Spark than those that were tried: its public interface tells nearly the same
        info = context.statusTracker().getStageInfo(stage)
        return (False, 0) if info is None else (info.numCompletedTasks >= info.numTasks, info.currentAttemptId)
