"""OffsetDelete (47), v0: forget how far a group has read in some partitions (KIP-496).

86 for a topic that a member subscribes to, 68 for a group with members of which we cannot know that, 69 for a group
that does not exist. What was never committed is deleted with success. What makes an error of the whole answer may have
come after some topics: who asks again finds these deleted.
"""

from __future__ import annotations

from onceflow.broker.access import check, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.base import Group
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


def handle(node: Node, context: Context, request: OffsetDeleteRequest) -> Steps:
    try:
        check(node, context, Operation.DELETE, Resource.GROUP, request.group_id)
        if not request.group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        index = node.groups.index_of(request.group_id)
        answers = []
        for topic in request.topics:
            coordinator = node.groups.coordinators[index]
            group = coordinator.known(request.group_id)
            group.check_offset_delete()
            answer = _answer_for(node, context, group, topic)
            allowed = {(topic.name, each.partition_index): None for each in answer.partitions if not each.error_code}
            node.groups.write(index, coordinator.delete_offsets(request.group_id, allowed))
            answers.append(answer)
            yield 1 + len(answer.partitions)
    except ProtocolError as error:
        return _refusal(error.code)
    return node.groups.answer(index, OffsetDeleteResponse(topics=answers), _refusal)


def _answer_for(
    node: Node, context: Context, group: Group, asked: OffsetDeleteRequestTopic
) -> OffsetDeleteResponseTopic:
    topic = node.topics.get(asked.name)
    answer = OffsetDeleteResponseTopic(name=asked.name)
    denied = refusal(node, context, Operation.READ, Resource.TOPIC, asked.name)
    for partition in asked.partitions:
        error = ErrorCode.NONE
        if denied:
            error = denied
        elif topic is None or not 0 <= partition.partition_index < len(topic.partitions):
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif group.is_subscribed(asked.name):
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        answer.partitions.append(
            OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=error)
        )
    return answer


def _refusal(error: ErrorCode) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error)
