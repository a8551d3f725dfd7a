"""ListGroups (16), v0-5: all groups; v4 and newer filter by state (KIP-518), v5 by type (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.broker.access import is_visible, may_on_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.group.base import Group
from onceflow.group.coordinator import is_listed, names
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from onceflow.wire.schema import Message


def handle(node: Node, context: Context, request: ListGroupsRequest) -> Steps:
    seen = tuple(node.groups.coordinators)
    all_visible = may_on_cluster(node, context, Operation.DESCRIBE)
    states, types = names(request.states_filter), names(request.types_filter)
    groups = []
    for coordinator in seen:
        for group in tuple(coordinator.groups.values()):
            yield 1
            if not is_listed(group, states, types):
                continue
            if all_visible or is_visible(node, context, Resource.GROUP, group.id):
                groups.append(_listed(group))

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        error = min(errors.values(), default=ErrorCode.NONE)
        if not error and not node.groups.are_still(seen):
            error = ErrorCode.NOT_COORDINATOR
        return ListGroupsResponse(error_code=error) if error else ListGroupsResponse(groups=groups)

    return node.groups.answer_from(set(range(len(seen))), finish)


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.id,
        protocol_type=group.protocol_type,
        group_state=group.state_name,
        group_type=group.type.value,
    )
