"""Executors that are elsewhere: the job by spark-submit on a standalone cluster, with Apache Kafka, as docs/spark.md
describes it; and what users read if there is no way back to the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import onceflow.spark
from onceflow.ports import ReservedPort
from onceflow.spark import BatchFailed
from tests.spark.copying import Copying
from tests.support.brokers import Shared, running_broker
from tests.support.raw import Wire
from tests.support.spark import DriverProcess
from tests.support.spark_cluster import StandaloneCluster
from tests.support.spark_jvm import LOOPBACK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PER_BATCH = 20
BOTH_EXECUTORS = {"spark.cores.max": 2, "spark.scheduler.minRegisteredResourcesRatio": 1.0}
"""The first micro-batch waits until both are there, so that each has one of its two tasks."""


@pytest.fixture
def submit(standalone: StandaloneCluster) -> Iterator[Callable[..., DriverProcess]]:
    with ExitStack() as stack:

        def start(script: Path, *arguments: object, **rest: Any) -> DriverProcess:
            return stack.enter_context(standalone.submit(script, *arguments, **rest))

        yield start


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_executors_of_both_workers_write_and_get_their_turns_at_the_advertised_address(
    standalone: StandaloneCluster,
    shared: Shared,
    new_name: Callable[[], str],
    tmp_path: Path,
    submit: Callable[..., DriverProcess],
) -> None:
    bootstrap = running_broker("kafka", shared).bootstrap
    copying = Copying(bootstrap, new_name(), tmp_path, submit, count=5 * PER_BATCH, per_batch=PER_BATCH)
    reserved = ReservedPort(LOOPBACK)
    port = reserved.number
    with copying.watcher() as watcher:
        driver = copying.driver(
            settings=BOTH_EXECUTORS,
            sink={"driver_host": LOOPBACK, "driver_port": port},
            trigger={"processingTime": "0 seconds"},
        )
        driver.wait_for("committed 4", timeout_s=180)
        copying.check(watcher)
    assert (LOOPBACK, port) in _listening(driver.python)
    executors = standalone.executors()
    assert {executor.ppid() for executor in executors} == {worker.pid for worker in standalone.workers}
    for executor in executors:
        assert "Finished task" in (Path(executor.cwd()) / "stderr").read_text(), "it had no task"


@pytest.mark.faults
def test_driver_that_cannot_be_reached_is_told_with_the_settings(
    spark: SparkSession, shared: Shared, new_name: Callable[[], str]
) -> None:
    bootstrap, topic = running_broker("onceflow", shared).bootstrap, new_name()
    with Wire(bootstrap) as wire:
        wire.create_topic(topic)
    rows = spark.range(3).selectExpr("cast(id as string) value")
    nobody = "127.0.0.2"  # the driver listens on spark.driver.bindAddress
    with pytest.raises(
        BatchFailed, match=rf"cannot reach the driver at {nobody}:\d+ .*KafkaSink\(driver_host="
    ) as said:
        onceflow.spark.write(rows, bootstrap_servers=bootstrap, topic=topic, driver_host=nobody, retries=0)
    assert "\n" not in str(said.value)


def _listening(process: psutil.Process) -> set[tuple[str, int]]:
    return {tuple(each.laddr) for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
