"""ListGroups (16), v0-5: all groups; v4 and newer filter by state (KIP-518), v5 by type (KIP-848)."""

from __future__ import annotations

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(node: Node, context: Context, request: ListGroupsRequest) -> ListGroupsResponse:
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.type.value,
            )
            for coordinator in node.groups.coordinators
            for group in coordinator.listed(request.states_filter, request.types_filter)
        ]
    )
