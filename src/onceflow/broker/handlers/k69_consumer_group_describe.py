"""ConsumerGroupDescribe (69), v0-1: consumer groups, their members, what each has and is to have (KIP-848).

A group that does not exist, or is a classic one, is 69; that is how a client learns to ask DescribeGroups. v1 says of
a member that it uses the consumer protocol, as all do here.
"""

from __future__ import annotations

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(node: Node, context: Context, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_describe(node, group_id) for group_id in request.group_ids])


def _describe(node: Node, group_id: str) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        return node.groups.consumers[node.groups.index_of(group_id)].describe(group_id)
    except ProtocolError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
