"""A Spark driver that runs a reference pipeline (`onceflow.pipelines.job`), life after life on one checkpoint.

What a life does is in the history as the sink's listener hears of it:

    take     the fence, once per life
    commit   with the offsets where the micro-batch ends
    batch    number; end: rows      what a micro-batch has written
    land     number                 the commit of a micro-batch in the database, if there is one

A commit that was asked for and not confirmed stays without an end: unknown.

In the end, when all input has been dealt with, the life that is asked to (`settings["wanted"]`, a file with the number
of the first life that may) reads the state store of its checkpoint and writes the pages to a file: it has the Spark
for it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from onceflow.pipelines.job import Job, JobSettings, start
from onceflow.pipelines.judging import last_committed, offset_log, state_in
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.tables import SQL_VARIABLE
from onceflow.spark.listening import BatchResult, SinkListener, Step
from onceflow.verify.history import Outcome
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.spark_driver import (
    DELIVERY_TIMEOUT_MS,
    LOOK_EVERY_S,
    TRANSACTION_TIMEOUT_MS,
    Chronicle,
    new_session,
    settle,
)
from onceflow.verify.workloads.references import load_reference

RETAINED: Final = "1000000"
"""Micro-batches whose offsets Spark keeps: all of them, they are what the judge begins with."""


class PipelineChronicle(Chronicle):
    """Of a sink that `job.py` calls: where a micro-batch ends is in the checkpoint."""

    def __init__(self, life: Life, app_id: str) -> None:
        super().__init__(life.record, app_id)
        self._checkpoint = Path(life.settings["checkpoint"])

    def before(self, step: Step, batch_id: int) -> None:
        if step is Step.COMMIT:
            ends = offset_log(self._checkpoint, [batch_id])[batch_id]
            self._ends = [[topic, partition, at] for (topic, partition), at in ends.items()]
        super().before(step, batch_id)

    def on_batch(self, result: BatchResult) -> None:
        op = self._record.begin("batch", number=result.batch_id)
        self._record.end(op, Outcome.OK, rows=result.rows)


class LandingChronicle(SinkListener):
    """Of the sink for the database, which is called before the one for Kafka."""

    def __init__(self, life: Life) -> None:
        self._record = life.record
        self._landing: str | None = None

    def before(self, step: Step, batch_id: int) -> None:
        if step is Step.COMMIT:
            self._landing = self._record.begin("land", number=batch_id)

    def after(self, step: Step, batch_id: int) -> None:
        if step is Step.COMMIT and self._landing is not None:
            self._record.end(self._landing, Outcome.OK)


def main() -> None:
    life = Life.begin()
    settings = life.settings
    settle(Path(settings["folder"]), life.process)
    if ":" in settings["reference"]:  # not of this package: Spark's Python workers look for it where we do
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    pipeline = load_reference(settings["reference"]).pipeline
    spark = new_session(life)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", RETAINED)
    try:
        with start(pipeline, _job_settings(life, pipeline), spark) as job:
            problem = _run(life, job)
        if problem is None and _is_wanted(life):
            _write_state(spark, pipeline, settings["checkpoint"], Path(settings["state"]))
    finally:
        spark.stop()
    if problem is not None:
        sys.exit(f"{life.process}: the query has failed: {str(problem)[:500]}")


def _run(life: Life, job: Job) -> Any:
    """Until the end; returns what the query failed with."""
    while not life.is_over and job.query.isActive:
        life.rest(LOOK_EVERY_S)
    if life.is_over and _is_wanted(life) and job.query.isActive:
        job.query.processAllAvailable()  # Spark writes down that a micro-batch is done after Kafka knows it
    return None if life.is_over else job.query.exception()


def _job_settings(life: Life, pipeline: Pipeline) -> JobSettings:
    settings = life.settings
    plain = JobSettings(bootstrap=life.bootstrap, checkpoint=settings["checkpoint"], prefix=settings["prefix"])
    return JobSettings(
        bootstrap=life.bootstrap,
        checkpoint=settings["checkpoint"],
        prefix=settings["prefix"],
        trigger=settings["trigger"],
        per_batch=settings["per_batch"],
        source_options={f"kafka.{name}": value for name, value in settings["client_config"].items()},
        sink_options={
            "listeners": [PipelineChronicle(life, plain.app(pipeline))],
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
            "kafka": settings["client_config"],
        },
        # Not from the settings: those are on a command line, and an address may hold a password.
        sql=os.environ[SQL_VARIABLE] if settings.get("has_database") else None,
        sql_options={"listeners": [LandingChronicle(life)]},
    )


def _is_wanted(life: Life) -> bool:
    """Zombies are asked to end, too, and have nothing to say."""
    try:
        first = int(Path(life.settings["wanted"]).read_text())
    except (OSError, ValueError):
        return False
    return int(life.settings["life"]) >= first


def _write_state(spark: Any, pipeline: Pipeline, checkpoint: str, path: Path) -> None:
    batch = last_committed(Path(checkpoint))
    pages = [] if batch is None else list(state_in(spark, checkpoint, pipeline, batch))
    part = path.with_suffix(".part")
    with part.open("w") as file:
        for record in ({"batch": batch}, *pages):
            file.write(json.dumps(record) + "\n")
    part.rename(path)


if __name__ == "__main__":
    main()
