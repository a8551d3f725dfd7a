"""Metadata (3), v0-13: who leads what. Here: this node, everything.

- A topic asked for by name that does not exist is created if client and `auto.create.topics.enable` allow it. Unlike
  Apache Kafka, which answers 5 and lets the client ask again, the new topic is in the answer: it exists before we
  answer.
- Access: a topic that the client may not describe is 29, whether it exists or not, and left out of a list of all. Its
  name is not told to who asks by id.
- No list means all topics (in v0 an empty list does). v10 and newer may ask by id (100 if there is none).
"""

from __future__ import annotations

from onceflow.broker.access import check, cluster_operations, is_visible, may_on_cluster, operations_of, refusal
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.log.partition import LEADER_EPOCH
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def handle(node: Node, context: Context, request: MetadataRequest) -> MetadataResponse:
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    if wants_all:
        visible = [topic for topic in node.topics if is_visible(node, context, Resource.TOPIC, topic.name)]
        topics = [_describe(node, topic) for topic in visible]
    else:
        topics = [_find(node, context, asked, request.allow_auto_topic_creation) for asked in request.topics or ()]
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.name is not None and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                topic.topic_authorized_operations = operations_of(node, context, Resource.TOPIC, topic.name)
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


def _find(node: Node, context: Context, asked: MetadataRequestTopic, may_create: bool) -> MetadataResponseTopic:
    if asked.topic_id is not None or asked.name is None:
        topic = node.topics.by_id(asked.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=asked.topic_id)
        denied = refusal(node, context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        if denied:
            return MetadataResponseTopic(error_code=denied, topic_id=asked.topic_id, name=None)
        return _describe(node, topic)
    try:
        check(node, context, Operation.DESCRIBE, Resource.TOPIC, asked.name)
        topic = node.topics.get(asked.name)
        if topic is None:
            topic = _create(node, context, asked.name) if may_create else node.topics.named(asked.name)
        return _describe(node, topic)
    except ProtocolError as error:
        return MetadataResponseTopic(error_code=error.code, name=asked.name)
    except StorageError:
        return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=asked.name)


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
