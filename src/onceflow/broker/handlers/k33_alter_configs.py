"""AlterConfigs (33), v0-2: all settings of a topic at once; what is not named goes back to its default.

The older way; IncrementalAlterConfigs (44) is the better one and shares this code. The broker's own settings cannot be
changed while it runs (42).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ConfigError, ErrorCode, ProtocolError, StorageError
from onceflow.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

TOPIC_RESOURCE: Final = 2

Overrides = Mapping[str, str]


def handle(node: Node, context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    responses = []
    for resource in request.resources:
        given = {config.name: config.value for config in resource.configs}
        code, message = apply(
            node,
            resource.resource_type,
            resource.resource_name,
            lambda _, given=given: given,  # type: ignore[misc]
            request.validate_only,
        )
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return AlterConfigsResponse(responses=responses)


def apply(
    node: Node,
    resource_type: int,
    name: str,
    change: Callable[[Overrides], Mapping[str, str | None]],
    validate_only: bool,
) -> tuple[ErrorCode, str | None]:
    """Give a topic the settings that `change` makes of its present ones. Returns the outcome for the wire."""
    try:
        if resource_type != TOPIC_RESOURCE:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "Only topic settings can be changed; the broker's are given at start (--set).",
            )
        topic = node.topics.get(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        wanted = change(topic.overrides)
        node.config.check_topic(wanted)
        if not validate_only:
            node.topics.configure(topic, {key: value for key, value in wanted.items() if value is not None})
    except ProtocolError as error:
        return error.code, error.message
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    except StorageError as error:
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return ErrorCode.NONE, None
