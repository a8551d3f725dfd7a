"""What an executor's task does: rows in, acknowledged record batches out.

    JVM --Arrow--> Python worker: partition of each row, rows by partition, record batches --Produce--> leaders

Rows are collected up to `buffer_bytes` and then written as few large batches, one per partition and request. In a
transaction a partition is written only while the sequencer has granted the turn on it, so nothing is ever on its way
without the driver knowing; in an at-least-once write each task has a producer id of its own and no turns are needed.

The order of rows is kept within a task and partition, as Kafka's own producers keep it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, TopicPartition, refuse
from onceflow.client.offsets import persistently
from onceflow.client.producing import Producing, WriteRefused
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import TRANSACTION_OVER, Ticket
from onceflow.client.topic_limits import TopicLimits
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.spark.columns import array_of, binary_array
from onceflow.spark.encoding import Packed, Rows, header_section, pack_by_partition
from onceflow.spark.murmur2 import partitions_of
from onceflow.spark.packed_rows import unpack_rows
from onceflow.spark.positions import connected
from onceflow.spark.progress import PROGRESS_TOPIC
from onceflow.spark.sequencer import Door, TaskReport, Turns
from onceflow.spark.unfit_rows import (
    ABOUT_RECORDS,
    RowRefused,
    TooLarge,
    Unfit,
    dead_letters,
    explained,
    find_unfit,
    limits_with,
    room_in,
)
from onceflow.wire.compression import Codec
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest

__all__ = ["RESULT_SCHEMA", "RowRefused", "WritePlan", "task_writer"]

RESULT_SCHEMA: Final = "task int, attempt long, rows long, bytes long, dead_letters long, partitions string"
_RESULT_ARROW: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("attempt", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("dead_letters", pa.int64()),
        ("partitions", pa.string()),
    ]
)
Numbers = np.ndarray[Any, np.dtype[np.integer[Any]]]
_PRODUCE_MAX: Final = 12  # later versions name topics by id


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """Everything that the tasks of one write need; it travels to the executors."""

    settings: ClientSettings
    topic: str | None
    partitioning: str
    codec: Codec
    level: int | None
    batch_bytes: int
    buffer_bytes: int
    delivery_timeout_s: float
    header: tuple[str, str] | None = None
    """Name and value, for every row."""
    dead_letter_topic: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    """The most bytes that topics take, as refusals have told."""
    ticket: Ticket | None = None
    """None: at least once, each task with a producer id of its own."""
    door: Door | None = None


def task_writer(plan: WritePlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `DataFrame.mapInArrow`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.taskAttemptId()
        if plan.ticket:
            report = _in_transaction(plan, task, attempt, batches, stage=context.stageId())
        else:
            report = _alone(plan, task, batches)
        yield _result(task, attempt, report)

    return write


def _result(task: int, attempt: int, report: TaskReport) -> pa.RecordBatch:
    partitions = json.dumps(report.partitions).encode()
    columns = [
        array_of(np.array([task], dtype=np.int32)),
        *(
            array_of(np.array([number], dtype=np.int64))
            for number in (attempt, report.rows, report.bytes, report.dead_letters)
        ),
        binary_array(np.array([0, len(partitions)], dtype=np.int32), pa.py_buffer(partitions)).view(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_RESULT_ARROW)


def _in_transaction(
    plan: WritePlan, task: int, attempt: int, batches: Iterable[pa.RecordBatch], stage: int | None = None
) -> TaskReport:
    assert plan.ticket is not None
    assert plan.door is not None
    turns = Turns(plan.door, task, str(attempt), timeout_s=plan.delivery_timeout_s, stage=stage)
    try:
        producing = Producing(
            connected(plan.settings, plan.delivery_timeout_s),
            transactional_id=plan.ticket.transactional_id,
            version_max=plan.ticket.produce_version_max,
            delivery_timeout_s=plan.delivery_timeout_s,
        )
        sender = _TurnSender(producing, plan.ticket, turns)
        report = _write(plan, task, producing, sender, batches)
        turns.leave(report)
        return report
    except BaseException as problem:
        turns.fail(*_explained(problem))
        raise


def _alone(plan: WritePlan, task: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    cluster = connected(plan.settings, plan.delivery_timeout_s)
    producing = Producing(
        cluster, transactional_id=None, version_max=_PRODUCE_MAX, delivery_timeout_s=plan.delivery_timeout_s
    )
    return _write(plan, task, producing, _OwnSender(producing, cluster, plan.delivery_timeout_s), batches)


def _explained(problem: BaseException) -> tuple[str, str]:
    """What kind of failure this is, for the driver, and a sentence."""
    if isinstance(problem, WriteRefused):
        if problem.code == ErrorCode.TRANSACTION_ABORTABLE:
            return "transaction", f"{problem}: the broker asks to abort the transaction"
        if problem.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # all numbers are in order: see `sequencer.py`
            return "transaction", f"{problem}: the broker has lost what was written before, with a leader for example"
        return ("fenced", str(problem)) if problem.code in TRANSACTION_OVER else ("refused", _advice(problem))
    if isinstance(problem, TooLarge):
        return problem.kind, str(problem)
    if isinstance(problem, RowRefused | TopicMissingError):
        return "refused", str(problem)
    if isinstance(problem, OnceflowError):
        return "delivery", str(problem)
    return "task", f"{type(problem).__name__}: {problem}"


def _advice(problem: WriteRefused) -> str:
    match problem.code:
        case ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return f"{problem}. The principal needs WRITE on topic {problem.topic!r}"
        case ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return f"{problem}. The principal needs WRITE on the transactional id, which is the app id"
        case _:
            return str(problem)


# --- from rows to batches


def _write(
    plan: WritePlan, task: int, producing: Producing, sender: _Sender, batches: Iterable[pa.RecordBatch]
) -> TaskReport:
    rows = size = flushes = letters = 0
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    written: dict[str, set[int]] = defaultdict(set)

    def flush() -> None:
        nonlocal flushes, letters, size, waiting_bytes
        table = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        waiting.clear()
        waiting_bytes = 0
        for batch in table:
            packed, unfit = _packed(plan, producing, batch, task, flushes)
            letters += unfit
            size += sum(len(each.records) for several in packed.values() for each in several)
            for topic, partition in packed:
                written[topic].add(partition)
            sender.send(packed)
        flushes += 1

    for batch in unpack_rows(batches):
        if batch.num_rows:
            rows += batch.num_rows
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= plan.buffer_bytes:
                flush()
    if waiting:
        flush()
    partitions = {topic: sorted(each) for topic, each in written.items()}
    return TaskReport(rows=rows, bytes=size, partitions=partitions, dead_letters=letters)


def _packed(
    plan: WritePlan, producing: Producing, batch: pa.RecordBatch, task: int, flushes: int
) -> tuple[dict[TopicPartition, list[Packed]], int]:
    """The rows as batches, by topic and partition, and how many of them are dead letters."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    now_ms = time.time_ns() // 1_000_000
    whole = Rows(
        keys=columns.get("key"),
        values=columns["value"],
        headers=columns.get("headers"),
        every_header=None if plan.header is None else header_section(*plan.header),
        timestamps_ms=_milliseconds(columns["timestamp"], now_ms) if "timestamp" in columns else None,
    )
    topics, codes = _topics(plan, columns)
    counts = np.array(producing.partition_counts(topics))
    numbers = _partitions(plan, whole, counts if codes is None else counts[codes], task, flushes)
    if (chosen := columns.get("partition")) is not None:
        numbers = _chosen(chosen, numbers, topics, counts, codes)
    packing = _Packing(plan, now_ms)
    letters: list[Unfit] = []
    # Both in one small number: rows are put in order once, whatever the number of topics.
    widest = int(counts.max(initial=1))
    places = numbers if codes is None else codes.astype(np.int64) * widest + numbers
    found: dict[TopicPartition, list[Packed]] = defaultdict(list)
    try:
        if plan.dead_letter_topic is not None:
            limits = _limits(plan, producing, topics)
            packing.bytes_max = room_in(limits, plan.batch_bytes)
            letters = find_unfit(whole, topics, limits, codes, numbers, packing.alone, now_ms)
        fit, places = _without(letters, whole, places)
        for place, packed in packing.by_partition(fit, places):
            topic, number = (0, place) if codes is None else divmod(place, widest)
            found[topics[topic], number].append(packed)
        if letters and plan.dead_letter_topic is not None:
            [limits_there] = _limits(plan, producing, [plan.dead_letter_topic])
            lying = dead_letters(whole, letters, limits_there, plan.header)
            if limits_there.needs_keys and (lying.keys is None or lying.keys.null_count):
                raise RowRefused(
                    f"{letters[0].message}; and the dead-letter topic {plan.dead_letter_topic!r} is compacted and "
                    "takes no row without a key: set its cleanup.policy to delete"
                )
            packing.bytes_max = room_in([limits_there], plan.batch_bytes)
            [count] = producing.partition_counts([plan.dead_letter_topic])
            for number, packed in packing.by_partition(lying, _partitions(plan, lying, np.array(count), task, flushes)):
                found[plan.dead_letter_topic, number].append(packed)
    except ValueError as problem:  # what Kafka's own producer would not take either
        raise RowRefused(str(problem)) from None
    return found, len(letters)


class _Packing:
    """How rows become batches."""

    def __init__(self, plan: WritePlan, now_ms: int) -> None:
        self._codec, self._level, self._now_ms = plan.codec, plan.level, now_ms
        self.bytes_max = plan.batch_bytes

    def by_partition(self, rows: Rows, places: Numbers) -> Iterator[tuple[int, Packed]]:
        return pack_by_partition(
            rows, places, codec=self._codec, level=self._level, batch_bytes_max=self.bytes_max, now_ms=self._now_ms
        )

    def alone(self, row: Rows) -> Packed:
        """A batch of one row."""
        [(_, packed)] = self.by_partition(row, np.zeros(1, np.int64))
        return packed


def _limits(plan: WritePlan, producing: Producing, topics: list[str]) -> list[TopicLimits]:
    known = limits_with(producing.limits(topics), plan.limits)
    return [known[topic] for topic in topics]


def _without(unfit: list[Unfit], rows: Rows, places: Numbers) -> tuple[Rows, Numbers]:
    if not unfit:
        return rows, places
    kept = np.delete(np.arange(len(rows)), [each.row for each in unfit])
    return rows.take(kept), places[kept]


def _topics(plan: WritePlan, columns: Mapping[str, Any]) -> tuple[list[str], Numbers | None]:
    """The topics, and which of them each row goes to; None if there is one for all."""
    topics = columns.get("topic")
    if topics is None or plan.topic is not None:
        assert plan.topic is not None
        return [plan.topic], None
    if topics.null_count:
        raise RowRefused("a row has no topic: its column is null, and the sink has no topic= of its own")
    encoded = pc.dictionary_encode(topics)
    names = encoded.dictionary.to_pylist()
    if PROGRESS_TOPIC in names:
        raise RowRefused(f"a row goes to {PROGRESS_TOPIC}, where progress is kept")
    return names, encoded.indices.to_numpy(zero_copy_only=False)


def _partitions(plan: WritePlan, rows: Rows, counts: Numbers, task: int, flushes: int) -> Numbers:
    """The partition of each row: by Kafka's partitioner, or one for all that have no key.

    `counts`: how many partitions there are, for each row or for all.
    """
    if plan.partitioning == "task":
        return np.broadcast_to(task % counts, len(rows))
    sticky = (task + flushes) % counts
    if rows.keys is None or rows.keys.null_count == len(rows):
        return np.broadcast_to(sticky, len(rows))
    numbers = partitions_of(rows.keys, counts)
    return np.where(numbers < 0, sticky, numbers) if rows.keys.null_count else numbers


def _chosen(column: pa.Array, numbers: Numbers, topics: list[str], counts: Numbers, codes: Numbers | None) -> Numbers:
    """The partitions that the user has chosen, where one is given."""
    wanted = column.fill_null(-1).to_numpy(zero_copy_only=False)
    topic_of = np.zeros(len(wanted), np.int64) if codes is None else codes
    if len(wrong := np.flatnonzero((wanted < -1) | (wanted >= counts[topic_of]))):
        row = wrong[0]
        topic = topic_of[row]
        raise RowRefused(f"a row wants partition {wanted[row]} of {topics[topic]!r}, which has {counts[topic]}")
    return np.where(wanted >= 0, wanted, numbers)


def _milliseconds(timestamps: pa.Array, now_ms: int) -> np.ndarray[Any, Any]:
    """Spark's microseconds, cut towards the past as Spark's own sink does. A row without a timestamp is written now."""
    micros = timestamps.cast(pa.int64()).fill_null(now_ms * 1000)
    return np.asarray(micros.to_numpy(zero_copy_only=False) // 1000)


# --- from batches to brokers


class _Sender:
    """Sends batches, each partition's in order."""

    def send(self, packed: dict[TopicPartition, list[Packed]]) -> None:
        raise NotImplementedError


class _TurnSender(_Sender):
    """Into the shared transaction, a turn at a time."""

    def __init__(self, producing: Producing, ticket: Ticket, turns: Turns) -> None:
        self._producing = producing
        self._ticket = ticket
        self._turns = turns

    def send(self, packed: dict[TopicPartition, list[Packed]]) -> None:
        while packed:
            sequences = self._turns.take(list(packed))
            mine = {where: packed.pop(where) for where in sequences}
            for several in _rounds(mine):
                _send(
                    self._producing,
                    {
                        where: each.sealed(self._ticket.producer_id, self._ticket.epoch, sequences[where], True)
                        for where, each in several.items()
                    },
                )
                for where, each in several.items():
                    sequences[where] = _after(sequences[where], each.count)
                    self._turns.now_at(where, sequences[where])
        self._turns.give_back()  # others write while this task waits for rows and packs them


class _OwnSender(_Sender):
    """Idempotent, with a producer id that nobody else has."""

    def __init__(self, producing: Producing, cluster: Cluster, patience_s: float) -> None:
        self._producing = producing
        self._cluster = cluster
        self._patience_s = patience_s
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = defaultdict(int)

    def send(self, packed: dict[TopicPartition, list[Packed]]) -> None:
        if self._identity is None:
            self._identity = _new_producer(self._cluster, self._patience_s)
        producer_id, epoch = self._identity
        for several in _rounds(packed):
            _send(
                self._producing,
                {
                    where: each.sealed(producer_id, epoch, self._sequences[where], False)
                    for where, each in several.items()
                },
            )
            for where, each in several.items():
                self._sequences[where] = _after(self._sequences[where], each.count)


def _send(producing: Producing, batches: Mapping[TopicPartition, bytes]) -> None:
    try:
        producing.send(batches)
    except WriteRefused as refusal:
        if refusal.code not in ABOUT_RECORDS:
            raise
        limits = producing.limits([refusal.topic])[refusal.topic]
        raise explained(refusal, batches[refusal.topic, refusal.partition], limits) from None


def _rounds(packed: Mapping[TopicPartition, list[Packed]]) -> Iterator[dict[TopicPartition, Packed]]:
    """The first batch of each partition, then the second of each, and so on."""
    for number in range(max(map(len, packed.values()), default=0)):
        yield {where: batches[number] for where, batches in packed.items() if number < len(batches)}


def _after(sequence: int, count: int) -> int:
    """Sequences go round at 2^31."""
    return (sequence + count) & 0x7FFFFFFF


def _new_producer(cluster: Cluster, patience_s: float) -> tuple[int, int]:
    def ask() -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = cluster.any_broker().ask(request, at_most=5)
        refuse(answer.error_code, "asking for a producer id")
        return answer.producer_id, answer.producer_epoch

    return persistently(ask, patience_s)
