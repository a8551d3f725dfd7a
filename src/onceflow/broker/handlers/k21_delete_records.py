"""DeleteRecords (21), v0-2: the log of a partition starts later; whole segments before that are freed.

Offset -1 means everything up to the high watermark; beyond it is 1.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK: Final = -1


def handle(node: Node, context: Context, request: DeleteRecordsRequest) -> Steps:
    topics = []
    for asked in request.topics:
        topic = node.topics.get(asked.name)
        denied = refusal(node, context, Operation.DELETE, Resource.TOPIC, asked.name)
        results = yield from in_steps(asked.partitions, partial(_delete, topic, denied))
        topics.append(DeleteRecordsTopicResult(name=asked.name, partitions=results))
        yield 1
    return DeleteRecordsResponse(topics=topics)


def _delete(topic: Topic | None, denied: ErrorCode, entry: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=entry.partition_index, low_watermark=-1)
    try:
        if denied:
            raise ProtocolError(denied)
        if topic is None or not 0 <= entry.partition_index < len(topic.partitions):
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topic.check_not_internal()
        log = topic.partitions[entry.partition_index].log
        if not log.config.delete:
            raise ProtocolError(
                ErrorCode.POLICY_VIOLATION, "Records of a topic that is only compacted are not deleted."
            )
        offset = log.high_watermark if entry.offset == HIGH_WATERMARK else entry.offset
        if offset < 0:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_before(offset)
        result.low_watermark = log.start_offset
    except ProtocolError as error:
        result.error_code = error.code
    except StorageError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result
