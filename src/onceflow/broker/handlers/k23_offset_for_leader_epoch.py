"""OffsetForLeaderEpoch (23), v2-4: where a leader epoch ended, for clients that check for truncation (KIP-320).

There is one leader and one epoch, 0, which ends at the high watermark. A newer epoch is unknown (75).
"""

from __future__ import annotations

from onceflow.broker.access import may_on_cluster, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def handle(node: Node, context: Context, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    topics = []
    for asked in request.topics:
        topic = node.topics.get(asked.topic)
        denied = ErrorCode.NONE
        if not may_on_cluster(node, context, Operation.CLUSTER_ACTION):
            denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, asked.topic)
        results = [_end_of(topic, entry, denied) for entry in asked.partitions]
        topics.append(OffsetForLeaderTopicResult(topic=asked.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def _end_of(topic: Topic | None, entry: OffsetForLeaderPartition, denied: ErrorCode) -> EpochEndOffset:
    result = EpochEndOffset(partition=entry.partition)
    if denied:
        result.error_code = denied
    elif topic is None or not 0 <= entry.partition < len(topic.partitions):
        result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif entry.current_leader_epoch > LEADER_EPOCH:
        result.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    elif entry.leader_epoch == LEADER_EPOCH:
        result.leader_epoch = LEADER_EPOCH
        result.end_offset = topic.partitions[entry.partition].log.high_watermark
    return result
