"""What a sink tells about its work: the result of each micro-batch, and each step as it happens."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["BatchResult", "Listeners", "SinkListener", "Step"]


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

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.app_id}: batch {self.batch_id} was committed before, nothing was written"
        return (
            f"{self.app_id}: batch {self.batch_id}: {self.rows:,} rows, {self._where()}, "
            f"written in {self.write_ms:.0f} ms, committed in {self.commit_ms:.1f} ms"
            + (f", attempt {self.attempts}" if self.attempts > 1 else "")
        )

    def _where(self) -> str:
        if self.tables:
            return ", ".join(f"{count:,} changed in {table}" for table, count in self.tables.items())
        return f"{self.bytes:,} bytes to {sum(map(len, self.partitions.values()))} partitions"


class SinkListener:
    """Override what you want to hear. Called on the driver, in the query's thread: be quick. What is raised here
    fails the batch."""

    def on_batch(self, result: BatchResult) -> None:
        """After each micro-batch."""

    def before(self, step: Step, batch_id: int) -> None:
        """A step is about to begin."""

    def after(self, step: Step, batch_id: int) -> None:
        """A step has been completed."""


class Listeners:
    """All listeners of a sink."""

    def __init__(self, listeners: Iterable[SinkListener]) -> None:
        self._all = tuple(listeners)

    def tell(self, result: BatchResult) -> None:
        for each in self._all:
            each.on_batch(result)

    @contextmanager
    def step(self, step: Step, batch_id: int) -> Iterator[None]:
        for each in self._all:
            each.before(step, batch_id)
        yield
        for each in self._all:
            each.after(step, batch_id)
