"""DescribeTopicPartitions (75), v0: metadata of topics in pages (KIP-966).

Topics come in the order of their names, at most `response_partition_limit` partitions a page; the cursor says where
the next one begins. No topics named means all of them that the client may describe; one that it may not is 29, whether
it exists or not.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import is_visible, may, operations_of
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PAGE_MAX: Final = 2000


def handle(node: Node, context: Context, request: DescribeTopicPartitionsRequest) -> Steps:
    start = request.cursor
    names, denied = _names(node, context, request)
    room = max(1, min(request.response_partition_limit, PAGE_MAX))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        topic = node.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(DescribeTopicPartitionsResponseTopic(name=name, error_code=code))
            yield 1
            continue
        first = start.partition_index if start is not None and start.topic_name == name else 0
        if room == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first)
            break
        shown = topic.partitions[first : first + room]
        room -= len(shown)
        response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=name,
                topic_id=topic.id,
                is_internal=topic.is_internal,
                topic_authorized_operations=operations_of(node, context, Resource.TOPIC, name),
                partitions=[_describe(node, partition.index) for partition in shown],
            )
        )
        yield 1 + len(shown)
        if first + len(shown) < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=first + len(shown))
            break
    response.topics += [
        DescribeTopicPartitionsResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for name in denied
    ]
    return response


def _names(node: Node, context: Context, request: DescribeTopicPartitionsRequest) -> tuple[list[str], list[str]]:
    """The topics to describe from the cursor on, and those that the client asked for and may not know of."""
    first = request.cursor.topic_name if request.cursor is not None else ""
    if not request.topics:
        visible = (topic.name for topic in node.topics if is_visible(node, context, Resource.TOPIC, topic.name))
        return sorted(name for name in visible if name >= first), []
    asked = sorted({topic.name for topic in request.topics if topic.name >= first})
    allowed = {name for name in asked if may(node, context, Operation.DESCRIBE, Resource.TOPIC, name)}
    return [name for name in asked if name in allowed], [name for name in asked if name not in allowed]


def _describe(node: Node, index: int) -> DescribeTopicPartitionsResponsePartition:
    this = [node.node_id]
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=node.node_id,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=this,
        isr_nodes=this,
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
