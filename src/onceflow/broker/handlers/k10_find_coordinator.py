"""FindCoordinator (10), v0-6: who keeps a group or a transactional id. Here: this node, always.

v4 and newer ask for many keys at once (KIP-699). Key types: 0 group, 1 transaction; 2 (share groups) is not served
(42).
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KNOWN_TYPES: Final = (0, 1)
BATCHED_FROM_VERSION: Final = 4


def handle(node: Node, context: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    known = request.key_type in KNOWN_TYPES
    error = ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST
    node_id, host, port = (node.node_id, node.host, node.port) if known else (-1, "", -1)
    if context.version < BATCHED_FROM_VERSION:
        return FindCoordinatorResponse(error_code=error, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error)
            for key in request.coordinator_keys
        ]
    )
