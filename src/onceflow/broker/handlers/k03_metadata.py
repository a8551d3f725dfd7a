"""Metadata (3), v0-13: who leads what. Here: this node, everything.

- A topic asked for by name that does not exist is created if client and `auto.create.topics.enable` allow it. Unlike
  Apache Kafka, which answers 5 and lets the client ask again, the new topic is in the answer: it exists before we
  answer.
- Access: a topic that the client may not describe is 29, whether it exists or not, and left out of a list of all. Its
  name is not told to who asks by id.
- No list means all topics (in v0 an empty list does). v10 and newer may ask by id (100 if there is none).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from onceflow.broker.access import check, cluster_operations, is_visible, may_on_cluster, operations_of, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def handle(node: Node, context: Context, request: MetadataRequest) -> Steps:
    topics = []
    for topic in _topics(node, context, request):
        if topic is None:
            yield 0
            continue
        if request.include_topic_authorized_operations and topic.name is not None and topic.error_code != DENIED:
            topic.topic_authorized_operations = operations_of(node, context, Resource.TOPIC, topic.name)
        topics.append(topic)
        yield 1 + len(topic.partitions)
    host, port = context.peer.address or (node.host, node.port)
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node.node_id, host=host, port=port)],
        cluster_id=node.cluster_id,
        controller_id=node.node_id,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(node, context)
    return response


def _topics(node: Node, context: Context, request: MetadataRequest) -> Iterator[MetadataResponseTopic | None]:
    """None for one of all that the client may not know of."""
    if request.topics is None or (context.version == 0 and not request.topics):
        for topic in tuple(node.topics):
            yield _describe(node, topic) if is_visible(node, context, Resource.TOPIC, topic.name) else None
        return
    # Each once, however often it is named, as Kafka does.
    for name, topic_id in dict.fromkeys((asked.name, asked.topic_id) for asked in request.topics):
        yield _find(node, context, name, topic_id, request.allow_auto_topic_creation)


def _find(
    node: Node, context: Context, name: str | None, topic_id: UUID | None, may_create: bool
) -> MetadataResponseTopic:
    if topic_id is not None or name is None:
        topic = node.topics.by_id(topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id)
        denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        if denied:
            return MetadataResponseTopic(error_code=denied, topic_id=topic_id, name=None)
        return _describe(node, topic)
    try:
        check(node, context, Operation.DESCRIBE, Resource.TOPIC, name)
        topic = node.topics.get(name)
        if topic is None:
            topic = _create(node, context, name) if may_create else node.topics.named(name)
        return _describe(node, topic)
    except ProtocolError as error:
        return MetadataResponseTopic(error_code=error.code, name=name)
    except StorageError:
        return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=name)


def _create(node: Node, context: Context, name: str) -> Topic:
    if node.config["auto.create.topics.enable"] and not may_on_cluster(node, context, Operation.CREATE):
        check(node, context, Operation.CREATE, Resource.TOPIC, name)
    return node.auto_create(name)


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
