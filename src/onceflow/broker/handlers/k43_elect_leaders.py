"""ElectLeaders (43), v0-2: have the preferred replica lead, or any replica (KIP-183, KIP-460).

This node leads every partition and is its only replica, so no election is ever needed (84). No list means all
partitions; then only those would be named that got another leader, and Apache Kafka names their topics all the same.
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED: Final = 0
UNCLEAN: Final = 1


def handle(node: Node, context: Context, request: ElectLeadersRequest) -> Steps:
    error, message = refusal(node, context, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME), None
    if not error and request.election_type not in (PREFERRED, UNCLEAN):
        error, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}."
    results = []
    if request.topic_partitions is not None:
        for asked in request.topic_partitions:
            partitions = []
            for index in asked.partitions:
                code, reason = (error, message) if error else _outcome(node, asked.topic, index)
                partitions.append(PartitionResult(partition_id=index, error_code=code, error_message=reason))
                yield 1
            results.append(ReplicaElectionResult(topic=asked.topic, partition_result=partitions))
            yield 1
    elif not error:
        for topic in tuple(node.topics):
            results.append(ReplicaElectionResult(topic=topic.name))
            yield 1
    return ElectLeadersResponse(error_code=error, replica_election_results=results)


def _outcome(node: Node, topic: str, index: int) -> tuple[ErrorCode, str]:
    if node.topics.partition(topic, index) is None:
        what = f"topic as {topic}" if node.topics.get(topic) is None else f"partition as {topic}-{index}"
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {what}"
    return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
