"""Checks of the brokers: their versions, their settings, their coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.doctor.facts import Case, ClusterFacts
from onceflow.doctor.findings import Finding, fault, note, some, warning
from onceflow.doctor.gathering import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from onceflow.doctor.registry import cluster_check

__all__ = ["HOUR_MS", "is_replicated"]

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
DAY_MINUTES: Final = 24 * 60
JAVA_TRANSACTION_MS: Final = 60_000  # what Java's producer and librdkafka ask for by default
SINK_TRANSACTION_MS: Final = 300_000  # what KafkaSink asks for by default
ENOUGH_BROKERS: Final = 3

NEEDED_APIS: Final = {
    22: ("InitProducerId", 3),
    24: ("AddPartitionsToTxn", 4),  # Kafka 3.5, with the server's side of KIP-890
    61: ("DescribeProducers", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 0),
}
COORDINATORS: Final = {TRANSACTIONS_TOPIC: "transactions", GROUPS_TOPIC: "consumer groups"}


def is_replicated(cluster: ClusterFacts) -> bool:
    return len(cluster.brokers) > 1


@cluster_check(
    "broker.reachable",
    "Brokers can be reached",
    why="Clients talk to every broker under the address that it advertises, not to the bootstrap address alone.",
    needs=("brokers",),
)
def reachable(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for problem in cluster.unreachable.values():
        yield fault(problem, "start it, or set its advertised.listeners to an address that clients reach")


@cluster_check(
    "broker.version",
    "Versions of the protocol",
    why="Onceflow's sink and its tools need what brokers know from Kafka 3.6 on.",
    needs=("versions",),
)
def version(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    missing = [name for key, (name, least) in NEEDED_APIS.items() if cluster.versions.get(key, (0, -1))[1] < least]
    if missing:
        yield fault(f"not known, or too old: {some(missing)}", "upgrade the brokers to Kafka 3.6 or newer")


@cluster_check(
    "broker.transaction-version",
    "transaction.version (KIP-890)",
    why="From 2 on every transaction has an epoch of its own, so a late write cannot become part of the next one.",
    needs=("versions",),
)
def transaction_version(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    level = cluster.features.get("transaction.version", 0)
    if level < 2:
        fix = "kafka-features.sh --bootstrap-server ... upgrade --feature transaction.version=2"
        yield note(f"it is {level}", f"with Kafka 4.0 or newer: {fix}")


@cluster_check(
    "broker.verification",
    "Partitions ask the coordinator",
    why="A partition that does not ask takes a late write after the transaction's end, and it hangs there for ever.",
    needs=("settings",),
)
def verification(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    name = "transaction.partition.verification.enable"
    if cluster.has(name, "false"):
        yield warning(f"{name}=false", f"set {name}=true on the brokers")


@cluster_check(
    "broker.single",
    "More than one machine",
    why="What only one machine has is gone when its disk is.",
    needs=("brokers",),
)
def single(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    count = len(cluster.brokers)
    if count == 1:
        yield note("one broker: nothing is replicated; exactly-once holds, and the data is as safe as this machine")
    elif count < ENOUGH_BROKERS:
        yield warning(f"{count} brokers: not enough for 3 replicas with 2 in sync", "add a third broker")


@cluster_check(
    "broker.durability",
    "An acknowledged write is on disk",
    why="Without replicas, a write that is only in the system's memory is lost with the power.",
    needs=("settings", "brokers"),
)
def durability(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    if is_replicated(cluster) or cluster.has("log.flush.interval.messages", "1"):
        return
    if cluster.is_onceflow:
        yield warning(
            "--durability os: what is acknowledged survives the death of the broker's process, not of its machine",
            "start the broker with --durability fsync (the default)",
        )
    else:
        yield note(
            "this broker answers before the disk has it, as Kafka does: replicas are its way to be safe",
            "for a single broker: log.flush.interval.messages=1, or a power supply that does not fail",
        )


@cluster_check(
    "broker.unclean",
    "Unclean leader elections",
    why="A replica that lacks acknowledged records may become leader, and they are gone: committed ones, too.",
    needs=("settings",),
)
def unclean(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    if cluster.has("unclean.leader.election.enable", "true"):
        found, fix = "unclean.leader.election.enable=true on the brokers", "set unclean.leader.election.enable=false"
        yield fault(found, fix) if is_replicated(cluster) else warning(f"{found}; no effect without replicas", fix)


@cluster_check(
    "broker.auto-create",
    "Topics are not made by accident",
    why="A misspelt name becomes a new topic with default replication, and the records go there.",
    needs=("settings",),
)
def auto_create(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    if cluster.has("auto.create.topics.enable", "true"):
        yield note("auto.create.topics.enable=true", "set auto.create.topics.enable=false on the brokers")


@cluster_check(
    "broker.max-timeout",
    "transaction.max.timeout.ms",
    why="A producer that asks for more is refused; and so long may a dead producer hold readers back.",
    needs=("settings",),
)
def max_timeout(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    name = "transaction.max.timeout.ms"
    longest = cluster.number(name)
    if longest is None:
        return
    fix = f"set {name}=900000 on the brokers"
    if longest < JAVA_TRANSACTION_MS:
        yield fault(f"{name}={longest}: producers with default settings are refused", fix)
    elif longest < SINK_TRANSACTION_MS:
        yield warning(f"{name}={longest}: KafkaSink asks for {SINK_TRANSACTION_MS}", fix)
    elif longest > HOUR_MS:
        yield note(f"{name}={longest}: more than an hour", f"set {name}=900000, unless a job needs more")


@cluster_check(
    "broker.id-expiration",
    "transactional.id.expiration.ms",
    why="An id that is forgotten has no epoch any more: what an old instance still sends is not told apart from new.",
    needs=("settings",),
)
def id_expiration(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    yield from _too_short(cluster, "transactional.id.expiration.ms", DAY_MS, "a day", "604800000 (a week)")


@cluster_check(
    "broker.producer-expiration",
    "producer.id.expiration.ms",
    why="A producer that was idle for longer is forgotten, and a repetition of its last batch is stored again.",
    needs=("settings",),
)
def producer_expiration(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    yield from _too_short(cluster, "producer.id.expiration.ms", HOUR_MS, "an hour", "86400000 (a day)")


def _too_short(cluster: ClusterFacts, name: str, least_ms: int, in_words: str, better: str) -> Iterator[Finding]:
    value = cluster.number(name)
    if value is not None and value < least_ms:
        yield warning(f"{name}={value}: less than {in_words}", f"set {name}={better} on the brokers")


@cluster_check(
    "broker.offsets-retention",
    "offsets.retention.minutes",
    why="A group that was stopped for longer has lost its place, and begins anew: records are repeated or skipped.",
    needs=("settings", "groups"),
)
def offsets_retention(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    name = "offsets.retention.minutes"
    value = cluster.number(name)
    if value is None or value >= DAY_MINUTES:
        return
    idle = [group.id for group in cluster.groups if group.committed and not group.has_members]
    whom = f"; without members now: {some(idle)}" if idle else ""
    yield warning(f"{name}={value}: less than a day{whom}", f"set {name}=10080 (a week) on the brokers")


@cluster_check(
    "broker.coordinators",
    "Coordinators",
    why="Without a coordinator no transaction begins or ends, and no group commits.",
    needs=("topics",),
)
def coordinators(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for topic, problem in cluster.coordinators.items():
        if problem is not None:
            yield fault(f"of {COORDINATORS[topic]}: {problem}", f"see to the partitions of {topic}, and to its brokers")


@cluster_check(
    "broker.clock",
    "Clocks",
    why="Ages, retention and timeouts are compared with the clocks of brokers, and lookups by time go wrong.",
    needs=("transactions",),
)
def clock(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    """No request asks for the time; a transaction that begins in our future gives a difference away."""
    ahead = [each.started_ms - cluster.now_ms for each in cluster.transactions if each.started_ms is not None]
    if ahead and max(ahead) > 5000:
        yield warning(
            f"a broker's clock is at least {max(ahead) // 1000} s ahead of this machine's",
            "have all machines synchronize their clocks (NTP)",
        )
