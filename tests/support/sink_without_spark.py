"""A streaming job without Spark: the real sink with its real tasks, in threads, and what Spark would do around them.

    job = Job(bootstrap, name, folder)
    first = job.driver(pauses_before=Step.COMMIT)
    first.start(0)                          # micro-batch 0, in a thread
    first.await_pause()                     # everything is written, nothing is committed
    job.driver().run(0, 1)                  # its successor
    first.go_on()                           # it does not know that it is over
    anomalies = check(job.history())

The job copies a topic, each micro-batch three records in two tasks. Drivers are lives ("driver.1"), write histories as
those of `onceflow verify spark` do, and share a checkpoint in that a micro-batch is the same offsets for all of them. A
driver that was killed is one that pauses and does not go on.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.spark import batch_writer
from onceflow.spark import sink as sink_module
from onceflow.spark import task as task_module
from onceflow.spark.columns import binary_array
from onceflow.spark.listening import BatchResult, SinkListener, Step
from onceflow.spark.query import MicroBatch, SourceOffsets
from onceflow.spark.sequencer import TaskReport, Turns
from onceflow.spark.sink import KafkaSink
from onceflow.spark.task import WritePlan
from onceflow.verify.history import Derivation, History, Outcome, Record, Recorder
from onceflow.verify.observers import everything_committed, open_partitions, places_of
from onceflow.verify.programs.spark_driver import Chronicle
from tests.support.waiting import eventually

__all__ = ["BATCHES", "PER_BATCH", "Driver", "Job", "Trouble", "without_spark"]

BATCHES, PER_BATCH, TASKS = 2, 3, 2
ATTEMPTS = 2
"""How often Spark tries a task."""

Trouble = Callable[[int, int, int], str | None]
"""What befalls a task, by the run of its micro-batch (1, 2, ...), its number (0, 1) and the attempt at it (1, 2): it
"throws" before it has written anything, or is "lost" with its executor when it has written everything."""


@contextmanager
def without_spark(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the sink asks Spark about, it asks our frames."""
    with patch.context() as patched:
        patched.setattr(sink_module, "check_columns", lambda *_: None)
        patched.setattr(sink_module, "claim", lambda *_: None)
        patched.setattr(sink_module, "_is_stopping", lambda *_: False)
        patched.setattr(sink_module, "running_batch", lambda frame, _: frame.batch)
        patched.setattr(batch_writer, "task_writer", lambda plan: plan)
        patched.setattr(task_module, "Turns", _MortalTurns)
        patched.setattr(task_module, "connected", lambda settings, _: _executor.cluster(settings))
        yield


class ExecutorLost(Exception):
    """Of a task whose executor was killed; nobody hears of it but Spark."""


class _Executor(threading.local):
    """The process of a task, which here is a thread."""

    def __init__(self) -> None:
        self.is_doomed = False
        self._clusters: list[Cluster] = []

    def cluster(self, settings: ClientSettings) -> Cluster:
        """Connections of its own: they are not made for sharing."""
        self._clusters.append(Cluster(settings))
        return self._clusters[-1]

    def close(self) -> None:
        while self._clusters:
            self._clusters.pop().close()


_executor = _Executor()


class _MortalTurns(Turns):
    def leave(self, report: TaskReport) -> None:
        if _executor.is_doomed:
            self._connected.close()
            raise ExecutorLost
        super().leave(report)


class Frame:
    """As much of a DataFrame as the sink looks at, with the rows of its tasks."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))  # noqa: N815 - the names are Spark's
    schema = None
    _attempts = itertools.count(1)

    def __init__(self, batch: MicroBatch, tasks: list[list[Record]], trouble: Trouble) -> None:
        self.batch = batch
        self._tasks = tasks
        self._trouble = trouble
        self._runs = 0
        self._plan: WritePlan

    def mapInArrow(self, plan: WritePlan, _: str) -> Self:  # noqa: N802
        self._plan = plan
        return self

    def collect(self) -> list[Any]:
        self._runs += 1
        with ThreadPoolExecutor(len(self._tasks)) as pool:
            reports = list(pool.map(self._done, range(len(self._tasks))))
        return [SimpleNamespace(task=task, rows=report.rows) for task, report in enumerate(reports)]

    @property
    def write(self) -> Any:
        """The `noop` sink: a batch that is skipped is run all the same."""
        return SimpleNamespace(format=lambda _: SimpleNamespace(mode=lambda _: SimpleNamespace(save=lambda: None)))

    def _done(self, task: int) -> TaskReport:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(task, self._trouble(self._runs, task, attempt))
            except Exception as problem:
                last = problem
        raise RuntimeError(f"Task {task} failed {ATTEMPTS} times, most recently: {last}") from last

    def _attempt(self, task: int, trouble: str | None) -> TaskReport:
        _executor.is_doomed = trouble == "lost"
        try:
            rows = _rows(self._tasks[task], throws=trouble == "throws")
            return task_module._in_transaction(self._plan, task, next(self._attempts), rows)
        finally:
            _executor.close()


def _rows(records: list[Record], *, throws: bool) -> Iterator[pa.RecordBatch]:
    if throws:
        raise RuntimeError("what the user wrote does not work")
    keys = _column([(each.key or "").encode() for each in records])
    yield pa.RecordBatch.from_arrays([keys, _column([each.to_bytes() for each in records])], ["key", "value"])


def _column(values: list[bytes]) -> pa.Array:
    """Arrow's own way from Python objects imports pandas, which takes longer than all the rest."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return binary_array(ends, pa.py_buffer(b"".join(values)))


class Driver(SinkListener):
    """One life of the job's driver."""

    def __init__(
        self, job: Job, process: str, pauses_before: Step | None, after_first_step: Callable[[], None]
    ) -> None:
        self._job = job
        self.process = process
        self._pauses_before = pauses_before
        self._after_first_step = after_first_step
        self._paused, self._awake = threading.Event(), threading.Event()
        self._chronicle = Chronicle(job.recorder(process), job.app_id)
        self._thread: threading.Thread | None = None
        self.problem: Exception | None = None
        self.attempts: list[int] = []
        """How many it took for each micro-batch that was committed."""
        self.sink: KafkaSink

    def before(self, step: Step, batch_id: int) -> None:
        if step is self._pauses_before:
            self._paused.set()
            self._awake.wait()

    def after(self, step: Step, batch_id: int) -> None:
        then, self._after_first_step = self._after_first_step, lambda: None
        then()

    def on_batch(self, result: BatchResult) -> None:
        if not result.skipped:
            self.attempts.append(result.attempts)

    def run(self, *batches: int, trouble: Trouble = lambda *_: None) -> Self:
        """These micro-batches, until one fails: then `problem` says why."""
        try:
            for number in batches:
                batch = self._job.micro_batch(number, run_id=self.process)
                self.write(batch, self._job.records(number), trouble)
        except Exception as problem:
            self.problem = problem
        return self

    def write(self, batch: MicroBatch, inputs: list[Record], trouble: Trouble = lambda *_: None) -> None:
        """A micro-batch that copies these."""
        name = self._chronicle.transaction(batch.batch_id)
        records = [each._replace(transaction=name) for each in inputs]
        frame = Frame(batch, [records[task::TASKS] for task in range(TASKS)], trouble)
        with self._chronicle.of(batch.ends):
            self.sink(frame, batch.batch_id)

    def start(self, *batches: int) -> None:
        self._thread = threading.Thread(target=self.run, args=batches, name=self.process)
        self._thread.start()

    def await_pause(self) -> None:
        assert self._paused.wait(20), f"{self.process} did not come to {self._pauses_before}: {self.problem}"

    def go_on(self) -> None:
        """To its end."""
        self._awake.set()
        if self._thread is not None:
            self._thread.join()

    def listeners(self) -> list[SinkListener]:
        return [self, self._chronicle]


class Job:
    def __init__(self, bootstrap: str, name: str, folder: Path, inputs: int = BATCHES * PER_BATCH) -> None:
        self.app_id = f"{name}-app"
        self._settings = ClientSettings(bootstrap=bootstrap)
        self._source, self._target = f"{name}-input", f"{name}-output"
        self._folder = folder
        self._zero = time.monotonic()
        self._drivers: list[Driver] = []
        self._topics = {self._source: 1, self._target: 2}
        self._inputs: list[Record] = []
        self._producer = self.recorder("producer.1")
        for topic, partitions in self._topics.items():
            Admin(self._settings).create(topic, partitions=partitions)
        self.feed(inputs)

    def feed(self, count: int) -> None:
        """So many records more, for the history, too."""
        numbers = range(len(self._inputs), len(self._inputs) + count)
        new = [Record(id=f"i{number}", key=f"k{number % 4}") for number in numbers]
        self._inputs += new
        op = self._producer.begin("write", transaction=None, records=[[self._source, 0, each.id] for each in new])
        offsets = self.produce([each.to_bytes() for each in new])
        written = [[self._source, 0, at, each.id] for at, each in zip(offsets, new, strict=True)]
        self._producer.end(op, Outcome.OK, written=written)

    def produce(self, values: list[bytes]) -> list[int]:
        """To the source topic; the offsets."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self._settings.bootstrap, "enable.idempotence": True, "log_level": 0})
        for value in values:
            producer.produce(
                self._source, value, partition=0, on_delivery=lambda _, message: offsets.append(message.offset())
            )
        assert producer.flush(20) == 0
        return offsets

    def driver(
        self,
        *,
        pauses_before: Step | None = None,
        after_first_step: Callable[[], None] = lambda: None,
        cluster: Cluster | None = None,
        patience_ms: int = 20_000,
    ) -> Driver:
        """The next life. `cluster`: how it reaches the brokers, apart from its tasks."""
        driver = Driver(self, f"driver.{len(self._drivers) + 1}", pauses_before, after_first_step)
        driver.sink = KafkaSink(
            app_id=self.app_id,
            bootstrap_servers=self._settings.bootstrap,
            topic=self._target,
            listeners=driver.listeners(),
            delivery_timeout_ms=patience_ms,
        )
        driver.sink._writer._cluster = cluster
        self._drivers.append(driver)
        return driver

    def micro_batch(self, number: int, *, run_id: str) -> MicroBatch:
        start, end = ({(self._source, 0): PER_BATCH * each} for each in (number, number + 1))
        sources = (SourceOffsets(start=start, end=end),)
        return MicroBatch(query_id="query", run_id=run_id, batch_id=number, entry=f"entry {number}", sources=sources)

    def records(self, number: int) -> list[Record]:
        """What a micro-batch reads."""
        return self._inputs[PER_BATCH * number : PER_BATCH * (number + 1)]

    def recorder(self, process: str) -> Recorder:
        return Recorder(self._folder / f"{process}.jsonl", process, self._zero)

    def history(self) -> History:
        """With what is visible when all transactions are decided."""
        places = places_of(self._topics)
        eventually(lambda: not open_partitions(self._settings, places), "no transaction is open")
        final = everything_committed(self._settings, places, 20)
        # Tasks write at the same time, so copies of one micro-batch have no order among each other.
        derivations = [Derivation(self._source, self._target, is_ordered=False)]
        return History.load(self._folder.glob("*.jsonl"), final, derivations=derivations)

    def close(self) -> None:
        for driver in self._drivers:
            driver.go_on()
            driver.sink.close()
