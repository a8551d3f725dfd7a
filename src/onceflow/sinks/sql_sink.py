"""The sink for SQL databases: each micro-batch is one transaction, in which the progress moves as well.

    sink = SqlSink(url="postgresql://...", table="orders", key=["order_id"], mode="upsert", app_id="orders")
    query = df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

Executors load staging tables in parallel; the driver merges them. What a crash leads to, step by step, is on top of
`landing.py`. As with `KafkaSink`, Spark runs a batch again after a crash; one that was committed is skipped, but its
plan still runs, or the state store would lack a version of it.
"""

from __future__ import annotations

import logging
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from onceflow.errors import ConfigError
from onceflow.sinks.databases import Database, open_database
from onceflow.sinks.databases.database import Column, Gone, Loaded, Refused
from onceflow.sinks.landing import Landing, Patience, Spoiled, Tries
from onceflow.sinks.progress_table import now_ms
from onceflow.sinks.spark_rows import LoadFailed, columns_of, load
from onceflow.sinks.tables import Table
from onceflow.spark.foreach_batch import BoundToDriver, check_app_id, claim, look_for_metrics, refuse_connect
from onceflow.spark.listening import BatchResult, Listeners, SinkListener, Step
from onceflow.spark.problems import BatchFailed, SinkError
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch, query_is_active, running_batch
from onceflow.spark.reasons import said_by_spark
from onceflow.spark.resuming import Resuming
from onceflow.spark.stopping import stop_is_recognised

__all__ = ["SqlSink", "write"]

log = logging.getLogger("onceflow.sinks")

_ONE_CALL: Final = "give one sink several tables, tables=[Table(..., rows=...), ...]"


class SqlSink:
    """An object for `writeStream.foreachBatch`. All settings are keyword arguments.

    - `url`: of the database: "postgresql://user:password@host/database", "sqlite:///file.db".
    - `app_id`: the name of the application, over restarts. One running query each.
    - `table`, `key`, `mode`, `order_by`, `deleted`, `position`, `rows`, `create_table`: see `Table`, of which they make
      one; or `tables=[Table(...), ...]`: several, which a micro-batch changes together.
    - `schema`: where staging tables and the progress are kept; by default where the first table is.
    - `retries`: how often a micro-batch is staged again as a whole, and how often a merge is tried again after a
      deadlock, a serialization failure or a lock that was not to be had within `lock_timeout_s`.
    - `outage_s`: how long a database may be away before the query fails.
    - `new_checkpoint`, `missing_batches`: as for `KafkaSink`.
    - `listeners`: told about each batch and each step.
    """

    def __init__(
        self,
        *,
        url: str | Database,
        app_id: str,
        table: str | None = None,
        key: Sequence[str] = (),
        mode: str = "append",
        order_by: Sequence[str] = (),
        deleted: str = "deleted",
        position: tuple[str, str] | None = None,
        rows: Callable[[Any], Any] | None = None,
        create_table: bool = False,
        tables: Sequence[Table] = (),
        schema: str | None = None,
        retries: int = 5,
        lock_timeout_s: float = 20.0,
        outage_s: float = 120.0,
        new_checkpoint: str = "refuse",
        missing_batches: str = "refuse",
        listeners: Iterable[SinkListener] = (),
    ) -> None:
        check_app_id(app_id, "the database")
        if (table is None) == (not tables):
            raise ConfigError("which table? Give the sink either table='...' or tables=[Table(...), ...]")
        if table is not None:
            tables = [
                Table(
                    table,
                    key=key,
                    mode=mode,
                    order_by=order_by,
                    deleted=deleted,
                    position=position,
                    rows=rows,
                    create=create_table,
                )
            ]
        self.app_id = app_id
        self.tables = tuple(tables)
        self._check_tables()
        self._patience = Patience(retries=retries, lock_timeout_s=lock_timeout_s, outage_s=outage_s)
        self._listeners = Listeners(listeners, sink="sql")
        self._resuming = Resuming(
            app_id=app_id,
            sink="SqlSink",
            keeper="the database",
            new_checkpoint=new_checkpoint,
            missing_batches=missing_batches,
        )
        self._landing = Landing(
            open_database(url),
            app_id,
            self.tables,
            schema=schema or self.tables[0].target.schema,
            patience=self._patience,
            listeners=self._listeners,
        )
        weakref.finalize(self, self._landing.close)
        self._progress: Progress | None = None
        self._known_run: str | None = None  # the run of a query for which steps 1 and 2 were taken
        self._checked: list[list[Column]] | None = None
        self._last_selected: tuple[Any, list[Any]] | None = None
        self._prepared: tuple[str, int] | None = None  # the run and the micro-batch that `prepare` has claimed

    def __repr__(self) -> str:
        return f"SqlSink(app_id={self.app_id!r})"

    def _check_tables(self) -> None:
        names = [each.name for each in self.tables]
        if len(set(names)) != len(names):
            raise ConfigError(f"tables= names {max(names, key=names.count)!r} twice: one of them can be the union")

    def __call__(self, frame: Any, batch_id: int) -> None:
        refuse_connect(frame)
        with self._listeners.batch(self.app_id, batch_id), stop_is_recognised(frame, batch_id):
            self._take(frame, batch_id)

    def _take(self, frame: Any, batch_id: int) -> None:
        batch = running_batch(frame, batch_id, "SqlSink", "onceflow.sinks.write")
        self.check(frame)
        self._claim(batch, frame.sparkSession)
        look_for_metrics(frame.sparkSession, batch.query_id)
        self._prepare(batch)
        if self._resuming.was_committed(self._progress, batch):
            frame.write.format("noop").mode("overwrite").save()
            self._tell(BatchResult(app_id=self.app_id, batch_id=batch_id, query_id=batch.query_id, skipped=True))
            return
        progress = Progress.after(batch, self._progress, app_id=self.app_id)
        self._known_run = None  # until it is certain what has become of this batch
        self._write(frame, progress, is_stopping=lambda: not query_is_active(frame.sparkSession, batch.query_id))
        self._progress = progress
        self._known_run = batch.run_id

    def check(self, frame: Any) -> None:
        """Raises unless rows of this DataFrame can go into the tables; creates tables where that was asked for."""
        columns = [columns_of(each.schema) for each in self._selected(frame)]
        if columns != self._checked:
            self._landing.check(columns)
            self._checked = columns

    def prepare(self, frame: Any, batch_id: int) -> None:
        """Steps 1 and 2, for who has to know that they succeed before another sink writes. The call that writes the
        micro-batch does not take them again."""
        refuse_connect(frame)
        with self._listeners.batch(self.app_id, batch_id):
            batch = running_batch(frame, batch_id, "SqlSink", "onceflow.sinks.write")
            self._claim(batch, frame.sparkSession)
            self._prepared = (batch.run_id, batch.batch_id)
            self._prepare(batch)
            self._resuming.was_committed(self._progress, batch)  # raises if that contradicts the checkpoint

    def _claim(self, batch: MicroBatch, spark: Any) -> None:
        is_prepared = self._prepared == (batch.run_id, batch.batch_id)
        self._prepared = None
        if not is_prepared:
            claim(self._landing.identity(), self.app_id, batch, spark, _ONE_CALL)

    def close(self) -> None:
        """Free connections. The sink can be used again: the next batch opens them anew."""
        self._landing.close()
        self._known_run = None

    def __reduce__(self) -> NoReturn:
        raise BoundToDriver("SqlSink")

    def _prepare(self, batch: MicroBatch) -> None:
        """Steps 1 and 2 in one: the statement that fences also reads."""
        if self._landing.is_fenced and self._known_run == batch.run_id:
            return
        self._progress = self._landing.fence(batch.batch_id)
        self._resuming.check_run(self._progress, batch)
        self._known_run = batch.run_id

    def _selected(self, frame: Any) -> list[Any]:
        """The rows of each table. The plans of one micro-batch are made once, whoever asks."""
        if self._last_selected is None or self._last_selected[0] is not frame:
            rows = [frame if each.rows is None else each.rows(frame) for each in self.tables]
            self._last_selected = (frame, rows)
        return self._last_selected[1]

    def _write_once(self, frame: Any, once: str | None) -> BatchResult:
        self.check(frame)
        known = self._landing.fence(0)
        name = f"once:{once or uuid.uuid4()}"
        if known is not None and known.query_id == name:
            return self._tell(BatchResult(app_id=self.app_id, batch_id=0, query_id=name, skipped=True))
        return self._write(frame, Progress(app_id=self.app_id, query_id=name, batch_id=0, at_ms=now_ms()))

    # --- steps 3 to 8, repeated as a whole until they succeed

    def _write(self, frame: Any, progress: Progress, is_stopping: Callable[[], bool] = lambda: False) -> BatchResult:
        tries = Tries(self._patience)
        while True:
            try:
                result = self._attempt(frame, progress, tries.count)
            except _Again as failure:
                if is_stopping() or not tries.another(is_outage=failure.is_outage):
                    raise BatchFailed(
                        f"batch {progress.batch_id} of {self.app_id!r} failed {tries.count} times; nothing of it is "
                        f"there. Last reason: {failure}"
                    ) from failure.__cause__
                log.warning("%s: batch %d is staged again: %s", self.app_id, progress.batch_id, failure)
                continue
            return self._tell(result)

    def _attempt(self, frame: Any, progress: Progress, attempts: int) -> BatchResult:
        begun = time.monotonic()
        assert self._checked is not None, "the check comes first"
        stages = self._landing.stage(progress.batch_id, self._checked)
        try:
            with self._listeners.step(Step.WRITE, progress.batch_id), _evaluated_once(frame, self.tables):
                loaded = [
                    self._load(rows, stage, progress.batch_id)
                    for rows, stage in zip(self._selected(frame), stages, strict=True)
                ]
            written = time.monotonic()
            changed = self._landing.merge(progress, stages, loaded)
        except Spoiled as problem:
            self._landing.give_up()
            raise _Again(str(problem)) from None
        except BaseException:
            self._landing.give_up()
            raise
        return BatchResult(
            app_id=self.app_id,
            batch_id=progress.batch_id,
            query_id=progress.query_id,
            rows=sum(each.rows for table in loaded for each in table),
            tables=changed,
            tasks=sum(map(len, loaded)),
            attempts=attempts,
            write_ms=(written - begun) * 1000,
            commit_ms=(time.monotonic() - written) * 1000,
        )

    def _load(self, rows: Any, stage: Any, batch_id: int) -> list[Loaded]:
        try:
            loaded = load(rows, self._landing.database, stage)
        except Exception as problem:  # whatever Spark raises; it is the cause of what we raise
            raise _Again(said_by_spark(problem)) from problem
        if not isinstance(loaded, LoadFailed):
            return loaded
        if isinstance(loaded.trouble, Refused):
            reason = str(loaded.trouble).rstrip(".")
            raise SinkError(f"{self.app_id}: {reason}. Nothing of batch {batch_id} was written")
        raise _Again(str(loaded.trouble), is_outage=isinstance(loaded.trouble, Gone))

    def _tell(self, result: BatchResult) -> BatchResult:
        log.info("%s", result)
        return self._listeners.tell(result)


def write(frame: Any, *, once: str | None = None, **settings: Any) -> BatchResult:
    """A DataFrame that does not stream, into a database, all or nothing: one transaction.

    - `settings`: as for `SqlSink`, with `app_id`: a second run of the same job with the same name stops the first one.
    - `once`: a name for this run of the job, "2026-11-16" for example. If the last write of this app had the same name
      nothing is written again, so a job may simply be repeated until it succeeds.
    """
    refuse_connect(frame)
    if getattr(frame, "isStreaming", False):
        raise ConfigError("this DataFrame streams: use df.writeStream.foreachBatch(SqlSink(...))")
    sink = SqlSink(**settings)
    try:
        with sink._listeners.batch(sink.app_id, 0):
            return sink._write_once(frame, once)
    finally:
        sink.close()


class _Again(Exception):
    """The batch failed in a way that may not repeat itself; nothing of it is there."""

    def __init__(self, reason: str, *, is_outage: bool = False) -> None:
        super().__init__(reason)
        self.is_outage = is_outage
        """Tasks could not reach the database: that takes as long as it takes."""


@contextmanager
def _evaluated_once(frame: Any, tables: Sequence[Table]) -> Iterator[None]:
    """The rows of several tables are the same rows, and are computed once."""
    if len(tables) == 1 or frame.is_cached:
        yield
        return
    frame.persist()
    try:
        yield
    finally:
        frame.unpersist()
