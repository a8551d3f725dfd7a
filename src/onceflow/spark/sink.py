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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NoReturn

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Refused, TopicLayout, TopicPartition
from onceflow.client.offsets import persistently
from onceflow.client.topic_ids import to_text
from onceflow.errors import ConfigError, ErrorCode
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.foreach_batch import BoundToDriver, check_app_id, claim, look_for_metrics, refuse_connect
from onceflow.spark.listening import BatchResult, SinkListener
from onceflow.spark.problems import SinkError
from onceflow.spark.progress import PROGRESS_TOPIC, Finished, Progress
from onceflow.spark.query import MicroBatch, SourceOffsets, query_is_active, running_batch
from onceflow.spark.resuming import Resuming
from onceflow.spark.stopping import stop_is_recognised
from onceflow.spark.writing import WriteSettings, check_columns
from onceflow.wire.acls import Operation

__all__ = ["KafkaSink", "write"]

_ONE_CALL: Final = "give one sink the union of the rows, with a topic column"


class KafkaSink:
    """An object for `writeStream.foreachBatch`. Settings: see `WriteSettings`; all of them are keyword arguments.

    - `app_id`: the name of the application: its transactional id and its consumer group. One running query each.
    - `new_checkpoint`: what to do when Kafka knows the app and the checkpoint is another one, which does not start
      where the app left off: "refuse" (records would be lost or doubled), or "accept". "never": also refuse one that
      does start there, because the query keeps state, which was in the old checkpoint.
    - `missing_batches`: what to do when the checkpoint, or what is known of the app's transactions, is further than the
      progress that Kafka knows: "refuse" (Kafka has lost commits), or "accept", for a sink that is new in a query, or
      is not called for every micro-batch.
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
        missing_batches: str = "refuse",
        listeners: Iterable[SinkListener] = (),
        transaction_version: int | None = None,
        **settings: Any,
    ) -> None:
        check_app_id(app_id, "Kafka")
        self.app_id = app_id
        self.settings = _settings(bootstrap_servers=bootstrap_servers, topic=topic, **settings)
        self._rows = rows
        self._resuming = Resuming(
            app_id=app_id,
            sink="KafkaSink",
            keeper="Kafka",
            new_checkpoint=new_checkpoint,
            missing_batches=missing_batches,
        )
        self._writer = BatchWriter(self.settings, app_id, tuple(listeners), transaction_version)
        weakref.finalize(self, self._writer.close)  # sockets and a thread
        self._progress: Progress | None = None
        self._known_run: str | None = None  # the run of a query for which steps 1 and 2 were taken
        self._last: BatchResult | None = None
        self._prepared: tuple[str, int] | None = None  # the run and the micro-batch that `prepare` has claimed

    def __repr__(self) -> str:
        return f"KafkaSink(app_id={self.app_id!r})"

    def __call__(self, frame: Any, batch_id: int) -> None:
        refuse_connect(frame)
        with self._writer.listeners.batch(self.app_id, batch_id), stop_is_recognised(frame, batch_id):
            self._take(self._selected(frame), batch_id)

    def _take(self, frame: Any, batch_id: int) -> None:
        check_columns(frame.schema, self.settings.topic, self.settings.batch_header)
        batch = running_batch(frame, batch_id)
        self._claim(batch, frame.sparkSession)
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
        """Raises unless rows of this DataFrame can be written: their columns, and the topics that are known before."""
        check_columns(self._selected(frame).schema, self.settings.topic, self.settings.batch_header)
        if self._known_run is None:
            self._check_topics()

    def prepare(self, frame: Any, batch_id: int) -> None:
        """Steps 1 and 2, for who has to know that they succeed before another sink writes. The call that writes the
        micro-batch does not take them again."""
        refuse_connect(frame)
        with self._writer.listeners.batch(self.app_id, batch_id):
            batch = running_batch(frame, batch_id)
            self._claim(batch, frame.sparkSession)
            self._prepared = (batch.run_id, batch.batch_id)
            if self.settings.is_exactly_once:
                self._prepare(batch)
                self._resuming.was_committed(self._progress, batch)  # raises if that contradicts the checkpoint

    def _claim(self, batch: MicroBatch, spark: Any) -> None:
        is_prepared = self._prepared == (batch.run_id, batch.batch_id)
        self._prepared = None
        if not is_prepared:
            claim(self._writer.cluster_id(), self.app_id, batch, spark, _ONE_CALL)

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
        self._check_topics()
        if batch.batch_id == 0:
            self._check_first(batch)
        self._writer.fence(batch.batch_id)
        self._progress = self._writer.progress(batch.batch_id)
        self._check_writable(PROGRESS_TOPIC)
        own = self._on_own_cluster(batch)
        self._resuming.check_run(self._progress, batch, self._writer.group_offsets(own.ends), own.starts)
        self._known_run = batch.run_id

    def _check_first(self, batch: MicroBatch) -> None:
        """Progress may be lost where the consumer group cannot tell: it has no offsets of what the batch reads."""
        if self._writer.has_lost_progress() and not self._writer.group_offsets(self._on_own_cluster(batch).ends):
            self._resuming.check_lost()

    def _check_topics(self) -> None:
        """They exist, and we may write to them, as far as both is known before the rows are."""
        for topic in filter(None, (self.settings.topic, self.settings.dead_letter_topic)):
            self._check_writable(topic)

    def _check_writable(self, topic: str) -> None:
        needed = f"the principal needs WRITE on {topic!r}. Nothing was written"
        try:
            may_write = self._writer.cluster.permitted([topic], Operation.WRITE)[topic]
        except TopicMissingError as missing:
            raise ConfigError(f"{missing}. Create it first: nothing was written") from None
        except Refused as refusal:
            if refusal.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise
            raise SinkError(f"{refusal}: {needed}") from None
        if may_write is False:
            raise SinkError(f"topic {topic!r} may be seen and not written: {needed}")

    def _recorded(self, batch: MicroBatch) -> Recorded:
        progress = Progress.after(
            batch,
            self._progress,
            app_id=self.app_id,
            started_ms=self._writer.listeners.started_ms,
            previous=_finished(self._last, batch),
        )
        return Recorded(progress, self._on_own_cluster(batch).ends)

    def _on_own_cluster(self, batch: MicroBatch) -> MicroBatch:
        """Of topics that are on the cluster of this sink, and there. Those of another cluster are in the progress
        record only; and Kafka refuses offsets of topics that it does not have (any more)."""
        ours = [source for source in batch.sources if source.topic_ids or self._is_same_cluster(source.servers)]
        topics = self._topics({topic for source in ours for topic, _ in source.end})

        def is_there(source: SourceOffsets, where: TopicPartition) -> bool:
            topic, partition = where
            there = topics.get(topic)
            if there is None or partition not in there.leaders or not any(source is each for each in ours):
                return False
            return there.id is None or source.topic_ids.get(topic) in (None, to_text(there.id))

        return batch.only(is_there)

    def _is_same_cluster(self, servers: Collection[str]) -> bool:
        """Of a source that does not say the ids of its topics."""
        if not servers:
            return True
        theirs = {address for each in servers for address in parse_bootstrap(each)}
        ours = set(parse_bootstrap(self.settings.bootstrap_servers))
        return bool(ours & theirs) or any(node.address in theirs for node in self._writer.cluster.nodes())

    def _topics(self, names: Collection[str]) -> Mapping[str, TopicLayout]:
        if not names:
            return {}
        cluster = self._writer.cluster
        try:
            return persistently(lambda: cluster.topics(names))
        except TopicMissingError:
            return persistently(lambda: cluster.topics(None))


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
