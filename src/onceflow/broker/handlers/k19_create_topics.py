"""CreateTopics (19), v2-7: new topics, each with its own outcome.

- -1 partitions or replicas mean the broker's default. The replication factor is 1; more is 38. Manual assignments
  must name this node and cover partitions 0 to n-1 (39).
- The coordinators' topics can be made, too, if they are not there yet: with as many partitions as asked for, and with
  the settings that they need where nothing else is said. `__cluster_metadata` is refused (42).
- The answer comes when the topics are on disk and can be written. v5 and newer tell the settings that they got.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

from onceflow.broker.access import check, may_on_cluster, might
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k32_describe_configs import topic_settings
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

DEFAULT: Final = -1
CLUSTER_METADATA: Final = "__cluster_metadata"


def handle(node: Node, context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    times = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        try:
            if times[topic.name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_create(node, context, topic, request.validate_only))
        except ProtocolError as error:
            message = error.message or error.code.name
            results.append(CreatableTopicResult(name=topic.name, error_code=error.code, error_message=message))
        except StorageError as error:
            code = ErrorCode.KAFKA_STORAGE_ERROR
            results.append(CreatableTopicResult(name=topic.name, error_code=code, error_message=str(error)))
    return CreateTopicsResponse(topics=results)


def _create(node: Node, context: Context, asked: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    if not may_on_cluster(node, context, Operation.CREATE):
        check(node, context, Operation.CREATE, Resource.TOPIC, asked.name)
    if asked.name == CLUSTER_METADATA:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {asked.name} is prohibited.")
    partitions = _partitions(node, asked)
    overrides = {config.name: config.value for config in asked.configs}
    node.topics.check_new(asked.name, partitions, overrides)
    given = {name: value for name, value in overrides.items() if value is not None}
    state = node.state_log(asked.name)
    if state is not None:
        given = state.overrides(given)
    result = CreatableTopicResult(name=asked.name)
    if might(node, context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, asked.name):
        result.num_partitions, result.replication_factor = partitions, 1
        result.configs = [
            CreatableTopicConfigs(name=name, value=value, config_source=source)
            for name, value, source in topic_settings(node.config, given)
        ]
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not validate_only:
        create = partial(node.topics.create, asked.name) if state is None else state.create
        result.topic_id = create(partitions, given).id
    return result


def _partitions(node: Node, asked: CreatableTopic) -> int:
    if asked.assignments:
        if asked.num_partitions != DEFAULT or asked.replication_factor != DEFAULT:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "With a manual assignment, partitions and replication factor must be -1."
            )
        if sorted(a.partition_index for a in asked.assignments) != list(range(len(asked.assignments))):
            raise ProtocolError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions must be numbered from 0 without gaps."
            )
        if any(a.broker_ids != [node.node_id] for a in asked.assignments):
            raise ProtocolError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The only broker here is {node.node_id}; there are no replicas."
            )
        return len(asked.assignments)
    if asked.replication_factor not in (DEFAULT, 1):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {asked.replication_factor} is not possible with 1 broker.",
        )
    if asked.num_partitions == DEFAULT:
        return int(node.config["num.partitions"])
    if asked.num_partitions <= 0:
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, "The number of partitions must be larger than 0.")
    return asked.num_partitions
