"""AlterConfigs (33), v0-2: all settings of a topic at once; what is not named goes back to its default.

The older way; IncrementalAlterConfigs (44) is the better one and shares this code. The broker's own settings cannot be
changed while it runs (42).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from onceflow.broker.access import check, check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.node import Node
from onceflow.errors import ConfigError, ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

TOPIC_RESOURCE: Final = 2

Overrides = Mapping[str, str]


def handle(node: Node, context: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    changes = [
        Change(resource.resource_type, resource.resource_name, partial(_replaced, resource.configs))
        for resource in request.resources
    ]
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=change.resource_type, resource_name=change.name
            )
            for change, code, message in apply(node, context, changes, request.validate_only)
        ]
    )


def _replaced(configs: list[AlterableConfig], overrides: Overrides) -> dict[str, str]:
    return {config.name: given(config.name, config.value) for config in configs}


def given(name: str, value: str | None) -> str:
    if value is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return value


class Change(NamedTuple):
    """What to do to one resource: `make` turns its present settings into the new ones."""

    resource_type: int
    name: str
    make: Callable[[Overrides], dict[str, str]]


def apply(
    node: Node, context: Context, changes: list[Change], validate_only: bool
) -> Iterator[tuple[Change, ErrorCode, str | None]]:
    """Carry out each change, or none of those that name the same resource. Gives the outcomes for the wire."""
    times = Counter((change.resource_type, change.name) for change in changes)
    for change in changes:
        code, message = ErrorCode.NONE, None
        try:
            if times[change.resource_type, change.name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "One request names this resource more than once.")
            _check_access(node, context, change)
            _apply(node, change, validate_only)
        except ProtocolError as error:
            code, message = error.code, error.message
        except ConfigError as error:
            code, message = ErrorCode.INVALID_CONFIG, str(error)
        except StorageError as error:
            code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        yield change, code, message


def _check_access(node: Node, context: Context, change: Change) -> None:
    if change.resource_type == TOPIC_RESOURCE:
        check(node, context, Operation.ALTER_CONFIGS, Resource.TOPIC, change.name)
    else:
        check_cluster(node, context, Operation.ALTER_CONFIGS)


def _apply(node: Node, change: Change, validate_only: bool) -> None:
    if change.resource_type != TOPIC_RESOURCE:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, "Only topic settings can be changed; the broker's are given at start (--set)."
        )
    topic = node.topics.named(change.name)
    wanted = change.make(topic.overrides)
    node.config.check_topic(wanted)
    if not validate_only:
        node.topics.configure(topic, wanted)
