"""A streaming job into a database without Spark: the real SqlSink and its real tasks, and what Spark would do around
them.

    job = Job(place, UPSERT)
    job.driver().run(0, 1)
    job.check(1)                      # the tables, the progress, and that no stage is left

A driver is one life of the job: a sink of its own and a run of its own. All of them share the query's id and the rows
of each micro-batch, as those of a checkpoint do. Tasks run one after the other in the thread that asks for them.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as spark_types

from onceflow.sinks import spark_rows, sql_sink
from onceflow.sinks.sql_sink import SqlSink
from onceflow.spark.listening import BatchResult, SinkListener, Step
from onceflow.spark.query import MicroBatch, SourceOffsets
from tests.support.sql_sink_cases import Case, Rows
from tests.support.sql_sink_places import Place, in_order

__all__ = [
    "POINTS",
    "At",
    "Driver",
    "Frame",
    "Job",
    "in_a_process_that_is_killed",
    "name_of",
    "without_spark",
]

APP, QUERY = "landing", "query-1"
POINTS = [(when, step) for step in Step for when in ("before", "after")]
TASK_FAILURES_MAX = 4

Befall = Callable[[int, int], str | None]
"""What befalls a task, by its number and the attempt at it (1, 2, ...): it "throws" before it has loaded anything, or
is "lost" with its executor when it has loaded everything."""


def name_of(parameter: object) -> str:
    """Of a test's parameter."""
    return parameter.name if isinstance(parameter, Step) else str(parameter)


@contextmanager
def without_spark(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the sink asks Spark about, it asks our frames."""
    with patch.context() as patched:
        patched.setattr(sql_sink, "claim", lambda *_: None)
        patched.setattr(sql_sink, "query_is_active", lambda *_: True)
        patched.setattr(sql_sink, "running_batch", lambda frame, *_: frame.batch)
        patched.setattr(spark_rows, "was_run_again", lambda *_: False)
        patched.setattr(TaskContext, "get", classmethod(lambda _: _Task.running))
        yield


class _Task:
    """What a task knows about itself."""

    running: _Task | None = None
    _attempts = itertools.count(100)

    def __init__(self, number: int) -> None:
        self._number = number
        self._attempt = next(self._attempts)

    def partitionId(self) -> int:  # noqa: N802 - the names are Spark's
        return self._number

    def stageId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._attempt


class Frame:
    """As much of a DataFrame as the sink looks at, with the rows of its tasks."""

    sparkSession = None  # noqa: N815
    is_cached = False

    def __init__(self, schema: str, tasks: Sequence[Rows], befall: Befall = lambda *_: None) -> None:
        self.schema = _parsed(schema)
        self.batch: MicroBatch | None = None
        self.befall = befall
        self.parts: dict[str, Frame] = {}
        """For several tables: the rows of each."""
        self._tasks = tasks
        self._run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def mapInArrow(self, run: Any, _: str) -> Self:  # noqa: N802
        self._run = run
        return self

    def collect(self) -> list[Any]:
        return [row for number in range(len(self._tasks)) for row in self._done(number)]

    def persist(self) -> None: ...
    def unpersist(self) -> None: ...

    @property
    def write(self) -> Any:
        """The `noop` sink: a batch that is skipped is run all the same."""
        return SimpleNamespace(format=lambda _: SimpleNamespace(mode=lambda _: SimpleNamespace(save=lambda: None)))

    def _done(self, number: int) -> list[Any]:
        for attempt in range(1, TASK_FAILURES_MAX + 1):
            befallen = self.befall(number, attempt)
            if befallen == "throws":
                continue
            answer = self._attempt(number)
            if befallen != "lost":
                return answer
        raise RuntimeError(f"Task {number} failed {TASK_FAILURES_MAX} times")

    def _attempt(self, number: int) -> list[Any]:
        _Task.running = _Task(number)
        try:
            found = self._run(self._batches(number))
            return [SimpleNamespace(**row) for batch in found for row in batch.to_pylist()]
        finally:
            _Task.running = None

    def _batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Two rows at a time: a task gets its rows in several batches."""
        rows = self._tasks[number]
        names = self.schema.fieldNames()
        for start in range(0, len(rows), 2):
            columns = zip(*rows[start : start + 2], strict=True)
            arrays = [pa.array(list(column), _arrow(each)) for column, each in zip(columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)


_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
}


def _parsed(schema: str) -> spark_types.StructType:
    """`id bigint, name string`: PySpark's own parser of this is in the JVM."""
    fields = [each.split() for each in schema.split(",")]
    simple = {
        "bigint": spark_types.LongType(),
        "int": spark_types.IntegerType(),
        "string": spark_types.StringType(),
        "boolean": spark_types.BooleanType(),
        "double": spark_types.DoubleType(),
        "date": spark_types.DateType(),
        "array<int>": spark_types.ArrayType(spark_types.IntegerType()),
        "decimal": spark_types.DecimalType(30, 10),
    }
    return spark_types.StructType([spark_types.StructField(name, simple[kind]) for name, kind in fields])


def _arrow(field: spark_types.StructField) -> pa.DataType:
    return _ARROW[field.dataType.simpleString()]


class At(SinkListener):
    """Does something at one point of the way, the first time that it is reached."""

    def __init__(self, when: str, step: Step, then: Callable[[], object]) -> None:
        self._point = (when, step)
        self._then = then
        self.has_happened = False

    def before(self, step: Step, batch_id: int) -> None:
        self._reached("before", step)

    def after(self, step: Step, batch_id: int) -> None:
        self._reached("after", step)

    def _reached(self, when: str, step: Step) -> None:
        if (when, step) == self._point and not self.has_happened:
            self.has_happened = True
            self._then()


class Driver(SinkListener):
    """One life of the job's driver."""

    def __init__(self, job: Job, run_id: str, listeners: Sequence[SinkListener], settings: dict[str, Any]) -> None:
        self._job = job
        self._run_id = run_id
        self.results: list[BatchResult] = []
        quick = {"lock_timeout_s": 5.0, "outage_s": 30.0, "retries": 3}
        self.sink = SqlSink(
            url=job.place.url,
            app_id=job.app_id,
            tables=job.case.tables,
            listeners=[self, *listeners],
            **{**quick, **settings},
        )

    def on_batch(self, result: BatchResult) -> None:
        self.results.append(result)

    def run(self, *batches: int, befall: Befall = lambda *_: None) -> Self:
        for number in batches:
            self.sink(self._job.frame(number, self._run_id, befall), number)
        return self

    def restarted(self) -> Self:
        """The query was started again in the same process, with the same sink."""
        self._run_id += "-again"
        return self

    @property
    def skipped(self) -> list[int]:
        return [each.batch_id for each in self.results if each.skipped]


class Job:
    def __init__(self, place: Place, case: Case, *, app_id: str = APP, query_id: str = QUERY) -> None:
        self.place = place
        self.case = case
        self.app_id = app_id
        self.query_id = query_id
        self._runs = itertools.count(1)
        self._drivers: list[Driver] = []

    def driver(self, *listeners: SinkListener, **settings: Any) -> Driver:
        # Also in a process of its own, whose counting nobody else sees.
        driver = Driver(self, f"run-{next(self._runs)}-of-{os.getpid()}", listeners, settings)
        self._drivers.append(driver)
        return driver

    def frame(self, number: int, run_id: str, befall: Befall = lambda *_: None) -> Frame:
        batch = self.case.batches[number]
        parts = {name: Frame(self.case.schemas[name], tasks, befall) for name, tasks in batch.items()}
        frame = next(iter(parts.values()))
        frame.parts = parts
        start, end = ({("input", 0): 10 * each} for each in (number, number + 1))
        frame.batch = MicroBatch(
            query_id=self.query_id,
            run_id=run_id,
            batch_id=number,
            entry=f"entry {number}",
            sources=(SourceOffsets(start=start, end=end),),
        )
        return frame

    # --- what must be true

    def expected(self, last: int) -> dict[str, Rows]:
        """The tables after this micro-batch; -1 is before the first."""
        return {table.name: in_order(self.case.oracle(table, last, self.query_id)) for table in self.case.tables}

    def found(self) -> dict[str, Rows]:
        return {each.name: self.place.rows(each.name, self.case.columns(each)) for each in self.case.tables}

    def check(self, last: int) -> None:
        """All tables, the progress, and that nothing is left behind."""
        assert self.found() == self.expected(last)
        self.check_progress(last)
        assert self.place.stages() == []

    def check_progress(self, last: int) -> None:
        progress = self.place.progress(self.app_id)
        if last < 0:
            assert progress is None or progress[1:] == (None, None, None)
            return
        assert progress is not None
        assert progress[1:] == (self.query_id, last, {"input": {"0": 10 * (last + 1)}})

    def close(self) -> None:
        for each in self._drivers:
            each.sink.close()


def in_a_process_that_is_killed(run: Callable[[], object]) -> None:
    """`run` in a copy of this process, which has to end by SIGKILL: `os.kill(os.getpid(), SIGKILL)` somewhere in it."""
    pid = os.fork()
    if pid == 0:
        try:
            run()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"it came to its end, with {os.waitstatus_to_exitcode(status)}"
    assert os.WTERMSIG(status) == signal.SIGKILL
