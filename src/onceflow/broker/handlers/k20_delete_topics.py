"""DeleteTopics (20), v1-6: topics and their files go, at once.

v6 names topics by name or by id. Fetches that wait on them are answered; `delete.topic.enable=false` refuses (73).
Without access it is 29, whether a topic of that name exists or not; the name of an id is told only to who may see it.
"""

from __future__ import annotations

import uuid

from onceflow.broker.access import check, may_on_cluster, might
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse


def handle(node: Node, context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    asked: list[tuple[str | None, uuid.UUID | None]] = [(name, None) for name in request.topic_names]
    asked += [(topic.name, topic.topic_id) for topic in request.topics]
    return DeleteTopicsResponse(responses=[_delete(node, context, name, id) for name, id in asked])


def _delete(node: Node, context: Context, name: str | None, id: uuid.UUID | None) -> DeletableTopicResult:
    result = DeletableTopicResult(name=name, topic_id=id)
    topic = node.topics.get(name) if name is not None else node.topics.by_id(id)
    try:
        if name is not None and id is not None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Name a topic by its name or by its id, not by both.")
        if name is not None:
            _check(node, context, Operation.DESCRIBE, name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise ProtocolError(code, "This server does not host this topic.")
        if _is_deletable_or_visible(node, context, topic.name):
            result.name = topic.name
        _check(node, context, Operation.DELETE, topic.name)
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


def _is_deletable_or_visible(node: Node, context: Context, name: str) -> bool:
    return may_on_cluster(node, context, Operation.DELETE) or might(
        node, context, Operation.DESCRIBE, Resource.TOPIC, name
    )


def _check(node: Node, context: Context, operation: Operation, name: str) -> None:
    if not may_on_cluster(node, context, Operation.DELETE):
        check(node, context, operation, Resource.TOPIC, name)
