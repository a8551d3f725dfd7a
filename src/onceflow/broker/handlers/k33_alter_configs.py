"""AlterConfigs (33), v0-2: all settings of a topic or broker at once; what is not named goes back to its default.

The older way; IncrementalAlterConfigs (44) is the better one and shares this code. Which settings of a broker can be
changed: `config.DYNAMIC`. A broker without a name is the default of all brokers. Settings of groups, of loggers and of
subscriptions to metrics of clients cannot be changed (42). None of them is ever set, so what takes settings back has
nothing to do. Nor has it for settings of the broker that do not exist: tools take limits of replication back whether
there are any or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from onceflow.broker.access import check, check_cluster
from onceflow.broker.dynamic_settings import changed
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k32_describe_configs import (
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    check_broker,
    check_not_empty,
)
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ConfigError, ErrorCode, ProtocolError, StorageError
from onceflow.wire.acls import Operation, Resource
from onceflow.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

ONLY_OF_TOPICS_AND_BROKER: Final = "Only settings of topics and of the broker can be changed."

Overrides: TypeAlias = Mapping[str, str]


class Asked(Protocol):
    """A resource in the request, of either API."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Asked)


def handle(node: Node, context: Context, request: AlterConfigsRequest) -> Steps:
    change = Changer(node, context, request.resources, _replaced, request.validate_only)
    responses = []
    for resource in request.resources:
        outcome = yield from change(resource)
        responses.append(AlterConfigsResourceResponse(**outcome))
        yield 1
    return AlterConfigsResponse(responses=responses)


def _replaced(resource: AlterConfigsResource, overrides: Overrides) -> dict[str, str]:
    return {config.name: given(config.name, config.value) for config in resource.configs}


def given(name: str, value: str | None) -> str:
    if value is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Null value not supported for {name}.")
    return value


class Changer(Generic[R]):
    """Changes one resource after the other, but none of those that the request names twice.

    `make` turns the present settings of a resource into the new ones.
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

    def __call__(self, resource: R) -> Generator[int, None, dict[str, Any]]:
        """The outcome, as it is in both answers."""
        code, message = yield from self._outcome(resource)
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }

    def _outcome(self, resource: R) -> Generator[int, None, tuple[ErrorCode, str | None]]:
        try:
            if self._times[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "One request names this resource more than once.")
            self._check_access(resource)
            yield from self._change(resource)
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

    def _change(self, resource: R) -> Generator[int, None, None]:
        match resource.resource_type:
            case 2:
                self._change_topic(resource)
            case 4:
                yield from self._change_broker(resource)
            case 16 | 32:
                check_not_empty(resource.resource_name)
                self._check_nothing_is_set(resource)
            case _:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, ONLY_OF_TOPICS_AND_BROKER)

    def _change_topic(self, resource: R) -> None:
        topic = self._node.topics.named(resource.resource_name)
        wanted = self._make(resource, topic.overrides)
        self._node.config.check_topic(wanted)
        if not self._validate_only:
            self._node.topics.configure(topic, wanted)

    def _change_broker(self, resource: R) -> Generator[int, None, None]:
        present = self._node.config
        for_all = not resource.resource_name
        if not for_all:
            check_broker(self._node, resource.resource_name)
        before = present.for_all_brokers if for_all else present.for_this_broker
        wanted = self._make(resource, before)
        config = changed(present, wanted, for_all=for_all)
        if wanted != before and not self._validate_only:
            yield from self._node.configure(config)

    def _check_nothing_is_set(self, resource: R) -> None:
        if self._make(resource, {}):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, ONLY_OF_TOPICS_AND_BROKER)
