"""DeleteGroups (42), v0-2: groups without members, with their offsets. 68 for one in use, 69 for one nobody knows."""

from __future__ import annotations

from functools import partial

from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def handle(node: Node, context: Context, request: DeleteGroupsRequest) -> Deferred:
    results = [DeletableGroupResult(group_id=group_id) for group_id in dict.fromkeys(request.groups_names)]
    deferred = Deferred()
    left = len(results)

    def done(result: DeletableGroupResult, error: ErrorCode) -> None:
        nonlocal left
        left -= 1
        result.error_code = error
        if not left:
            deferred.resolve(Answer(DeleteGroupsResponse(results=results)))

    for result in results:
        try:
            index = node.groups.index_of(result.group_id)
            node.groups.write(index, node.groups.coordinators[index].delete_group(result.group_id))
        except ProtocolError as error:
            done(result, error.code)
        else:
            node.groups.log.when_durable(index, partial(done, result))
    if not results:
        deferred.resolve(Answer(DeleteGroupsResponse()))
    return deferred
