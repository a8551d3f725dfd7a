"""Spark's own Kafka source in front of our sink: its offsets are recorded as those of ours are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from onceflow.client.cluster import Cluster, TopicPartition
from onceflow.client.offsets import committed_offsets
from onceflow.client.settings import ClientSettings
from onceflow.spark.progress import read_progress
from tests.spark.streams import Streams
from tests.support.brokers import RunningBroker
from tests.support.kafka_jars import CONNECTOR_VERSION
from tests.support.raw import Wire
from tests.support.waiting import eventually

pytestmark = pytest.mark.faults


class FromJvm(Streams):
    """Streams that read with `format("kafka")`."""

    def frame(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        given = {"subscribe": self.source, "startingOffsets": "earliest", **options}
        return reader.option("kafka.isolation.level", "read_committed").options(**given).load()

    def wait_until_recorded(self, ends: dict[TopicPartition, int]) -> None:
        eventually(lambda: self.recorded() == (ends, ends), f"group and progress are at {ends}")

    def recorded(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The offsets of the consumer group, and those of the progress record."""
        with Cluster(ClientSettings(bootstrap=self.bootstrap)) as cluster:
            progress = read_progress(cluster, self.app_id)
            return committed_offsets(cluster, self.app_id), dict(progress.offsets if progress else {})


@pytest.fixture
def streams(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> FromJvm:
    return FromJvm(spark, broker.bootstrap, new_name(), tmp_path)


@pytest.mark.tried("Spark's kafka source", "micro-batches with read_committed", version=CONNECTOR_VERSION)
def test_offsets_are_recorded_and_a_committed_batch_is_skipped(streams: FromJvm) -> None:
    streams.send(range(10))
    streams.send(range(10, 16), partition=1)
    streams.run(maxOffsetsPerTrigger=8)
    assert len(streams.results.committed) == 2
    streams.wait_until_recorded({(streams.source, 0): 10, (streams.source, 1): 6})
    last = streams.forget_last_commit()
    streams.send(range(16, 20))
    streams.run()
    assert streams.results.skipped == [last]
    streams.wait_until_recorded({(streams.source, 0): 14, (streams.source, 1): 6})
    eventually(lambda: len(streams.output()) >= 20, "all is visible")
    assert streams.values() == sorted(map(str, range(20)))


def test_offsets_of_all_streaming_sources_of_a_query_are_recorded(
    streams: FromJvm, wire: Wire, new_name: Callable[[], str]
) -> None:
    """Spark's and ours in one query, joined with a topic that is read as a whole each time."""
    ours, names = new_name(), new_name()
    for topic in (ours, names):
        wire.create_topic(topic)
    streams.send(range(5))
    streams.send(range(5, 12), topic=ours)
    streams.send([3, 7], topic=names)

    def joined(frame: DataFrame) -> DataFrame:
        rows = frame.select("key", "value").unionByName(Streams.frame(streams, subscribe=ours).select("key", "value"))
        known = streams.spark.read.format("onceflow").option("kafka.bootstrap.servers", streams.bootstrap)
        static = known.option("subscribe", names).load().select("key", sql.lit("!").alias("mark"))
        marked = sql.concat(sql.col("value").cast("string"), sql.coalesce("mark", sql.lit("")))
        return rows.join(static, "key", "left").select("key", marked.alias("value"))

    for _ in range(2):
        streams.run(transform=joined)
        streams.wait_until_recorded({(streams.source, 0): 5, (streams.source, 1): 0, (ours, 0): 7})
        last = streams.forget_last_commit()
    assert streams.results.skipped == [last]
    eventually(lambda: len(streams.output()) >= 12, "all is visible")
    assert streams.values() == sorted(f"{number}!" if number in (3, 7) else str(number) for number in range(12))
