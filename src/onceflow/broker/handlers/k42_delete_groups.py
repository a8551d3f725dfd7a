"""DeleteGroups (42), v0-2: groups without members, with their offsets. 68 for one in use, 69 for one nobody knows."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.broker.access import check
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from onceflow.wire.schema import Message


def handle(node: Node, context: Context, request: DeleteGroupsRequest) -> Steps:
    results = [DeletableGroupResult(group_id=group_id) for group_id in dict.fromkeys(request.groups_names)]
    indexes: dict[int, int] = {}
    for at, result in enumerate(results):
        try:
            check(node, context, Operation.DELETE, Resource.GROUP, result.group_id)
            index = node.groups.index_of(result.group_id)
            node.groups.write(index, node.groups.coordinators[index].delete_group(result.group_id))
            indexes[at] = index
        except ProtocolError as error:
            result.error_code = error.code
        yield 1

    def finish(errors: Mapping[int, ErrorCode]) -> Message:
        for at, index in indexes.items():
            results[at].error_code = errors.get(index, ErrorCode.NONE)
        return DeleteGroupsResponse(results=results)

    return node.groups.answer_from(set(indexes.values()), finish)
