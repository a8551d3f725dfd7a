"""Tasks that stop in the middle of a micro-batch and wait for the test: whatever it does meanwhile is done in time.

A task of a held batch hands on all its rows, so that the sink behind it writes them, and does not end before
`FOLDER/go-BATCH-TASK` is there. With `throws` it fails then. Only the first attempt of Spark at a task is held: the
copies and repetitions that Spark starts would write if the sink let them. Each says `FOLDER/begun-BATCH-TASK-ATTEMPT`.

Between the worker that is held and the one that writes there are buffers of 64 KiB, and Arrow batches of 10,000 rows.
So that some rows come through, they are padded, and batches are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from tests.support.waiting import eventually

__all__ = ["begun", "go", "held"]

HELD_S = 300.0
PADDING = "/" + 20_000 * "x"
ROWS_AT_ONCE = 2


def begun(batch_id: int, task: int, attempt: int) -> str:
    return f"begun-{batch_id}-{task}-{attempt}"


def go(batch_id: int, task: int) -> str:
    return f"go-{batch_id}-{task}"


def held(rows: DataFrame, folder: Path, batch_id: int, *, throws: bool = False) -> DataFrame:
    """These rows, in tasks that are held. Those that may go on already have no trouble any more."""
    # The session is one that the query has for itself.
    rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_AT_ONCE)
    padded = rows.withColumn("value", sql.concat("value", sql.lit(PADDING)))

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        (folder / begun(batch_id, task, attempt)).touch()
        may_go = folder / go(batch_id, task)
        is_held = attempt == 0 and not may_go.exists()
        yield from batches
        if is_held:
            eventually(may_go.exists, "the test lets this task go on", timeout_s=HELD_S)
            if throws:
                raise RuntimeError("this task throws in the middle")

    return padded.mapInArrow(hold, padded.schema)
