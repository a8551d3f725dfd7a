"""The three pipelines on Spark with a database: topics and tables are what the oracle says, over crashes in between."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from onceflow.errors import ConfigError
from onceflow.pipelines.reference import REFERENCES, reference_named
from onceflow.spark.listening import SinkListener, Step
from tests.pipelines.landed import Landed
from tests.support.brokers import RunningBroker, Shared, started
from tests.support.postgresql import shared_postgresql
from tests.support.spark import DriverProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 1500
JOB = Path(__file__).with_name("landing_job.py")


Open = Callable[..., Landed]


@pytest.fixture
def opened(broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Open:
    def opened(name: str, sql: str | None = None) -> Landed:
        prefix = f"{new_name()[-8:]}."
        sql = sql or f"sqlite:///{tmp_path}/landed.db"
        return Landed(reference_named(name), broker.bootstrap, prefix, tmp_path / "checkpoint", sql)

    return opened


class Crash(SinkListener):
    """Fails before a step of a micro-batch."""

    def __init__(self, step: Step, batch_id: int) -> None:
        self._at = (step, batch_id)

    def before(self, step: Step, batch_id: int) -> None:
        if (step, batch_id) == self._at:
            raise RuntimeError("a crash")


@pytest.mark.faults  # of every day: `onceflow demo orders --sql sqlite` in test_demo.py
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", REFERENCES)
def test_what_a_pipeline_lands_is_what_its_oracle_says_also_after_failures_in_between(
    name: str, opened: Open, spark: SparkSession
) -> None:
    landed = opened(name)
    landed.feed(RECORDS)
    crash = Crash(Step.COMMIT, 1)
    with pytest.raises(StreamingQueryException, match="a crash"):
        landed.run(spark, per_batch=RECORDS // 3, sink_options={"listeners": [crash]})
    app_id = f"{landed.prefix}{name}"
    assert landed.progress()[app_id] == 1, "the database has a micro-batch more"
    assert max(each.batch or 0 for each in landed.written()[1]) == 0
    landed.run(spark, per_batch=RECORDS // 3)
    assert landed.differences() == []
    assert landed.progress()[app_id] >= 2


@pytest.mark.faults  # of every day: `onceflow demo --sql` in test_demo.py, whose driver is killed
@pytest.mark.timeout(300)
def test_a_driver_killed_between_the_commits_of_postgresql_and_of_kafka_leaves_nothing_to_repair(
    opened: Open, spark: SparkSession, shared: Shared, tmp_path: Path
) -> None:
    landed = opened("pricing", shared_postgresql(shared).new_database())
    landed.feed(RECORDS)
    settings = dataclasses.asdict(landed.job_settings(per_batch=RECORDS // 3))
    del settings["sink_options"]
    options = {"reference": "pricing", "settings": settings, "pause": [Step.COMMIT.name, 1]}
    with started(lambda: DriverProcess(JOB, json.dumps(options), folder=tmp_path / "driver")) as driver:
        driver.wait_for("paused", timeout_s=120)
    assert landed.progress() == {f"{landed.prefix}pricing": 1}, "and in Kafka its transaction is still open"
    landed.run(spark, per_batch=RECORDS // 3)
    assert landed.differences() == []

    landed.feed(50)
    landed.run(spark, sql=None)
    with pytest.raises(ConfigError, match="the pipeline has run without the database in between"):
        landed.run(spark)
