"""DescribeGroups (15), v0-6: classic groups, their state, their members and what these were assigned.

A group that does not exist, or is a consumer group (those have an API of their own), is Dead; v6 and newer add error
69. What members said when they joined is shown only of a stable group.
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.broker.access import operations_of, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, elements_of
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic import ClassicGroup
from onceflow.group.states import ClassicState
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from onceflow.wire.schema import Message

NOT_FOUND_FROM_VERSION = 6


def handle(node: Node, context: Context, request: DescribeGroupsRequest) -> Steps:
    seen = tuple(node.groups.coordinators)
    described = []
    for group_id in request.groups:
        group = _describe(node, context, group_id)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations_of(node, context, Resource.GROUP, group_id)
        described.append(group)
        said = sum([len(member.member_metadata) + len(member.member_assignment) for member in group.members])
        yield 1 + len(group.members) + elements_of(said)

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        error = min(errors.values(), default=ErrorCode.NONE)
        if not error and not node.groups.are_still(seen):
            error = ErrorCode.NOT_COORDINATOR
        shown = [_taken_back(group_id, error) for group_id in request.groups] if error else described
        return DescribeGroupsResponse(groups=shown)

    return node.groups.answer_from(set(range(len(node.groups.coordinators))), finish)


def _taken_back(group_id: str, error: ErrorCode) -> DescribedGroup:
    """What was seen of a group may never have been."""
    return DescribedGroup(group_id=group_id, error_code=error)


def _describe(node: Node, context: Context, group_id: str) -> DescribedGroup:
    denied = refusal(node, context, Operation.DESCRIBE, Resource.GROUP, group_id)
    if denied:
        return DescribedGroup(group_id=group_id, error_code=denied)
    try:
        group = node.groups.coordinator_of(group_id).classic(group_id)
    except ProtocolError as error:
        described = DescribedGroup(group_id=group_id, group_state=ClassicState.DEAD.value)
        if context.version >= NOT_FOUND_FROM_VERSION or error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            described.error_code, described.error_message = error.code, error.message
        return described
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol or "") if group.state is ClassicState.STABLE else "",
        members=_members(group),
    )


def _members(group: ClassicGroup) -> list[DescribedGroupMember]:
    protocol = group.protocol if group.state is ClassicState.STABLE else None
    return [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client.id,
            client_host=member.client.host,
            member_metadata=member.metadata(protocol) if protocol is not None else b"",
            member_assignment=member.assignment,
        )
        for member in group.members
    ]
