"""Clusters, clients and jobs as they should be, to be made worse in one point."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onceflow.client.addresses import Address
from onceflow.client.cluster import Node
from onceflow.client.transactions import HangingTransaction, OpenTransaction, Transaction
from onceflow.doctor.facts import Case, ClientFacts, ClusterFacts, GroupFacts, PartitionFacts, SparkFacts, TopicFacts
from onceflow.spark.sessions import recommended

NOW_MS = 1_800_000_000_000

BROKER_SETTINGS = {
    "unclean.leader.election.enable": "false",
    "auto.create.topics.enable": "false",
    "transaction.max.timeout.ms": "900000",
    "transactional.id.expiration.ms": "604800000",
    "producer.id.expiration.ms": "86400000",
    "offsets.retention.minutes": "10080",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.partition.verification.enable": "true",
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "log.dirs": "/data",
    "log.flush.interval.messages": "9223372036854775807",
}
TOPIC_SETTINGS = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
}


def topic(
    name: str, *, replicas: int = 3, in_sync: int | None = None, leader: int | None = 1, **settings: str
) -> TopicFacts:
    """Settings are written with underscores, and are the topic's own."""
    own = {key.replace("_", "."): value for key, value in settings.items()}
    partition = PartitionFacts(
        partition=0, leader=leader, replicas=replicas, in_sync=replicas if in_sync is None else in_sync
    )
    return TopicFacts(
        name=name,
        internal=name.startswith("__"),
        partitions=(partition,),
        settings={**TOPIC_SETTINGS, **own},
        own=frozenset(own),
    )


def transaction(
    state: str = "Ongoing", *, age_ms: int = 1000, timeout_ms: int = 60_000, id: str = "app-0"
) -> Transaction:
    return Transaction(
        transactional_id=id,
        state=state,
        producer_id=7,
        producer_epoch=3,
        timeout_ms=timeout_ms,
        started_ms=NOW_MS - age_ms,
        partitions=(("orders", 0),),
        coordinator=Node(1, Address("kafka", 9092)),
    )


def hanging_transaction() -> HangingTransaction:
    found = OpenTransaction(
        topic="orders",
        partition=0,
        producer_id=7,
        producer_epoch=3,
        start_offset=41,
        last_timestamp_ms=0,
        coordinator_epoch=0,
    )
    return HangingTransaction(open=found, transactional_id=None, state=None)


def group(committed: int = 50, *, state: str = "Stable", id: str = "readers") -> GroupFacts:
    return GroupFacts(id=id, state=state, committed={("orders", 0): committed})


THREE_BROKERS = ClusterFacts(
    address="kafka:9092",
    now_ms=NOW_MS,
    brokers={1: "a:9092", 2: "b:9092", 3: "c:9092"},
    versions={22: (0, 6), 24: (0, 5), 61: (0, 0), 65: (0, 0), 66: (0, 2)},
    features={"transaction.version": 2},
    settings={1: BROKER_SETTINGS},
    topics=(
        topic("orders"),
        topic("_onceflow_progress", cleanup_policy="compact"),
        topic("__transaction_state", cleanup_policy="compact"),
        topic("__consumer_offsets", cleanup_policy="compact"),
    ),
    coordinators={"__transaction_state": None, "__consumer_offsets": None},
    transactions=(transaction(),),
    groups=(group(),),
    starts={("orders", 0): 10},
    stable={("orders", 0): 60},
    ends={("orders", 0): 61},
)
ONE_BROKER = replace(
    THREE_BROKERS,
    brokers={1: "a:9092"},
    settings={
        1: {**BROKER_SETTINGS, "transaction.state.log.replication.factor": "1", "offsets.topic.replication.factor": "1"}
    },
    topics=tuple(
        topic(each.name, replicas=1, min_insync_replicas="1", cleanup_policy=each.settings["cleanup.policy"])
        for each in THREE_BROKERS.topics
    ),
)

PRODUCER = ClientFacts(
    name="producer.properties",
    role="producer",
    flavor="java",
    values={"bootstrap.servers": "kafka:9092", "transactional.id": "billing-0", "key.serializer": "x"},
)
CONSUMER = ClientFacts(
    name="consumer.properties",
    role="consumer",
    flavor="java",
    values={
        "bootstrap.servers": "kafka:9092",
        "group.id": "billing",
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "auto.offset.reset": "none",
    },
)
STREAMS = ClientFacts(
    name="streams.properties",
    role="streams",
    flavor="java",
    values={"application.id": "billing", "processing.guarantee": "exactly_once_v2", "replication.factor": "3"},
)
JOB = SparkFacts(
    name="billing.py",
    conf={each.name: each.value for each in recommended(None)},
    sources=({"format": "onceflow", "subscribe": "orders", "startingoffsets": "earliest"},),
    sinks=({"format": "onceflow", "app_id": "invoices", "topic": "invoices", "new_checkpoint": "never"},),
    queries=({"checkpointlocation": "s3://checkpoints/billing", "trigger": "10 seconds"},),
    version="4.2.0",
    stateful=True,
)
GOOD = Case(cluster=THREE_BROKERS, clients=(PRODUCER, CONSUMER, STREAMS), jobs=(JOB,), processing_ms=30_000)


def cluster_case(**changes: Any) -> Case:
    return Case(cluster=replace(THREE_BROKERS, **changes))


def with_settings(**settings: str) -> Case:
    """Broker settings, written with underscores."""
    changed = {**BROKER_SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
    return cluster_case(settings={1: changed})


def with_topics(*topics: TopicFacts) -> Case:
    """These topics in place of those of the same name."""
    names = {each.name for each in topics}
    return cluster_case(topics=(*topics, *(each for each in THREE_BROKERS.topics if each.name not in names)))


def client_case(client: ClientFacts, *, flavor: str | None = None, without: str = "", **values: str) -> Case:
    kept = {name: value for name, value in client.values.items() if name != without}
    changed = {**kept, **{name.replace("_", "."): value for name, value in values.items()}}
    return Case(clients=(replace(client, values=changed, flavor=flavor or client.flavor),))


def job_case(*, cluster: ClusterFacts | None = None, **changes: Any) -> Case:
    return Case(jobs=(replace(JOB, **changes),), cluster=cluster)


def with_conf(**conf: str) -> Case:
    return job_case(conf={**JOB.conf, **{name.replace("_", "."): value for name, value in conf.items()}})


def with_source(**options: str) -> Case:
    return job_case(sources=({**JOB.sources[0], **{name.replace("_", "."): value for name, value in options.items()}},))


def with_sink(**arguments: str) -> Case:
    return job_case(sinks=({**JOB.sinks[0], **arguments},))


def with_query(**options: str) -> Case:
    return job_case(queries=({**JOB.queries[0], **options},))
