"""ConsumerGroupDescribe (69), v0-1: consumer groups, their members, what each has and is to have (KIP-848).

A group that does not exist, or is a classic one, is 69; that is how a client learns to ask DescribeGroups. v1 says of
a member which protocol it uses. A group that is assigned a topic which the client may not know of is 29 as a whole.
With `group.version` 0 every group is 35.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.broker.access import check, may, operations_of
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k68_consumer_group_heartbeat import check_protocol
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from onceflow.wire.schema import Message


def handle(node: Node, context: Context, request: ConsumerGroupDescribeRequest) -> Steps:
    seen = tuple(node.groups.coordinators)
    described = []
    for group_id in request.group_ids:
        group = _describe(node, context, group_id)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations_of(node, context, Resource.GROUP, group_id)
        described.append(group)
        yield 1 + sum(_size(member) for member in group.members)
    # What was described may have been written a moment ago: nobody is told before it is on disk.
    indexes = {at: node.groups.index_of(group.group_id) for at, group in enumerate(described) if not group.error_code}

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        taken_back = ErrorCode.NONE if node.groups.are_still(seen) else ErrorCode.NOT_COORDINATOR
        for at, index in indexes.items():
            error = errors.get(index, taken_back)
            if error:
                described[at] = DescribedGroup(group_id=described[at].group_id, error_code=error)
        return ConsumerGroupDescribeResponse(groups=described)

    return node.groups.answer_from(set(indexes.values()), finish)


def _size(member: Member) -> int:
    """In elements of the answer."""
    topics = [*member.assignment.topic_partitions, *member.target_assignment.topic_partitions]
    return 1 + len(member.subscribed_topic_names) + sum([1 + len(topic.partitions) for topic in topics])


def _describe(node: Node, context: Context, group_id: str) -> DescribedGroup:
    try:
        check_protocol(node)
        check(node, context, Operation.DESCRIBE, Resource.GROUP, group_id)
        if not group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        described = node.groups.consumers[node.groups.index_of(group_id)].describe(group_id)
        if not all(may(node, context, Operation.DESCRIBE, Resource.TOPIC, name) for name in sorted(_topics(described))):
            # Which one, is what the client may not know.
            why = "Its members read a topic that you may not describe."
            raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
        return described
    except ProtocolError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)


def _topics(described: DescribedGroup) -> set[str]:
    return {
        assigned.topic_name
        for member in described.members
        for assignment in (member.assignment, member.target_assignment)
        for assigned in assignment.topic_partitions
    }
