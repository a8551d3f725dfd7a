"""Runs all ways in rounds, and streaming queries; what a table does not have exactly is not measured.

One PostgreSQL, one Spark session and one DataFrame in memory for all. Who is first changes from round to round.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from tests.support.postgresql import PostgreSQL, jdbc_jar
from tests.support.spark import end_jvm

from benchmarks.landing import data
from benchmarks.landing.processes import Clock
from benchmarks.landing.results import STREAMED, WAYS, Batch, Measurement
from benchmarks.landing.streaming import Stream
from benchmarks.landing.ways import Way, Ways
from onceflow.spark import session

SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "autovacuum": "off",
}
MASTER = "local[2]"
TASKS = 2
HEAP = "4g"


@dataclass(frozen=True, kw_only=True)
class Plan:
    rows: int = 1_000_000
    rounds: int = 3
    warm_up: int = 300_000
    ways: Sequence[str] = tuple(WAYS)
    streams: Sequence[tuple[int, int]] = ((10_000, 20), (100_000, 10), (1_000_000, 4))
    """Rows of a micro-batch, and how many are measured, after a few that are not."""


@dataclass
class Bench:
    plan: Plan
    console: Console
    measurements: list[Measurement] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="onceflow-landing-") as folder,
            PostgreSQL(settings=SERVER) as server,
            _spark(Path(folder)) as spark,
        ):
            self._rounds(spark, server, Path(folder))
            self._streams(spark, server, Path(folder))

    def _rounds(self, spark: Any, server: PostgreSQL, folder: Path) -> None:
        if not self.plan.ways:
            return
        for rows, rounds in ((self.plan.warm_up, range(-1, 0)), (self.plan.rows, range(self.plan.rounds))):
            frame = data.rows(spark.range(0, rows, 1, TASKS)).cache()
            frame.count()
            ways = Ways(frame, server.new_database(), folder).by_name()
            for number in rounds:
                self.console.print("Warming up" if number < 0 else f"Round {number + 1} of {self.plan.rounds}")
                for name in in_turn(self.plan.ways, number):
                    self._measure(name, ways[name], number, rows, server.pid)
            frame.unpersist(blocking=True)

    def _measure(self, name: str, way: Way, number: int, rows: int, server_pid: int) -> None:
        try:
            way.prepare()
            clock = Clock(server_pid)
            parts = way.land()
            usage = clock.stop()
            problem = None if way.totals() == way.expected else f"{way.totals()} in place of {way.expected}"
        except Exception as error:  # one way that fails does not take the others' figures along
            problem = str(error)[:2000]
        if problem is not None:
            self._fail(f"{WAYS[name].title}, round {number + 1}: {problem}")
            return
        self.console.print(f"  {rows / usage.seconds / 1000:7.0f} k rows/s  {WAYS[name].title}", highlight=False)
        if number >= 0:
            self.measurements.append(Measurement(way=name, round=number, rows=rows, usage=usage, parts=parts))

    def _streams(self, spark: Any, server: PostgreSQL, folder: Path) -> None:
        for rows, count in self.plan.streams:
            for engine in STREAMED:
                self.console.print(f"Micro-batches of {rows:,} rows: {STREAMED[engine]}")
                stream = Stream(spark, server.new_database(), folder / f"checkpoint-{engine}-{rows}")
                try:
                    self.batches += stream.run(engine, rows, count)
                except Exception as error:  # as above
                    self._fail(f"micro-batches of {rows:,}, {STREAMED[engine]}: {str(error)[:2000]}")

    def _fail(self, problem: str) -> None:
        self.failures.append(problem)
        self.console.print(f"[red]Not measured:[/] {escape(problem)}", highlight=False)


def in_turn(ways: Sequence[str], number: int) -> list[str]:
    """Each round begins with another one. Ways that are compared stay close to each other."""
    first = (number * 5) % len(ways)
    return [*ways[first:], *ways[:first]]


@contextlib.contextmanager
def _spark(folder: Path) -> Iterator[Any]:
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_DIRS=str(folder), SPARK_LOCAL_IP="127.0.0.1")
    settings = {
        "spark.driver.memory": HEAP,
        "spark.jars": str(jdbc_jar()),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = session("benchmark of landing", master=MASTER, conf=settings, quiet=True)
    spark.sparkContext.setLogLevel("OFF")  # a query that is stopped complains at length; what fails is raised
    try:
        yield spark
    finally:
        end_jvm(spark)
