"""The sink: each micro-batch is one Kafka transaction that all executors write into.

    sink = KafkaSink(app_id="orders", bootstrap_servers="...", topic="out")
    query = df.writeStream.foreachBatch(sink).option("checkpointLocation", "...").start()

The six steps, and what a crash of the driver after each leads to:

    1 FENCE     take the app id               the next driver does the same
    2 PROGRESS  committed before? then skip   nothing was written
    3 WRITE     the tasks write               the next driver's fence aborts it; nobody has seen it
    4 VERIFY    all tasks done, once each     the same
    5 RECORD    source offsets and progress   the same
    6 COMMIT    end the transaction           before it was asked: the same. After: the coordinator completes it,
                                              the next driver's fence waits for that, and then the progress
                                              says that the batch is done

Steps 1 and 2 are taken once per driver and after any doubt; other batches go on with the epoch that the last commit
handed out.

Spark runs a batch again after a crash. One that was committed is skipped, but its plan still runs (into `noop`), or
the state store would lack a version of it. A failure while writing aborts the transaction and runs the whole batch
again under a new epoch, so a part of a batch is never committed.
"""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Refused, TopicPartition
from onceflow.client.offsets import persistently
from onceflow.errors import ConfigError, ErrorCode
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.foreach_batch import BoundToDriver, check_app_id, claim, look_for_metrics, refuse_connect
from onceflow.spark.listening import BatchResult, SinkListener
from onceflow.spark.problems import SinkError
from onceflow.spark.progress import Finished, Progress
from onceflow.spark.query import MicroBatch, query_is_active, running_batch
from onceflow.spark.resuming import Resuming
from onceflow.spark.writing import WriteSettings, check_columns

__all__ = ["KafkaSink", "write"]

_ONE_CALL: Final = "give one sink the union of the rows, with a topic column"


class KafkaSink:
    """An object for `writeStream.foreachBatch`. Settings: see `WriteSettings`; all of them are keyword arguments.

    - `app_id`: the name of the application: its transactional id and its consumer group. One running query each.
    - `new_checkpoint`: what to do when Kafka knows the app and the checkpoint is another one, which does not start
      where the app left off: "refuse" (records would be lost or doubled), or "accept". "never": also refuse one that
      does start there, because the query keeps state, which was in the old checkpoint.
    - `rows`: which rows of the micro-batch, and as what: a function from its DataFrame to another. All, if None.
    - `listeners`: told about each batch and each step.
    """

    def __init__(
        self,
        *,
        app_id: str,
        bootstrap_servers: str,
        topic: str | None = None,
        rows: Callable[[Any], Any] | None = None,
        new_checkpoint: str = "refuse",
        listeners: Iterable[SinkListener] = (),
        transaction_version: int | None = None,
        **settings: Any,
    ) -> None:
        check_app_id(app_id, "Kafka")
        self.app_id = app_id
        self.settings = _settings(bootstrap_servers=bootstrap_servers, topic=topic, **settings)
        self._rows = rows
        self._resuming = Resuming(app_id=app_id, sink="KafkaSink", keeper="Kafka", new_checkpoint=new_checkpoint)
        self._writer = BatchWriter(self.settings, app_id, tuple(listeners), transaction_version)
        weakref.finalize(self, self._writer.close)  # sockets and a thread
        self._progress: Progress | None = None
        self._known_run: str | None = None  # the run of a query for which steps 1 and 2 were taken
        self._last: BatchResult | None = None

    def __call__(self, frame: Any, batch_id: int) -> None:
        refuse_connect(frame)
        with self._writer.listeners.batch(self.app_id, batch_id):
            self._take(self._selected(frame), batch_id)

    def _take(self, frame: Any, batch_id: int) -> None:
        check_columns(frame.schema, self.settings.topic, self.settings.batch_header)
        batch = running_batch(frame, batch_id)
        claim(self.settings.bootstrap_servers, self.app_id, batch, frame.sparkSession, _ONE_CALL)
        look_for_metrics(frame.sparkSession, batch.query_id)
        if not self.settings.is_exactly_once:
            self._writer.write_at_least_once(frame, batch_id, batch.query_id)
            return
        self._prepare(batch)
        if self._resuming.was_committed(self._progress, batch):
            frame.write.format("noop").mode("overwrite").save()
            self._writer.tell(BatchResult(app_id=self.app_id, batch_id=batch_id, query_id=batch.query_id, skipped=True))
            return
        recorded = self._recorded(batch)
        self._known_run = None  # until it is certain what has become of this batch
        self._last = self._writer.write(
            frame, batch_id, batch.query_id, recorded, is_stopping=lambda: _is_stopping(frame, batch)
        )
        self._progress = recorded.progress
        self._known_run = batch.run_id

    def check(self, frame: Any) -> None:
        """Raises unless rows of this DataFrame can be written."""
        check_columns(self._selected(frame).schema, self.settings.topic, self.settings.batch_header)

    def _selected(self, frame: Any) -> Any:
        return frame if self._rows is None else self._rows(frame)

    def close(self) -> None:
        """Free sockets and threads. The sink can be used again: the next batch opens them anew."""
        self._writer.close()
        self._known_run = None

    def __reduce__(self) -> NoReturn:
        raise BoundToDriver("KafkaSink")

    def _prepare(self, batch: MicroBatch) -> None:
        """Steps 1 and 2, in this order: what is read after the fence stays true."""
        if self._writer.is_fenced and self._known_run == batch.run_id:
            return
        if self.settings.topic is not None:
            self._check_topic(self.settings.topic)
        self._writer.fence(batch.batch_id)
        self._progress = self._writer.progress(batch.batch_id)
        self._resuming.look_for_gap(self._progress, batch)
        self._known_run = batch.run_id

    def _check_topic(self, topic: str) -> None:
        try:
            self._writer.cluster.leaders([topic])
        except TopicMissingError as missing:
            raise ConfigError(f"{missing}. Create it first: nothing was written") from None
        except Refused as refusal:
            if refusal.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise SinkError(f"{refusal}: the principal needs WRITE on {topic!r}. Nothing was written") from None

    def _recorded(self, batch: MicroBatch) -> Recorded:
        before = self._progress.offsets if self._progress else {}
        progress = Progress(
            app_id=self.app_id,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            offsets={**before, **batch.ends},
            at_ms=time.time_ns() // 1_000_000,
            started_ms=self._writer.listeners.started_ms,
            previous=_finished(self._last, batch),
        )
        offsets = batch.ends if self._is_same_cluster(batch) else {}
        return Recorded(progress, self._existing(offsets))

    def _is_same_cluster(self, batch: MicroBatch) -> bool:
        """A group's offsets are about topics of its own cluster; those of another one stay in the progress record."""
        if not batch.source_servers:
            return True
        ours = set(parse_bootstrap(self.settings.bootstrap_servers))
        theirs = {address for each in batch.source_servers for address in parse_bootstrap(each)}
        return bool(ours & theirs) or any(node.address in theirs for node in self._writer.cluster.nodes())

    def _existing(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Kafka refuses offsets of topics that it does not have (a source topic that was deleted meanwhile)."""
        if not offsets:
            return {}
        cluster = self._writer.cluster
        try:
            there = persistently(lambda: cluster.leaders({topic for topic, _ in offsets}))
        except TopicMissingError:
            there = persistently(lambda: cluster.leaders(None))
        return {where: at for where, at in offsets.items() if where in there}


def write(
    frame: Any,
    *,
    bootstrap_servers: str,
    topic: str | None = None,
    app_id: str | None = None,
    once: str | None = None,
    listeners: Iterable[SinkListener] = (),
    **settings: Any,
) -> BatchResult:
    """Write a DataFrame that does not stream, all or nothing: one transaction.

    - `app_id`: a second run of the same job with the same name stops the first one. Without it every call is on its
      own.
    - `once`: a name for this run of the job, "2026-11-16" for example. If the last write of this app had the same
      name nothing is written again, so a job may simply be repeated until it succeeds.
    """
    if once is not None and app_id is None:
        raise ConfigError("once= needs app_id=: under which name should it be remembered?")
    checked = _settings(bootstrap_servers=bootstrap_servers, topic=topic, **settings)
    if checked.is_exactly_once:
        refuse_connect(frame)
    check_columns(frame.schema, checked.topic, checked.batch_header)
    if getattr(frame, "isStreaming", False):
        raise ConfigError("this DataFrame streams: use df.writeStream.foreachBatch(KafkaSink(...))")
    writer = BatchWriter(checked, app_id or f"onceflow-write-{uuid.uuid4()}", tuple(listeners))
    try:
        with writer.listeners.batch(writer.app_id, 0):
            return _write_once(writer, frame, once)
    finally:
        writer.close()


def _write_once(writer: BatchWriter, frame: Any, once: str | None) -> BatchResult:
    if not writer.settings.is_exactly_once:
        return writer.write_at_least_once(frame, 0, once or "")
    writer.fence(0)
    name = f"once:{once}"
    if once is None:
        return writer.write(frame, 0, name, Recorded())
    known = writer.progress(0)
    if known is not None and known.query_id == name:
        return writer.tell(BatchResult(app_id=writer.app_id, batch_id=0, query_id=name, skipped=True))
    progress = Progress(
        app_id=writer.app_id,
        query_id=name,
        batch_id=0,
        at_ms=time.time_ns() // 1_000_000,
        started_ms=writer.listeners.started_ms,
    )
    return writer.write(frame, 0, name, Recorded(progress))


def _settings(**given: Any) -> WriteSettings:
    try:
        return WriteSettings(**given)
    except TypeError:
        import difflib

        known = list(WriteSettings.__dataclass_fields__)
        unknown = next(name for name in given if name not in known)
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"
        raise ConfigError(f"{unknown!r} is not a setting of the sink: {hint}") from None


def _finished(last: BatchResult | None, batch: MicroBatch) -> Finished | None:
    """The final figures of the micro-batch before, if they are known."""
    if last is None or last.query_id != batch.query_id:
        return None
    return Finished(
        batch_id=last.batch_id,
        started_ms=last.started_ms,
        committed_ms=last.started_ms + round(last.duration_ms),
        rows=last.rows,
        transaction_ms=last.transaction_ms,
    )


def _is_stopping(frame: Any, batch: MicroBatch) -> bool:
    return not query_is_active(frame.sparkSession, batch.query_id)
