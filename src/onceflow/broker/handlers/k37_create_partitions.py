"""CreatePartitions (37), v0-3: a topic gets more partitions; never fewer (37)."""

from __future__ import annotations

from collections import Counter

from onceflow.broker.access import check
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.broker.topics import check_not_too_many
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def handle(node: Node, context: Context, request: CreatePartitionsRequest) -> Steps:
    times = Counter(asked.name for asked in request.topics)
    results = yield from in_steps(
        request.topics, lambda asked: _grow(node, context, asked, request.validate_only, times[asked.name] > 1)
    )
    return CreatePartitionsResponse(results=results)


def _grow(
    node: Node, context: Context, asked: CreatePartitionsTopic, validate_only: bool, named_twice: bool
) -> CreatePartitionsTopicResult:
    result = CreatePartitionsTopicResult(name=asked.name)
    try:
        if named_twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "One request names this topic more than once.")
        check(node, context, Operation.ALTER, Resource.TOPIC, asked.name)
        topic = node.topics.named(asked.name)
        topic.check_not_internal()
        present = len(topic.partitions)
        if asked.count <= present:
            raise ProtocolError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {asked.name} currently has {present} partition(s); {asked.count} would not be an increase.",
            )
        check_not_too_many(asked.count)
        if asked.assignments is not None and (
            len(asked.assignments) != asked.count - present
            or any(assignment.broker_ids != [node.node_id] for assignment in asked.assignments)
        ):
            raise ProtocolError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Each new partition must be assigned to broker {node.node_id}."
            )
        if not validate_only:
            node.topics.grow(topic, asked.count)
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, error.message
    except StorageError as error:
        result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return result
