"""DescribeProducers (61), v0: who has written to a partition lately, with which epoch and sequence (KIP-664)."""

from __future__ import annotations

from onceflow.broker.access import refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def handle(node: Node, context: Context, request: DescribeProducersRequest) -> Steps:
    topics = []
    for asked in request.topics:
        topic = node.topics.get(asked.name)
        denied = refusal(node, context, Operation.READ, Resource.TOPIC, asked.name)
        partitions = []
        for index in asked.partition_indexes:
            partitions.append(_describe(topic, index, denied))
            yield 1 + len(partitions[-1].active_producers)
        topics.append(TopicResponse(name=asked.name, partitions=partitions))
        yield 1
    return DescribeProducersResponse(topics=topics)


def _describe(topic: Topic | None, index: int, denied: ErrorCode) -> PartitionResponse:
    if denied:
        return PartitionResponse(partition_index=index, error_code=denied)
    if topic is None or not 0 <= index < len(topic.partitions):
        return PartitionResponse(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_first_offset,
            )
            for producer_id, producer in topic.partitions[index].log.producers
        ],
    )
