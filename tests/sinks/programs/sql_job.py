"""A driver program: a topic into a database, exactly once, and it stops for its killer where it is told to.

Its argument is JSON: bootstrap, source, url, app_id, checkpoint, per_batch; and if wanted

- `pause`: ["before" | "after", step], the first time that this is reached it says so and waits for ever;
- `held`: the number of a micro-batch whose tasks are held (see `tests/spark/programs/holding.py`), and `marks`.

Each record is a number. `copied` gets it with the number of its micro-batch, `counted` adds it up, by its last digit.
With `held` there is no `counted`: rows for two tables are computed before the first is loaded, and here they are held.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StreamingQuery

import onceflow.spark
from onceflow.sinks import SqlSink, Table
from tests.spark.programs.copy_job import Reporter
from tests.spark.programs.holding import held

NUMBER = "CAST(split_part(value, '/', 1) AS bigint)"
TABLES = (
    Table(
        "copied",
        create=True,
        rows=lambda frame: frame.selectExpr(f"{NUMBER} AS number", "batch", "value"),
    ),
    Table(
        "counted",
        key=["digit"],
        mode="increment",
        create=True,
        rows=lambda frame: frame.selectExpr(f"{NUMBER} % 10 AS digit", f"{NUMBER} AS total", "1L AS times"),
    ),
)


def start(spark: SparkSession, options: dict[str, Any]) -> StreamingQuery:
    onceflow.spark.register(spark)
    source = (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", options["bootstrap"])
        .option("subscribe", options["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", options["per_batch"])
        .load()
    )
    reporter = Reporter(options.get("pause"))
    tables = TABLES[:1] if "held" in options else TABLES
    sink = SqlSink(url=options["url"], app_id=options["app_id"], tables=tables, listeners=[reporter])

    def write(frame: DataFrame, batch_id: int) -> None:
        rows = frame.select(sql.col("value").cast("string"), sql.lit(batch_id).alias("batch"))
        if options.get("held") == batch_id:
            rows = held(rows, Path(options["marks"]), batch_id)
        sink(rows, batch_id)

    writer = source.writeStream.foreachBatch(write).option("checkpointLocation", options["checkpoint"])
    return writer.trigger(availableNow=True).start()


def main(options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING)
    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    query = start(spark, options)
    try:
        query.awaitTermination()
        print("done", flush=True)
    except Exception as problem:
        print("failed:", str(problem).replace("\n", " | ")[:4000], flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
