"""Access rules as they stand on the wire: Kafka's codes, one rule, and the filter that finds rules (KIP-11, KIP-290).

A rule says: this principal, coming from this host, may (or may not) do this with what has this name, or with
everything whose name begins so. The literal name `*` stands for every name, the host `*` for every host, and the
principal `User:*` for everybody. What follows from many rules is decided in `broker/authorization.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = [
    "CLUSTER_NAME",
    "EVERYBODY",
    "SUPPORTED",
    "WILDCARD",
    "Acl",
    "AclFilter",
    "Operation",
    "Pattern",
    "Permission",
    "Resource",
]

WILDCARD: Final = "*"
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The one name that the resource of type cluster has."""


class Resource(enum.IntEnum):
    """What a rule is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Pattern(enum.IntEnum):
    """How the name in a rule is meant; the first two occur in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


SUPPORTED: Final[Mapping[Resource, tuple[Operation, ...]]] = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
}
"""What can be done with each resource. Any rule may be made; one about anything else is never asked for.

Clients that ask what they may do with a resource are told about these (KIP-430).
"""


class Permission(enum.IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One rule."""

    resource: Resource
    name: str
    pattern: Pattern
    principal: str
    """Type and name, as in `User:alice`."""
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Which rules are meant. None, and codes called ANY, leave a field open; a code that nobody has finds nothing."""

    resource: int = Resource.ANY
    name: str | None = None
    pattern: int = Pattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @property
    def only(self) -> Acl | None:
        """The one rule that can match, if nothing is left open."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if self.pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
            return None
        if self.resource == Resource.ANY or self.operation == Operation.ANY or self.permission == Permission.ANY:
            return None
        return Acl(*self)  # type: ignore[arg-type]  # codes are equal to the members that have them

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in (Resource.ANY, acl.resource)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        """MATCH asks for the rules that concern a name, whatever their pattern; the others for those that say so."""
        if self.pattern not in (Pattern.ANY, Pattern.MATCH, acl.pattern):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern != Pattern.MATCH:
            return False
        return acl.name == WILDCARD if acl.pattern is Pattern.LITERAL else self.name.startswith(acl.name)
