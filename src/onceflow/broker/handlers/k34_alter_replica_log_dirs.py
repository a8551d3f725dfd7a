"""AlterReplicaLogDirs (34), v1-2: partitions are to move to another directory of this broker (KIP-113).

There is one directory, as DescribeLogDirs names it: whoever names it has what is asked for, any other one is 57. A
partition that is named twice is to be where it is named last, as in Apache Kafka.
"""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(node: Node, context: Context, request: AlterReplicaLogDirsRequest) -> Steps:
    denied = refusal(node, context, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME)
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            paths = wanted.setdefault(topic.name, {})
            for index in topic.partitions:
                paths[index] = directory.path
            yield 0
    results = []
    for name, paths in wanted.items():
        partitions = []
        for index, path in paths.items():
            code = denied or _outcome(node, name, index, path)
            partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
            yield 1
        results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
        yield 1
    return AlterReplicaLogDirsResponse(results=results)


def _outcome(node: Node, topic: str, index: int, path: str) -> ErrorCode:
    if path != str(node.directory):
        return ErrorCode.LOG_DIR_NOT_FOUND
    if node.topics.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE
