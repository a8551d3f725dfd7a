"""AlterConfigs (33), v0-2: all settings of a topic at once; what is not named goes back to its default.

The older way; IncrementalAlterConfigs (44) is the better one and shares this code. Settings of anything but topics
cannot be changed while the broker runs (42). None of them is ever set, so what takes settings back has nothing to do:
tools take limits of replication back whether there are any or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from onceflow.broker.access import check, check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k32_describe_configs import (
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    check_broker,
    check_not_empty,
)
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.errors import ConfigError, ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

GIVEN_AT_START: Final = "Only topic settings can be changed; the broker's are given at start (--set)."

Overrides: TypeAlias = Mapping[str, str]


class Asked(Protocol):
    """A resource in the request, of either API."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Asked)


def handle(node: Node, context: Context, request: AlterConfigsRequest) -> Steps:
    change = Changer(node, context, request.resources, _replaced, request.validate_only)
    responses = yield from in_steps(
        request.resources, lambda resource: AlterConfigsResourceResponse(**change(resource))
    )
    return AlterConfigsResponse(responses=responses)


def _replaced(resource: AlterConfigsResource, overrides: Overrides) -> dict[str, str]:
    return {config.name: given(config.name, config.value) for config in resource.configs}


def given(name: str, value: str | None) -> str:
    if value is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return value


class Changer(Generic[R]):
    """Changes one resource after the other, but none of those that the request names twice.

    `make` turns the present settings of a topic into the new ones.
    """

    def __init__(
        self,
        node: Node,
        context: Context,
        resources: Sequence[R],
        make: Callable[[R, Overrides], dict[str, str]],
        validate_only: bool,
    ) -> None:
        self._node = node
        self._context = context
        self._make = make
        self._validate_only = validate_only
        self._times = Counter((each.resource_type, each.resource_name) for each in resources)

    def __call__(self, resource: R) -> dict[str, Any]:
        """The outcome, as it is in both answers."""
        code, message = self._outcome(resource)
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }

    def _outcome(self, resource: R) -> tuple[ErrorCode, str | None]:
        try:
            if self._times[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "One request names this resource more than once.")
            self._check_access(resource)
            self._change(resource)
        except ProtocolError as error:
            return error.code, error.message
        except ConfigError as error:
            return ErrorCode.INVALID_CONFIG, str(error)
        except StorageError as error:
            return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        return ErrorCode.NONE, None

    def _check_access(self, resource: R) -> None:
        kind = {TOPIC_RESOURCE: Resource.TOPIC, GROUP_RESOURCE: Resource.GROUP}.get(resource.resource_type)
        if kind is not None:
            check(self._node, self._context, Operation.ALTER_CONFIGS, kind, resource.resource_name)
        else:
            check_cluster(self._node, self._context, Operation.ALTER_CONFIGS)

    def _change(self, resource: R) -> None:
        if resource.resource_type != TOPIC_RESOURCE:
            self._check_nothing_is_set(resource)
            return
        topic = self._node.topics.named(resource.resource_name)
        wanted = self._make(resource, topic.overrides)
        self._node.config.check_topic(wanted)
        if not self._validate_only:
            self._node.topics.configure(topic, wanted)

    def _check_nothing_is_set(self, resource: R) -> None:
        match resource.resource_type:
            case 4:
                if resource.resource_name:  # an empty name means all brokers
                    check_broker(self._node, resource.resource_name)
            case 16 | 32:
                check_not_empty(resource.resource_name)
            case _:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, GIVEN_AT_START)
        if self._make(resource, {}):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, GIVEN_AT_START)
