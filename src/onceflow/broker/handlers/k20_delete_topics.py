"""DeleteTopics (20), v1-6: topics and their files go, at once.

v6 names topics by name or by id. What is named twice, by both, or by neither is refused (42). Fetches that wait on them
are answered; `delete.topic.enable=false` refuses (73). Without access it is 29, whether a topic of that name exists or
not. The name of an id is told only to who may see it, and no message tells it either.
"""

from __future__ import annotations

import uuid
from collections import Counter
from functools import partial

from onceflow.broker.access import check, may, may_on_cluster, might
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse

_Asked = tuple[str | None, uuid.UUID | None]


def handle(node: Node, context: Context, request: DeleteTopicsRequest) -> Steps:
    asked: list[_Asked] = [(name, None) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    times = Counter(asked)
    results = yield from in_steps(times, partial(_delete, node, context, times))
    return DeleteTopicsResponse(responses=results)


def _delete(node: Node, context: Context, times: Counter[_Asked], asked: _Asked) -> DeletableTopicResult:
    name, id = asked
    result = DeletableTopicResult(name=name, topic_id=id)
    try:
        if (name is None) == (id is None):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Name a topic by its name or by its id, and not by both.")
        if times[asked] > 1:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "One request cannot delete a topic twice.")
        topic = _by_id(node, context, id, result) if name is None else _by_name(node, context, name)
        if not node.config["delete.topic.enable"]:
            raise ProtocolError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false.")
        topic.check_not_internal()
        node.topics.delete(topic)
        result.name, result.topic_id = topic.name, topic.id
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, error.message
    except StorageError as error:
        result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return result


def _by_name(node: Node, context: Context, name: str) -> Topic:
    is_admin = may_on_cluster(node, context, Operation.DELETE)
    if not is_admin:
        check(node, context, Operation.DESCRIBE, Resource.TOPIC, name)
    topic = node.topics.get(name)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic.")
    if not is_admin:
        check(node, context, Operation.DELETE, Resource.TOPIC, name)
    return topic


def _by_id(node: Node, context: Context, id: uuid.UUID | None, result: DeletableTopicResult) -> Topic:
    topic = node.topics.by_id(id)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    is_admin = may_on_cluster(node, context, Operation.DELETE)
    if is_admin or might(node, context, Operation.DESCRIBE, Resource.TOPIC, topic.name):
        result.name = topic.name
    if not is_admin and not may(node, context, Operation.DELETE, Resource.TOPIC, topic.name):
        raise ProtocolError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    return topic
