"""What the broker counts, and how it looks at a moment: each metric is caused and read from a scrape."""

from __future__ import annotations

import json

import pytest

from onceflow.broker import watching
from onceflow.broker.watching import snapshot
from onceflow.errors import ErrorCode
from onceflow.monitor.micro_batches import PROGRESS_TOPIC
from onceflow.monitor.watcher import Watcher
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_transactions import MemoryProducer, create_topic
from tests.support.raw import batch, produce_request
from tests.support.scraping import OPENMETRICS, Watched

ABORTED = "onceflow_transactions_aborted_total"
FENCED = "onceflow_fencing_events_total"


@pytest.fixture
def watched() -> Watched:
    broker = MemoryBroker()
    create_topic(broker, "t", 2)
    return Watched(broker)


def write(producer: MemoryProducer, *values: str, partition: int = 0) -> ErrorCode:
    reply = producer.send("t", partition, *values)
    producer.broker.settle()
    return ErrorCode(reply.message.responses[0].partition_responses[0].error_code)


def end(producer: MemoryProducer, *, commit: bool) -> bool:
    reply = producer.send_end(commit=commit)
    producer.broker.settle()
    return producer.took_end(reply)


def transact(producer: MemoryProducer, *, commit: bool = True) -> None:
    assert write(producer, "a") == ErrorCode.NONE
    assert end(producer, commit=commit)


def produce(
    watched: Watched, sequence: int, count: int = 1, *, epoch: int = 0, topic: str = "t", partition: int = 0
) -> ErrorCode:
    """A batch of an idempotent producer."""
    now = [watched.broker.clock.now_ms()] * count
    records = batch(*["v"] * count, timestamps=now, producer=(7, epoch), sequence=sequence)
    answer = watched.broker.ask(produce_request(topic, records, partition=partition), 12)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def commit_offset(watched: Watched, group: str, offset: int) -> None:
    position = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="t", partitions=[position])
    request = OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[topic])
    assert watched.broker.ask(request, 9).topics[0].partitions[0].error_code == ErrorCode.NONE


# Transactions


def test_a_commit_and_each_kind_of_abort_are_counted_apart(watched: Watched) -> None:
    broker = watched.broker
    producer = MemoryProducer(broker, "orders", timeout_ms=10_000).init()
    transact(producer)
    transact(producer, commit=False)
    write(producer, "b")
    broker.pass_time(10_001)
    broker.settle()
    producer.init()
    write(producer, "c")
    producer.init()

    scrape = watched.scrape()
    assert scrape.value("onceflow_transactions_committed_total") == 1
    assert {reason: scrape.value(ABORTED, reason=reason) for reason in ("client", "timeout", "fenced")} == {
        "client": 1,
        "timeout": 1,
        "fenced": 1,
    }
    ended = watched.look().ended
    assert [(each.committed, each.reason) for each in ended] == [
        (True, "client"),
        (False, "client"),
        (False, "timeout"),
        (False, "fenced"),
    ]
    assert ended[2].ended_ms - ended[2].started_ms == 10_001
    assert {(each.transactional_id, each.partitions) for each in ended} == {("orders", 1)}


def test_rates_are_per_second_of_the_last_minute(watched: Watched) -> None:
    producer = MemoryProducer(watched.broker, "orders").init()
    for _ in range(4):
        transact(producer)
    transact(producer, commit=False)
    watched.broker.clock.advance(9_000)
    scrape = watched.scrape()
    assert scrape.value("onceflow_transaction_commit_rate") == pytest.approx(0.4)
    assert scrape.value("onceflow_transaction_abort_rate") == pytest.approx(0.1)
    watched.broker.clock.advance(60_000)
    watched.look()
    assert watched.scrape().value("onceflow_transaction_commit_rate") == 0


def test_an_abort_of_nothing_is_no_abort(watched: Watched) -> None:
    assert end(MemoryProducer(watched.broker, "orders").init(), commit=False)
    assert sum(watched.scrape().all(ABORTED)) == 0


def test_an_end_that_did_not_get_to_disk_is_not_counted(watched: Watched) -> None:
    producer = MemoryProducer(watched.broker, "orders").init()
    write(producer, "a")
    reply = producer.send_end(commit=True)
    watched.broker.files.sync_failures = 1
    watched.broker.settle()
    assert reply.message.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert watched.scrape().value("onceflow_transactions_committed_total") == 0
    assert end(producer, commit=True)
    assert watched.scrape().value("onceflow_transactions_committed_total") == 1


def test_an_open_transaction_is_seen_with_its_age_and_what_it_holds_back(watched: Watched) -> None:
    producer = MemoryProducer(watched.broker, "orders", timeout_ms=45_000).init()
    write(producer, "a", "b", "c")
    watched.broker.clock.advance(4_000)
    scrape = watched.scrape()
    assert scrape.value("onceflow_open_transactions") == 1
    assert scrape.value("onceflow_transactions", state="Ongoing") == 1
    assert scrape.value("onceflow_oldest_open_transaction_seconds") == 5
    assert scrape.value("onceflow_transaction_open_seconds", transactional_id="orders") == 5
    assert scrape.value("onceflow_transaction_timeout_seconds", transactional_id="orders") == 45
    assert scrape.value("onceflow_producer_id_age_ms", transactional_id="orders") == 5_000
    assert scrape.value("onceflow_partition_lso_lag", topic="t", partition="0") == 3
    assert scrape.value("onceflow_partition_last_stable_offset", topic="t", partition="0") == 0
    assert scrape.value("kafka_topic_partition_current_offset", topic="t", partition="0") == 3
    assert scrape.value("onceflow_partition_lso_lag", topic="t", partition="1") == 0

    assert end(producer, commit=True)
    scrape = watched.scrape()
    assert scrape.value("onceflow_open_transactions") == 0
    assert scrape.value("onceflow_oldest_open_transaction_seconds") == 0
    assert scrape.value("onceflow_transaction_open_seconds", transactional_id="orders") is None
    assert scrape.value("onceflow_partition_lso_lag", topic="t", partition="0") == 0
    assert scrape.value("onceflow_producer_id_age_ms", transactional_id="orders") == 1_000


def test_a_write_makes_a_producer_id_young_again(watched: Watched) -> None:
    """Only the first write of a transaction reaches the coordinator."""
    producer = MemoryProducer(watched.broker, "orders").init()
    write(producer, "a")
    watched.broker.clock.advance(9_000)
    write(producer, "b")
    assert watched.scrape().value("onceflow_producer_id_age_ms", transactional_id="orders") == 1_000
    [seen] = watched.look().producers
    assert (seen.topic, seen.partition, seen.producer_id, seen.last_sequence) == ("t", 0, producer.id, 1)
    assert seen.transaction_start == 0


@pytest.mark.parametrize("v2", [False, True])
def test_a_fenced_producer_is_counted_once_wherever_it_is_refused(watched: Watched, v2: bool) -> None:
    old = MemoryProducer(watched.broker, "orders", v2=v2).init()
    old.send_add("t", 0)
    write(old, "a")
    new = MemoryProducer(watched.broker, "orders", v2=v2).init()

    assert write(old, "late") == ErrorCode.INVALID_PRODUCER_EPOCH  # on a partition that has seen the marker
    assert watched.scrape().value(FENCED) == 1
    assert write(old, "late", partition=1) == ErrorCode.INVALID_PRODUCER_EPOCH  # by the coordinator, for the partition
    assert watched.scrape().value(FENCED) == 2
    assert not end(old, commit=True)
    assert watched.scrape().value(FENCED) == 3

    on_partition, *at_coordinator = watched.look().fencings
    assert (on_partition.place, on_partition.transactional_id) == (("t", 0), "orders")
    assert {(each.place, each.transactional_id) for each in at_coordinator} == {(None, "orders")}
    for each in watched.look().fencings:
        assert (each.producer_id, each.epoch) == (old.id, old.epoch)
    assert at_coordinator[-1].current_epoch == new.epoch
    assert watched.scrape().value("onceflow_produce_errors_total", error="INVALID_PRODUCER_EPOCH") == 2


def test_an_identity_that_is_past_is_fenced_at_its_next_beginning(watched: Watched) -> None:
    old = MemoryProducer(watched.broker, "orders").init()
    for _ in range(2):
        MemoryProducer(watched.broker, "orders").init()
    request = InitProducerIdRequest(
        transactional_id="orders", transaction_timeout_ms=1000, producer_id=old.id, producer_epoch=old.epoch
    )
    assert watched.broker.ask(request, 5).error_code == ErrorCode.PRODUCER_FENCED
    assert watched.scrape().value(FENCED) == 1
    [fencing] = watched.look().fencings
    assert (fencing.epoch, fencing.current_epoch) == (old.epoch, old.epoch + 2)


# Producing


def test_records_and_bytes_count_once_however_often_they_are_sent(watched: Watched) -> None:
    assert produce(watched, 0, 3) == ErrorCode.NONE
    stored = watched.broker.node.topics.partition("t", 0).log.size
    assert produce(watched, 0, 3) == ErrorCode.NONE
    assert produce(watched, 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    scrape = watched.scrape()
    assert scrape.value("kafka_server_brokertopicmetrics_messagesin_total", topic="t") == 3
    assert scrape.value("kafka_server_brokertopicmetrics_bytesin_total", topic="t") == stored
    assert scrape.value("kafka_log_log_size", topic="t", partition="0") == stored
    assert scrape.value("onceflow_duplicate_batches_total") == 1
    assert scrape.value("onceflow_out_of_order_batches_total") == 1
    assert scrape.value("onceflow_produce_errors_total", error="OUT_OF_ORDER_SEQUENCE_NUMBER") == 1
    assert scrape.value("onceflow_records_produced_rate") == 3
    assert scrape.value(FENCED) == 0


def test_an_old_epoch_of_a_producer_without_transactions_is_a_fencing_too(watched: Watched) -> None:
    assert produce(watched, 0, epoch=1) == ErrorCode.NONE
    assert produce(watched, 0, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    [fencing] = watched.look().fencings
    assert (fencing.epoch, fencing.current_epoch, fencing.transactional_id) == (0, 1, None)


def test_errors_count_by_name_also_those_of_the_disk(watched: Watched) -> None:
    assert produce(watched, 0, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    watched.broker.files.write_failure = (0, 5)
    assert produce(watched, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    watched.broker.files.sync_failures = 1
    assert produce(watched, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    scrape = watched.scrape()
    assert scrape.value("onceflow_produce_errors_total", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
    assert scrape.value("onceflow_produce_errors_total", error="KAFKA_STORAGE_ERROR") == 2


# Groups and coordinators


def test_the_lag_of_a_group_ends_at_the_last_stable_offset(watched: Watched) -> None:
    assert produce(watched, 0, 5) == ErrorCode.NONE
    commit_offset(watched, "readers", 2)
    write(MemoryProducer(watched.broker, "orders").init(), "undecided")
    scrape = watched.scrape()
    of_group = {"consumergroup": "readers", "topic": "t"}
    assert scrape.value("kafka_consumergroup_lag", partition="0", **of_group) == 3
    assert scrape.value("kafka_consumergroup_lag_sum", **of_group) == 3
    assert scrape.value("kafka_consumergroup_current_offset", partition="0", **of_group) == 2
    assert scrape.value("kafka_consumergroup_members", consumergroup="readers") == 0
    commit_offset(watched, "readers", 5)
    assert watched.scrape().value("kafka_consumergroup_lag", partition="0", **of_group) == 0


def test_a_coordinator_whose_log_refuses_is_unavailable_until_it_takes_something(watched: Watched) -> None:
    producer = MemoryProducer(watched.broker, "orders").init()
    state = "onceflow_coordinator_state"
    assert watched.scrape().value(state, coordinator="transaction", state="active") == 1
    watched.broker.files.write_failure = (0, 5)
    assert write(producer, "a") != ErrorCode.NONE

    scrape = watched.scrape()
    states = {name: scrape.value(state, coordinator="transaction", state=name) for name in ("active", "unavailable")}
    assert states == {"active": 0, "unavailable": 1}
    assert scrape.value(state, coordinator="group", state="active") == 1
    [coordinator] = [each for each in watched.look().coordinators if each.kind == "transaction"]
    assert coordinator.note

    producer.init()
    assert watched.scrape().value(state, coordinator="transaction", state="active") == 1


def test_markers_that_cannot_be_written_make_a_coordinator_unavailable(watched: Watched) -> None:
    producer = MemoryProducer(watched.broker, "orders").init()
    write(producer, "a")
    producer.send_end(commit=True)
    watched.broker.flush()
    watched.broker.files.sync_failures = 1
    watched.broker.settle()
    assert watched.scrape().value("onceflow_coordinator_state", coordinator="transaction", state="unavailable") == 1
    watched.broker.pass_time(1000)
    watched.broker.settle()
    assert watched.scrape().value("onceflow_coordinator_state", coordinator="transaction", state="unavailable") == 0


def test_what_a_coordinator_read_at_its_start_took_some_time(watched: Watched) -> None:
    transact(MemoryProducer(watched.broker, "orders").init())
    commit_offset(watched, "readers", 0)
    again = Watched(watched.broker.killed())
    for coordinator in ("transaction", "group"):
        load_ms = again.scrape().value("onceflow_coordinator_load_time_ms", coordinator=coordinator)
        assert load_ms is not None
        assert 0 < load_ms < 60_000


# Micro-batches


def progress(producer: MemoryProducer, app: str, number: int, *, commit: bool | None = True) -> None:
    """None: the transaction stays open."""
    value = json.dumps({"version": 1, "query": "q", "batch": number, "offsets": {}, "at_ms": 1})
    records = batch(
        value,
        key=app.encode(),
        timestamps=[producer.broker.clock.now_ms()],
        producer=(producer.id, producer.epoch),
        transactional=True,
    )
    request = produce_request(PROGRESS_TOPIC, records, transactional_id=producer.transactional_id)
    answer = producer.broker.ask(request, 12)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert commit is None or end(producer, commit=commit)


def test_a_micro_batch_is_shown_when_its_own_transaction_is_committed(watched: Watched) -> None:
    create_topic(watched.broker, PROGRESS_TOPIC)
    slow, quick = (MemoryProducer(watched.broker, name).init() for name in ("slow", "quick"))
    progress(slow, "slow", 0, commit=None)
    progress(quick, "quick", 0)
    assert [each.app_id for each in watched.look().micro_batches] == ["quick"]
    assert end(slow, commit=True)
    assert [each.app_id for each in watched.look().micro_batches] == ["quick", "slow"]
    progress(quick, "quick", 1, commit=None)
    assert [each.batch_id for each in watched.look().micro_batches] == [0, 0]
    assert end(quick, commit=False)
    assert [each.batch_id for each in watched.look().micro_batches] == [0, 0]


def test_micro_batches_are_those_that_were_committed(watched: Watched) -> None:
    create_topic(watched.broker, PROGRESS_TOPIC)
    producer = MemoryProducer(watched.broker, "app").init()
    progress(producer, "app", 0)
    progress(producer, "app", 1, commit=False)
    assert [(each.app_id, each.batch_id) for each in watched.look().micro_batches] == [("app", 0)]
    progress(producer, "app", 1)
    scrape = watched.scrape()
    assert [each.batch_id for each in watched.look().micro_batches] == [0, 1]
    assert scrape.value("onceflow_app_last_batch_id", app_id="app") == 1
    assert scrape.value("onceflow_app_last_commit_age_seconds", app_id="app") == 1


def test_whatever_else_is_in_the_progress_topic_does_no_harm(watched: Watched) -> None:
    create_topic(watched.broker, PROGRESS_TOPIC)
    assert produce(watched, 0, topic=PROGRESS_TOPIC) == ErrorCode.NONE
    assert watched.look().micro_batches == ()


HOSTILE_RECORDS = (
    b"[" * 100_000,
    b'{"query": "q", "batch": 1e999}',
    b'{"query": "q", "batch": 1, "at_ms": 1%s}' % (b"0" * 400),
    b'{"query": "q", "batch": 1, "previous": {"batch": 0, "committed_ms": 1, "transaction_ms": NaN}}',
    b'{"query": "\\ud800", "batch": "\\u001b[31m"}',
)


@pytest.mark.parametrize("hostile", HOSTILE_RECORDS)
def test_one_bad_progress_record_costs_itself_and_nothing_else(watched: Watched, hostile: bytes) -> None:
    create_topic(watched.broker, PROGRESS_TOPIC)
    producer = MemoryProducer(watched.broker, "app\x1b[31m\r\u2028").init()
    progress(producer, "app\x1b[31m\r\u2028", 0)
    at = [watched.broker.clock.now_ms()]
    bad = batch(hostile, key=b"app", timestamps=at)
    watched.broker.ask(produce_request(PROGRESS_TOPIC, bad), 12)
    progress(producer, "app\x1b[31m\r\u2028", 1)
    assert [each.batch_id for each in watched.look().micro_batches] == [0, 1]
    for accept in ("", OPENMETRICS):
        assert watched.scrape(accept).value("onceflow_app_last_batch_id", app_id="app\x1b[31m\r\u2028") == 1
    watcher = Watcher(watched.look)
    watcher.look()
    state = json.loads(watcher.state_json(), parse_constant=no_number)
    assert [each["batch_id"] for each in state["micro_batches"]] == [0, 1]
    assert any("(1 so far)" in note for note in state["cluster"]["notes"])
    assert json.loads(watcher.alerts_json(), parse_constant=no_number)["problem"] is None


def no_number(constant: str) -> None:
    pytest.fail(f"{constant} is no JSON")


# Format and bounds


def test_hostile_names_come_through_a_scrape_unharmed(watched: Watched) -> None:
    name = 'a"b\\c\nd{e="f"} 1 é'
    commit_offset(watched, name, 0)
    MemoryProducer(watched.broker, name).init()
    for accept in ("", OPENMETRICS):
        scrape = watched.scrape(accept)
        assert scrape.value("kafka_consumergroup_members", consumergroup=name) == 0
        assert scrape.value("onceflow_producer_id_age_ms", transactional_id=name) is not None


def test_a_snapshot_is_bounded_and_says_what_it_left_out(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        MemoryProducer(watched.broker, f"idle-{number}").init()
        commit_offset(watched, f"group-{number}", 0)
    holding = MemoryProducer(watched.broker, "holding").init()
    assert produce(watched, 0, partition=0) == ErrorCode.NONE
    assert write(holding, "a", partition=1) == ErrorCode.NONE
    assert not watched.look().truncated
    for limit in ("PARTITIONS_MAX", "PRODUCERS_MAX", "TRANSACTIONS_MAX", "GROUPS_MAX"):
        monkeypatch.setattr(watching, limit, 1)
    seen = snapshot(watched.broker.node, ())
    assert seen.truncated
    assert [(each.topic, each.partition) for each in seen.partitions] == [("t", 1)]  # the one that is held back
    assert [each.transactional_id for each in seen.transactions] == ["holding"]
    assert [each.producer_id for each in seen.producers] == [holding.id]
    assert len(seen.groups) == 1
