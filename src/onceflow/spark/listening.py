"""What a sink tells about its work: the result of each micro-batch, each step as it happens, and what failed."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

__all__ = ["BatchFailure", "BatchResult", "Listeners", "SinkListener", "Step", "listen_everywhere", "stop_listening"]

log = logging.getLogger("onceflow.spark")


class Step(enum.Enum):
    """The steps of a micro-batch, in order: six into Kafka, and two more into a database."""

    FENCE = "fence"
    """Take the app id: earlier runs are out, what they left open is aborted."""
    PROGRESS = "progress"
    """Read how far the application has come. (In a database: by the statement that fences.)"""
    STAGE = "stage"
    """Of a database: make the tables that the tasks load."""
    WRITE = "write"
    """The tasks write."""
    VERIFY = "verify"
    """Every task is done, and the brokers have what was sent. (In a database: what was loaded is all there.)"""
    MERGE = "merge"
    """Of a database: from the staging tables into the tables. The transaction is open from VERIFY to COMMIT."""
    RECORD = "record"
    """Source offsets and the progress are in the transaction. (In V2 they are sent while the tasks write.)"""
    COMMIT = "commit"
    """End the transaction: all of it becomes visible."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What became of a micro-batch."""

    app_id: str
    batch_id: int
    query_id: str
    rows: int = 0
    dead_letters: int = 0
    """Of these rows: those that went to the dead-letter topic."""
    bytes: int = 0
    """Of record batches as they were sent: packed, if compression is on."""
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The partitions written to, by topic."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """Of a database: how many rows were added or changed, by table."""
    tasks: int = 0
    attempts: int = 1
    skipped: bool = False
    """The batch had been committed before: its plan ran for its state, and nothing was written."""
    write_ms: float = 0.0
    commit_ms: float = 0.0
    """Verify, record and commit: what the transaction adds to the batch."""
    sink: str = "kafka"
    """`kafka` or `sql`."""
    started_ms: int = 0
    """When the sink was called, in milliseconds since 1970."""
    duration_ms: float = 0.0
    """From then until now: all attempts, and for the first micro-batch of a run the fence and the progress."""
    steps_ms: Mapping[Step, float] = field(default_factory=dict)
    """How long each step took, all attempts together."""

    @property
    def transaction_ms(self) -> float:
        """What exactly-once took of the micro-batch: every step but the writing."""
        return sum(each for step, each in self.steps_ms.items() if step is not Step.WRITE)

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.app_id}: batch {self.batch_id} was committed before, nothing was written"
        return (
            f"{self.app_id}: batch {self.batch_id}: {self.rows:,} rows, {self._where()}, "
            f"written in {self.write_ms:.0f} ms, committed in {self.commit_ms:.1f} ms"
            + (f", {self.dead_letters:,} dead letters" if self.dead_letters else "")
            + (f", attempt {self.attempts}" if self.attempts > 1 else "")
        )

    def _where(self) -> str:
        if self.tables:
            return ", ".join(f"{count:,} changed in {table}" for table, count in self.tables.items())
        return f"{self.bytes:,} bytes to {sum(map(len, self.partitions.values()))} partitions"


@dataclass(frozen=True, kw_only=True)
class BatchFailure:
    """A micro-batch for which the sink was called, and raised."""

    app_id: str
    batch_id: int
    sink: str
    attempts: int
    """How often tasks were started."""
    problem: BaseException


class SinkListener:
    """Override what you want to hear. Called on the driver, in the query's thread: be quick. What is raised here
    fails the batch."""

    def on_batch(self, result: BatchResult) -> None:
        """After each micro-batch."""

    def on_failure(self, failure: BatchFailure) -> None:
        """The sink raises, and the query ends with it. What is raised here is logged, and does not hide the reason."""

    def before(self, step: Step, batch_id: int) -> None:
        """A step is about to begin."""

    def after(self, step: Step, batch_id: int) -> None:
        """A step has been completed."""


_everywhere: tuple[SinkListener, ...] = ()


def listen_everywhere(listener: SinkListener) -> None:
    """To all sinks of this process, those that exist already among them."""
    global _everywhere
    _everywhere = (*_everywhere, listener)


def stop_listening(listener: SinkListener) -> None:
    global _everywhere
    _everywhere = tuple(each for each in _everywhere if each is not listener)


class Listeners:
    """All listeners of a sink, and the clock of its micro-batches."""

    def __init__(self, listeners: Iterable[SinkListener], *, sink: str = "kafka") -> None:
        self._own = tuple(listeners)
        self._sink = sink
        self._begin()

    @contextmanager
    def batch(self, app_id: str, batch_id: int) -> Iterator[None]:
        """Around all that is done for a micro-batch. What is raised inside is told, and goes on."""
        self._begin()
        try:
            yield
        except BaseException as problem:
            self._tell_failure(app_id, batch_id, problem)
            raise

    @property
    def started_ms(self) -> int:
        """When this micro-batch began."""
        return self._started_ms

    def tell(self, result: BatchResult) -> BatchResult:
        """The result, with what the clock says."""
        result = replace(
            result,
            sink=self._sink,
            started_ms=self._started_ms,
            duration_ms=(time.monotonic() - self._begun) * 1000,
            steps_ms=dict(self._steps_ms),
        )
        for each in self._all():
            each.on_batch(result)
        return result

    @contextmanager
    def step(self, step: Step, batch_id: int) -> Iterator[None]:
        for each in self._all():
            each.before(step, batch_id)
        self._attempts += step is Step.WRITE
        begun = time.monotonic()
        try:
            yield
        finally:
            self._steps_ms[step] = self._steps_ms.get(step, 0.0) + (time.monotonic() - begun) * 1000
        for each in self._all():
            each.after(step, batch_id)

    def _all(self) -> tuple[SinkListener, ...]:
        """Those who only look come first: a listener that raises ends the batch, and they have seen it by then."""
        return (*_everywhere, *(each for each in self._own if each not in _everywhere))

    def _begin(self) -> None:
        self._begun, self._started_ms = time.monotonic(), time.time_ns() // 1_000_000
        self._steps_ms: dict[Step, float] = {}
        self._attempts = 0

    def _tell_failure(self, app_id: str, batch_id: int, problem: BaseException) -> None:
        failure = BatchFailure(
            app_id=app_id, batch_id=batch_id, sink=self._sink, attempts=self._attempts, problem=problem
        )
        for each in self._all():
            try:
                each.on_failure(failure)
            except Exception:
                log.warning("%s: a listener raised when told that batch %d has failed", app_id, batch_id, exc_info=True)
