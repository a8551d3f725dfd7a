"""Metadata (3), v0-13: who leads what. Here: this node, everything.

- A topic asked for by name that does not exist is created if client and `auto.create.topics.enable` allow it. Unlike
  Apache Kafka, which answers 5 and lets the client ask again, the new topic is in the answer: it exists before we
  answer.
- No list means all topics (in v0 an empty list does). v10 and newer may ask by id (100 if there is none).
"""

from __future__ import annotations

from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_OPERATIONS: Final = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
"""Without an authorizer everybody may do everything; the bits are those of Kafka's AclOperation."""


def handle(node: Node, context: Context, request: MetadataRequest) -> MetadataResponse:
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    if wants_all:
        topics = [_describe(node, topic) for topic in node.topics]
    else:
        topics = [_find(node, asked, request.allow_auto_topic_creation) for asked in request.topics or ()]
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port)],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _find(node: Node, asked: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic:
    if asked.topic_id is not None or asked.name is None:
        topic = node.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=asked.topic_id)
        return _describe(node, topic)
    topic = node.topics.get(asked.name)
    if topic is not None:
        return _describe(node, topic)
    try:
        return _describe(node, node.auto_create(asked.name) if may_create else node.topics.named(asked.name))
    except ProtocolError as error:
        return MetadataResponseTopic(error_code=error.code, name=asked.name)
    except StorageError:
        return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=asked.name)


def _describe(node: Node, topic: Topic) -> MetadataResponseTopic:
    this = [node.node_id]
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                partition_index=partition.index,
                leader_id=node.node_id,
                leader_epoch=LEADER_EPOCH,
                replica_nodes=this,
                isr_nodes=this,
            )
            for partition in topic.partitions
        ],
    )
