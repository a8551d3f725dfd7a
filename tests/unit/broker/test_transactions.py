"""What waits for what: the coordinator, the markers and the disk, one round of group commit at a time."""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode
from onceflow.txn.states import State
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import MemoryProducer, committed, create_topic, ends, marker_count

SECOND_MS = 1000


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    create_topic(broker, "t", 2)
    return broker


@pytest.fixture
def producer(broker: MemoryBroker) -> MemoryProducer:
    return MemoryProducer(broker, "app").init()


def state(broker: MemoryBroker, transactional_id: str = "app") -> str:
    [described] = broker.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id]), 0).transaction_states
    return str(described.transaction_state)


def produced(reply: Reply) -> ErrorCode:
    [[answer]] = [each.partition_responses for each in reply.message.responses]
    return ErrorCode(answer.error_code)


def unsynced(broker: MemoryBroker) -> list[str]:
    return [f"{partition.topic}-{partition.index}" for partition in broker.unsynced]


def write(producer: MemoryProducer, *values: str, partition: int = 0) -> None:
    reply = producer.send("t", partition, *values)
    producer.broker.settle()
    assert produced(reply) == ErrorCode.NONE


def test_a_record_is_written_only_when_its_partition_is_known_to_be_in_the_transaction(
    broker: MemoryBroker, producer: MemoryProducer
) -> None:
    reply = producer.send("t", 0, "v")
    assert unsynced(broker) == ["__transaction_state-0"]
    broker.flush()
    assert unsynced(broker) == ["t-0"]
    assert not reply.is_there
    broker.flush()
    assert produced(reply) == ErrorCode.NONE


def test_batches_behind_one_that_waits_stay_in_order(broker: MemoryBroker, producer: MemoryProducer) -> None:
    """The second one is for a partition that is in the transaction already; it must not overtake the first."""
    write(producer, "a", partition=1)
    replies = [producer.send("t", 0, "b"), producer.send("t", 1, "c"), producer.send("t", 0, "d")]
    assert not any(reply.is_there for reply in replies)
    broker.settle()
    assert [produced(reply) for reply in replies] == [ErrorCode.NONE] * 3
    assert producer.took_end(settled(producer, commit=True))
    assert (committed(broker, "t", 0), committed(broker, "t", 1)) == (["b", "d"], ["a", "c"])


def settled(producer: MemoryProducer, *, commit: bool) -> Reply:
    reply = producer.send_end(commit=commit)
    producer.broker.settle()
    return reply


def test_the_decision_is_on_disk_before_any_marker_is_written(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    write(producer, "b", partition=1)
    reply = producer.send_end(commit=True)
    assert unsynced(broker) == ["__transaction_state-0"]
    assert marker_count(broker, "t", 0) == 0
    broker.flush()
    assert reply.is_there
    assert unsynced(broker) == ["t-0", "t-1"]
    assert marker_count(broker, "t", 0) == 0  # written, but not on disk


def test_completion_is_recorded_only_when_all_markers_are_on_disk(
    broker: MemoryBroker, producer: MemoryProducer
) -> None:
    write(producer, "a")
    write(producer, "b", partition=1)
    producer.send_end(commit=True)
    broker.flush()
    first, second = broker.unsynced
    broker.flush([first])
    coordinator = broker.node.transactions.coordinator
    assert coordinator.get("app").state is State.PREPARE_COMMIT  # type: ignore[union-attr]
    broker.flush([second])
    assert coordinator.get("app").state is State.COMPLETE_COMMIT  # type: ignore[union-attr]


def test_a_marker_that_is_not_on_disk_shows_nothing(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    producer.send_end(commit=True)
    broker.flush()
    partition = broker.node.topics.partition("t", 0)
    assert partition is not None
    assert partition.log.last_stable_offset == 0
    broker.flush()
    assert partition.log.last_stable_offset == 2


def test_the_next_transaction_waits_for_the_markers_of_the_last(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    end = producer.send_end(commit=False)
    broker.flush()
    assert producer.took_end(end)
    reply = producer.send("t", 0, "b")
    assert unsynced(broker) == ["t-0"]  # the marker; the record waits
    broker.settle()
    assert produced(reply) == ErrorCode.NONE
    assert producer.took_end(settled(producer, commit=True))
    assert committed(broker, "t", 0) == ["b"]


def test_a_write_that_comes_after_the_decision_does_not_get_in(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    producer.send_end(commit=True)
    late = producer.send("t", 0, "late")
    broker.settle()
    assert produced(late) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed(broker, "t", 0) == ["a"]


@pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
def test_an_end_that_did_not_get_to_disk_is_refused_and_may_be_repeated(broker: MemoryBroker, v2: bool) -> None:
    producer = MemoryProducer(broker, "app", v2=v2).init()
    producer.send_add("t", 0)
    broker.settle()
    write(producer, "a")
    broker.files.sync_failures = 1
    refused = settled(producer, commit=True)
    assert refused.message.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(broker) == "Ongoing"
    assert producer.took_end(settled(producer, commit=True))
    assert committed(broker, "t", 0) == ["a"]


def test_markers_that_did_not_get_to_disk_are_written_again(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    end = producer.send_end(commit=True)
    broker.flush()
    assert producer.took_end(end)
    broker.files.sync_failures = 1
    broker.settle()
    waiting = producer.send("t", 0, "b")
    assert produced(waiting) == ErrorCode.CONCURRENT_TRANSACTIONS  # nobody waits for a disk that fails
    assert committed(broker, "t", 0) == []
    broker.pass_time(SECOND_MS)
    broker.settle()
    assert state(broker) == "CompleteCommit"
    assert committed(broker, "t", 0) == ["a"]


def test_who_waits_for_markers_that_fail_is_told_to_come_again(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    end = producer.send_end(commit=True)
    broker.flush()
    assert producer.took_end(end)
    waiting = [producer.send("t", 0, "b"), producer.send_init()]
    broker.files.sync_failures = 1
    broker.settle()
    assert produced(waiting[0]) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert waiting[1].message.error_code == ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_completion_that_is_lost_with_what_came_after_it_is_made_up_for(
    broker: MemoryBroker, producer: MemoryProducer
) -> None:
    """Complete need not be on disk for the next transaction to begin. If both are lost, the end is to be recorded."""
    write(producer, "a")
    end = producer.send_end(commit=True)
    broker.flush()
    broker.flush()
    assert producer.took_end(end)
    assert unsynced(broker) == ["__transaction_state-0"]  # Complete
    reply = producer.send("t", 0, "b")
    broker.files.sync_failures = 1
    broker.settle()
    assert produced(reply) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert state(broker) == "CompleteCommit"
    producer.sequences.clear()
    write(producer, "b")
    assert producer.took_end(settled(producer, commit=True))
    assert committed(broker, "t", 0) == ["a", "b"]


def test_a_full_disk_refuses_a_transaction_and_changes_nothing(broker: MemoryBroker, producer: MemoryProducer) -> None:
    broker.files.write_failure = (0, 10)
    reply = producer.send("t", 0, "a")
    assert produced(reply) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert state(broker) == "Empty"
    producer.sequences.clear()
    write(producer, "a")


def test_a_topic_that_is_deleted_takes_its_part_of_a_transaction_with_it(
    broker: MemoryBroker, producer: MemoryProducer
) -> None:
    create_topic(broker, "gone")
    reply = producer.send("gone", 0, "x")
    broker.settle()
    assert produced(reply) == ErrorCode.NONE
    write(producer, "a")
    broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=1000), 6)
    assert producer.took_end(settled(producer, commit=True))
    assert state(broker) == "CompleteCommit"
    assert committed(broker, "t", 0) == ["a"]


def test_a_restart_finishes_what_was_decided(broker: MemoryBroker, producer: MemoryProducer) -> None:
    write(producer, "a")
    producer.send_end(commit=True)
    broker.flush()
    again = broker.killed()
    again.settle()
    assert state(again) == "CompleteCommit"
    assert committed(again, "t", 0) == ["a"]
    assert ends(again, "t", 0) == (3, 3)  # the marker of the first process, and that of the second


def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_fenced(broker: MemoryBroker) -> None:
    producer = MemoryProducer(broker, "app", timeout_ms=5000).init()
    write(producer, "a")
    broker.pass_time(5000)
    broker.settle()
    assert state(broker) == "Ongoing"
    broker.pass_time(1)
    broker.settle()
    assert state(broker) == "CompleteAbort"
    late = producer.send("t", 0, "b")
    broker.settle()
    assert produced(late) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed(broker, "t", 0) == []


def test_an_id_that_nobody_uses_is_forgotten_for_good(broker: MemoryBroker, producer: MemoryProducer) -> None:
    broker.pass_time(7 * 86_400_000 + 1)
    broker.node.transactions.expire()
    broker.settle()
    for each in (broker, broker.killed()):
        assert each.ask(ListTransactionsRequest(), 0).transaction_states == []
    reply = producer.send("t", 0, "a")
    broker.settle()
    assert produced(reply) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_open_transaction_is_not_forgotten(broker: MemoryBroker) -> None:
    producer = MemoryProducer(broker, "app").init()
    write(producer, "a")
    broker.clock.advance(8 * 86_400_000)
    broker.node.transactions.expire()
    assert state(broker) == "Ongoing"
