"""Heartbeat (12), v0-4: a member of a classic group is alive, and wants to know whether it has to join again (27)."""

from __future__ import annotations

from onceflow.broker.access import check
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(node: Node, context: Context, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        check(node, context, Operation.READ, Resource.GROUP, request.group_id)
        if not request.group_id:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
        error = node.groups.heartbeat(request)
    except ProtocolError as refused:
        error = refused.code
    return HeartbeatResponse(error_code=error)
