"""FindCoordinator (10), v0-6: who keeps a group or a transactional id. Here: this node, always.

v4 and newer ask for many keys at once (KIP-699). Key types: 0 group, 1 transaction; 2 (share groups) is not served
(42).
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

RESOURCES: Final = {0: Resource.GROUP, 1: Resource.TRANSACTIONAL_ID}
BATCHED_FROM_VERSION: Final = 4


def handle(node: Node, context: Context, request: FindCoordinatorRequest) -> Steps:
    if context.version < BATCHED_FROM_VERSION:
        found = _find(node, context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=found.error_code, node_id=found.node_id, host=found.host, port=found.port
        )
    keys = request.coordinator_keys
    coordinators = yield from in_steps(keys, lambda key: _find(node, context, request.key_type, key))
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(node: Node, context: Context, key_type: int, key: str) -> Coordinator:
    error = ErrorCode.INVALID_REQUEST
    if key_type in RESOURCES:
        error = refusal(node, context, Operation.DESCRIBE, RESOURCES[key_type], key)
    if error:
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error)
    host, port = context.peer.address or (node.host, node.port)
    return Coordinator(key=key, node_id=node.node_id, host=host, port=port)
