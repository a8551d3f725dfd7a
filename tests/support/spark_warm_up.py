"""A driver program that uses what the tests use of Spark, so that the JVM has loaded the classes that they need.

`spark_jvm.class_archive` runs it; with the flags given there, the JVM archives those classes when it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col, count

from tests.support.spark import end_jvm

BATCHES = 3


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "value bigint"

    def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802, Spark's name
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802, Spark's name
        return {"at": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802, Spark's name
        return {"at": (start or self.initialOffset())["at"] + 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(range(start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": list(partition.value)})


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def write(rows: DataFrame, batch_id: int) -> None:
    rows.mapInArrow(same, rows.schema).write.format("noop").mode("append").save()
    rows.mapInArrow(same, rows.schema).collect()


def run(spark: SparkSession, rows: DataFrame, mode: str) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = rows.writeStream.foreachBatch(write).outputMode(mode).option("checkpointLocation", checkpoint)
        query = writer.start()
        while not query.lastProgress or query.lastProgress["batchId"] < BATCHES:
            query.awaitTermination(0.05)
        query.stop()


def main() -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(Numbers)
    rows = spark.readStream.format("numbers").load()
    run(spark, rows, "append")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    run(spark, rows.groupBy((col("value") % 3).alias("key")).agg(count("*").alias("count")), "update")
    end_jvm(spark)


if __name__ == "__main__":
    main()
