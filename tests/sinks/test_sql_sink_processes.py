"""kill -9 of the driver with its JVM and its workers around the steps of a micro-batch, and of an executor that loads.

Each driver is both: the one that recovers from what happened to the last one, and the next one to be killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from onceflow.spark.listening import Step
from tests.spark.programs.holding import go
from tests.support.raw import Wire
from tests.support.spark import LOCAL_CLUSTER, DriverProcess
from tests.support.sql_sink_places import Place, SqlitePlace
from tests.support.waiting import eventually

SQL_JOB = Path(__file__).parent / "programs" / "sql_job.py"
POINTS = [
    (when, step.name)
    for step in (Step.STAGE, Step.WRITE, Step.VERIFY, Step.MERGE, Step.RECORD, Step.COMMIT)
    for when in ("before", "after")
]
PER_BATCH = 20
PARTITIONS = 2
WAIT_S = 180.0


class Job:
    """A topic of numbers, a database, and drivers that bring one into the other."""

    def __init__(
        self, bootstrap: str, place: Place, folder: Path, start: Callable[..., DriverProcess], *, batches: int
    ) -> None:
        self.place = place
        self.count = batches * PER_BATCH
        self.marks = folder / "marks"
        self.marks.mkdir()
        self._start = start
        self._options = {
            "bootstrap": bootstrap,
            "source": f"numbers-{folder.name}-{place.name}",
            "url": place.url,
            "app_id": "numbers",
            "checkpoint": str(folder / "checkpoint"),
            "per_batch": PER_BATCH,
            "marks": str(self.marks),
        }
        with Wire(bootstrap) as wire:
            wire.create_topic(self._options["source"], PARTITIONS)
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        for number in range(self.count):
            producer.produce(self._options["source"], str(number), partition=number % PARTITIONS)
        assert producer.flush(60) == 0

    def driver(self, *, settings: Any = None, **options: Any) -> DriverProcess:
        return self._start(SQL_JOB, json.dumps({**self._options, **options}), settings=settings)

    def run(self) -> DriverProcess:
        """A driver that comes to the end by itself."""
        driver = self.driver()
        assert driver.wait(WAIT_S) == 0, driver.log[-6000:]
        return driver

    def check(self) -> None:
        """Every number is there once, by whole micro-batches."""
        rows = self.place.execute("SELECT number, batch FROM copied")
        assert Counter(number for number, _ in rows) == Counter(range(self.count))
        assert set(Counter(batch for _, batch in rows).values()) == {PER_BATCH}
        assert self.place.stages() == []

    def check_sums(self) -> None:
        """Every number was added once."""
        tens = {digit: range(digit, self.count, 10) for digit in range(10)}
        found = sorted(self.place.execute("SELECT digit, total, times FROM counted"))
        assert found == [(digit, sum(numbers), len(numbers)) for digit, numbers in tens.items()]


@pytest.mark.faults  # of every day: `onceflow demo --sql` in tests/pipelines, whose driver is killed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_a_driver_killed_around_the_steps_of_a_micro_batch_loses_and_doubles_nothing(
    bootstrap: str, place: Place, tmp_path: Path, new_driver: Callable[..., DriverProcess]
) -> None:
    job = Job(bootstrap, place, tmp_path, new_driver, batches=3)
    for when, step in POINTS:
        driver = job.driver(pause=[when, step])
        driver.wait_for(f"paused {when} {step}", timeout_s=WAIT_S)
        driver.kill()
    assert "skipped" in job.run().log, "the batch that was committed before the last kill is not written again"
    job.check()
    job.check_sums()


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_an_executor_killed_while_its_task_loads_loses_and_doubles_nothing(
    bootstrap: str, place: Place, tmp_path: Path, new_driver: Callable[..., DriverProcess]
) -> None:
    job = Job(bootstrap, place, tmp_path, new_driver, batches=2)
    driver = job.driver(held=1, settings=LOCAL_CLUSTER)
    driver.wait_for("committed 0", WAIT_S)
    eventually(lambda: loading(place) == PARTITIONS, "both tasks load", timeout_s=WAIT_S, every_s=0.1)
    driver.executors()[0].kill()
    for task in range(PARTITIONS):
        (job.marks / go(1, task)).touch()
    assert driver.wait_for("committed 1", WAIT_S).split()[-1] == "1", "Spark repeats the task, and that is enough"
    assert driver.wait(WAIT_S) == 0, driver.log[-6000:]
    job.check()


def loading(place: Place) -> int:
    """How many tasks have begun to load and have not ended."""
    if isinstance(place, SqlitePlace):
        return len(list(place.path.with_name(f"{place.path.name}.onceflow").rglob("*.part")))
    [(count,)] = place.execute("SELECT count(*) FROM pg_stat_progress_copy WHERE tuples_processed > 0")
    return int(count)
