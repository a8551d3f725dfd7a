"""DescribeLogDirs (35), v1-4: how many bytes each partition has on disk, and how much room there is (KIP-827)."""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.wire.acls import CLUSTER_NAME, Operation, Resource
from onceflow.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(node: Node, context: Context, request: DescribeLogDirsRequest) -> Steps:
    denied = refusal(node, context, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME)
    if denied:
        return DescribeLogDirsResponse(error_code=denied)
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics = []
    for topic in tuple(node.topics):
        partitions = [
            DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size)
            for partition in topic.partitions
            if wanted is None or (topic.name, partition.index) in wanted
        ]
        if partitions:
            topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
        yield len(partitions)
    total, usable = node.files.usage(node.directory)
    directory = DescribeLogDirsResult(
        log_dir=str(node.directory), topics=topics, total_bytes=total, usable_bytes=usable
    )
    return DescribeLogDirsResponse(results=[directory])
