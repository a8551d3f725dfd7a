"""ConsumerGroupHeartbeat (68), v0-1: all that a member of a consumer group says and hears (KIP-848).

- Epoch 0 joins, -1 leaves, -2 is a static member that will be back; any other must be the member's own, or the one
  before it if the last answer was lost.
- The broker shares out the partitions (`uniform`, `range`). A member is given a partition when its last owner has let
  go of it, and told to give partitions back by leaving them out.
- v0 hands out member ids, in v1 clients make them (KIP-1082). v1 also subscribes by regular expression.
- The answer comes when the group's change is on disk.
- With `group.version` 0 all of it is 35.
- Access: all topics that are subscribed to by name must be visible to the client (29). An expression finds those that
  are visible to the member whose heartbeat has it matched with the topics anew.

- A classic group with members becomes a consumer group when somebody joins it here, and a consumer group of which only
  classic members are left becomes a classic one, if `group.consumer.migration.policy` allows it; else 69.

Left out: racks have no influence.
"""

from __future__ import annotations

from onceflow.broker.access import check, is_visible
from onceflow.broker.consumer_groups import heartbeat, resolve
from onceflow.broker.deferred import Deferred
from onceflow.broker.features import GROUP_VERSION
from onceflow.broker.groups import client_of
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.wire.schema import Message


def handle(node: Node, context: Context, request: ConsumerGroupHeartbeatRequest) -> Message | Deferred | Steps:
    now_ms = node.clock.now_ms()
    try:
        check_protocol(node)
        check(node, context, Operation.READ, Resource.GROUP, request.group_id)
        for name in dict.fromkeys(request.subscribed_topic_names or ()):
            check(node, context, Operation.DESCRIBE, Resource.TOPIC, name)
        index, answer, unresolved = heartbeat(node.groups, request, context.version, client_of(context), now_ms)
    except ProtocolError as error:
        return _refusal(error.code, error.message)
    if unresolved:
        return _resolving(node, context, index, request.group_id, unresolved, answer)
    return node.groups.answer(index, answer, _refusal)


def _resolving(
    node: Node,
    context: Context,
    index: int,
    group_id: str,
    unresolved: frozenset[str],
    answer: ConsumerGroupHeartbeatResponse,
) -> Steps:
    def visible(name: str) -> bool:
        return is_visible(node, context, Resource.TOPIC, name)

    yield from resolve(node.groups, index, group_id, unresolved, node.clock.now_ms(), visible)
    return node.groups.answer(index, answer, _refusal)


def check_protocol(node: Node) -> None:
    if not node.features.levels[GROUP_VERSION]:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION, f"{GROUP_VERSION} is 0: consumer groups of KIP-848 are switched off."
        )


def _refusal(error: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
