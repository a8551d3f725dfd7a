"""Who may do what: the decision about one operation, from all rules. Pure, and Kafka's own (StandardAuthorizer).

In this order:

1. A super user may do everything.
2. A rule that denies wins over all that allow.
3. A rule that allows decides.
4. Nobody has made any rule about this resource: `allow.everyone.if.no.acl.found` decides.
5. Else: no.

A rule concerns a resource by its literal name, by `*`, or by how the name begins; a principal by name or as `User:*`;
a host by address or as `*`. Allowing READ, WRITE, DELETE or ALTER allows DESCRIBE, and ALTER_CONFIGS allows
DESCRIBE_CONFIGS. Denying implies nothing: who is denied READ may still describe.

Unlike in Kafka an address is the same however it is written: `::1` and `0:0:0:0:0:0:0:1`, and `10.0.0.1` where it comes
to an IPv6 listener as `::ffff:10.0.0.1`. A rule that denies must not be missed for that.

`NEEDS` is what each API asks for; handlers ask with the functions of `access.py`. A test goes through the table: with
exactly these permissions a request succeeds, and without any one of them it is refused or shows less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple

from onceflow.errors import ConfigError, ErrorCode
from onceflow.wire.acls import EVERYBODY, WILDCARD, Acl, Operation, Pattern, Permission, Resource

__all__ = ["NEEDS", "REFUSALS", "Need", "Rules", "principals"]

IMPLYING: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""What allows an operation besides itself and ALL."""

REFUSALS: Final[Mapping[Resource, ErrorCode]] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

EVERYTHING: Final = (Pattern.LITERAL, WILDCARD)
NAME_WITHOUT_RULES: Final = "\0"
"""Nothing is called so, and what applies to everything applies to it."""


class Need(NamedTuple):
    operation: Operation
    resource: Resource
    note: str = ""
    """When it is needed, or what is done without it, if that is not: always, and refused."""


_LISTED: Final = "what may not be described is left out"

NEEDS: Final[Mapping[int, tuple[Need, ...]]] = {
    0: (
        Need(Operation.WRITE, Resource.TOPIC),
        Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, "for transactional batches"),
    ),
    1: (Need(Operation.READ, Resource.TOPIC),),
    2: (Need(Operation.DESCRIBE, Resource.TOPIC),),
    3: (
        Need(Operation.DESCRIBE, Resource.TOPIC, "of all topics, " + _LISTED),
        Need(Operation.CREATE, Resource.TOPIC, "or on the cluster, to create a topic that is missing"),
    ),
    8: (Need(Operation.READ, Resource.GROUP), Need(Operation.READ, Resource.TOPIC)),
    9: (
        Need(Operation.DESCRIBE, Resource.GROUP),
        Need(Operation.DESCRIBE, Resource.TOPIC, "of all offsets, " + _LISTED),
    ),
    10: (
        Need(Operation.DESCRIBE, Resource.GROUP, "for groups"),
        Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "for transactional ids"),
    ),
    11: (Need(Operation.READ, Resource.GROUP),),
    12: (Need(Operation.READ, Resource.GROUP),),
    13: (Need(Operation.READ, Resource.GROUP),),
    14: (Need(Operation.READ, Resource.GROUP),),
    15: (Need(Operation.DESCRIBE, Resource.GROUP),),
    16: (Need(Operation.DESCRIBE, Resource.GROUP, "or on the cluster; " + _LISTED),),
    17: (),
    18: (),
    19: (
        Need(Operation.CREATE, Resource.TOPIC, "or on the cluster"),
        Need(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "to be told the settings of the new topic"),
    ),
    20: (Need(Operation.DELETE, Resource.TOPIC, "or on the cluster"),),
    21: (Need(Operation.DELETE, Resource.TOPIC),),
    22: (
        Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, "with a transactional id"),
        Need(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, "without one; or WRITE on any topic (KIP-679)"),
    ),
    23: (Need(Operation.DESCRIBE, Resource.TOPIC, "or CLUSTER_ACTION on the cluster"),),
    24: (
        Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, "up to v3"),
        Need(Operation.WRITE, Resource.TOPIC, "up to v3"),
        Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, "from v4 on, which brokers speak"),
    ),
    25: (Need(Operation.WRITE, Resource.TRANSACTIONAL_ID), Need(Operation.READ, Resource.GROUP)),
    26: (Need(Operation.WRITE, Resource.TRANSACTIONAL_ID),),
    27: (Need(Operation.ALTER, Resource.CLUSTER, "or CLUSTER_ACTION"),),
    28: (
        Need(Operation.WRITE, Resource.TRANSACTIONAL_ID),
        Need(Operation.READ, Resource.GROUP),
        Need(Operation.READ, Resource.TOPIC),
    ),
    29: (Need(Operation.DESCRIBE, Resource.CLUSTER),),
    30: (Need(Operation.ALTER, Resource.CLUSTER),),
    31: (Need(Operation.ALTER, Resource.CLUSTER),),
    32: (
        Need(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "for topics"),
        Need(Operation.DESCRIBE_CONFIGS, Resource.GROUP, "for groups"),
        Need(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, "for the broker"),
    ),
    33: (
        Need(Operation.ALTER_CONFIGS, Resource.TOPIC, "for topics"),
        Need(Operation.ALTER_CONFIGS, Resource.GROUP, "for groups"),
        Need(Operation.ALTER_CONFIGS, Resource.CLUSTER, "for the broker"),
    ),
    34: (Need(Operation.ALTER, Resource.CLUSTER),),
    35: (Need(Operation.DESCRIBE, Resource.CLUSTER),),
    36: (),
    37: (Need(Operation.ALTER, Resource.TOPIC),),
    42: (Need(Operation.DELETE, Resource.GROUP),),
    43: (Need(Operation.ALTER, Resource.CLUSTER),),
    44: (
        Need(Operation.ALTER_CONFIGS, Resource.TOPIC, "for topics"),
        Need(Operation.ALTER_CONFIGS, Resource.GROUP, "for groups"),
        Need(Operation.ALTER_CONFIGS, Resource.CLUSTER, "for the broker"),
    ),
    45: (Need(Operation.ALTER, Resource.CLUSTER),),
    46: (Need(Operation.DESCRIBE, Resource.CLUSTER),),
    47: (Need(Operation.DELETE, Resource.GROUP), Need(Operation.READ, Resource.TOPIC)),
    48: (Need(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER),),
    49: (Need(Operation.ALTER_CONFIGS, Resource.CLUSTER),),
    50: (Need(Operation.DESCRIBE, Resource.CLUSTER),),
    51: (Need(Operation.ALTER, Resource.CLUSTER),),
    55: (Need(Operation.DESCRIBE, Resource.CLUSTER),),
    57: (Need(Operation.ALTER, Resource.CLUSTER),),
    60: (Need(Operation.DESCRIBE, Resource.CLUSTER, "to be told what one may do with it"),),
    61: (Need(Operation.READ, Resource.TOPIC),),
    65: (
        Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),
        Need(Operation.DESCRIBE, Resource.TOPIC, "of its partitions, " + _LISTED),
    ),
    66: (Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _LISTED),),
    68: (
        Need(Operation.READ, Resource.GROUP),
        Need(Operation.DESCRIBE, Resource.TOPIC, "a regular expression finds no other topics"),
    ),
    69: (Need(Operation.DESCRIBE, Resource.GROUP), Need(Operation.DESCRIBE, Resource.TOPIC, "of all assigned topics")),
    74: (Need(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER),),
    75: (Need(Operation.DESCRIBE, Resource.TOPIC, "of all topics, " + _LISTED),),
}
"""By api key. SASL and ApiVersions come before anybody is known, and need nothing."""


def principals(text: str) -> frozenset[str]:
    """What `super.users` holds: principals, with semicolons between them since names in certificates have commas."""
    found = frozenset(word.strip() for word in text.split(";") if word.strip())
    for principal in found:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ConfigError(f"super.users holds principals like User:alice, with ; between them; not {principal!r}.")
    return found


class Rules:
    """All rules, arranged so that those about one name are found at once."""

    def __init__(self, acls: Iterable[Acl], *, super_users: frozenset[str], open_by_default: bool) -> None:
        self._super_users = super_users
        self._open_by_default = open_by_default
        self._literal: dict[tuple[Resource, str], list[Acl]] = {}
        self._prefixed: dict[tuple[Resource, str], list[Acl]] = {}
        for acl in acls:
            table = self._literal if acl.pattern is Pattern.LITERAL else self._prefixed
            table.setdefault((acl.resource, acl.name), []).append(acl._replace(host=_address(acl.host)))
        self._lengths = sorted({len(name) for _, name in self._prefixed})

    def allow(self, principal: str, host: str, operation: Operation, resource: Resource, name: str) -> bool:
        if principal in self._super_users:
            return True
        is_ruled = is_allowed = False
        host = _address(host)
        for acl in self._about(resource, name):
            is_ruled = True
            if _concerns(acl, principal, host) and _speaks_of(acl, operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed or (self._open_by_default and not is_ruled)

    def _about(self, resource: Resource, name: str) -> Iterator[Acl]:
        yield from self._literal.get((resource, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource, WILDCARD), ())
        for length in self._lengths:
            if length > len(name):
                break
            yield from self._prefixed.get((resource, name[:length]), ())

    def allow_somewhere(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether there is any name for which the operation is allowed; implications do not count (KIP-679).

        Some name means: one that a rule allows and no rule denies. To find it, it is enough to look at the names and
        beginnings that rules allow: what denies those denies everything below them.
        """
        if self.allow(principal, host, operation, resource, NAME_WITHOUT_RULES):
            return True
        host = _address(host)
        mine = [acl for acl in self._of_type(resource) if _concerns(acl, principal, host)]
        mine = [acl for acl in mine if acl.operation in (operation, Operation.ALL)]
        denied = {(acl.pattern, acl.name) for acl in mine if acl.permission is Permission.DENY}
        allowed = {(acl.pattern, acl.name) for acl in mine if acl.permission is Permission.ALLOW}
        if EVERYTHING in denied:
            return False
        return EVERYTHING in allowed or any(not self._is_covered(rule, denied) for rule in allowed)

    def _is_covered(self, allowed: tuple[Pattern, str], denied: set[tuple[Pattern, str]]) -> bool:
        """Whether nothing is left of what a rule allows."""
        pattern, name = allowed
        if pattern is Pattern.LITERAL and allowed in denied:
            return True
        return any((Pattern.PREFIXED, name[:length]) in denied for length in self._lengths if length <= len(name))

    def _of_type(self, resource: Resource) -> Iterator[Acl]:
        for table in (self._literal, self._prefixed):
            for (kind, _), acls in table.items():
                if kind is resource:
                    yield from acls


def _concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, EVERYBODY) and acl.host in (host, WILDCARD)


def _speaks_of(acl: Acl, operation: Operation) -> bool:
    if acl.operation in (operation, Operation.ALL):
        return True
    return acl.permission is Permission.ALLOW and acl.operation in IMPLYING.get(operation, ())


def _address(host: str) -> str:
    """The same text for the same address; what is none stays as it is."""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    return str(getattr(found, "ipv4_mapped", None) or found)
