"""Asks a cluster, through Kafka's own protocol, for everything that the checks of it go by. Changes nothing.

That is why coordinators are only looked for if their topics exist: to ask for one creates its topic. A part that is
refused (a missing right) or not known to the broker is noted under `unknown`, and the rest is gathered all the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from onceflow.client.cluster import Cluster, Node, TopicPartition, patiently, refuse
from onceflow.client.connection import Unreachable
from onceflow.client.offsets import EARLIEST, LATEST, list_offsets
from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.client.software import is_onceflow
from onceflow.client.transactions import (
    MAX_TIMEOUT_NAME,
    UNFINISHED,
    HangingTransaction,
    Transaction,
    describe_transactions,
    find_hanging,
    list_transactions,
)
from onceflow.doctor.facts import ClusterFacts, GroupFacts, PartitionFacts, TopicFacts
from onceflow.errors import ConfigError, ErrorCode
from onceflow.wire.acls import Operation
from onceflow.wire.messages.describe_cluster import DescribeClusterRequest
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from onceflow.wire.messages.list_groups import ListGroupsRequest
from onceflow.wire.messages.metadata import MetadataRequest, MetadataResponseTopic
from onceflow.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

__all__ = ["GROUPS_TOPIC", "TRANSACTIONS_TOPIC", "gather"]

T = TypeVar("T")
_Offsets = dict[TopicPartition, int]
_BrokerSettings = dict[int, dict[str, str]]
_TopicSettings = dict[str, dict[str, tuple[str, int]]]

TRANSACTIONS_TOPIC: Final = "__transaction_state"
GROUPS_TOPIC: Final = "__consumer_offsets"

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
TOPIC_SOURCE: Final = 1  # of a setting: the topic has it itself
PER_REQUEST: Final = 200
OFFSET_FETCH_VERSIONS: Final = (8, 9)  # several groups from 8 on; from 10 on topics are named by id
MAX_TIMEOUT_MS_DEFAULT: Final = 900_000
HIDDEN: Final = (
    "none can be seen by this login, which has no DESCRIBE on the cluster: what it may not describe is hidden from it"
)
PARTS: Final = ("versions", "settings", "topics", "transactions", "hanging", "groups")
"""What can be missing, beside `brokers`."""


def gather(
    settings: ClientSettings, *, topics: Collection[str] = (), transactional_ids: Collection[str] = ()
) -> ClusterFacts:
    """What there is to know of a cluster; of its topics only these, if any are named, and the internal ones.

    Of transactional ids, the unfinished ones and those that are named. A cluster that cannot be reached is facts, too:
    its `unknown` says so of every part. Raises `ConfigError` for wrong settings, and for a topic that is not there.
    """
    try:
        with Cluster(settings) as cluster:
            return _Gathering(cluster, settings.bootstrap).everything(topics, transactional_ids)
    except ClientError as problem:
        unknown = dict.fromkeys(("brokers", *PARTS), str(problem))
        return ClusterFacts(address=settings.bootstrap, now_ms=_now_ms(), unknown=unknown)


@dataclass
class _Gathering:
    cluster: Cluster
    address: str
    unknown: dict[str, str] = field(default_factory=dict)

    def everything(self, wanted: Collection[str], transactional_ids: Collection[str]) -> ClusterFacts:
        nodes = self.cluster.nodes()
        brokers = {node.id: str(node.address) for node in nodes}
        reachable, unreachable = self._knock(nodes)
        if not reachable:
            return ClusterFacts(
                address=self.address,
                now_ms=_now_ms(),
                brokers=brokers,
                unreachable=unreachable,
                unknown=dict.fromkeys(PARTS, "no broker can be reached under the address that it advertises"),
            )
        found: tuple[TopicFacts, ...] = self.part("topics", self._topics, ())
        topics = _chosen(found, wanted) if "topics" not in self.unknown else ()
        settings: _BrokerSettings = self.part("settings", lambda: self._broker_settings(reachable), {})
        names = {topic.name for topic in topics}
        groups: tuple[GroupFacts, ...] = self.part("groups", lambda: self._groups(reachable, names), ())
        places = [place for group in groups for place in group.committed]
        offsets: dict[str, _Offsets] = self.part("groups", lambda: self._offsets(topics, places), {})
        features = self.cluster.any_broker().features()
        transactions: tuple[Transaction, ...] = self.part(
            "transactions", lambda: self._transactions(wanted, transactional_ids), ()
        )
        hanging: tuple[HangingTransaction, ...] = self.part("hanging", lambda: self._hanging(topics, settings), ())
        self._doubt({"topics": found, "transactions": transactions, "hanging": found, "groups": groups})
        return ClusterFacts(
            address=self.address,
            now_ms=_now_ms(),
            brokers=brokers,
            unreachable=unreachable,
            versions=_common([self.cluster.node(node.id).versions() for node in reachable]),
            features=features,
            settings=settings,
            is_onceflow=is_onceflow(features),
            topics=topics,
            coordinators=self._coordinators({topic.name for topic in found}),
            transactions=transactions,
            hanging=hanging,
            groups=groups,
            starts=offsets.get("starts", {}),
            stable=offsets.get("stable", {}),
            ends=offsets.get("ends", {}),
            unknown=self.unknown,
        )

    def part(self, name: str, ask: Callable[[], T], otherwise: T) -> T:
        try:
            return ask()
        except ClientError as problem:
            self.unknown.setdefault(name, str(problem))
            return otherwise

    def _doubt(self, seen: Mapping[str, Collection[object]]) -> None:
        """What may not be described is hidden, not refused: to see none is no proof that there are none."""
        empty = [name for name, things in seen.items() if not things]
        if empty and not self.part("rights", self._may_describe, True):
            for name in empty:
                self.unknown.setdefault(name, HIDDEN)

    def _may_describe(self) -> bool:
        question = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = self.cluster.any_broker().ask(question)
        refuse(answer.error_code, "asking for the rights of this login", answer.error_message)
        return bool(answer.cluster_authorized_operations & 1 << Operation.DESCRIBE)

    def _knock(self, nodes: Sequence[Node]) -> tuple[list[Node], dict[int, str]]:
        """Those that accept a connection, and why the others do not."""
        reachable, unreachable = [], {}
        for node in nodes:
            try:
                self.cluster.node(node.id)
                reachable.append(node)
            except Unreachable as problem:
                unreachable[node.id] = str(problem)
        return reachable, unreachable

    def _topics(self) -> tuple[TopicFacts, ...]:
        answer = self.cluster.any_broker().ask(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        names = [each.name for each in answer.topics]
        settings: _TopicSettings = self.part("settings", lambda: self._topic_settings(names), {})
        return tuple(_topic(each, settings.get(each.name, {})) for each in answer.topics)

    def _topic_settings(self, names: Sequence[str]) -> _TopicSettings:
        """Value and source of every setting, by topic."""
        found: _TopicSettings = {}
        for some in _portions(sorted(names)):
            resources = [DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name) for name in some]
            answer = self.cluster.any_broker().ask(DescribeConfigsRequest(resources=resources))
            for result in answer.results:
                if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue  # deleted meanwhile
                refuse(result.error_code, f"asking for the settings of {result.resource_name}", result.error_message)
                configs = {each.name: (each.value or "", each.config_source) for each in result.configs}
                found[result.resource_name] = configs
        return found

    def _broker_settings(self, nodes: Iterable[Node]) -> _BrokerSettings:
        found: _BrokerSettings = {}
        for node in nodes:
            resource = DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name=str(node.id))
            [result] = self.cluster.node(node.id).ask(DescribeConfigsRequest(resources=[resource])).results
            refuse(result.error_code, f"asking for the settings of {node}", result.error_message)
            found[node.id] = {each.name: each.value for each in result.configs if each.value is not None}
        return found

    def _coordinators(self, there: Collection[str]) -> dict[str, str | None]:
        """Whether the transactional id and the group that nobody has would find theirs."""
        found: dict[str, str | None] = {}
        for topic, ask in (
            (TRANSACTIONS_TOPIC, self.cluster.transaction_coordinator),
            (GROUPS_TOPIC, self.cluster.group_coordinator),
        ):
            if topic in there:
                with _noting(found, topic):
                    self.cluster.node(ask("onceflow-doctor").id)
        return found

    def _transactions(self, topics: Collection[str], named: Collection[str]) -> tuple[Transaction, ...]:
        unfinished = [each.transactional_id for each in list_transactions(self.cluster, states=UNFINISHED)]
        known = {each.transactional_id for each in list_transactions(self.cluster)} if named else set()
        found = describe_transactions(self.cluster, [*unfinished, *(each for each in named if each in known)])
        return tuple(
            each
            for each in found.values()
            if each.transactional_id in named or not topics or {topic for topic, _ in each.partitions} & set(topics)
        )

    def _hanging(self, topics: Iterable[TopicFacts], settings: _BrokerSettings) -> tuple[HangingTransaction, ...]:
        texts = [each.get(MAX_TIMEOUT_NAME, "") for each in settings.values()]
        longest = max((int(text) for text in texts if text.isdigit()), default=MAX_TIMEOUT_MS_DEFAULT)
        return tuple(find_hanging(self.cluster, _led(topics), older_than_ms=longest))

    def _groups(self, nodes: Iterable[Node], topics: Collection[str]) -> tuple[GroupFacts, ...]:
        states: dict[str, str] = {}
        for node in nodes:
            states |= patiently(lambda at=node: self._groups_at(at), self.cluster.timeout_s)  # type: ignore[misc]
        return tuple(self._group(name, states[name], topics) for name in sorted(states))

    def _groups_at(self, node: Node) -> dict[str, str]:
        answer = self.cluster.node(node.id).ask(ListGroupsRequest())
        refuse(answer.error_code, f"listing the groups of {node}")
        return {each.group_id: each.group_state for each in answer.groups if each.protocol_type in ("consumer", "")}

    def _group(self, name: str, state: str, topics: Collection[str]) -> GroupFacts:
        """With the offsets as they are: one that is part of an open transaction is not waited for."""
        question = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)])
        coordinator = self.cluster.node(self.cluster.group_coordinator(name).id)
        if coordinator.version(OffsetFetchRequest, at_most=OFFSET_FETCH_VERSIONS[1]) < OFFSET_FETCH_VERSIONS[0]:
            raise ClientError(f"{coordinator.address} is too old to be asked for all offsets of a group")
        [answer] = coordinator.ask(question, at_most=OFFSET_FETCH_VERSIONS[1]).groups
        refuse(answer.error_code, f"asking for the offsets of group {name!r}")
        committed = {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.topics
            for each in topic.partitions
            if topic.name in topics and each.committed_offset >= 0
        }
        return GroupFacts(id=name, state=state, committed=committed)

    def _offsets(self, topics: Iterable[TopicFacts], places: Iterable[TopicPartition]) -> dict[str, _Offsets]:
        led = sorted(set(_led(topics)) & set(places))
        questions = {"starts": (EARLIEST, False), "stable": (LATEST, True), "ends": (LATEST, False)}
        return {
            name: list_offsets(
                self.cluster,
                dict.fromkeys(led, which),
                read_committed=read_committed,
                patience_s=self.cluster.timeout_s,
            )
            for name, (which, read_committed) in questions.items()
        }


@contextmanager
def _noting(found: dict[str, str | None], name: str) -> Iterator[None]:
    try:
        yield
        found[name] = None
    except ClientError as problem:
        found[name] = str(problem)


def _chosen(topics: Sequence[TopicFacts], wanted: Collection[str]) -> tuple[TopicFacts, ...]:
    if missing := set(wanted) - {topic.name for topic in topics}:
        raise ConfigError(f"there is no topic {sorted(missing)[0]!r} in this cluster")
    return tuple(topic for topic in topics if not wanted or topic.internal or topic.name in wanted)


def _topic(found: MetadataResponseTopic, settings: Mapping[str, tuple[str, int]]) -> TopicFacts:
    return TopicFacts(
        name=found.name or "",
        internal=found.is_internal or found.name in (TRANSACTIONS_TOPIC, GROUPS_TOPIC),
        partitions=tuple(
            PartitionFacts(
                partition=each.partition_index,
                leader=each.leader_id if each.leader_id >= 0 else None,
                replicas=len(each.replica_nodes),
                in_sync=len(each.isr_nodes),
            )
            for each in found.partitions
        ),
        settings={name: value for name, (value, _) in settings.items()},
        own=frozenset(name for name, (_, source) in settings.items() if source == TOPIC_SOURCE),
    )


def _led(topics: Iterable[TopicFacts]) -> list[TopicPartition]:
    """Who has no leader cannot be asked for offsets and producers."""
    return [(topic.name, each.partition) for topic in topics for each in topic.partitions if each.leader is not None]


def _common(of_brokers: Sequence[Mapping[int, tuple[int, int]]]) -> dict[int, tuple[int, int]]:
    """The versions that all of them have: during an upgrade the oldest decides."""
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for versions in of_brokers:
        for key, each in versions.items():
            ranges[key].append(each)
    return {
        key: (max(low for low, _ in each), min(high for _, high in each))
        for key, each in ranges.items()
        if len(each) == len(of_brokers)
    }


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + PER_REQUEST] for at in range(0, len(names), PER_REQUEST))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
