"""Checks of topics: replicas, what their settings allow to be lost, and what their partitions are doing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from onceflow.digits import whole_number_of
from onceflow.doctor.cluster_checks import ENOUGH_BROKERS, HOUR_MS, is_replicated
from onceflow.doctor.facts import Case, ClusterFacts, PartitionFacts, TopicFacts
from onceflow.doctor.findings import Finding, fault, note, some, warning
from onceflow.doctor.gathering import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.doctor.registry import cluster_check
from onceflow.monitor.micro_batches import PROGRESS_TOPIC

__all__: list[str] = []

REPLICATION_SETTINGS: Final = {
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
    GROUPS_TOPIC: "offsets.topic.replication.factor",
}
REASSIGN: Final = "give them 3 replicas with kafka-reassign-partitions.sh"
ALTER: Final = "kafka-configs.sh --bootstrap-server ... --alter --entity-type topics --entity-name {} --add-config {}"


def _named(topics: Iterable[TopicFacts], is_so: Callable[[TopicFacts], bool]) -> list[str]:
    return [topic.name for topic in topics if is_so(topic)]


def _alter(topics: list[str], setting: str) -> str:
    return ALTER.format(sorted(topics)[0] if len(topics) == 1 else "TOPIC", setting)


@cluster_check(
    "topics.replication",
    "Replicas of topics",
    why="A partition with one replica is gone with its machine, and away while that one restarts.",
    needs=("topics",),
)
def replication(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    if not is_replicated(cluster):
        return  # broker.single says it once
    if lonely := _named(cluster.data_topics, lambda topic: topic.replicas < 2):
        yield fault(f"one replica: {some(lonely)}", REASSIGN)
    if len(cluster.brokers) >= ENOUGH_BROKERS and (
        pairs := _named(cluster.data_topics, lambda topic: topic.replicas == 2)
    ):
        yield warning(f"two replicas, so either safe or available when one is away: {some(pairs)}", REASSIGN)


@cluster_check(
    "topics.min-insync",
    "min.insync.replicas of topics",
    why="acks=all waits for the replicas in sync; with a minimum of 1 that may be the leader alone.",
    needs=("topics", "settings"),
)
def min_insync(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    known = [topic for topic in cluster.data_topics if topic.min_insync is not None]
    if cluster.is_onceflow:
        if high := _named(known, _wants_more_than_there_are):
            yield note(f"more than there are replicas: {some(high)}; of no effect here, Kafka would refuse all writes")
        return
    yield from _min_insync(known, "min.insync.replicas=2")


def _min_insync(topics: list[TopicFacts], setting: str) -> Iterator[Finding]:
    if low := _named(topics, lambda topic: topic.min_insync == 1 and topic.replicas >= ENOUGH_BROKERS):
        yield fault(f"min.insync.replicas=1: {some(low)}", _alter(low, setting))
    if high := _named(topics, _wants_more_than_there_are):
        yield fault(f"more than there are replicas, so nothing with acks=all can be written: {some(high)}",
                    _alter(high, "min.insync.replicas=1, or more replicas"))  # fmt: skip
    if tight := _named(topics, lambda topic: topic.replicas > 1 and topic.min_insync == topic.replicas):
        yield warning(f"as many as replicas, so one broker away stops all writes: {some(tight)}",
                      f"{_alter(tight, setting)}, with 3 replicas")  # fmt: skip


def _wants_more_than_there_are(topic: TopicFacts) -> bool:
    return (topic.min_insync or 0) > topic.replicas > 0


@cluster_check(
    "topics.unclean",
    "Unclean leader elections of topics",
    why="A replica that lacks acknowledged records may become leader, and they are gone: committed ones, too.",
    needs=("topics", "settings"),
)
def unclean(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    name = "unclean.leader.election.enable"
    allowed = [topic for topic in cluster.topics if topic.settings.get(name) == "true" and name in topic.own]
    if replicated := _named(allowed, lambda topic: topic.replicas > 1):
        yield fault(f"{name}=true: {some(replicated)}", _alter(replicated, f"{name}=false"))
    if others := _named(allowed, lambda topic: topic.replicas <= 1):
        yield warning(f"{name}=true, of no effect until there are replicas: {some(others)}",
                      _alter(others, f"{name}=false"))  # fmt: skip


@cluster_check(
    "topics.internal-replication",
    "Replicas of the coordinators' topics",
    why="Transactions and group offsets are as safe as the topics that they are kept in.",
    needs=("topics", "settings"),
)
def internal_replication(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for name, factor_name in REPLICATION_SETTINGS.items():
        topic = cluster.topic(name)
        factor = cluster.number(factor_name) if topic is None else topic.replicas
        if factor is None:
            continue
        if topic is None and factor > len(cluster.brokers):
            count = len(cluster.brokers)
            yield fault(
                f"{name} is not there yet and cannot be created: {factor_name}={factor}, and brokers: {count}",
                f"set {factor_name}={count} on the brokers, or start more of them",
            )
        elif is_replicated(cluster) and factor < min(ENOUGH_BROKERS, len(cluster.brokers)):
            told = fault if factor < 2 else warning
            fix = f"{REASSIGN}; for new clusters {factor_name}=3" if topic is not None else f"set {factor_name}=3"
            yield told(f"{name}: {factor}", fix)


@cluster_check(
    "topics.internal-min-insync",
    "min.insync.replicas of the coordinators' topics",
    why="A commit that only one replica knows of is taken back when that one is lost.",
    needs=("topics", "settings"),
)
def internal_min_insync(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    there = [topic for name in REPLICATION_SETTINGS if (topic := cluster.topic(name)) is not None]
    yield from _min_insync([topic for topic in there if topic.min_insync is not None], "min.insync.replicas=2")
    name = "transaction.state.log.min.isr"
    is_to_come = cluster.topic(TRANSACTIONS_TOPIC) is None and len(cluster.brokers) >= ENOUGH_BROKERS
    if is_to_come and cluster.number(name) == 1:
        yield fault(f"{name}=1, and {TRANSACTIONS_TOPIC} will be created with it", f"set {name}=2 on the brokers")


@cluster_check(
    "topics.internal-cleanup",
    "cleanup.policy of the coordinators' topics",
    why="They keep the last state of each key; if old records are deleted, transactions and offsets are forgotten.",
    needs=("topics", "settings"),
)
def internal_cleanup(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    there = [topic for name in REPLICATION_SETTINGS if (topic := cluster.topic(name)) is not None]
    for name in _named(there, lambda topic: bool(topic.cleanup) and topic.cleanup != {"compact"}):
        yield fault(f"{name} is not only compacted", _alter([name], "cleanup.policy=compact"))


@cluster_check(
    "topics.progress",
    f"The topic {PROGRESS_TOPIC}",
    why="It says which micro-batch was committed last; an app whose record is gone writes a batch twice.",
    needs=("topics", "settings"),
)
def progress(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    topic = cluster.topic(PROGRESS_TOPIC)
    if topic is None:
        return
    if topic.cleanup and topic.cleanup != {"compact"}:
        policy = topic.settings["cleanup.policy"]
        yield fault(f"cleanup.policy={policy}", _alter([PROGRESS_TOPIC], "cleanup.policy=compact"))
    if len(topic.partitions) > 1:
        found = f"it has {len(topic.partitions)} partitions, and only the first is used"
        yield warning(found, "create it with one partition before the first app runs")


@cluster_check(
    "topics.offline",
    "Partitions have leaders",
    why="Without a leader nothing can be read or written there, and no transaction that touched it ends.",
    needs=("topics",),
)
def offline(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    if gone := _partitions(cluster, lambda topic, each: each.leader is None):
        yield fault(f"no leader: {some(gone)}", "start the brokers that have their replicas")


@cluster_check(
    "topics.under-replicated",
    "Replicas are in sync",
    why="Replicas that lag behind do not count when the leader is lost.",
    needs=("topics",),
)
def under_replicated(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    fix = "see which brokers are down or slow: onceflow topics describe TOPIC"
    if below := _partitions(cluster, _is_below_minimum):
        yield fault(f"fewer in sync than min.insync.replicas, so writes are refused: {some(below)}", fix)
    if rest := _partitions(cluster, lambda topic, each: _is_lagging(each) and not _is_below_minimum(topic, each)):
        yield warning(f"fewer in sync than there are: {some(rest)}", fix)


def _is_lagging(each: PartitionFacts) -> bool:
    return each.in_sync < each.replicas


def _is_below_minimum(topic: TopicFacts, each: PartitionFacts) -> bool:
    """And not for want of replicas, of which another check speaks."""
    return _is_lagging(each) and each.in_sync < (topic.min_insync or 0)


def _partitions(cluster: ClusterFacts, is_so: Callable[[TopicFacts, PartitionFacts], bool]) -> list[str]:
    """Topics with such partitions; one alone is named."""
    found = []
    for topic in cluster.topics:
        those = [each.partition for each in topic.partitions if is_so(topic, each)]
        if len(those) == 1:
            found.append(f"{topic.name}-{those[0]}")
        elif those:
            found.append(f"{topic.name} ({len(those)} of {len(topic.partitions)} partitions)")
    return found


@cluster_check(
    "topics.retention",
    "Retention of topics that groups read",
    why="Records that are deleted before a group has read them are lost for it.",
    needs=("topics", "settings", "groups"),
)
def retention(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    read = {topic for group in cluster.groups for topic, _ in group.committed}
    short = _named(cluster.data_topics, lambda topic: topic.name in read and _keeps_less_than_an_hour(topic))
    if short:
        yield warning(f"less than an hour: {some(short)}", _alter(short, "retention.ms=604800000"))


def _keeps_less_than_an_hour(topic: TopicFacts) -> bool:
    text = topic.settings.get("retention.ms", "")
    kept_ms = whole_number_of(text)
    return "delete" in topic.cleanup and kept_ms is not None and kept_ms < HOUR_MS
