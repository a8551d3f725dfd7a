"""The fixtures do what the other tests here rely on. Drivers, executors and brokers that die are in the fault tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.support.brokers import RunningBroker
from tests.support.raw import Wire, batch
from tests.support.raw_transactions import V2, TransactionalProducer
from tests.support.readers import Watcher, committed, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_runs_python_in_workers_with_the_interpreter_of_the_tests(spark: SparkSession) -> None:
    assert spark.sparkContext.parallelize([1]).map(lambda _: sys.prefix).collect() == [sys.prefix]


def test_workers_import_pyspark_as_installed_and_not_from_a_zip(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    [found] = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert ".zip" not in found


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
