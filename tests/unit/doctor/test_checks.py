"""Every check finds its faults in facts that have them, and none finds anything in good ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.doctor.examination import examine_case
from onceflow.doctor.facts import UNSEEN, Case
from onceflow.doctor.findings import Line, Verdict
from onceflow.doctor.registry import CHECKS
from tests.unit.doctor.cases import (
    BROKER_SETTINGS,
    CONSUMER,
    GOOD,
    JOB,
    NOW_MS,
    ONE_BROKER,
    PRODUCER,
    STREAMS,
    THREE_BROKERS,
    client_case,
    cluster_case,
    group,
    hanging_transaction,
    job_case,
    topic,
    transaction,
    with_conf,
    with_query,
    with_settings,
    with_sink,
    with_source,
    with_topics,
)

FAULT, WARNING, NOTE = Verdict.FAULT, Verdict.WARNING, Verdict.NOTE
RANDOM = "app-123e4567-e89b-12d3-a456-426614174000"
WITHOUT_INTERNAL = tuple(each for each in THREE_BROKERS.topics if not each.internal)
NEW_CLUSTER = {"topics": WITHOUT_INTERNAL, "coordinators": {}}
ALONE = replace(ONE_BROKER, settings={1: {**ONE_BROKER.settings[1], "unclean.leader.election.enable": "true"}})


def on_one_broker(**changes: object) -> Case:
    return Case(cluster=replace(ONE_BROKER, **changes))  # type: ignore[arg-type]


def hours(number: float) -> int:
    return int(number * 3_600_000)


FAULTS: list[tuple[str, Verdict, str, Case]] = [
    # Brokers
    ("broker.reachable", FAULT, "broker 2", cluster_case(unreachable={2: "cannot reach broker 2"})),
    ("broker.version", FAULT, "ListTransactions", cluster_case(versions={**THREE_BROKERS.versions, 66: (0, -1)})),
    ("broker.version", FAULT, "AddPartitionsToTxn", cluster_case(versions={**THREE_BROKERS.versions, 24: (0, 3)})),
    ("broker.transaction-version", NOTE, "it is 0", cluster_case(features={})),
    ("broker.verification", WARNING, "=false", with_settings(transaction_partition_verification_enable="false")),
    ("broker.single", NOTE, "one broker", Case(cluster=ONE_BROKER)),
    ("broker.single", WARNING, "2 brokers", cluster_case(brokers={1: "a:9092", 2: "b:9092"})),
    ("broker.durability", NOTE, "before the disk has it", Case(cluster=ONE_BROKER)),
    ("broker.durability", WARNING, "--durability os", on_one_broker(is_onceflow=True)),
    ("broker.unclean", FAULT, "=true", with_settings(unclean_leader_election_enable="true")),
    ("broker.unclean", FAULT, "=true", cluster_case(
        settings={1: BROKER_SETTINGS, 2: {**BROKER_SETTINGS, "unclean.leader.election.enable": "true"}})),
    ("broker.unclean", WARNING, "no effect", Case(cluster=ALONE)),
    ("broker.auto-create", NOTE, "=true", with_settings(auto_create_topics_enable="true")),
    ("broker.max-timeout", FAULT, "are refused", with_settings(transaction_max_timeout_ms="59999")),
    ("broker.max-timeout", FAULT, "=1000:", cluster_case(
        settings={1: BROKER_SETTINGS, 2: {**BROKER_SETTINGS, "transaction.max.timeout.ms": "1000"}})),
    ("broker.max-timeout", WARNING, "KafkaSink asks", with_settings(transaction_max_timeout_ms="299999")),
    ("broker.max-timeout", NOTE, "more than an hour", with_settings(transaction_max_timeout_ms="3600001")),
    ("broker.id-expiration", WARNING, "less than a day", with_settings(transactional_id_expiration_ms="86399999")),
    ("broker.producer-expiration", WARNING, "less than an hour", with_settings(producer_id_expiration_ms="3599999")),
    ("broker.offsets-retention", WARNING, "less than a day", with_settings(offsets_retention_minutes="1439")),
    ("broker.offsets-retention", WARNING, "without members now: readers", cluster_case(
        settings={1: {**BROKER_SETTINGS, "offsets.retention.minutes": "60"}}, groups=(group(state="Empty"),))),
    ("broker.coordinators", FAULT, "of transactions: away", cluster_case(coordinators={"__transaction_state": "away"})),
    ("broker.clock", WARNING, "9 s ahead", cluster_case(transactions=(transaction(age_ms=-9000),))),
    # Topics
    ("topics.replication", FAULT, "one replica: orders", with_topics(
        topic("orders", replicas=1, min_insync_replicas="1"))),
    ("topics.replication", WARNING, "two replicas", with_topics(topic("orders", replicas=2, min_insync_replicas="1"))),
    ("topics.min-insync", FAULT, "=1: orders", with_topics(topic("orders", min_insync_replicas="1"))),
    ("topics.min-insync", FAULT, "more than there are", with_topics(topic("orders", min_insync_replicas="4"))),
    ("topics.min-insync", WARNING, "one broker away", with_topics(topic("orders", min_insync_replicas="3"))),
    ("topics.min-insync", NOTE, "of no effect here", on_one_broker(
        topics=(topic("orders", replicas=1, min_insync_replicas="2"),), is_onceflow=True)),
    ("topics.unclean", FAULT, "orders", with_topics(topic("orders", unclean_leader_election_enable="true"))),
    ("topics.unclean", WARNING, "no effect", on_one_broker(
        topics=(topic("orders", replicas=1, min_insync_replicas="1", unclean_leader_election_enable="true"),))),
    ("topics.internal-replication", FAULT, "__transaction_state: 1", with_topics(
        topic("__transaction_state", replicas=1, cleanup_policy="compact", min_insync_replicas="1"))),
    ("topics.internal-replication", WARNING, "__consumer_offsets: 2", with_topics(
        topic("__consumer_offsets", replicas=2, cleanup_policy="compact", min_insync_replicas="1"))),
    ("topics.internal-replication", FAULT, "cannot be created", on_one_broker(
        topics=(), settings={1: {**BROKER_SETTINGS, "offsets.topic.replication.factor": "1"}})),
    ("topics.internal-replication", FAULT, "__transaction_state: 1", cluster_case(
        **NEW_CLUSTER, settings={1: {**BROKER_SETTINGS, "transaction.state.log.replication.factor": "1"}})),
    ("topics.internal-min-insync", FAULT, "=1: __consumer_offsets", with_topics(
        topic("__consumer_offsets", cleanup_policy="compact", min_insync_replicas="1"))),
    ("topics.internal-min-insync", FAULT, "will be created with it", cluster_case(
        **NEW_CLUSTER, settings={1: {**BROKER_SETTINGS, "transaction.state.log.min.isr": "1"}})),
    ("topics.internal-cleanup", FAULT, "__transaction_state", with_topics(
        topic("__transaction_state", cleanup_policy="compact,delete"))),
    ("topics.progress", FAULT, "=delete", with_topics(topic("_onceflow_progress", cleanup_policy="delete"))),
    ("topics.progress", WARNING, "2 partitions", with_topics(replace(
        topic("_onceflow_progress", cleanup_policy="compact"), partitions=topic("x").partitions * 2))),
    ("topics.offline", FAULT, "orders-0", with_topics(topic("orders", leader=None))),
    ("topics.under-replicated", WARNING, "orders-0", with_topics(topic("orders", in_sync=2))),
    ("topics.under-replicated", FAULT, "writes are refused", with_topics(topic("orders", in_sync=1))),
    ("topics.retention", WARNING, "orders", with_topics(topic("orders", retention_ms=str(hours(1) - 1)))),
    # What goes on
    ("transactions.hanging", FAULT, "offset 41", cluster_case(hanging=(hanging_transaction(),))),
    ("transactions.stuck", FAULT, "does not abort it", cluster_case(transactions=(transaction(age_ms=120_001),))),
    ("transactions.stuck", FAULT, "orders-0", cluster_case(
        transactions=(transaction("PrepareCommit", age_ms=120_001),))),
    ("transactions.stuck", WARNING, "about to be", cluster_case(
        transactions=(transaction(age_ms=80_001, timeout_ms=100_000),))),
    ("groups.lost", FAULT, "deleted already: orders-0", cluster_case(groups=(group(9),))),
    ("groups.lost", FAULT, "beyond the end", cluster_case(groups=(group(62),))),
    ("groups.lag", NOTE, "100,000 offsets behind, and has no members", cluster_case(
        groups=(group(50, state="Empty"),), stable={("orders", 0): 100_050})),
    # Producers
    ("producer.idempotence", FAULT, "=false", client_case(PRODUCER, enable_idempotence="false")),
    ("producer.idempotence", FAULT, "librdkafka's default",
     client_case(PRODUCER, flavor="librdkafka", without="transactional.id")),
    ("producer.idempotence", FAULT, "not of Java", client_case(PRODUCER, flavor="unknown", without="transactional.id")),
    ("producer.acks", FAULT, "acks=1", client_case(PRODUCER, acks="1")),
    ("producer.acks", FAULT, "acks=0", client_case(PRODUCER, flavor="librdkafka", request_required_acks="0")),
    ("producer.in-flight", FAULT, "=6", client_case(PRODUCER, max_in_flight_requests_per_connection="6")),
    ("producer.in-flight", FAULT, "=6", client_case(PRODUCER, flavor="librdkafka", max_in_flight="6")),
    ("producer.retries", FAULT, "=0", client_case(PRODUCER, retries="0")),
    ("producer.transactional-id", WARNING, "not set", client_case(PRODUCER, without="transactional.id")),
    ("producer.transactional-id", WARNING, "looks new", client_case(PRODUCER, transactional_id=RANDOM)),
    ("producer.transactional-id", WARNING, "looks new", client_case(PRODUCER, transactional_id="app-${random.uuid}")),
    ("producer.in-use", NOTE, "open right now", Case(
        cluster=replace(THREE_BROKERS, transactions=(transaction(id="billing-0"),)), clients=(PRODUCER,))),
    ("producer.transaction-timeout", FAULT, "it is refused", replace(
        client_case(PRODUCER, transaction_timeout_ms="900001"), cluster=THREE_BROKERS)),
    ("producer.transaction-timeout", WARNING, "by default", client_case(PRODUCER, transaction_timeout_ms="900001")),
    ("producer.transaction-timeout", FAULT, "takes up to 60000 ms", Case(clients=(PRODUCER,), processing_ms=60_000)),
    ("producer.transaction-timeout", WARNING, "a pause", client_case(PRODUCER, transaction_timeout_ms="9999")),
    ("producer.delivery-timeout", FAULT, "is more than", client_case(
        PRODUCER, flavor="librdkafka", message_timeout_ms="60001")),
    ("producer.delivery-timeout", NOTE, "is more than", client_case(PRODUCER, delivery_timeout_ms="60001")),
    ("producer.delivery-timeout", FAULT, "does not start", client_case(PRODUCER, delivery_timeout_ms="29999")),
    # Consumers, Streams, all clients
    ("consumer.isolation", FAULT, "=read_uncommitted", client_case(CONSUMER, isolation_level="read_uncommitted")),
    ("consumer.isolation", FAULT, "Java's default", client_case(CONSUMER, without="isolation.level")),
    ("consumer.isolation", FAULT, "not of librdkafka", client_case(
        CONSUMER, flavor="unknown", without="isolation.level")),
    ("consumer.auto-commit", FAULT, "=true", client_case(CONSUMER, enable_auto_commit="true")),
    ("consumer.auto-commit", FAULT, "not set", client_case(
        CONSUMER, flavor="librdkafka", without="enable.auto.commit")),
    ("consumer.offset-reset", WARNING, "=latest", client_case(CONSUMER, auto_offset_reset="latest")),
    ("consumer.offset-reset", WARNING, "not set", client_case(CONSUMER, without="auto.offset.reset")),
    ("consumer.group", WARNING, "not set", client_case(CONSUMER, without="group.id")),
    ("consumer.poll-interval", FAULT, "300000 ms", Case(clients=(CONSUMER,), processing_ms=300_000)),
    ("consumer.poll-interval", WARNING, "ten seconds", client_case(CONSUMER, max_poll_interval_ms="9999")),
    ("consumer.session", FAULT, "=45000", client_case(CONSUMER, heartbeat_interval_ms="45000")),
    ("consumer.session", WARNING, "=15001", client_case(CONSUMER, heartbeat_interval_ms="15001")),
    ("consumer.session", FAULT, "does not start", client_case(
        CONSUMER, group_protocol="consumer", session_timeout_ms="45000")),
    ("consumer.session", FAULT, "the brokers take", replace(
        client_case(CONSUMER, session_timeout_ms="5000", heartbeat_interval_ms="1000"), cluster=THREE_BROKERS)),
    ("consumer.static", NOTE, "one instance", client_case(CONSUMER, group_instance_id="one")),
    ("streams.guarantee", FAULT, "not set", client_case(STREAMS, without="processing.guarantee")),
    ("streams.guarantee", FAULT, "=at_least_once", client_case(STREAMS, processing_guarantee="at_least_once")),
    ("streams.guarantee", FAULT, "4.0", client_case(STREAMS, processing_guarantee="exactly_once")),
    ("streams.replication", WARNING, "=1", client_case(STREAMS, replication_factor="1")),
    ("client.names", WARNING, "enable.idempotense", client_case(PRODUCER, enable_idempotense="true")),
    ("client.names", NOTE, "schema.registry.url", client_case(PRODUCER, schema_registry_url="http://registry")),
    ("client.values", FAULT, "not a whole number", client_case(PRODUCER, transaction_timeout_ms="1m")),
    ("client.values", FAULT, "does not exist", client_case(CONSUMER, isolation_level="committed")),
    # Spark
    ("spark.sink", FAULT, 'format("kafka")', job_case(sinks=({"format": "kafka", "topic": "invoices"},))),
    ("spark.sink", FAULT, "at_least_once", with_sink(guarantee="at_least_once")),
    ("spark.sink", NOTE, "not seen here", job_case(sinks=())),
    ("spark.sink", FAULT, "asyncProgress", with_query(asyncprogresstrackingenabled="true")),
    ("spark.app-id", FAULT, "without an app_id", job_case(sinks=({"format": "onceflow", "new_checkpoint": "never"},))),
    ("spark.app-id", WARNING, "looks new", with_sink(app_id=RANDOM)),
    ("spark.app-group", FAULT, "has members", job_case(cluster=replace(THREE_BROKERS, groups=(group(id="invoices"),)))),
    ("spark.isolation", FAULT, "reads uncommitted", with_source(format="kafka")),
    ("spark.isolation", FAULT, "=read_uncommitted", with_source(kafka_isolation_level="read_uncommitted")),
    ("spark.checkpoint", FAULT, "no checkpointLocation", job_case(queries=({},))),
    ("spark.checkpoint", FAULT, "without queryName", job_case(
        queries=({},), conf={"spark.sql.streaming.checkpointLocation": "s3://checkpoints"})),
    ("spark.checkpoint", WARNING, "clean up there", with_query(checkpointlocation="/tmp/billing")),
    ("spark.checkpoint", FAULT, "other machines", job_case(
        queries=({"checkpointlocation": "file:///data/billing"},), conf={"spark.master": "spark://master:7077"})),
    ("spark.checkpoint", WARNING, "forceDelete",
     with_conf(spark_sql_streaming_forceDeleteTempCheckpointLocation="true")),
    ("spark.trigger", WARNING, "a trigger of 300000 ms", with_query(trigger="5 minutes")),
    ("spark.trigger", FAULT, "continuous", with_query(continuous="1 second")),
    ("spark.transaction-timeout", FAULT, "it is refused", replace(
        with_sink(transaction_timeout_ms="900001"), cluster=THREE_BROKERS)),
    ("spark.transaction-timeout", FAULT, "takes up to", Case(jobs=(JOB,), processing_ms=300_000)),
    ("spark.data-loss", WARNING, "=false", with_source(failondataloss="false")),
    ("spark.starting-offsets", NOTE, "not set", job_case(sources=({"format": "onceflow", "subscribe": "orders"},))),
    ("spark.starting-offsets", NOTE, "=latest", with_source(startingoffsets="latest")),
    ("spark.speculation", WARNING, "=true", with_conf(spark_speculation="true")),
    ("spark.task-failures", NOTE, "=8", with_conf(spark_task_maxFailures="8")),
    ("spark.state", NOTE, "RocksDB", job_case(conf={"spark.master": "yarn"})),
    ("spark.retained", WARNING, "=1", with_conf(spark_sql_streaming_minBatchesToRetain="1")),
    ("spark.new-checkpoint", WARNING, "accept", with_sink(new_checkpoint="accept")),
    ("spark.new-checkpoint", NOTE, "with state", job_case(sinks=({"format": "onceflow", "app_id": "invoices"},))),
    ("spark.allocation", NOTE, "=true", with_conf(spark_dynamicAllocation_enabled="true")),
    ("spark.names", WARNING, "spark.speculations", with_conf(spark_speculations="true")),
    ("spark.names", FAULT, "startingoffset'", with_source(startingoffset="earliest")),
    ("spark.names", FAULT, "app_ids", with_sink(app_ids="x")),
    ("spark.version", FAULT, "4.1.1", job_case(version="4.1.1")),
    # Several together
    ("together.transactional-id", FAULT, "billing-0 is used by a, b", Case(
        clients=(replace(PRODUCER, name="a"), replace(PRODUCER, name="b")))),
    ("together.transactional-id", FAULT, "billing.py", Case(
        clients=client_case(PRODUCER, transactional_id="invoices").clients, jobs=(JOB,))),
    ("together.group", FAULT, "group.id=invoices", Case(
        clients=client_case(CONSUMER, group_id="invoices").clients, jobs=(JOB,))),
    ("together.instance", FAULT, "billing/one", Case(clients=tuple(
        replace(client_case(CONSUMER, group_instance_id="one").clients[0], name=name) for name in "ab"))),
    ("together.checkpoint", FAULT, "s3://checkpoints/billing", Case(
        jobs=(replace(JOB, name="a"), replace(JOB, name="b")))),
]  # fmt: skip


def findings(case: Case, check: str) -> list[Line]:
    return [line for line in examine_case(case) if line.check == check and line.verdict is not Verdict.OK]


@pytest.mark.parametrize(
    ("check", "verdict", "words", "case"), FAULTS, ids=[f"{check}: {words}" for check, _, words, _ in FAULTS]
)
def test_a_check_finds_its_fault(check: str, verdict: Verdict, words: str, case: Case) -> None:
    found = findings(case, check)
    assert [line.verdict for line in found if words in line.found] == [verdict], found
    assert all(line.why.endswith(".") for line in found)
    assert all(line.fix for line in found if line.verdict in (FAULT, WARNING))


def test_every_check_has_a_fault_in_the_table() -> None:
    assert set(CHECKS) == {check for check, *_ in FAULTS}


def test_good_facts_are_silent() -> None:
    lines = list(examine_case(GOOD))
    assert [line for line in lines if line.verdict is not Verdict.OK] == []
    assert {line.check for line in lines} == set(CHECKS), "every check was run, and had something to look at"


def test_a_good_single_broker_has_notes_only() -> None:
    said = [line for line in examine_case(Case(cluster=ONE_BROKER)) if line.verdict is not Verdict.OK]
    assert {line.verdict for line in said} == {NOTE}
    assert {line.check for line in said} == {"broker.single", "broker.durability"}


@pytest.mark.parametrize("is_onceflow", [True, False])
def test_a_broker_that_syncs_every_message_is_durable(is_onceflow: bool) -> None:
    syncing = {1: {**ONE_BROKER.settings[1], "log.flush.interval.messages": "1"}}
    assert findings(on_one_broker(is_onceflow=is_onceflow, settings=syncing), "broker.durability") == []


@pytest.mark.parametrize("flavor", ["java", "librdkafka"])
def test_defaults_are_those_of_the_client(flavor: str) -> None:
    """Java's producer is idempotent by default, librdkafka's consumer read_committed; neither the other way round."""
    producer = client_case(PRODUCER, flavor=flavor, without="transactional.id")
    consumer = client_case(CONSUMER, flavor=flavor, without="isolation.level")
    assert bool(findings(producer, "producer.idempotence")) == (flavor == "librdkafka")
    assert bool(findings(consumer, "consumer.isolation")) == (flavor == "java")


def test_a_transactional_producer_on_librdkafka_is_idempotent() -> None:
    assert findings(client_case(PRODUCER, flavor="librdkafka"), "producer.idempotence") == []


def test_what_could_not_be_asked_is_unknown_and_not_ok() -> None:
    case = cluster_case(unknown={"groups": "not allowed"}, groups=(group(9),))
    [line] = findings(case, "groups.lost")
    assert (line.verdict, line.found) == (Verdict.UNKNOWN, "could not be looked at: not allowed")
    assert findings(case, "broker.unclean") == []


def test_values_that_a_program_computes_are_taken_as_right() -> None:
    computed = with_sink(app_id=UNSEEN, transaction_timeout_ms=UNSEEN, guarantee=UNSEEN)
    case = Case(
        jobs=(replace(computed.jobs[0], queries=({"checkpointlocation": UNSEEN, "trigger": UNSEEN},)), JOB),
        cluster=THREE_BROKERS,
    )
    assert [line for line in examine_case(case) if line.verdict is not Verdict.OK] == []


def test_many_topics_are_one_line_with_the_first_few_names() -> None:
    case = with_topics(*(topic(f"t{number}", min_insync_replicas="1") for number in range(8)))
    [line] = findings(case, "topics.min-insync")
    assert line.found == "min.insync.replicas=1: t0, t1, t2, t3, t4 and 3 more"


def test_an_open_transaction_that_is_young_is_nothing_to_speak_of() -> None:
    young = transaction(age_ms=59_000, timeout_ms=60_000)
    assert young.age_ms(NOW_MS) == 59_000
    assert findings(cluster_case(transactions=(young,)), "transactions.stuck") == []


def test_the_guide_has_every_check() -> None:
    guide = Path(__file__).parents[3] / "docs" / "doctor.md"
    table = guide.read_text().partition("## What is checked")[2]
    assert re.findall(r"^\| `([a-z.-]+)` \|", table, re.MULTILINE) == in_the_order_of_the_guide(list(CHECKS))


def in_the_order_of_the_guide(checks: list[str]) -> list[str]:
    """What all clients have in common comes before producers and consumers."""
    later = ("producer", "consumer", "streams", "spark", "together")
    areas = ["broker", "topics", "transactions", "groups", "client", *later]
    return sorted(checks, key=lambda check: areas.index(check.partition(".")[0]))
