"""AlterPartitionReassignments (45), v0-1: give partitions other replicas, or stop doing that (KIP-455).

There is this node and no other. So what can be asked for is how it is, which is a success; any other list of replicas
is 39, and there is never a reassignment to cancel (85).
"""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(node: Node, context: Context, request: AlterPartitionReassignmentsRequest) -> Steps:
    denied = refusal(node, context, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
    responses = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            code, message = (denied, None) if denied else _outcome(node, topic.name, asked)
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=code, error_message=message
                )
            )
            yield 1
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
        yield 1
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_code=denied, responses=responses
    )


def _outcome(node: Node, topic: str, asked: ReassignablePartition) -> tuple[ErrorCode, str | None]:
    if node.topics.partition(topic, asked.partition_index) is None:
        what = f"topic {topic}" if node.topics.get(topic) is None else f"partition {topic}-{asked.partition_index}"
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {what}."
    if asked.replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
    reason = _why_not(node.node_id, asked.replicas)
    return (ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason) if reason else (ErrorCode.NONE, None)


def _why_not(node_id: int, replicas: Sequence[int]) -> str | None:
    if not replicas:
        return "The list of replicas is empty."
    stranger = next((broker for broker in replicas if broker != node_id), None)
    if stranger is not None:
        return f"The only broker here is {node_id}; there is no broker {stranger}."
    return f"Broker {node_id} is named more than once." if len(replicas) > 1 else None
