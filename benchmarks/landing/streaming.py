"""Micro-batches of one size, one after the other, from a source that costs next to nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.landing import data
from benchmarks.landing.results import OURS, Batch
from benchmarks.landing.steps import Steps
from benchmarks.landing.ways import jdbc_sink, sql_sink

TABLE = "streamed"
WARM_BATCHES = 3
TASKS = 2
LONGEST_S = 300.0


class Stream:
    """A query into a database of its own."""

    def __init__(self, spark: Any, url: str, checkpoint: Path) -> None:
        self._spark = spark
        self._url = url
        self._checkpoint = checkpoint
        self._steps = Steps()

    def run(self, engine: str, rows: int, count: int) -> list[Batch]:
        """What each micro-batch took, but for the first few. Raises if the table has anything but their rows."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {TABLE} ({data.COLUMNS})".encode())
        sink = self._sink(engine)
        taken = self._query(sink, rows, WARM_BATCHES + count)
        self._check(rows * (WARM_BATCHES + count))
        parts = self._steps.batches or [{}] * len(taken)
        return [
            Batch(engine=engine, rows=rows, ms=ms, parts=steps)
            for ms, steps in list(zip(taken, parts, strict=True))[WARM_BATCHES:]
        ]

    def _sink(self, engine: str) -> Callable[[Any, int], None]:
        if engine == OURS:
            return sql_sink(self._url, TABLE, "benchmark-stream", self._steps)
        return jdbc_sink(self._url, TABLE)

    def _query(self, sink: Callable[[Any, int], None], rows: int, count: int) -> list[float]:
        """Milliseconds in the sink. The source has no end: what comes after the last micro-batch is not written."""
        taken: list[float] = []
        is_enough = threading.Event()

        def timed(frame: Any, number: int) -> None:
            if len(taken) == count:
                return
            begun = time.monotonic()
            sink(frame, number)
            taken.append((time.monotonic() - begun) * 1000)
            if len(taken) == count:
                is_enough.set()

        query = self._frame(rows).writeStream.foreachBatch(timed).option("checkpointLocation", self._checkpoint).start()
        try:
            deadline = time.monotonic() + LONGEST_S
            while not is_enough.wait(0.2) and query.isActive and time.monotonic() < deadline:
                pass
            if not is_enough.is_set():
                raise RuntimeError(f"{len(taken)} of {count} micro-batches were written: {query.exception()}")
        finally:
            query.stop()
        return taken

    def _frame(self, rows: int) -> Any:
        source = self._spark.readStream.format("rate-micro-batch")
        values = source.option("rowsPerBatch", rows).option("numPartitions", TASKS).load()
        return data.rows(values.selectExpr("value AS id"))

    def _check(self, rows: int) -> None:
        with psycopg.connect(self._url) as connection:
            query = f"SELECT count(*), count(DISTINCT id), max(id) FROM {TABLE}"
            [found] = connection.execute(query.encode()).fetchall()
        if found != (rows, rows, rows - 1):
            raise RuntimeError(f"count, different ids, last id: {found} in place of {(rows, rows, rows - 1)}")
