"""SyncGroup (14), v0-5: the leader hands in the assignment, everybody gets its part.

- The answer waits until the assignment is on disk; it is 27 if a rebalance begins before that. In a consumer group the
  broker has assigned already.
- v5 and newer name the protocol as the member knows it, and must: 23 if it is missing or another one.
"""

from __future__ import annotations

from onceflow.broker.access import check
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_FROM_VERSION = 5


def handle(node: Node, context: Context, request: SyncGroupRequest) -> Deferred:
    ticket = Deferred()
    ticket.on_hurry = lambda: ticket.resolve(Answer(SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)))
    try:
        _check(context.version, request)
        check(node, context, Operation.READ, Resource.GROUP, request.group_id)
        coordinator = node.groups.coordinator_of(request.group_id)
    except ProtocolError as error:
        ticket.resolve(Answer(SyncGroupResponse(error_code=error.code)))
        return ticket
    node.groups.carry_out(request.group_id, coordinator.sync(request, ticket, node.clock.now_ms()))
    return ticket


def _check(version: int, request: SyncGroupRequest) -> None:
    if version >= PROTOCOL_FROM_VERSION and (request.protocol_type is None or request.protocol_name is None):
        raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID)
