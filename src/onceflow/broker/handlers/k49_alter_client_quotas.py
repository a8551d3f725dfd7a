"""AlterClientQuotas (49), v0-1: set quotas of users, clients and addresses, and take them back (KIP-546).

None is set here, since none would be enforced: a quota that makes sense is refused with 35, in words that say why, and
one that makes none with 42 as in Apache Kafka. What was never set can be taken back. Entries stand for themselves, and
of an entity that is named twice none is looked at but to refuse it.

Left out: whether the name of an address can be resolved, since nothing is done with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from onceflow.broker.access import check_cluster
from onceflow.broker.handlers import Context
from onceflow.broker.handlers.k48_describe_client_quotas import ENTITIES
from onceflow.broker.large_requests import Steps
from onceflow.broker.node import Node
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.acls import Operation
from onceflow.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    OpData,
    RequestEntryData,
    ResponseEntryData,
)

OF_CLIENTS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
OF_ADDRESSES: Final = frozenset({"connection_creation_rate"})
WITH_FRACTIONS: Final = frozenset({"request_percentage", "controller_mutation_rate"})


def handle(node: Node, context: Context, request: AlterClientQuotasRequest) -> Steps:
    times = Counter(_key(entry.entity) for entry in request.entries)
    entries = []
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            check_cluster(node, context, Operation.ALTER_CONFIGS)
            _check_entity(entry.entity)
            if times[_key(entry.entity)] > 1:
                raise _refused("One request names this entity more than once.")
            _check_quotas(entry)
        except ProtocolError as error:
            code, message = error.code, error.message
        entries.append(ResponseEntryData(error_code=code, error_message=message, entity=entry.entity))
        yield 1 + len(entry.entity)
    return AlterClientQuotasResponse(entries=entries)


def _key(entity: Sequence[EntityData]) -> frozenset[tuple[str, str | None]]:
    return frozenset((each.entity_type, each.entity_name) for each in entity)


def _refused(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _check_entity(entity: Sequence[EntityData]) -> None:
    if not entity:
        raise _refused("Invalid empty client quota entity.")
    for each in entity:
        if each.entity_type not in ENTITIES:
            raise _refused(f"Unhandled client quota entity type: {each.entity_type}.")
        if each.entity_name == "":
            raise _refused(f"Empty {each.entity_type} not supported.")
    kinds = {each.entity_type for each in entity}
    if "ip" in kinds and len(kinds) > 1:
        raise _refused("An address cannot be combined with a user or a client id.")


def _check_quotas(entry: RequestEntryData) -> None:
    known = OF_ADDRESSES if entry.entity[0].entity_type == "ip" else OF_CLIENTS
    if len({op.key for op in entry.ops}) < len(entry.ops):
        raise _refused("One entry names a quota more than once.")
    wanted = [op for op in entry.ops if not op.remove]
    for op in wanted:
        if reason := _reason(op, known):
            raise _refused(reason)
    if wanted:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{wanted[0].key} was not set: this broker enforces no quotas. Connections can be limited with "
            "max.connections and max.connections.per.ip.",
        )


def _reason(op: OpData, known: frozenset[str]) -> str | None:
    if op.key not in known:
        return f"Invalid configuration key {op.key}."
    if op.value <= 0:
        return f"Quota {op.key} must be greater than 0."
    if op.key not in WITH_FRACTIONS and not op.value.is_integer():
        return f"{op.key} cannot be a fractional value."
    return None
