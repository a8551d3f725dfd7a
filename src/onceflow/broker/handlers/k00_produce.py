"""Produce (0), v3-13: record batches into logs.

- One batch of magic 2 per partition; each partition has its own outcome.
- acks 0, 1 and -1. With one node 1 and -1 mean the same: on disk (`fsync`), or with the kernel (`os`). After acks=0
  nothing is answered; an error closes the connection, which is all that such a client can notice.
- A repeat by an idempotent producer is answered like the first time, and not before that is on disk.
- v13 names topics by id (KIP-516).

This is the hot path: current versions are read and answered by hand (`wire.produce`), and nothing here looks at a
record.

Left out: transactional batches (48) until there is a transaction coordinator.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.validation import accept
from onceflow.wire.codec import decode_from
from onceflow.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from onceflow.wire.produce import (
    BY_HAND_FROM_VERSION,
    TOPIC_IDS_FROM_VERSION,
    Batch,
    ProduceBody,
    TopicKey,
    Written,
    encode_success,
    read_produce,
)

ZSTD_FROM_VERSION: Final = 7
RECORD_ERRORS: Final = (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)

Failure = tuple[int, ErrorCode, str | None]
"""A partition index, and why its batch was not written."""


def handle_frame(node: Node, context: Context, frame: memoryview, body_at: int) -> Answer | Deferred | None:
    version = context.version
    body = (
        read_produce(frame, body_at, version) if version >= BY_HAND_FROM_VERSION else _read_old(frame, body_at, version)
    )
    outcome = _Outcome(version)
    for key, batches in body.topics:
        topic = node.topics.find(key)
        results: list[Written | Failure] = []
        outcome.topics.append((key, results))
        for batch in batches:
            try:
                results.append(_append(node, version, body.acks, topic, batch, outcome, len(results)))
            except ProtocolError as error:
                outcome.failed = True
                results.append((batch[0], error.code, error.message))
            except StorageError as error:
                outcome.failed = True
                results.append((batch[0], ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
    if body.acks == 0:
        if outcome.failed:
            raise MalformedMessage("A produce with acks=0 failed; closing is all that its client can notice.")
        return None
    if outcome.waiting:
        return outcome.when_durable()
    return Answer(outcome.encode())


def _append(
    node: Node, version: int, acks: int, topic: Topic | None, batch: Batch, outcome: _Outcome, at: int
) -> Written:
    """Append one batch; `outcome` remembers if it has to be waited for."""
    index, records = batch
    if not -1 <= acks <= 1:
        raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it must be -1, 0 or 1.")
    if topic is None or not 0 <= index < len(topic.partitions):
        by_id = topic is None and version >= TOPIC_IDS_FROM_VERSION
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise ProtocolError(code, "This server does not host this topic-partition.")
    partition = topic.partitions[index]
    log = partition.log
    now_ms = node.clock.now_ms()
    records, header = accept(records, log.config, now_ms, zstd_allowed=version >= ZSTD_FROM_VERSION)
    if header.is_transactional:
        raise ProtocolError(ErrorCode.INVALID_TXN_STATE, "This broker has no transaction coordinator yet.")
    appended = log.append(records, header, now_ms)
    base_offset = appended.base_offset
    end = base_offset + header.last_offset_delta + 1
    if end > log.high_watermark:
        outcome.waiting.append((partition, end, len(outcome.topics) - 1, at))
        assert node.group_commit is not None
        node.group_commit.wrote(partition)
    elif partition.fetchers:
        partition.wake()
    return index, base_offset, appended.append_time_ms, log.start_offset


class _Outcome:
    """What became of each batch of a request, in the order of the request."""

    __slots__ = ("_left", "_version", "failed", "topics", "waiting")

    def __init__(self, version: int) -> None:
        self._version = version
        self._left = 0
        self.failed = False
        self.topics: list[tuple[TopicKey, list[Written | Failure]]] = []
        self.waiting: list[tuple[Partition, int, int, int]] = []
        """(partition, offset that must be durable, topic in `topics`, result in its list)"""

    def when_durable(self) -> Deferred:
        """An answer for when every batch is on disk, or has failed to get there."""
        deferred = Deferred()
        self._left = len(self.waiting)
        for partition, end, topic, at in self.waiting:
            partition.when_durable(end, partial(self._settle, deferred, topic, at))
        return deferred

    def _settle(self, deferred: Deferred, topic: int, at: int, error: ErrorCode) -> None:
        if error:
            results = self.topics[topic][1]
            results[at] = (results[at][0], error, "The write could not be brought to disk and was taken back.")
            self.failed = True
        self._left -= 1
        if self._left == 0:
            deferred.resolve(Answer(self.encode()))

    def encode(self) -> bytes | ProduceResponse:
        if not self.failed and self._version >= BY_HAND_FROM_VERSION:
            return encode_success(self.topics, self._version)  # type: ignore[arg-type]  # nothing failed
        return ProduceResponse(responses=[_topic_response(key, results) for key, results in self.topics])


def _topic_response(key: TopicKey, results: list[Written | Failure]) -> TopicProduceResponse:
    response = TopicProduceResponse(partition_responses=[_partition_response(result) for result in results])
    if isinstance(key, str):
        response.name = key
    else:
        response.topic_id = UUID(bytes=key)
    return response


def _partition_response(result: Written | Failure) -> PartitionProduceResponse:
    if len(result) == 4:
        index, base_offset, append_time_ms, log_start = result
        return PartitionProduceResponse(
            index=index, base_offset=base_offset, log_append_time_ms=append_time_ms, log_start_offset=log_start
        )
    index, code, message = result
    response = PartitionProduceResponse(index=index, error_code=code, base_offset=-1, error_message=message)
    if code in RECORD_ERRORS:
        response.record_errors = [BatchIndexAndErrorMessage(batch_index_error_message=message)]
    return response


def _read_old(frame: memoryview, body_at: int, version: int) -> ProduceBody:
    request, _ = decode_from(ProduceRequest, version, frame, body_at)
    topics: list[tuple[TopicKey, list[Batch]]] = [
        (topic.name, [(data.index, memoryview(data.records or b"")) for data in topic.partition_data])
        for topic in request.topic_data
    ]
    return ProduceBody(request.transactional_id, request.acks, request.timeout_ms, topics)
