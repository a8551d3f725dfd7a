"""IncrementalAlterConfigs (44), v0-1: change some settings of a topic and leave the others (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append and 3 subtract, for settings that are lists.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k33_alter_configs import Changer, Overrides, given
from onceflow.broker.large_requests import Steps, in_steps
from onceflow.broker.node import Node
from onceflow.config import TOPIC_SETTINGS, Type
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
    responses = yield from in_steps(
        request.resources, lambda resource: AlterConfigsResourceResponse(**change(resource))
    )
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
                wanted[config.name] = _combined(node, overrides, config)
            case other:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {other}.")
    return wanted


def _combined(node: Node, overrides: Overrides, config: AlterableConfig) -> str:
    setting = TOPIC_SETTINGS.get(config.name)
    if setting is None or setting.type is not Type.LIST:
        raise ProtocolError(ErrorCode.INVALID_CONFIG, f"{config.name} is not a list that could be added to.")
    present = [word for word in node.config.topic_text(config.name, overrides)[0].split(",") if word]
    words = [word for word in (config.value or "").split(",") if word]
    if config.config_operation == APPEND:
        return ",".join(present + [word for word in words if word not in present])
    return ",".join(word for word in present if word not in words)
