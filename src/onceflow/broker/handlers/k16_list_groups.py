"""ListGroups (16), v0-5: all groups; v4 and newer filter by state (KIP-518), v5 by type (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.broker.access import is_visible, may_on_cluster
from onceflow.broker.deferred import Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from onceflow.wire.schema import Message


def handle(node: Node, context: Context, request: ListGroupsRequest) -> Message | Deferred:
    coordinators = node.groups.coordinators
    all_visible = may_on_cluster(node, context, Operation.DESCRIBE)
    groups = [
        ListedGroup(
            group_id=group.id,
            protocol_type=group.protocol_type,
            group_state=group.state_name,
            group_type=group.type.value,
        )
        for coordinator in coordinators
        for group in coordinator.listed(request.states_filter, request.types_filter)
        if all_visible or is_visible(node, context, Resource.GROUP, group.id)
    ]

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        return ListGroupsResponse(error_code=min(errors.values())) if errors else ListGroupsResponse(groups=groups)

    return node.groups.answer_from(set(range(len(coordinators))), finish)
