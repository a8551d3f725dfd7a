"""IncrementalAlterConfigs (44), v0-1: change some settings of a topic and leave the others (KIP-339).

Operations: 0 set, 1 delete (back to the default), 2 append and 3 subtract, for settings that are lists.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k33_alter_configs import Change, Overrides, apply, given
from onceflow.broker.node import Node
from onceflow.config import TOPIC_SETTINGS, Type
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3


def handle(node: Node, context: Context, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    changes = [
        Change(resource.resource_type, resource.resource_name, partial(_changed, node, resource.configs))
        for resource in request.resources
    ]
    return IncrementalAlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=code, error_message=message, resource_type=change.resource_type, resource_name=change.name
            )
            for change, code, message in apply(node, context, changes, request.validate_only)
        ]
    )


def _changed(node: Node, configs: list[AlterableConfig], overrides: Overrides) -> dict[str, str]:
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
