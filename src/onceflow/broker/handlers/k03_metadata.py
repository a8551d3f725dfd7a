"""Metadata (3), v0-13: who leads what. Here: this node, everything.

- A topic asked for by name that does not exist is created if client and `auto.create.topics.enable` allow it. Unlike
  Apache Kafka, which answers 5 and lets the client ask again, the new topic is in the answer: it exists before we
  answer. One request creates `CREATED_MAX` at most; for the others the answer is Kafka's 5, and the client asks again.
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

CREATED_MAX: Final = 100
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
    find = _Finder(node, context, request.allow_auto_topic_creation)
    for name, topic_id in dict.fromkeys((asked.name, asked.topic_id) for asked in request.topics):
        yield find(name, topic_id)


class _Finder:
    """Topics that are asked for, and made if that is allowed."""

    def __init__(self, node: Node, context: Context, may_create: bool) -> None:
        self._node = node
        self._context = context
        self._may_create = may_create
        self._left = CREATED_MAX

    def __call__(self, name: str | None, topic_id: UUID | None) -> MetadataResponseTopic:
        if topic_id is not None or name is None:
            return self._by_id(topic_id)
        try:
            check(self._node, self._context, Operation.DESCRIBE, Resource.TOPIC, name)
            topic = self._node.topics.get(name)
            if topic is None:
                topic = self._create(name)
            return _describe(self._node, topic)
        except ProtocolError as error:
            return MetadataResponseTopic(error_code=error.code, name=name)
        except StorageError:
            return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=name)

    def _by_id(self, topic_id: UUID | None) -> MetadataResponseTopic:
        topic = self._node.topics.by_id(topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, topic_id=topic_id)
        denied = refusal(self._node, self._context, Operation.DESCRIBE, Resource.TOPIC, topic.name)
        if denied:
            return MetadataResponseTopic(error_code=denied, topic_id=topic_id, name=None)
        return _describe(self._node, topic)

    def _create(self, name: str) -> Topic:
        if not (self._may_create and self._node.config["auto.create.topics.enable"]):
            return self._node.topics.named(name)  # which refuses
        if not may_on_cluster(self._node, self._context, Operation.CREATE):
            check(self._node, self._context, Operation.CREATE, Resource.TOPIC, name)
        if self._left == 0:
            raise ProtocolError(ErrorCode.LEADER_NOT_AVAILABLE)
        topic = self._node.auto_create(name)
        self._left -= 1
        return topic


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
