"""What handlers ask before they do something: may this one? `authorization.py` decides, from the rules of `acls.py`.

Without an authorizer (`node.authorizer` is None) everybody may do everything, and nothing here is called on the hot
path. With one, each decision is made once and remembered until the rules change.

A refusal is counted, and logged as Kafka's authorizer logs it; where something is only left out of a list, it is
neither.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from onceflow.broker.acls import Acls
from onceflow.broker.authorization import REFUSALS, Rules, principals
from onceflow.clock import Clock
from onceflow.config import BrokerConfig
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.monitor.meters import Meters
from onceflow.wire.acls import CLUSTER_NAME, SUPPORTED, Operation, Resource

if TYPE_CHECKING:
    from onceflow.broker.handlers import Context, Peer
    from onceflow.broker.node import Node

__all__ = [
    "Authorizer",
    "check",
    "check_cluster",
    "cluster_operations",
    "is_visible",
    "may",
    "may_on_cluster",
    "may_produce",
    "might",
    "operations_of",
    "refusal",
]

logger = logging.getLogger(__name__)

DECISIONS_MAX: Final = 50_000
NAME_LENGTH_MAX: Final = 300
"""Names come from clients: what is remembered about them has to end somewhere. Longer ones are decided each time."""
LOGGED_PER_SECOND_MAX: Final = 10
SECOND_MS: Final = 1000

Question = tuple[str, str, Operation, Resource, str]
AnyName = tuple[str, str, Operation, Resource]


class Authorizer:
    """Decides, remembers, counts and logs."""

    def __init__(self, acls: Acls, config: BrokerConfig, meters: Meters, clock: Clock) -> None:
        self.acls = acls
        self._super_users = principals(config["super.users"])
        self._open_by_default: bool = config["allow.everyone.if.no.acl.found"]
        self._meters = meters
        self._log = _Log(clock)
        self._decisions: dict[Question | AnyName, bool] = {}
        acls.on_change = self._forget
        self._forget()
        if not self._super_users and not self._open_by_default and not len(acls):
            logger.warning("ACLs are on, there are none, and nobody may make any: name somebody in super.users.")

    def _forget(self) -> None:
        self._rules = Rules(self.acls, super_users=self._super_users, open_by_default=self._open_by_default)
        self._decisions.clear()

    def allows(self, peer: Peer, operation: Operation, resource: Resource, name: str) -> bool:
        """Also counts and logs a refusal."""
        question = (peer.principal, peer.host, operation, resource, name)
        if self._decisions.get(question) or self._decided(question):
            return True
        self.refused(peer, operation, resource, name)
        return False

    def would_allow(self, peer: Peer, operation: Operation, resource: Resource, name: str) -> bool:
        return self._decided((peer.principal, peer.host, operation, resource, name))

    def _decided(self, question: Question) -> bool:
        decision = self._decisions.get(question)
        if decision is None:
            decision = self._rules.allow(*question)
            if len(question[-1]) <= NAME_LENGTH_MAX:
                self._remember(question, decision)
        return decision

    def _remember(self, question: Question | AnyName, decision: bool) -> None:
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[question] = decision

    def would_allow_somewhere(self, peer: Peer, operation: Operation, resource: Resource) -> bool:
        question = (peer.principal, peer.host, operation, resource)
        decision = self._decisions.get(question)
        if decision is None:
            decision = self._rules.allow_somewhere(*question)
            self._remember(question, decision)
        return decision

    def refused(self, peer: Peer, operation: Operation, resource: Resource, name: str) -> None:
        self._meters.denied[resource.name.lower()] += 1
        self._log.denied(peer, operation, resource, name)


class _Log:
    """Refusals, and never so many that the log is all about one client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms = 0
        self._count = 0

    def denied(self, peer: Peer, operation: Operation, resource: Resource, name: str) -> None:
        now_ms = self._clock.now_ms()
        if not 0 <= now_ms - self._since_ms < SECOND_MS:
            if self._count > LOGGED_PER_SECOND_MAX:
                logger.info("%d more requests were denied in that second.", self._count - LOGGED_PER_SECOND_MAX)
            self._since_ms, self._count = now_ms, 0
        self._count += 1
        if self._count <= LOGGED_PER_SECOND_MAX:
            # Principal and name are in quotes and escaped: a client chose them, and might like to write our log.
            logger.info(
                "Principal = %r is Denied operation = %s from host = %s on resource = %s:%r",
                peer.principal, operation.name, peer.host, resource.name, name[:NAME_LENGTH_MAX],
            )  # fmt: skip


def may(node: Node, context: Context, operation: Operation, resource: Resource, name: str) -> bool:
    return node.authorizer is None or node.authorizer.allows(context.peer, operation, resource, name)


def might(node: Node, context: Context, operation: Operation, resource: Resource, name: str) -> bool:
    """Without a trace of a refusal."""
    return node.authorizer is None or node.authorizer.would_allow(context.peer, operation, resource, name)


def may_on_cluster(node: Node, context: Context, operation: Operation) -> bool:
    """Without a trace of a refusal: this is asked where another permission does as well."""
    return might(node, context, operation, Resource.CLUSTER, CLUSTER_NAME)


def is_visible(node: Node, context: Context, resource: Resource, name: str) -> bool:
    """Whether this may be in a list. Without a trace of a refusal: nobody has asked for it by name."""
    return might(node, context, Operation.DESCRIBE, resource, name)


def refusal(node: Node, context: Context, operation: Operation, resource: Resource, name: str) -> ErrorCode:
    """NONE, or the code that belongs to the resource."""
    return ErrorCode.NONE if may(node, context, operation, resource, name) else REFUSALS[resource]


def check(node: Node, context: Context, operation: Operation, resource: Resource, name: str) -> None:
    """Raises `ProtocolError` with the code that belongs to the resource."""
    if not may(node, context, operation, resource, name):
        what = resource.name.lower().replace("_", " ")
        raise ProtocolError(
            REFUSALS[resource],
            f"Authorization failed: {context.peer.principal} has no {operation.name} on {what} {name!r}.",
        )


def check_cluster(node: Node, context: Context, operation: Operation) -> None:
    check(node, context, operation, Resource.CLUSTER, CLUSTER_NAME)


def may_produce(node: Node, context: Context) -> bool:
    """Whether an idempotent producer has any use for a producer id (KIP-679)."""
    if node.authorizer is None or may_on_cluster(node, context, Operation.IDEMPOTENT_WRITE):
        return True
    if node.authorizer.would_allow_somewhere(context.peer, Operation.WRITE, Resource.TOPIC):
        return True
    node.authorizer.refused(context.peer, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME)
    return False


def cluster_operations(node: Node, context: Context) -> int:
    """As `operations_of`; none for who may not even describe the cluster."""
    if not may(node, context, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        return 0
    return operations_of(node, context, Resource.CLUSTER, CLUSTER_NAME)


def operations_of(node: Node, context: Context, resource: Resource, name: str) -> int:
    """What the client may do with this, one bit for each operation (KIP-430)."""
    return sum(
        1 << operation
        for operation in SUPPORTED[resource]
        if node.authorizer is None or node.authorizer.would_allow(context.peer, operation, resource, name)
    )
