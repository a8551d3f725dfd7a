"""Streaming queries of one test: topics, a checkpoint, a sink, and runs over all that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from onceflow.spark import BatchResult, KafkaSink, SinkListener, register
from tests.support.raw import Wire
from tests.support.readers import Seen, committed

__all__ = ["Results", "Streams", "failure"]

Transform = Callable[[DataFrame], DataFrame]


class Results(SinkListener):
    """Keeps what the sink tells."""

    def __init__(self) -> None:
        self.all: list[BatchResult] = []

    def on_batch(self, result: BatchResult) -> None:
        self.all.append(result)

    @property
    def committed(self) -> list[int]:
        return [each.batch_id for each in self.all if not each.skipped]

    @property
    def skipped(self) -> list[int]:
        return [each.batch_id for each in self.all if each.skipped]


class Streams:
    """Everything under names of its own, so that tests share a broker and a session."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.source, self.target, self.app_id = f"{name}-in", f"{name}-out", f"{name}-app"
        self.checkpoint = folder / "checkpoint"
        self.results = Results()
        register(spark)
        with Wire(bootstrap) as wire:
            wire.create_topic(self.source, 2)
            wire.create_topic(self.target, 3)

    def send(self, values: Iterable[object], topic: str | None = None, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 2})
        for value in values:
            producer.produce(topic or self.source, str(value), key=str(value), partition=partition)
        assert producer.flush(30) == 0

    def sink(self, **settings: Any) -> KafkaSink:
        arguments = {
            "app_id": self.app_id,
            "bootstrap_servers": self.bootstrap,
            "topic": self.target,
            "listeners": [self.results],
            **settings,
        }
        return KafkaSink(**arguments)

    def frame(self, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("onceflow").option("kafka.bootstrap.servers", self.bootstrap)
        chosen = {"subscribe": self.source, "startingOffsets": "earliest", **options}
        return reader.options(**{name: value for name, value in chosen.items() if value is not None}).load()

    def start(
        self,
        sink: Any = None,
        transform: Transform = lambda frame: frame.select("key", "value"),
        *,
        mode: str = "append",
        trigger: dict[str, Any] | None = None,
        **options: Any,
    ) -> StreamingQuery:
        writer = transform(self.frame(**options)).writeStream.foreachBatch(sink or self.sink()).outputMode(mode)
        return (
            writer.option("checkpointLocation", str(self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )

    def run(self, *arguments: Any, **options: Any) -> StreamingQuery:
        """Over all that is there. Raises what the query failed with."""
        query = self.start(*arguments, **options)
        assert query.awaitTermination(120)
        return query

    def output(self, topic: str | None = None) -> list[Seen]:
        return committed(self.bootstrap, topic or self.target)

    def values(self, topic: str | None = None) -> list[str]:
        """Of the output, sorted."""
        return sorted((each.value or b"").decode() for each in self.output(topic))

    def last_commit(self) -> Path:
        """The newest entry of Spark's commit log."""
        entries = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        return max(entries, key=lambda path: int(path.name))

    def forget_last_commit(self) -> int:
        """As if the driver had died between our commit and Spark's own."""
        last = self.last_commit()
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        return int(last.name)

    def group_offsets(self) -> dict[int, int]:
        """What the consumer group of the app has committed on the source topic."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.app_id, "log_level": 2})
        try:
            found = consumer.committed([TopicPartition(self.source, number) for number in (0, 1)], timeout=10)
            return {each.partition: each.offset for each in found if each.offset >= 0}
        finally:
            consumer.close()


def failure(streams: Streams, *arguments: Any, **options: Any) -> str:
    """What the query says when it stops."""
    with pytest.raises(StreamingQueryException) as stopped:
        streams.run(*arguments, **options)
    return str(stopped.value)
