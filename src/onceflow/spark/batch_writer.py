"""One DataFrame into Kafka as one transaction: steps 3 to 6 of a micro-batch, repeated as a whole until they succeed.

The writer owns the transactional id. It knows nothing of queries and checkpoints; `KafkaSink` and `write` do.

When a broker says that the transaction is over, the writer asks for the next epoch as itself
(`SharedTransaction.reclaim`), which only succeeds while nobody else has taken the app id:

- it fails: another run has taken over. `TakenOver`, and this run never fences the other one in return, so that two runs
  under one app id do not stop each other again and again;
- it succeeds: the transaction had timed out, or the id had expired while it was not used, and nothing of the batch is
  visible. The progress is read again, since with an expired id others may have come and gone unnoticed. If it is what
  we knew, the batch is run again, within `retries`; if not, it is `TakenOver` as well.

Kafka before 4.0 (which has V1 only) does not let a producer go on whose transaction has timed out. There a batch that
was open for longer than the timeout ends with `TransactionTimedOut` at once.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from onceflow.client.cluster import Cluster, Refused, TopicPartition
from onceflow.client.connection import ApiMissing, NoAnswer, Unreachable
from onceflow.client.offsets import committed_offsets, persistently
from onceflow.client.problems import ClientError
from onceflow.client.producing import Producing, WriteRefused
from onceflow.client.shared_transaction import (
    TRANSACTION_OVER,
    V1,
    V2,
    Fenced,
    MustAbort,
    OutcomeUnknown,
    SharedTransaction,
    Ticket,
    TransactionsMissing,
)
from onceflow.client.transactions import describe_transactions
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.spark.listening import BatchResult, Listeners, SinkListener, Step
from onceflow.spark.problems import BatchFailed, CommitUnknown, SinkError, TakenOver, TransactionTimedOut
from onceflow.spark.progress import PARTITION, PROGRESS_TOPIC, Progress, ProgressError, ensure_topic, read_progress
from onceflow.spark.reasons import said_by_spark
from onceflow.spark.sequencer import Refusal, Run, Sequencer, TaskReport
from onceflow.spark.stage_attempts import StageAttempts
from onceflow.spark.task import RESULT_SCHEMA, WritePlan, task_writer
from onceflow.spark.unfit_rows import learned
from onceflow.spark.writing import WriteSettings
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

__all__ = ["BatchWriter", "Recorded"]

log = logging.getLogger("onceflow.spark")

IDLE_S_MAX: Final = 12 * 3600.0
"""Coordinators forget an id that was not used for a week; after this time we say that we are still there."""
LAST_SEQUENCE: Final = 0x7FFFFFFF
ANSWER_MARGIN_S: Final = 30.0
"""How much longer tasks wait for the driver than the driver waits for others."""


class _NotRead:
    """The progress of an app, before anybody has read it."""


_NOT_READ: Final = _NotRead()


class Recorded:
    """What goes into the transaction beside the rows."""

    def __init__(self, progress: Progress | None = None, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        self.progress = progress
        self.offsets = offsets or {}

    def __bool__(self) -> bool:
        return self.progress is not None or bool(self.offsets)


class BatchWriter:
    """Writes DataFrames under one app id, one after the other."""

    def __init__(
        self, settings: WriteSettings, app_id: str, listeners: tuple[SinkListener, ...] = (), version: int | None = None
    ) -> None:
        self.settings = settings
        self.app_id = app_id
        self.listeners = Listeners(listeners)
        self._version = version
        self._cluster: Cluster | None = None
        self._transaction: SharedTransaction | None = None
        self._sequencer: Sequencer | None = None
        self._stage_attempts: StageAttempts | None = None
        self._used_at = 0.0
        self._is_unfinished = False  # the last transaction failed, and its abort was not answered
        self._is_lost = False  # the app id may have been taken: `reclaim` has to say
        self._known: Progress | _NotRead | None = _NOT_READ
        self._known_by = -1  # the producer id with which `_known` was read
        self._limits: dict[str, int] = {}  # the most bytes that topics take, as refusals have told

    def close(self) -> None:
        if self._sequencer is not None:
            self._sequencer.close()
        if self._stage_attempts is not None:
            self._stage_attempts.close()
        if self._cluster is not None:
            self._cluster.close()
        self._sequencer = self._stage_attempts = self._cluster = self._transaction = None

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self.settings.client)
        return self._cluster

    # --- steps 1 and 2

    @property
    def is_fenced(self) -> bool:
        """Whether the app id is ours: step 1 was taken, and nothing has happened since that puts it in doubt."""
        return self._transaction is not None

    def fence(self, batch_id: int) -> None:
        transaction = SharedTransaction(
            self.cluster,
            self.app_id,
            timeout_ms=self.settings.transaction_timeout_ms,
            patience_s=self.settings.delivery_timeout_ms / 1000,
            version=self._version,
        )
        with self.listeners.step(Step.FENCE, batch_id), self._explained():
            transaction.fence()
        self._transaction = transaction
        self._used_at = time.monotonic()
        self._is_unfinished = self._is_lost = False
        self._known, self._known_by = _NOT_READ, transaction.producer_id

    def progress(self, batch_id: int) -> Progress | None:
        """Of the app, as of the fence."""
        with self.listeners.step(Step.PROGRESS, batch_id), self._explained():
            ensure_topic(self.cluster)
            self._known = read_progress(self.cluster, self.app_id)
            return self._known

    def has_lost_progress(self) -> bool:
        """Whether the last transaction of the app id was committed, and there is no progress of it.

        To be asked before the fence: after it, coordinators do not remember how the last transaction ended.
        """
        with self._explained():
            try:
                known = persistently(
                    lambda: describe_transactions(self.cluster, [self.app_id]), self.settings.delivery_timeout_ms / 1000
                ).get(self.app_id)
            except ApiMissing:  # Kafka before 3.0
                return False
            except Refused as refusal:
                if refusal.code != ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    raise
                return False  # the fence is refused as well, with advice
            if known is None or known.state != "CompleteCommit":
                return False
            return read_progress(self.cluster, self.app_id) is None

    def cluster_id(self) -> str:
        """The same for all addresses of a cluster."""
        with self._explained():
            return persistently(lambda: self.cluster.cluster_id(), self.settings.delivery_timeout_ms / 1000)

    def group_offsets(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """What the consumer group of the app has committed in these partitions, as of the fence. Nothing without the
        right to ask."""
        with self._explained():
            try:
                return committed_offsets(self.cluster, self.app_id, places) if places else {}
            except Refused as refusal:
                if refusal.code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
                    raise
                return {}

    # --- steps 3 to 6

    def write(
        self,
        frame: Any,
        batch_id: int,
        query_id: str,
        recorded: Recorded,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> BatchResult:
        """All of it or nothing. Raises `SinkError`; then nothing is visible, unless it is `CommitUnknown`."""
        attempts = failures = 0
        while True:
            attempts += 1
            try:
                result = self._attempt(frame, batch_id, query_id, recorded, attempts)
            except _Again as failure:
                failures += failure.counts
                if failures > self.settings.retries or is_stopping():
                    raise failure.kind(
                        f"batch {batch_id} of {self.app_id!r} failed {_times(attempts)}; nothing of it is visible. "
                        f"Last reason: {failure}"
                    ) from failure.__cause__
                log.warning("%s: batch %d failed, running it again as a whole: %s", self.app_id, batch_id, failure)
                continue
            return self.tell(result)

    def write_at_least_once(self, frame: Any, batch_id: int, query_id: str) -> BatchResult:
        """Without a transaction: a batch that is run again is written again."""
        begun = time.monotonic()
        rows = frame.mapInArrow(task_writer(self._plan(batch_id)), RESULT_SCHEMA).collect()
        partitions = [json.loads(each.partitions) for each in rows]
        result = BatchResult(
            app_id=self.app_id,
            batch_id=batch_id,
            query_id=query_id,
            rows=sum(each.rows for each in rows),
            dead_letters=sum(each.dead_letters for each in rows),
            bytes=sum(each.bytes for each in rows),
            partitions=_together(partitions),
            tasks=len(rows),
            write_ms=(time.monotonic() - begun) * 1000,
        )
        return self.tell(result)

    def tell(self, result: BatchResult) -> BatchResult:
        log.info("%s", result)
        return self.listeners.tell(result)

    def _attempt(self, frame: Any, batch_id: int, query_id: str, recorded: Recorded, attempts: int) -> BatchResult:
        transaction = self._owned()
        begun = time.monotonic()
        sequencer = self._sequencer_for(frame.sparkSession)
        run = Run(
            # For this transaction only: a task that comes late must not begin the next one.
            prepare=lambda partitions: transaction.add_partitions(partitions, ticket),
            patience_s=self.settings.transaction_timeout_ms / 1000,
            stage_attempt=self._stages_of(frame.sparkSession).newest,
        )
        try:
            ticket = self._next_ticket(transaction)
            with self.listeners.step(Step.WRITE, batch_id):
                recording = _Recording(lambda: self._record(recorded, transaction), ahead=ticket.version == V2)
                try:
                    tasks = self._run_tasks(frame, batch_id, run, sequencer, transaction)
                finally:
                    recording.wait()
            written = time.monotonic()
            with self.listeners.step(Step.VERIFY, batch_id):
                reports = self._verified(run, tasks, transaction)
            with self.listeners.step(Step.RECORD, batch_id):
                recording.finish()
            with self.listeners.step(Step.COMMIT, batch_id):
                if any(each.rows for each in reports.values()) or recorded:
                    transaction.commit()
                else:
                    transaction.abort()  # Kafka calls the commit of nothing an error
            self._used_at = time.monotonic()
            self._known = self._known if recorded.progress is None else recorded.progress
            self._known_by = transaction.producer_id  # a commit may hand out a new one, when epochs are used up
        except OutcomeUnknown as problem:
            self._transaction = None
            raise CommitUnknown(
                f"the commit of batch {batch_id} of {self.app_id!r} was not answered ({problem}): the batch is "
                "visible as a whole or not at all. "
                "Start the query again: it finds out which, and goes on from there"
            ) from None
        except Fenced as problem:
            sequencer.forget(run)
            self._reclaim(batch_id, begun, problem)
            raise self._over(batch_id, begun, problem) from None
        except TakenOver:
            self._transaction = None
            raise
        except (_Spoiled, ClientError) as problem:
            self._give_up(run, sequencer, batch_id, begun)
            raise self._judged(problem, batch_id) from problem.__cause__
        except BaseException:  # interrupted, or a listener failed: nothing may stay open
            self._give_up(run, sequencer, batch_id, begun)
            raise
        finally:
            sequencer.forget(run)
        return BatchResult(
            app_id=self.app_id,
            batch_id=batch_id,
            query_id=query_id,
            rows=sum(each.rows for each in reports.values()),
            dead_letters=sum(each.dead_letters for each in reports.values()),
            bytes=sum(each.bytes for each in reports.values()),
            partitions=_together(report.partitions for report in reports.values()),
            tasks=len(reports),
            attempts=attempts,
            write_ms=(written - begun) * 1000,
            commit_ms=(self._used_at - written) * 1000,
        )

    def _owned(self) -> SharedTransaction:
        assert self._transaction is not None, "the fence comes first, and the progress is read after it"
        return self._transaction

    def _next_ticket(self, transaction: SharedTransaction) -> Ticket:
        """Of a transaction in which nothing is open. What could not be aborted before is aborted now, as ourselves: to
        fence again would take the app id back from a successor."""
        if self._is_lost:
            transaction.reclaim()
            self._is_lost = self._is_unfinished = False
        if self._is_unfinished:
            try:
                transaction.abort()
            except OutcomeUnknown as problem:
                raise _Spoiled("delivery", f"the transaction before could not be aborted: {problem}") from None
            self._is_unfinished = False
        idle = time.monotonic() - self._used_at > IDLE_S_MAX
        ticket = transaction.renew() if idle else transaction.ticket
        if ticket.producer_id != self._known_by:
            self._check_progress(ticket)
        return ticket

    def _check_progress(self, ticket: Ticket) -> None:
        """The coordinator has forgotten the producer that we were. Whoever had the app id in between may be forgotten,
        too, but not what it has committed. (Also after 32,767 epochs, when a producer gets a new id.)"""
        if not isinstance(self._known, _NotRead):
            found = read_progress(self.cluster, self.app_id)
            if _identity(found) != _identity(self._known):
                raise TakenOver(
                    f"another run with the app id {self.app_id!r} has committed batch "
                    f"{found.batch_id if found else None} since this one last did, while the transactional id was not "
                    "in use; so this one stops. If both were meant to run, give each its own app_id"
                )
        self._known_by = ticket.producer_id

    def _run_tasks(
        self, frame: Any, batch_id: int, run: Run, sequencer: Sequencer, transaction: SharedTransaction
    ) -> dict[int, int]:
        """The attempt that did each task, by what Spark says."""
        settings = self.settings
        decided_s = (settings.transaction_timeout_ms + settings.delivery_timeout_ms) / 1000
        door = sequencer.open(run, answer_within_s=decided_s + ANSWER_MARGIN_S)
        plan = self._plan(batch_id, ticket=transaction.ticket, door=door)
        try:
            rows = frame.mapInArrow(task_writer(plan), RESULT_SCHEMA).collect()
        except Exception as problem:  # whatever Spark raises; it is the cause of what we raise
            failure = run.failure
            if failure is not None and failure.kind == "fenced":
                raise Fenced(failure.sentence) from None
            kind, sentence = (failure.kind, failure.sentence) if failure else ("task", "")
            if kind == "task":  # which is often told that its input has ended; Spark knows why
                sentence = said_by_spark(problem)
            raise _Spoiled(kind, sentence) from problem
        return {each.task: each.rows for each in rows}

    def _verified(self, run: Run, tasks: Mapping[int, int], transaction: SharedTransaction) -> dict[int, TaskReport]:
        """Nobody is writing any more; what Spark, the tasks and the brokers say is the same."""
        try:
            reports, counts = run.close()
        except Refusal as refusal:
            raise _Spoiled("task", str(refusal)) from None
        if tasks != {task: report.rows for task, report in reports.items()}:
            raise _Spoiled("task", "Spark and the tasks do not agree about who has written what")
        for where, last in self._last_sequences(counts, transaction).items():
            if last != (counts[where] - 1) & LAST_SEQUENCE:
                raise _Spoiled(
                    "delivery",
                    f"partition {where[1]} of {where[0]!r} has not stored what was acknowledged (sequence {last}, "
                    f"sent {counts[where]})",
                )
        return reports

    def _last_sequences(
        self, counts: Mapping[TopicPartition, int], transaction: SharedTransaction
    ) -> dict[TopicPartition, int]:
        """What the leaders say our producer wrote last. Without the right to ask, nothing."""
        ticket = transaction.ticket
        by_leader: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        topics = {topic for topic, _ in counts}
        try:
            leaders = self.cluster.leaders(topics) if topics else {}
            for where in counts:
                leader = leaders.get(where)
                if leader is not None:
                    by_leader[leader][where[0]].append(where[1])
            found: dict[TopicPartition, int] = {}
            for leader, wanted in by_leader.items():
                request = DescribeProducersRequest(
                    topics=[TopicRequest(name=name, partition_indexes=each) for name, each in wanted.items()]
                )
                for topic in self.cluster.node(leader).ask(request).topics:
                    for partition in topic.partitions:
                        if partition.error_code != ErrorCode.NONE:
                            continue
                        mine = [each for each in partition.active_producers if each.producer_id == ticket.producer_id]
                        if mine and mine[0].producer_epoch == ticket.epoch:
                            found[topic.name, partition.partition_index] = mine[0].last_sequence
                        else:
                            found[topic.name, partition.partition_index] = -2
            return found
        except (Refused, ApiMissing, NoAnswer, Unreachable) as problem:
            log.debug("%s: the brokers could not be asked what they have stored: %s", self.app_id, problem)
            return {}

    def _record(self, recorded: Recorded, transaction: SharedTransaction) -> None:
        transaction.commit_offsets(self.app_id, recorded.offsets)
        if recorded.progress is None:
            return
        ticket = transaction.ticket
        transaction.add_partitions([(PROGRESS_TOPIC, PARTITION)])
        batch = recorded.progress.to_batch(producer_id=ticket.producer_id, epoch=ticket.epoch, sequence=0)
        producing = Producing(
            self.cluster,
            transactional_id=ticket.transactional_id,
            version_max=ticket.produce_version_max,
            delivery_timeout_s=self.settings.delivery_timeout_ms / 1000,
        )
        try:
            producing.send({(PROGRESS_TOPIC, PARTITION): batch})
        except WriteRefused as refusal:
            if refusal.code in TRANSACTION_OVER:
                raise Fenced(str(refusal), refusal.code) from None
            if refusal.code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
                raise MustAbort(str(refusal)) from None
            raise

    # --- when it does not go well

    def _give_up(self, run: Run, sequencer: Sequencer, batch_id: int, begun: float) -> None:
        """End the transaction, so that nothing of it is ever visible and readers are not held back."""
        sequencer.forget(run)
        transaction = self._owned()
        try:
            transaction.abort()
        except Fenced as problem:  # nothing is open; and if it is still ours, what failed before is what counts
            self._reclaim(batch_id, begun, problem)
        except OnceflowError as problem:
            # The next attempt does it, or the next driver's fence, or the transaction timeout.
            self._is_unfinished = True
            log.warning("%s: the transaction of batch %d could not be aborted yet: %s", self.app_id, batch_id, problem)
        self._used_at = time.monotonic()

    def _judged(self, problem: OnceflowError, batch_id: int) -> Exception:
        """Worth another try or not."""
        if isinstance(problem, _Spoiled) and (limit := learned(problem.kind)) is not None:
            topic, bytes_max = limit
            is_new = bytes_max < self._limits.get(topic, bytes_max + 1)
            self._limits[topic] = min(bytes_max, self._limits.get(topic, bytes_max))
            if self.settings.dead_letter_topic not in (None, topic) and is_new:
                # Each time the limit is a lower one, so that has an end; and a restart would have to learn it anew.
                return _Again(f"{problem}. It goes to {self.settings.dead_letter_topic!r}", counts=False)
            problem = _Spoiled("refused", str(problem))
        if isinstance(problem, _Spoiled) and problem.kind == "refused":
            return BatchFailed(
                f"batch {batch_id} of {self.app_id!r} cannot be written: {problem}. Nothing of it is visible"
            )
        if isinstance(problem, Refused | WriteRefused):
            return BatchFailed(
                f"batch {batch_id} of {self.app_id!r} cannot be written: {_with_advice(problem, self.app_id)}. "
                "Nothing of it is visible"
            )
        return _Again(str(problem))

    def _reclaim(self, batch_id: int, begun: float, problem: Fenced) -> None:
        """Find out whether the app id is still ours, and go on as its owner. Raises `TakenOver` if it is not."""
        transaction = self._owned()
        self._is_lost = True
        try:
            ticket = transaction.reclaim()
            self._is_lost = self._is_unfinished = False
            if ticket.producer_id != self._known_by:
                self._check_progress(ticket)
        except Fenced:
            self._transaction = None
            if transaction.version == V1 and self._has_timed_out(begun):
                raise TransactionTimedOut(
                    f"{self._too_long(batch_id, begun)}. Nothing of the batch is visible and nothing is lost; start "
                    "the query again, unless another run with this app id has taken over"
                ) from None
            raise self._taken(batch_id, problem) from None
        except TakenOver:
            self._transaction = None
            raise
        except OnceflowError as unknown:  # the next attempt asks again
            log.warning("%s: who has the app id could not be asked: %s", self.app_id, unknown)
        self._used_at = time.monotonic()

    def _over(self, batch_id: int, begun: float, problem: Fenced) -> _Again:
        """The transaction is over, and the app id is ours."""
        if self._has_timed_out(begun):
            return _Again(self._too_long(batch_id, begun), TransactionTimedOut)
        return _Again(str(problem))

    def _has_timed_out(self, begun: float) -> bool:
        return time.monotonic() - begun >= self.settings.transaction_timeout_ms / 1000

    def _too_long(self, batch_id: int, begun: float) -> str:
        return (
            f"batch {batch_id} of {self.app_id!r} was open for {time.monotonic() - begun:.0f} s, and the broker aborts "
            f"a transaction after {self.settings.transaction_timeout_ms / 1000:g} s (transaction_timeout_ms): raise "
            "the setting, or make batches smaller (maxOffsetsPerTrigger)"
        )

    def _taken(self, batch_id: int, problem: Exception) -> TakenOver:
        return TakenOver(
            f"another run with the app id {self.app_id!r} has taken over, so this one stops; batch {batch_id} was "
            "not committed by this run and the "
            f"other one writes it. If both were meant to run, give each its own app_id ({problem})"
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Refusals of the coordinator as advice."""
        try:
            yield
        except Fenced as problem:
            if problem.code not in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                raise SinkError(f"{problem}. Nothing was written") from None
            raise TakenOver(f"another run with the app id {self.app_id!r} is taking over: {problem}") from None
        except Refused as refusal:
            raise SinkError(
                f"{_with_advice(refusal, self.app_id, self.settings.transaction_timeout_ms)}. Nothing was written"
            ) from None
        except TransactionsMissing as problem:
            raise SinkError(f"{problem}. guarantee='at_least_once' needs none. Nothing was written") from None
        except (ClientError, ProgressError) as problem:
            raise SinkError(f"{problem}. Nothing was written") from None

    # --- the rest

    def _plan(self, batch_id: int, **shared: Any) -> WritePlan:
        settings = self.settings
        header = settings.batch_header
        return WritePlan(
            settings=settings.client,
            topic=settings.topic,
            partitioning=settings.partitioning,
            codec=settings.codec,
            level=settings.compression_level,
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            delivery_timeout_s=settings.delivery_timeout_ms / 1000,
            header=None if header is None else (header, str(batch_id)),
            dead_letter_topic=settings.dead_letter_topic,
            limits=dict(self._limits),
            **shared,
        )

    def _sequencer_for(self, spark: Any) -> Sequencer:
        if self._sequencer is None:
            bind, advertised = _driver_address(spark, self.settings.driver_host)
            try:
                self._sequencer = Sequencer(bind, self.settings.driver_port, advertised_host=advertised)
            except (OSError, RuntimeError) as problem:  # the port is taken; no file handles, or no threads, just now
                raise _Again(
                    f"the driver cannot listen at {bind}:{self.settings.driver_port} for its tasks ({problem}); "
                    "KafkaSink(driver_host=..., driver_port=...) sets where"
                ) from None
        return self._sequencer

    def _stages_of(self, spark: Any) -> StageAttempts:
        if self._stage_attempts is None or not self._stage_attempts.is_of(spark):
            self._stage_attempts = StageAttempts(spark)
        return self._stage_attempts


class _Recording:
    """Source offsets and progress, sent while the tasks write: they are seen when the transaction is committed,
    whenever they were sent, and the commit then waits for one answer instead of three.

    Connections are not shared: until `wait` has returned nobody else may talk to the brokers. In V1 tasks do, through
    the driver, to add partitions; there it is done at the end. So it is if no thread can be started for it.
    """

    def __init__(self, record: Callable[[], None], *, ahead: bool) -> None:
        self._record = record
        self._problem: BaseException | None = None
        self._thread: threading.Thread | None = None
        if ahead:
            thread = threading.Thread(target=self._run, name="onceflow-recording", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        try:
            self._record()
        except BaseException as problem:
            self._problem = problem

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def finish(self) -> None:
        """Raises what went wrong."""
        if self._thread is None:
            self._record()
        elif self._problem is not None:
            raise self._problem


class _Again(Exception):
    """The batch failed in a way that may not repeat itself, and its transaction is aborted."""

    def __init__(self, reason: str, kind: type[SinkError] = BatchFailed, *, counts: bool = True) -> None:
        super().__init__(reason)
        self.kind = kind
        """What to raise if it is not tried again."""
        self.counts = counts
        """As one of `retries`."""


class _Spoiled(OnceflowError):
    """The tasks did not all succeed."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def _driver_address(spark: Any, wanted: str | None) -> tuple[str, str]:
    """Where to listen, and what to tell the executors."""
    context = spark.sparkContext
    if wanted is None and context.master.startswith("local["):
        return "127.0.0.1", "127.0.0.1"  # the executors are threads of this machine's JVM
    conf = context.getConf()
    host = wanted or conf.get("spark.driver.host", "127.0.0.1")
    return conf.get("spark.driver.bindAddress", None) or host, host


def _with_advice(refusal: Refused | WriteRefused, app_id: str, timeout_ms: int | None = None) -> str:
    match refusal.code:
        case ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return (
                f"{refusal}: transaction_timeout_ms={timeout_ms} is above the broker's transaction.max.timeout.ms; "
                "lower the one or raise the other"
            )
        case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return f"{refusal}: the principal needs WRITE on the transactional id {app_id!r}, which is the app id"
        case ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return f"{refusal}: the principal needs READ on the consumer group {app_id!r}, which is the app id"
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return (
                f"{refusal}: the principal needs READ on the source topics, WRITE on the targets, and READ and WRITE "
                f"on {PROGRESS_TOPIC}"
            )
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return f"{refusal}: the principal lacks a right on the cluster"
        case _:
            return str(refusal)


def _identity(progress: Progress | _NotRead | None) -> tuple[str, int, int] | None:
    """What tells one commit of an app from another."""
    return (progress.query_id, progress.batch_id, progress.at_ms) if isinstance(progress, Progress) else None


def _together(several: Iterable[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    """Partitions by topic, of all tasks."""
    found: dict[str, set[int]] = defaultdict(set)
    for each in several:
        for topic, partitions in each.items():
            found[topic].update(partitions)
    return {topic: sorted(each) for topic, each in sorted(found.items())}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
