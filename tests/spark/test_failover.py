"""An Apache Kafka of three brokers loses one in the middle of a micro-batch, and the query goes on by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.copying import Copying
from tests.spark.streams import Results
from tests.support.kafka_cluster import ThreeBrokers
from tests.support.spark import DriverProcess

PER_BATCH = 20
HELD = 1


def leader_of_an_output_partition(brokers: ThreeBrokers, copying: Copying, partition: int) -> int:
    return brokers.leader(copying.target, partition)


def transaction_coordinator(brokers: ThreeBrokers, copying: Copying, partition: int) -> int:
    return brokers.transaction_coordinator(copying.app_id)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [leader_of_an_output_partition, transaction_coordinator])
def test_batch_is_written_once_though_a_broker_is_killed_in_the_middle_of_it(
    victim: Callable[[ThreeBrokers, Copying, int], int],
    three_brokers: ThreeBrokers,
    spark: SparkSession,
    new_name: Callable[[], str],
    tmp_path: Path,
    new_driver: Callable[..., DriverProcess],
) -> None:
    copying = Copying(
        three_brokers.bootstrap,
        new_name(),
        tmp_path,
        new_driver,
        count=3 * PER_BATCH,
        per_batch=PER_BATCH,
        create_topic=three_brokers.create_topic,
    )
    results = Results()
    with copying.watcher() as watcher:
        query = copying.query(spark, results, held={HELD: {}})
        before = copying.await_written(HELD)
        node = victim(three_brokers, copying, before[0].partition)
        three_brokers.kill(node)
        try:
            copying.let_go(HELD)
            copying.finish(query)
            copying.check(watcher)
        finally:
            three_brokers.start(node)
    assert [(each.batch_id, each.attempts) for each in results.all] == [(0, 1), (1, 1), (2, 1)]
    assert set(before) <= set(copying.output()), "what was acknowledged before is part of what was committed"
