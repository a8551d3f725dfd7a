"""A driver program: copies a topic to another one, exactly once, and stops for its killer where it is told to.

Its argument is JSON: bootstrap, source, target, app_id, checkpoint; and if wanted

- `pause`: ["before" | "after", step], the first time that this is reached it says so and waits for ever;
- `held`: by the number of a micro-batch, what happens in its tasks (see `holding.py`), and `marks`, the folder for it;
- `read`, `sink`, `trigger`: further settings for the source, the sink and the trigger.

`start` does the same in a session that is there.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

import onceflow.spark
from onceflow.spark import BatchResult, KafkaSink, SinkListener, Step
from tests.spark.programs.holding import held

__all__ = ["start"]


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


def start(spark: SparkSession, options: dict[str, Any], *listeners: SinkListener) -> StreamingQuery:
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
        app_id=options["app_id"],
        bootstrap_servers=options["bootstrap"],
        topic=options["target"],
        listeners=listeners,
        **({"buffer_bytes": 1024} if options.get("held") else {}),
        **options.get("sink", {}),
    )

    def write(frame: DataFrame, batch_id: int) -> None:
        sink(_rows(frame, batch_id, options), batch_id)

    return (
        source.writeStream.foreachBatch(write)
        .option("checkpointLocation", options["checkpoint"])
        .trigger(**options.get("trigger", {"availableNow": True}))
        .start()
    )


def _rows(frame: DataFrame, batch_id: int, options: dict[str, Any]) -> DataFrame:
    value = sql.concat_ws("/", sql.col("value").cast("string"), sql.lit(batch_id))
    rows = frame.select("key", value.alias("value"))
    trouble = options.get("held", {}).get(str(batch_id))
    return rows if trouble is None else held(rows, Path(options["marks"]), batch_id, **trouble)


def main(options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING)
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    query = start(spark, options, Reporter(options.get("pause")))
    print("started", flush=True)
    try:
        query.awaitTermination()
        print("done", flush=True)
    except Exception as problem:
        print("failed:", str(problem).replace("\n", " | ")[:4000], flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
