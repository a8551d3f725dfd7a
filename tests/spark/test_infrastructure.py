"""The fixtures do what the other tests here rely on: parts of Spark and of a cluster die, alone and all at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.brokers import RunningBroker
from tests.support.kafka_cluster import ThreeBrokers
from tests.support.raw import Wire, batch
from tests.support.raw_transactions import V2, TransactionalProducer
from tests.support.readers import Watcher, committed, written
from tests.support.spark import LOCAL_CLUSTER, DriverProcess
from tests.support.spark_cluster import StandaloneCluster
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTING = Path(__file__).with_name("programs") / "counting.py"
SUM = sum(range(100))
NewDriver = Callable[..., DriverProcess]


def test_session_runs_python_in_workers_with_the_interpreter_of_the_tests(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1]).map(lambda _: sys.prefix).collect() == [sys.prefix]


def test_workers_import_pyspark_as_installed_and_not_from_a_zip(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    [found] = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert ".zip" not in found


def test_sparks_own_connector_writes_and_reads(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap}
    rows = spark.createDataFrame([("k", "v")], "key string, value string")
    rows.write.format("kafka").options(**options, topic=topic).save()
    read = spark.read.format("kafka").options(**options, subscribe=topic).load()
    assert [(row.key, row.value) for row in read.collect()] == [(b"k", b"v")]


class TestReaders:
    def test_committed_leaves_out_what_is_aborted_and_what_is_open(
        self, broker: RunningBroker, wire: Wire, topic: str, new_name: Callable[[], str]
    ) -> None:
        producer = TransactionalProducer(wire, new_name(), V2).init()
        producer.write(topic, "kept")
        producer.commit()
        producer.write(topic, "dropped")
        producer.abort()
        producer.write(topic, "open")
        assert [each.value for each in committed(broker.bootstrap, topic)] == [b"kept"]
        assert [each.value for each in written(broker.bootstrap, topic)] == [b"kept", b"dropped", b"open"]

    def test_watcher_sees_records_of_all_partitions_as_they_come(
        self, broker: RunningBroker, wire: Wire, new_name: Callable[[], str]
    ) -> None:
        topic = new_name()
        wire.create_topic(topic, partitions=2)
        with Watcher(broker.bootstrap, topic) as watcher:
            wire.produce(topic, batch("first"), partition=1)
            assert [(each.partition, each.offset, each.value) for each in watcher.wait_for(1)] == [(1, 0, b"first")]
            wire.produce(topic, batch("second", key=b"k"), partition=0)
            assert watcher.wait_for(2)[1:] == [(0, 0, b"k", b"second")]


class TestDrivers:
    def test_jvm_outlives_python_for_a_moment_only(self, new_driver: NewDriver, tmp_path: Path) -> None:
        driver = new_driver(COUNTING, tmp_path)
        driver.wait_for("round 0")
        jvm = driver.jvm
        assert driver.executors() == []
        driver.kill_python()
        assert not driver.is_running
        eventually(lambda: not _lives(jvm), "the JVM ends too")

    def test_executor_dies_alone_and_the_job_goes_on_until_all_are_killed(
        self, new_driver: NewDriver, tmp_path: Path
    ) -> None:
        driver = new_driver(COUNTING, tmp_path, settings=LOCAL_CLUSTER)
        driver.wait_for("round 0")
        victim, _ = eventually(lambda: _pair(driver.executors()), "both executors are there")
        victim.kill()
        victim.wait(10)
        number = len(list(tmp_path.glob("round-*")))
        assert driver.wait_for(f"round {number + 1}:").endswith(str(SUM))
        everything = driver.processes()
        workers = (tmp_path / f"round-{number + 1}").read_text().split()
        assert {driver.python.pid, driver.jvm.pid, *map(int, workers)} <= {process.pid for process in everything}
        driver.kill()
        assert not any(_lives(process) for process in everything)

    def test_program_that_fails_is_not_waited_for(self, new_driver: NewDriver, tmp_path: Path) -> None:
        script = tmp_path / "program.py"
        script.write_text("import sys; sys.exit('no luck')")
        driver = new_driver(script)
        with pytest.raises(AssertionError, match="no luck"):
            driver.wait_for("round 0")
        assert driver.wait() == 1


def test_program_goes_to_a_standalone_cluster_by_spark_submit(standalone: StandaloneCluster, tmp_path: Path) -> None:
    with standalone.submit(COUNTING, tmp_path) as driver:
        assert driver.wait_for("round 0").endswith(str(SUM))
        executors = standalone.executors()
        assert executors
        assert all(process.ppid() in [worker.pid for worker in standalone.workers] for process in executors)
        (tmp_path / "stop").touch()
        assert driver.wait() == 0


def test_partition_and_coordinator_move_when_their_broker_is_killed(
    three_brokers: ThreeBrokers, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    three_brokers.create_topic(topic)
    leader = three_brokers.leader(topic, 0)
    app = _app_of(three_brokers, leader)
    three_brokers.produce(topic, "before")
    three_brokers.kill(leader)
    assert three_brokers.leader(topic, 0) != leader
    assert three_brokers.transaction_coordinator(app) != leader
    three_brokers.produce(topic, "after")
    three_brokers.start(leader)
    assert [each.value for each in committed(three_brokers.bootstrap, topic)] == [b"before", b"after"]


def _app_of(cluster: ThreeBrokers, node: int) -> str:
    """A transactional id whose coordinator is this node."""
    ids = (f"app-{number}" for number in range(100))
    return next(each for each in ids if cluster.transaction_coordinator(each) == node)


def _pair(executors: list[psutil.Process]) -> list[psutil.Process] | None:
    return executors if len(executors) == 2 else None


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
