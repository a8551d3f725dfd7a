"""DescribeClientQuotas (48), v0-1: the quotas of users, clients and addresses (KIP-546). There are none.

Tools ask before they show a user's SCRAM credentials. A filter is checked as Apache Kafka checks it: 42 for one that
makes no sense, 35 for a kind of entity that does not exist.

Left out: quotas themselves. AlterClientQuotas (49) sets none, since nobody would enforce it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation
from onceflow.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

ENTITIES: Final = ("user", "client-id", "ip")
EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2


def handle(node: Node, context: Context, request: DescribeClientQuotasRequest) -> Steps:
    try:
        check_cluster(node, context, Operation.DESCRIBE_CONFIGS)
        yield from _check(request.components)
    except ProtocolError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    return DescribeClientQuotasResponse(entries=[])


def _check(components: list[ComponentData]) -> Generator[int, None, None]:
    kinds: set[str] = set()
    for component in components:
        reason = _reason(component, kinds)
        if reason:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, reason)
        if component.entity_type not in ENTITIES:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}.")
        if component.match_type not in (EXACT, DEFAULT, ANY):
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}.")
        kinds.add(component.entity_type)
        yield 0
    if "ip" in kinds and len(kinds) > 1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "An address cannot be combined with a user or a client id.")


def _reason(component: ComponentData, kinds: set[str]) -> str | None:
    match component:
        case ComponentData(entity_type=""):
            return "Invalid empty entity type."
        case ComponentData(entity_type=kind) if kind in kinds:
            return f"Entity type {kind} cannot appear more than once in the filter."
        case ComponentData(match_type=0, match=None):
            return "An exact match needs a name."
        case ComponentData(match_type=1 | 2 as kind, match=str()):
            return f"Match type {kind} takes no name."
    return None
