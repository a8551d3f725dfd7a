"""ApiVersions (18), v0-4: what this broker speaks; the first request of every client.

- Built from the table in `handlers`. A version that we do not have is answered in v0 with 35 and the full list, so
  that the client can choose again (KIP-511).
- v3 and newer check the client's name and version (42 if they are no such thing).
- Below v4 a supported feature whose minimum is 0 is left out (KAFKA-17492): the Java clients of 3.3 to 3.7 take such
  a minimum for a broken answer and close the connection. What is finalized stays, for it never is 0.
"""

from __future__ import annotations

import re
from typing import Final

from onceflow.broker.features import SUPPORTED
from onceflow.broker.handlers import APIS, Context
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode
from onceflow.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
NAMED_FROM_VERSION: Final = 3
MINIMUM_MAY_BE_ZERO_FROM_VERSION: Final = 4
ANNOUNCED_FROM: Final = {0: 0}
"""Older librdkafka takes a broker without Produce v0 for one that cannot compress; Kafka announces it too (KIP-896)."""


def handle(node: Node, context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse:
    names = (request.client_software_name, request.client_software_version)
    if context.version >= NAMED_FROM_VERSION and not all(map(_SOFTWARE.fullmatch, names)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=_api_keys(),
        supported_features=_supported() if context.version >= MINIMUM_MAY_BE_ZERO_FROM_VERSION else [],
        finalized_features_epoch=node.features.epoch,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in node.features.levels.items()
            if level
        ],
    )


def unsupported_version() -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys())


def _supported() -> list[SupportedFeatureKey]:
    return [SupportedFeatureKey(name=name, min_version=0, max_version=level) for name, level in SUPPORTED.items()]


def _api_keys() -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=ANNOUNCED_FROM.get(key, api.min_version), max_version=api.max_version)
        for key, api in APIS.items()
    ]
