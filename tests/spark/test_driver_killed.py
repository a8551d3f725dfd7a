"""kill -9 of the driver, its JVM and its workers, before and after each of the six steps of a micro-batch.

Each driver is both: the one that recovers from what happened to the last one, and the next one to be killed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.spark.listening import Step
from tests.spark.copying import Copying
from tests.support.brokers import RunningBroker
from tests.support.spark import DriverProcess

STEPS = [step for step in Step if step not in (Step.STAGE, Step.MERGE)]  # these are of databases
POINTS = [(when, step.name) for step in STEPS for when in ("before", "after")]
PER_BATCH = 20


@pytest.mark.faults  # of every day: the first example of the README, and `onceflow demo`, which kill drivers as well
@pytest.mark.timeout(600)
def test_a_driver_killed_before_and_after_each_step_loses_and_doubles_nothing(
    broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path, new_driver: Callable[..., DriverProcess]
) -> None:
    count = PER_BATCH * (len(POINTS) + 2)
    copying = Copying(broker.bootstrap, new_name(), tmp_path, new_driver, count=count, per_batch=PER_BATCH)
    with copying.watcher() as watcher:
        killed_after_commit = False
        for when, step in POINTS:
            driver = copying.driver(pause=[when, step])
            driver.wait_for(f"paused {when} {step}", timeout_s=120)
            assert not (killed_after_commit and "skipped" not in driver.log)
            driver.kill()
            killed_after_commit = (when, step) == ("after", Step.COMMIT.name)
        last = copying.run()
        assert "skipped" in last.log, "the batch that was committed before the last kill is not written again"
        copying.check(watcher)
