"""Produce (0), v3-13: record batches into logs.

- One batch of magic 2 per partition; each partition has its own outcome.
- acks 0, 1 and -1. With one node 1 and -1 mean the same: on disk (`fsync`), or with the kernel (`os`). After acks=0 nothing is
  answered; an error closes the connection, which is all that such a client can notice.
- A repeat by an idempotent producer is answered like the first time, and not before that is on disk.
- v13 names topics by id (KIP-516).

Left out: transactional batches (48) until there is a transaction coordinator.
"""

from __future__ import annotations

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError, StorageError
from onceflow.log.validation import accept
from onceflow.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

ZSTD_FROM_VERSION = 7
TOPIC_IDS_FROM_VERSION = 13


def handle(node: Node, context: Context, request: ProduceRequest) -> ProduceResponse | Deferred | None:
    waiting: list[tuple[Partition, int, PartitionProduceResponse]] = []
    response = ProduceResponse()
    for data in request.topic_data:
        by_id = context.version >= TOPIC_IDS_FROM_VERSION
        topic = node.topics.by_id(data.topic_id) if by_id else node.topics.get(data.name)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        results = TopicProduceResponse(topic_id=data.topic_id, name=data.name)
        response.responses.append(results)
        for entry in data.partition_data:
            result = PartitionProduceResponse(index=entry.index, base_offset=-1)
            results.partition_responses.append(result)
            try:
                written = _append(node, context, request, topic, unknown, entry, result)
            except ProtocolError as error:
                result.error_code = error.code
                result.error_message = error.message
                if error.code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP):
                    result.record_errors.append(BatchIndexAndErrorMessage(batch_index_error_message=error.message))
            except StorageError as error:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = str(error)
            else:
                if written is not None:
                    waiting.append((*written, result))
    if request.acks == 0:
        failed = [r.error_message for t in response.responses for r in t.partition_responses if r.error_code]
        if failed:
            raise MalformedMessage(f"A produce with acks=0 failed: {failed[0]}")
        return None
    return _answer_when_durable(response, waiting) if waiting else response


def _append(
    node: Node,
    context: Context,
    request: ProduceRequest,
    topic: Topic | None,
    unknown: ErrorCode,
    entry: PartitionProduceData,
    result: PartitionProduceResponse,
) -> tuple[Partition, int] | None:
    """Append one batch and fill in its result; returns the partition and the end to wait for, if that has to be waited for."""
    if request.acks not in (-1, 0, 1):
        raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be -1, 0 or 1.")
    if topic is None or not 0 <= entry.index < len(topic.partitions):
        raise ProtocolError(unknown, "This server does not host this topic-partition.")
    if entry.records is None or not len(entry.records):
        raise ProtocolError(ErrorCode.INVALID_RECORD, "A produce request holds exactly one record batch per partition.")
    partition = topic.partitions[entry.index]
    log = partition.log
    records = entry.records
    assert isinstance(records, memoryview)
    batch, header = accept(
        records, log.config, node.clock.now_ms(), zstd_allowed=context.version >= ZSTD_FROM_VERSION
    )
    if header.is_transactional:
        raise ProtocolError(ErrorCode.INVALID_TXN_STATE, "This broker has no transaction coordinator yet.")
    appended = log.append(batch, header)
    result.base_offset = appended.base_offset
    result.log_append_time_ms = appended.append_time_ms
    result.log_start_offset = log.start_offset
    end = appended.base_offset + header.last_offset_delta + 1
    if end <= log.high_watermark:
        if not appended.repeated:
            partition.wake()
        return None
    assert node.group_commit is not None
    node.group_commit.wrote(partition)
    return partition, end


def _answer_when_durable(
    response: ProduceResponse, waiting: list[tuple[Partition, int, PartitionProduceResponse]]
) -> Deferred:
    """An answer for when every partition has its batch on disk, or has failed to."""
    deferred = Deferred()
    left = len(waiting)

    def settle(result: PartitionProduceResponse, error: ErrorCode) -> None:
        nonlocal left
        if error:
            result.error_code = error
            result.base_offset = -1
            result.error_message = "The write could not be brought to disk; it was taken back."
        left -= 1
        if left == 0:
            deferred.resolve(Answer(response))

    for partition, end, result in waiting:
        partition.when_durable(end, lambda error, result=result: settle(result, error))  # type: ignore[misc]
    return deferred
