"""LeaveGroup (13), v0-5: members go, and the others are rebalanced at once instead of after a timeout.

v3 and newer name many members, static ones also by instance id alone, which is how an administrator removes them; each
gets its own error.
"""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

MANY_MEMBERS_FROM_VERSION = 3


def handle(node: Node, context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    denied = refusal(node, context, Operation.READ, Resource.GROUP, request.group_id)
    if denied:
        return LeaveGroupResponse(error_code=denied)
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if context.version < MANY_MEMBERS_FROM_VERSION:
        request.members = [MemberIdentity(member_id=request.member_id)]
    answer = _leave(node, request)
    if context.version < MANY_MEMBERS_FROM_VERSION and not answer.error_code:
        answer.error_code = answer.members[0].error_code
    return answer


def _leave(node: Node, request: LeaveGroupRequest) -> LeaveGroupResponse:
    try:
        members, effects = node.groups.coordinator_of(request.group_id).leave(request, node.clock.now_ms())
    except ProtocolError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            return LeaveGroupResponse(error_code=error.code)
        return LeaveGroupResponse(members=[_unknown(identity) for identity in request.members])
    node.groups.carry_out(request.group_id, effects)
    return LeaveGroupResponse(members=members)


def _unknown(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
    )
