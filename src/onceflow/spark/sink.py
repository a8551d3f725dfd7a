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

import pickle
import threading
import time
import uuid
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Refused, TopicPartition
from onceflow.client.offsets import persistently
from onceflow.errors import ConfigError, ErrorCode
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.listening import BatchResult, SinkListener
from onceflow.spark.planning import to_json
from onceflow.spark.problems import CheckpointMismatch, SinkError
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch, query_is_active, running_batch
from onceflow.spark.writing import WriteSettings, check_columns

__all__ = ["KafkaSink", "write"]

NEW_CHECKPOINT: Final = ("refuse", "accept", "never")


class KafkaSink:
    """An object for `writeStream.foreachBatch`. Settings: see `WriteSettings`; all of them are keyword arguments.

    - `app_id`: the name of the application: its transactional id and its consumer group. One running query each.
    - `new_checkpoint`: what to do when Kafka knows the app and the checkpoint is another one, which does not start
      where the app left off: "refuse" (records would be lost or doubled), or "accept". "never": also refuse one that
      does start there, because the query keeps state, which was in the old checkpoint.
    - `listeners`: told about each batch and each step.
    """

    def __init__(
        self,
        *,
        app_id: str,
        bootstrap_servers: str,
        topic: str | None = None,
        new_checkpoint: str = "refuse",
        listeners: Iterable[SinkListener] = (),
        transaction_version: int | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(app_id, str) or not app_id.strip():
            raise ConfigError("app_id must be a name: it identifies the application to Kafka, over restarts")
        if new_checkpoint not in NEW_CHECKPOINT:
            raise ConfigError(
                f"new_checkpoint={new_checkpoint!r} does not exist; there is {', '.join(map(repr, NEW_CHECKPOINT))}"
            )
        self.app_id = app_id
        self.settings = _settings(bootstrap_servers=bootstrap_servers, topic=topic, **settings)
        self._new_checkpoint = new_checkpoint
        self._writer = BatchWriter(self.settings, app_id, tuple(listeners), transaction_version)
        weakref.finalize(self, self._writer.close)  # sockets and a thread
        self._progress: Progress | None = None
        self._last_call: tuple[str, int] | None = None
        self._known_run: str | None = None  # the run of a query for which steps 1 and 2 were taken

    def __call__(self, frame: Any, batch_id: int) -> None:
        _refuse_connect(frame)
        check_columns(frame.schema, self.settings.topic, self.settings.batch_header)
        batch = running_batch(frame, batch_id)
        _claim(self, batch, frame.sparkSession)
        self._check_only_call(batch)
        if not self.settings.is_exactly_once:
            self._writer.write_at_least_once(frame, batch_id, batch.query_id)
            return
        self._prepare(batch)
        if self._was_committed(batch):
            frame.write.format("noop").mode("overwrite").save()
            self._writer.tell(BatchResult(app_id=self.app_id, batch_id=batch_id, query_id=batch.query_id, skipped=True))
            return
        recorded = self._recorded(batch)
        self._known_run = None  # until it is certain what has become of this batch
        self._writer.write(frame, batch_id, batch.query_id, recorded, is_stopping=lambda: _is_stopping(frame, batch))
        self._progress = recorded.progress
        self._known_run = batch.run_id

    def close(self) -> None:
        """Free sockets and threads. The sink can be used again: the next batch opens them anew."""
        self._writer.close()
        self._known_run = None

    def __reduce__(self) -> NoReturn:
        raise _BoundToDriver(
            "KafkaSink works on the driver and cannot be sent elsewhere, as Spark Connect does with what it is given: "
            f"{_CLASSIC}"
        )

    def _check_only_call(self, batch: MicroBatch) -> None:
        """The transaction of a micro-batch is ended by the first call: a second one would be a batch that was
        committed."""
        call = (batch.run_id, batch.batch_id)
        if call == self._last_call:
            raise ConfigError(
                f"the sink of {self.app_id!r} was called twice in micro-batch {batch.batch_id}; the second call "
                "wrote nothing. A micro-batch "
                "is one transaction: give the sink the union of the rows, with a topic column"
            )
        self._last_call = call

    def _prepare(self, batch: MicroBatch) -> None:
        """Steps 1 and 2, in this order: what is read after the fence stays true."""
        if self._writer.is_fenced and self._known_run == batch.run_id:
            return
        if self.settings.topic is not None:
            self._check_topic(self.settings.topic)
        self._writer.fence(batch.batch_id)
        self._progress = self._writer.progress(batch.batch_id)
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

    def _was_committed(self, batch: MicroBatch) -> bool:
        """By the progress record. Raises `CheckpointMismatch` where going on would lose or double records."""
        known = self._progress
        if known is None:
            return False
        if known.query_id != batch.query_id:
            if self._new_checkpoint == "never":
                raise _no_state(known)
            if self._new_checkpoint == "refuse":
                _check_start(known, batch)
            return False
        if batch.batch_id > known.batch_id:
            return False
        if not _is_part_of(known, batch):
            raise CheckpointMismatch(
                f"batch {known.batch_id} of {self.app_id!r} was committed up to {to_json(known.offsets)}, and by the "
                f"checkpoint batch {batch.batch_id} ends at {to_json(batch.ends)}: its offset log was changed, or "
                "it is an "
                "older one that now goes another way. Skipping the batch would lose records, writing it would double "
                "some. Nothing was written. Start with a new checkpoint and startingOffsets=committed"
            )
        return True

    def _recorded(self, batch: MicroBatch) -> Recorded:
        before = self._progress.offsets if self._progress else {}
        progress = Progress(
            app_id=self.app_id,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            offsets={**before, **batch.ends},
            at_ms=time.time_ns() // 1_000_000,
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
        _refuse_connect(frame)
    check_columns(frame.schema, checked.topic, checked.batch_header)
    if getattr(frame, "isStreaming", False):
        raise ConfigError("this DataFrame streams: use df.writeStream.foreachBatch(KafkaSink(...))")
    writer = BatchWriter(checked, app_id or f"onceflow-write-{uuid.uuid4()}", tuple(listeners))
    try:
        if not checked.is_exactly_once:
            return writer.write_at_least_once(frame, 0, once or "")
        writer.fence(0)
        name = f"once:{once}"
        if once is not None:
            known = writer.progress(0)
            if known is not None and known.query_id == name:
                result = BatchResult(app_id=writer.app_id, batch_id=0, query_id=name, skipped=True)
                writer.tell(result)
                return result
        progress = Progress(app_id=writer.app_id, query_id=name, batch_id=0, at_ms=time.time_ns() // 1_000_000)
        return writer.write(frame, 0, name, Recorded(progress if once is not None else None))
    finally:
        writer.close()


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


def _no_state(known: Progress) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"the app {known.app_id!r} is known to Kafka (batch {known.batch_id} of another checkpoint), and this "
        "query has a new checkpoint, without the state that it had collected. Nothing was written. Bring the old "
        "checkpoint back, or begin anew: with another app_id and topics of its own"
    )


def _check_start(known: Progress, batch: MicroBatch) -> None:
    """A new checkpoint must begin where the application left off."""
    both = [where for where in batch.starts if where in known.offsets]
    wrong = [where for where in both if batch.starts[where] != known.offsets[where]]
    if both and not wrong:
        return
    what = (
        f"partition {wrong[0][1]} of {wrong[0][0]!r} starts at {batch.starts[wrong[0]]}, and the app has written "
        f"everything below {known.offsets[wrong[0]]}"
        if wrong
        else "it reads from somewhere else, so nobody can tell what would be lost or doubled"
    )
    raise CheckpointMismatch(
        f"the app {known.app_id!r} is known to Kafka (batch {known.batch_id} of another checkpoint), and this "
        f"query has a new checkpoint: {what}. Nothing was "
        "written. Start with startingOffsets=committed (and kafka.group.id set to the app id), take another "
        "app_id, or, if it is meant, KafkaSink(new_checkpoint='accept')"
    )


def _is_part_of(known: Progress, batch: MicroBatch) -> bool:
    """Whether this batch can be one of those that were committed, by where it ends."""
    if batch.batch_id == known.batch_id:
        return dict(batch.ends) == _only(known.offsets, batch.ends)
    return all(at <= known.offsets.get(where, at) for where, at in batch.ends.items())


def _only(offsets: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {where: at for where, at in offsets.items() if where in wanted}


def _is_stopping(frame: Any, batch: MicroBatch) -> bool:
    return not query_is_active(frame.sparkSession, batch.query_id)


# --- Spark Connect

_CLASSIC: Final = "use a classic session (spark-submit, or SparkSession.builder.master(...)) for this job"


class _BoundToDriver(ConfigError, pickle.PickleError):
    """PySpark hands on a `PickleError`, and hides any other exception behind general advice."""


def _refuse_connect(frame: Any) -> None:
    if type(frame).__module__.startswith("pyspark.sql.connect."):
        raise ConfigError(
            "this DataFrame belongs to Spark Connect, and whoever keeps the transaction must be the driver: "
            f"{_CLASSIC}. Nothing was written"
        )


# --- one query per app id and process

_claims: dict[tuple[str, str], str] = {}  # the query that writes under this app id
_claims_lock = threading.Lock()


def _claim(sink: KafkaSink, batch: MicroBatch, spark: Any) -> None:
    """Two queries under one app id would fence each other for ever."""
    key = (sink.settings.bootstrap_servers, sink.app_id)
    with _claims_lock:
        holder = _claims.get(key)
        if holder is not None and holder != batch.query_id and query_is_active(spark, holder):
            raise ConfigError(
                f"two queries of this process write under the app id {sink.app_id!r}: each needs an app_id of its "
                "own. Nothing was written by this one"
            )
        _claims[key] = batch.query_id
