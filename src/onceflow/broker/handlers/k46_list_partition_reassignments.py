"""ListPartitionReassignments (46), v0: none is ever in progress, with one broker (KIP-455)."""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    node: Node, context: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    denied = refusal(node, context, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    return ListPartitionReassignmentsResponse(error_code=denied)
