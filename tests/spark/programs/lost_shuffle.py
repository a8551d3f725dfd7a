"""A driver program: writes a DataFrame into Kafka and into SQLite, and each time loses the shuffle files that the
stage which writes is reading, so that Spark runs the stage again.

Its arguments: the bootstrap address, a topic, a folder, the number of rows. The rows move between partitions when they
are computed a second time, as those of any query do whose order is not defined; Spark does not know that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

import onceflow.sinks
import onceflow.spark

KEYS, PARTITIONS = 12, 6
Batches = Iterator[pa.RecordBatch]


def moving(lost: Path) -> Callable[[Batches], Batches]:
    def run(batches: Batches) -> Batches:
        shift = int(lost.exists())
        for batch in batches:
            ids = batch.column("id").to_pylist()
            keys = pa.array([(each + shift) % KEYS for each in ids], pa.int32())
            yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), keys], ["id", "key"])

    return run


def losing(lost: Path) -> Callable[[Batches], Batches]:
    """The first task that has read all of its rows deletes what the others read; once."""

    def run(batches: Batches) -> Batches:
        yield from batches
        with contextlib.suppress(FileExistsError):
            os.close(os.open(lost, os.O_CREAT | os.O_EXCL))
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for path in Path(folder).rglob("shuffle_*"):
                    path.unlink()

    return run


def rows(spark: SparkSession, count: int, lost: Path) -> DataFrame:
    """A window reads before the Python of the stage is started: a task whose rows are lost has not entered."""
    window = Window.partitionBy("key").orderBy("id")
    return (
        spark.range(0, count, 1, 2)
        .mapInArrow(moving(lost), "id long, key int")
        .repartition(PARTITIONS, "key")
        .withColumn("number", sql.row_number().over(window))
        .where("number > 0")
        .select("id")
        .mapInArrow(losing(lost), "id long")
    )


def main(bootstrap: str, topic: str, folder: str, count: int) -> None:
    spark = onceflow.spark.session("lost-shuffle", master="local[2]")
    into_kafka, into_sql = (Path(folder) / f"lost-{each}" for each in ("kafka", "sql"))
    frame = rows(spark, count, into_kafka).select(sql.col("id").cast("string").alias("value"))
    result: Any = onceflow.spark.write(frame, bootstrap_servers=bootstrap, topic=topic)
    print("written-to-kafka", result.rows, result.attempts, into_kafka.exists(), flush=True)
    url = f"sqlite:///{folder}/rows.db"
    frame = rows(spark, count, into_sql)
    result = onceflow.sinks.write(frame, url=url, table="numbers", app_id="numbers", create_table=True)
    print("written-to-sqlite", result.rows, result.attempts, into_sql.exists(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
