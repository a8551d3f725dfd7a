"""The driver program: one Spark job, by one engine, in a process of its own.

    python -m benchmarks.spark_jobs.driver JOB        # the JSON of `job.Job`

It runs the job over the warm-up topic and then over the real one, in the same JVM. Where the clock starts and stops it
prints a mark and waits for a line on stdin: meanwhile the benchmark looks at what all processes have used. The last
line on stdout is the result as JSON. Whatever else Spark has to say goes to stderr.

Settings of Spark are the same for all engines but for `spark.jars`, and the JVM's own are left alone.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.spark import end_jvm

import onceflow.spark
from benchmarks.spark_jobs.job import COUNT, EXACTLY_ONCE, SPARK, Job, Query
from onceflow.spark.sessions import recommended

MASTER = "local[2]"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}
TRANSFORMED = {
    "map": ("key", "upper(cast(value AS string)) AS value"),
    COUNT: ("key", "cast(count AS string) AS value"),
}


class Commits(onceflow.spark.SinkListener):
    """When each micro-batch was committed, and what the transaction added to it."""

    def __init__(self) -> None:
        self.taken: list[dict[str, float]] = []

    def on_batch(self, result: onceflow.spark.BatchResult) -> None:
        self.taken.append({"at": time.time(), "commit_ms": result.commit_ms, "attempts": result.attempts})


def main() -> None:
    job = Job.from_argument(sys.argv[1])
    spark = _session(job)
    _run(spark, job, job.warm_up, Commits())
    commits = Commits()
    _mark("begin")
    begun = time.monotonic()
    if job.trigger_seconds:
        batches = _run_until_told(spark, job, commits)
    else:
        batches = _run(spark, job, job.measured, commits)
    seconds = time.monotonic() - begun
    _mark("end")
    print(json.dumps({"seconds": seconds, "batches": batches, "commits": commits.taken}), flush=True)
    end_jvm(spark)


def _session(job: Job) -> SparkSession:
    settings = {each.name: each.value for each in recommended(MASTER)} | SETTINGS
    if job.jars:
        settings["spark.jars"] = job.jars
    builder = SparkSession.builder.appName(f"benchmark {job.kind} {job.engine}").master(MASTER)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if job.engine != SPARK:
        onceflow.spark.register(spark)
    return spark


def _run(spark: SparkSession, job: Job, query: Query, commits: Commits) -> list[dict[str, float]]:
    """All that is in the topic now, as micro-batches of the size that was asked for."""
    running = _writer(_rows(spark, job, query), job, query, commits).trigger(availableNow=True).start()
    running.awaitTermination()
    return _batches(running)


def _run_until_told(spark: SparkSession, job: Job, commits: Commits) -> list[dict[str, float]]:
    writer = _writer(_rows(spark, job, job.measured), job, job.measured, commits)
    running = writer.trigger(processingTime=f"{job.trigger_seconds} seconds").start()
    _mark("running")
    running.processAllAvailable()
    running.stop()
    return _batches(running)


def _rows(spark: SparkSession, job: Job, query: Query) -> DataFrame:
    rows = (
        spark.readStream.format("kafka" if job.engine == SPARK else "onceflow")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", query.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", query.per_trigger)
        .load()
    )
    if job.kind == COUNT:
        rows = rows.groupBy("key").count()
    return rows.selectExpr(*TRANSFORMED[job.kind])


def _writer(rows: DataFrame, job: Job, query: Query, commits: Commits) -> Any:
    writer = rows.writeStream.outputMode("update" if job.kind == COUNT else "append")
    writer = writer.option("checkpointLocation", query.checkpoint)
    if job.engine == SPARK:
        writer = writer.format("kafka").option("kafka.bootstrap.servers", job.bootstrap)
        return writer.option("topic", query.target)
    sink = onceflow.spark.KafkaSink(
        app_id=f"benchmark-{query.target}",
        bootstrap_servers=job.bootstrap,
        topic=query.target,
        guarantee="exactly_once" if job.engine == EXACTLY_ONCE else "at_least_once",
        listeners=[commits],
    )
    return writer.foreachBatch(sink)


def _batches(running: Any) -> list[dict[str, float]]:
    """What Spark says about each micro-batch that had rows."""
    return [
        {
            "at": datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp(),
            "rows": progress["numInputRows"],
            "ms": progress["durationMs"]["triggerExecution"],
        }
        for progress in running.recentProgress
        if progress["numInputRows"]
    ]


def _mark(name: str) -> None:
    """Printed, and seen: goes on when the benchmark has taken its figures."""
    print(json.dumps({"mark": name}), flush=True)
    if not sys.stdin.readline():
        sys.exit("The benchmark is gone.")


if __name__ == "__main__":
    main()
