"""LeaveGroup (13), v0-5: members go, and the others are rebalanced at once instead of after a timeout.

v3 and newer name many members, static ones also by instance id alone, which is how an administrator removes them; each
gets its own error. The answer comes when what it says is on disk; if the disk refuses it is 16 or 15, and a member of a
consumer group is still one.
"""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.deferred import Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.coordinator import Coordinator
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from onceflow.wire.schema import Message

MANY_MEMBERS_FROM_VERSION = 3


def handle(node: Node, context: Context, request: LeaveGroupRequest) -> Message | Deferred:
    denied = refusal(node, context, Operation.READ, Resource.GROUP, request.group_id)
    if denied:
        return _refusal(denied)
    if not request.group_id:
        return _refusal(ErrorCode.INVALID_GROUP_ID)
    names_many = context.version >= MANY_MEMBERS_FROM_VERSION
    if not names_many:
        request.members = [MemberIdentity(member_id=request.member_id)]
    try:
        index = node.groups.index_of(request.group_id)
        members = _leave(node, node.groups.coordinators[index], request)
    except ProtocolError as error:
        return _refusal(error.code)
    code = ErrorCode.NONE if names_many else members[0].error_code
    return node.groups.answer(index, LeaveGroupResponse(error_code=code, members=members), _refusal)


def _leave(node: Node, coordinator: Coordinator, request: LeaveGroupRequest) -> list[MemberResponse]:
    try:
        members, effects = coordinator.leave(request, node.clock.now_ms())
    except ProtocolError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        return [_unknown(identity) for identity in request.members]
    refused = node.groups.carry_out(request.group_id, effects)
    if refused:
        raise ProtocolError(refused)
    return members


def _refusal(error: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error)


def _unknown(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
    )
