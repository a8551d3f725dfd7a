"""OffsetForLeaderEpoch (23), v2-4: where a leader epoch ended, for clients that check for truncation (KIP-320).

There is one leader and one epoch, 0, which ends at the high watermark. A newer epoch is unknown (75).
"""

from __future__ import annotations

from functools import partial

from onceflow.broker.access import may_on_cluster, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
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


def handle(node: Node, context: Context, request: OffsetForLeaderEpochRequest) -> Steps:
    topics = []
    for asked in request.topics:
        topic = node.topics.get(asked.topic)
        denied = ErrorCode.NONE
        if not may_on_cluster(node, context, Operation.CLUSTER_ACTION):
            denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, asked.topic)
        results = yield from in_steps(asked.partitions, partial(_end_of, topic, denied))
        topics.append(OffsetForLeaderTopicResult(topic=asked.topic, partitions=results))
        yield 1
    return OffsetForLeaderEpochResponse(topics=topics)


def _end_of(topic: Topic | None, denied: ErrorCode, entry: OffsetForLeaderPartition) -> EpochEndOffset:
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
