"""A driver program: copies a topic to another one, exactly once, and stops for its killer where it is told to.

Its argument is JSON: bootstrap, source, target, app_id, checkpoint; `pause`: ["before" | "after", step], the first
time that this is reached it says so and waits for ever; and further settings for the source, the sink and the
trigger.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

import onceflow.spark
from onceflow.spark import BatchResult, KafkaSink, SinkListener, Step


class Reporter(SinkListener):
    def __init__(self, pause: list[str] | None) -> None:
        self._pause = pause

    def before(self, step: Step, batch_id: int) -> None:
        self._reached("before", step, batch_id)

    def after(self, step: Step, batch_id: int) -> None:
        self._reached("after", step, batch_id)

    def on_batch(self, result: BatchResult) -> None:
        print("skipped" if result.skipped else "committed", result.batch_id, result.rows, result.attempts, flush=True)

    def _reached(self, when: str, step: Step, batch_id: int) -> None:
        if self._pause == [when, step.name]:
            print("paused", when, step.name, batch_id, flush=True)
            threading.Event().wait()


def main(options: dict[str, object]) -> None:
    logging.basicConfig(level=logging.WARNING)
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    onceflow.spark.register(spark)
    source = (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", options["bootstrap"])
        .option("subscribe", options["source"])
        .option("startingOffsets", "earliest")
        .options(**options.get("read", {}))
        .load()
    )
    sink = KafkaSink(
        app_id=str(options["app_id"]),
        bootstrap_servers=str(options["bootstrap"]),
        topic=str(options["target"]),
        listeners=[Reporter(options.get("pause"))],
        **options.get("sink", {}),
    )

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select(
            "key", sql.concat_ws("/", sql.col("value").cast("string"), sql.lit(batch_id)).alias("value")
        )
        sink(_with_trouble(rows, options), batch_id)

    trigger = options.get("trigger", {"availableNow": True})
    query = (
        source.writeStream.foreachBatch(write)
        .option("checkpointLocation", options["checkpoint"])
        .trigger(**trigger)
        .start()
    )
    print("started", flush=True)
    try:
        query.awaitTermination()
        print("done", flush=True)
    except Exception as problem:
        print("failed:", str(problem).replace("\n", " | ")[:4000], flush=True)
        sys.exit(3)


def _with_trouble(rows: DataFrame, options: dict[str, object]) -> DataFrame:
    """Tasks that are slow, or throw in the middle of their rows, in the first attempt at a batch."""
    trouble = options.get("trouble")
    if trouble is None:
        return rows
    flag = str(options["flag"])

    def spoil(batches):
        context = TaskContext.get()
        for batch in batches:
            for at in range(0, batch.num_rows, 10):
                if trouble == "slow":
                    time.sleep(float(options.get("seconds", 0.05)))
                if trouble == "throw" and at and context.partitionId() == 0 and _first_time(flag):
                    raise RuntimeError("this task throws in the middle")
                yield batch.slice(at, 10)

    return rows.mapInArrow(spoil, rows.schema)


def _first_time(flag: str) -> bool:
    try:
        with open(flag, "x"):
            return True
    except FileExistsError:
        return False


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
