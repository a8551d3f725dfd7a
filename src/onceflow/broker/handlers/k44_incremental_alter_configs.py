"""IncrementalAlterConfigs (44), v0-1: change some settings of a topic or broker and leave the others (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append and 3 subtract, for settings that are lists.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k32_describe_configs import BROKER_RESOURCE
from onceflow.broker.handlers.k33_alter_configs import Changer, Overrides, given
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.config import BROKER_SETTINGS, TOPIC_SETTINGS, Type
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def handle(node: Node, context: Context, request: IncrementalAlterConfigsRequest) -> Steps:
    change = Changer(node, context, request.resources, partial(_changed, node), request.validate_only)
    responses = []
    for resource in request.resources:
        outcome = yield from change(resource)
        responses.append(AlterConfigsResourceResponse(**outcome))
        yield 1
    return IncrementalAlterConfigsResponse(responses=responses)


def _changed(node: Node, resource: AlterConfigsResource, overrides: Overrides) -> dict[str, str]:
    configs = resource.configs
    if len({config.name for config in configs}) < len(configs):
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys.")
    wanted = dict(overrides)
    for config in configs:
        match config.config_operation:
            case 0:
                wanted[config.name] = given(config.name, config.value)
            case 1:
                wanted.pop(config.name, None)
            case 2 | 3:
                wanted[config.name] = _combined(config, _present(node, resource, overrides, config.name))
            case other:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {other}.")
    return wanted


def _present(node: Node, resource: AlterConfigsResource, overrides: Overrides, name: str) -> str:
    """What is added to, or taken from. Raises `ProtocolError` unless the setting is a list."""
    is_broker = resource.resource_type == BROKER_RESOURCE
    setting = (BROKER_SETTINGS if is_broker else TOPIC_SETTINGS).get(name)
    if setting is None or setting.type is not Type.LIST:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{name} is not a list that could be added to.")
    if is_broker:
        return overrides.get(name, setting.default)
    return node.config.topic_text(name, overrides)[0]


def _combined(config: AlterableConfig, before: str) -> str:
    present = [word for word in before.split(",") if word]
    words = [word for word in (config.value or "").split(",") if word]
    if config.config_operation == APPEND:
        return ",".join(present + [word for word in words if word not in present])
    return ",".join(word for word in present if word not in words)
