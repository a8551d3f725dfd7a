"""The brokers behind a bootstrap address, and which of them to ask.

    with Cluster(settings) as cluster:
        cluster.transaction_coordinator("orders-app").ask(...)

Connections are made when they are needed and kept, one per broker; one that broke is made anew for the next request.
What `Connection` says holds here too: no request is sent twice. Only the questions of this module, which change
nothing (Metadata, FindCoordinator), are asked again: at the same broker while the answer is "not yet", and at the next
one (of the bootstrap addresses, and of those that the cluster named) when a broker is gone or keeps silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from onceflow.client.addresses import Address
from onceflow.client.admin import TopicMissingError
from onceflow.client.connection import CLIENT_ID_DEFAULT, Connection, NoAnswer, NotKafka, Unreachable
from onceflow.client.problems import ClientError
from onceflow.client.security import PROTOCOLS, SECURITY_SETTINGS, Security, nearest
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError, ErrorCode
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic

__all__ = [
    "NOT_YET",
    "Cluster",
    "Leader",
    "Node",
    "Refused",
    "TopicLayout",
    "TopicPartition",
    "error_name",
    "patiently",
    "refuse",
]

TopicPartition = tuple[str, int]
T = TypeVar("T")

PATIENCE_POLL_S: Final = 0.05
GROUP_KEY, TRANSACTION_KEY = 0, 1  # the key types of FindCoordinator
KEYS_PER_REQUEST_FROM: Final = 4  # since then FindCoordinator takes several keys (KIP-699)

NOT_YET: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Nothing was done; whoever looks up the coordinator or leader and asks again gets a better answer, in a moment."""


class Refused(ClientError):
    """The broker answered with an error code: what was asked was not done."""

    def __init__(self, doing: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{doing} failed: {message or error_name(code)}")
        self.code = code


@dataclass(frozen=True)
class Node:
    """A broker of the cluster, under the address that it advertises."""

    id: int
    address: Address

    def __str__(self) -> str:
        return f"broker {self.id} at {self.address}"


class Leader(NamedTuple):
    """Who leads a partition, and in which term of office: a broker answers only for a term that it knows."""

    node: int
    epoch: int


@dataclass(frozen=True)
class TopicLayout:
    """A topic, as the cluster describes it."""

    id: UUID | None
    """None: the broker is too old to know topic ids."""
    leaders: Mapping[int, Leader | None]
    """By partition; None if it has no leader just now."""


class Cluster:
    """All brokers behind the bootstrap addresses. Raises `ClientError` at once if nobody listens at any of them."""

    def __init__(self, settings: ClientSettings) -> None:
        self._client_id, self._security = _own_settings(settings)
        self._settings = settings
        self._entrance = settings.knock()
        self._connections: dict[Address, Connection] = {}
        self._nodes: dict[int, Node] = {}
        self._cluster_id: str | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    @property
    def timeout_s(self) -> float:
        """How long one request may take, and how long "not yet" is put up with."""
        return self._settings.timeout_s

    def any_broker(self) -> Connection:
        """A broker that accepts a connection: the one that was asked last, else any that is known."""
        for address in self._entrances():
            try:
                connection = self._connection(address)
            except (Unreachable, NotKafka):
                continue
            self._entrance = address
            return connection
        self._entrance = self._settings.knock()
        return self._connection(self._entrance)

    def nodes(self) -> list[Node]:
        """All brokers of the cluster, by id."""
        self._metadata([])
        return [self._nodes[node_id] for node_id in sorted(self._nodes)]

    def node(self, node_id: int) -> Connection:
        """A broker by its id, as metadata and coordinator look-ups name it."""
        if node_id not in self._nodes:
            self._metadata([])
        if node_id not in self._nodes:
            raise Unreachable(f"the cluster does not know the address of broker {node_id}: it seems to be down")
        return self._connection(self._nodes[node_id].address)

    def leaders(self, topics: Collection[str] | None = None) -> dict[TopicPartition, int | None]:
        """The leader of each partition, None if it has none just now; of all topics, if none are given.

        Raises `TopicMissingError` if a topic that was named is not there.
        """
        return {
            (topic, partition): None if leader is None else leader.node
            for topic, layout in self.topics(topics).items()
            for partition, leader in layout.leaders.items()
        }

    def cluster_id(self) -> str:
        """The same whatever address leads to the cluster. Raises `ClientError` if its brokers do not say it."""
        if self._cluster_id is None:
            self._metadata([])
        if self._cluster_id is None:
            raise ClientError(f"the broker at {self._entrance} does not say which cluster it belongs to")
        return self._cluster_id

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicLayout]:
        """These topics, or all. Raises `TopicMissingError` if one that was named is not there."""
        found = {
            topic.name or "": TopicLayout(
                topic.topic_id,
                {
                    each.partition_index: Leader(each.leader_id, each.leader_epoch) if each.leader_id >= 0 else None
                    for each in topic.partitions
                },
            )
            for topic in self._metadata(None if names is None else list(names))
        }
        if missing := [name for name in names or () if name not in found]:
            raise TopicMissingError(f"the broker at {self._entrance} says nothing about topic {missing[0]!r}")
        return found

    def permitted(self, topics: Collection[str], operation: int) -> dict[str, bool | None]:
        """Whether we may do this with each of these topics (an `AclOperation`), None if the cluster does not say.

        Raises `TopicMissingError` if a topic is not there, or is hidden from us by an authorizer, and `Refused`.
        """
        unknown = -(2**31)
        return {
            topic.name or "": None
            if topic.topic_authorized_operations == unknown
            else bool(topic.topic_authorized_operations >> operation & 1)
            for topic in self._metadata(list(topics), with_operations=True)
        }

    def transaction_coordinator(self, transactional_id: str) -> Node:
        return self._coordinators([transactional_id], TRANSACTION_KEY)[transactional_id]

    def transaction_coordinators(self, transactional_ids: Iterable[str]) -> dict[str, Node]:
        return self._coordinators(list(transactional_ids), TRANSACTION_KEY)

    def group_coordinator(self, group: str) -> Node:
        return self._coordinators([group], GROUP_KEY)[group]

    def _connection(self, address: Address) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = Connection(
                address, timeout_s=self.timeout_s, client_id=self._client_id, security=self._security
            )
            self._connections[address] = connection
        return connection

    def _entrances(self) -> list[Address]:
        """Where to ask, best first: what answered last, what the settings name, what the cluster named."""
        named = [node.address for node in self._nodes.values()]
        return list(dict.fromkeys([self._entrance, *self._settings.addresses, *named]))

    def _ask_any(self, ask: Callable[[Connection], T]) -> T:
        """For questions that change nothing: one that is not answered is asked at the next broker."""
        problems: list[ClientError] = []
        for address in self._entrances():
            try:
                answer = ask(self._connection(address))
            except (Unreachable, NoAnswer) as problem:
                problems.append(problem)
                continue
            self._entrance = address
            return answer
        raise min(problems, key=lambda problem: isinstance(problem, NotKafka))  # first what may pass

    def _metadata(self, names: list[str] | None, *, with_operations: bool = False) -> list[MetadataResponseTopic]:
        """Also refreshes the addresses of the brokers."""
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        question = MetadataRequest(
            topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=with_operations
        )

        def ask() -> list[MetadataResponseTopic]:
            answer = self._ask_any(lambda broker: broker.ask(question))
            self._cluster_id = answer.cluster_id
            self._nodes |= {each.node_id: Node(each.node_id, Address(each.host, each.port)) for each in answer.brokers}
            for topic in answer.topics if names is not None else []:
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise TopicMissingError(f"there is no topic {topic.name!r} at {self._entrance}")
                refuse(topic.error_code, f"asking for topic {topic.name!r}")
            return list(answer.topics)

        return patiently(ask, self.timeout_s)

    def _coordinators(self, keys: list[str], kind: int) -> dict[str, Node]:
        def ask() -> dict[str, Node]:
            found = {each.key: each for each in self._ask_any(lambda broker: _find(broker, keys, kind))}
            for each in found.values():
                refuse(each.error_code, f"looking for the coordinator of {each.key!r}", each.error_message)
            if missing := [key for key in keys if key not in found]:
                raise ClientError(f"the broker at {self._entrance} does not say who coordinates {missing[0]!r}")
            return {key: Node(found[key].node_id, Address(found[key].host, found[key].port)) for key in keys}

        coordinators = patiently(ask, self.timeout_s)
        self._nodes |= {node.id: node for node in coordinators.values()}
        return coordinators


def patiently(ask: Callable[[], T], timeout_s: float, retry: Collection[int] = NOT_YET) -> T:
    """Asks until the answer is not `Refused` with one of these codes, or the time is up.

    Only for what may be asked twice: questions, and requests that certainly were not done when so refused.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except Refused as refusal:
            if refusal.code not in retry or time.monotonic() > deadline:
                raise
        time.sleep(PATIENCE_POLL_S)


def refuse(code: int, doing: str, message: str | None = None) -> None:
    """Raises `Refused` unless the code is 0."""
    if code != ErrorCode.NONE:
        raise Refused(doing, code, message)


def error_name(code: int) -> str:
    """A wire code as words: `not coordinator (error 16)`."""
    try:
        return f"{ErrorCode(code).name.replace('_', ' ').lower()} (error {code})"
    except ValueError:
        return f"error {code}, which this program does not know"


def _find(broker: Connection, keys: list[str], kind: int) -> list[Coordinator]:
    if broker.version(FindCoordinatorRequest) >= KEYS_PER_REQUEST_FROM:
        return list(broker.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)).coordinators)
    answers = [(key, broker.ask(FindCoordinatorRequest(key=key, key_type=kind))) for key in keys]
    return [
        Coordinator(
            key=key,
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
            error_code=answer.error_code,
            error_message=answer.error_message,
        )
        for key, answer in answers
    ]


def _own_settings(settings: ClientSettings) -> tuple[str, Security]:
    """The client id, and TLS and SASL.

    Raises `ConfigError` for a setting that has no effect here: better than to ignore it.
    """
    known = (*SECURITY_SETTINGS, "client.id")
    if unknown := [name for name in settings.extra if name not in known]:
        name = unknown[0]
        raise ConfigError(
            f"this does not go through librdkafka and cannot take its setting {name!r}{nearest(name, known)}"
        )
    security = Security.of({**_protocol_of(settings.bootstrap), **settings.extra})
    for asked in _protocol_of(settings.bootstrap).values():
        if asked != security.protocol:
            raise ConfigError(f"{settings.bootstrap!r} and security.protocol={security.protocol} contradict each other")
    return settings.extra.get("client.id", CLIENT_ID_DEFAULT), security


def _protocol_of(bootstrap: str) -> dict[str, str]:
    """`SASL_SSL://kafka:9092` says how to connect, as librdkafka takes it."""
    found = {part.strip().rpartition("://")[0].upper() for part in bootstrap.split(",")}
    if found == {""}:
        return {}
    if len(found) > 1 or not found <= set(PROTOCOLS):
        raise ConfigError(f"{bootstrap!r} has to name one protocol for all: {', '.join(PROTOCOLS)}, or none")
    return {"security.protocol": found.pop()}
