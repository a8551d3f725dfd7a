"""What belongs to a transaction: by AddPartitionsToTxn and AddOffsetsToTxn in V1, by the first write in V2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.produce import PartitionProduceResponse
from tests.support.raw import Wire, batch
from tests.support.raw_groups import ready
from tests.support.raw_transactions import TransactionalProducer, committed, describe, markers
from tests.support.waiting import eventually

NewName = Callable[[], str]


@pytest.fixture
def group(wire: Wire, new_name: NewName) -> str:
    return ready(wire, new_name())


def stored(answer: PartitionProduceResponse) -> int:
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer.base_offset


def refusal(answer: PartitionProduceResponse) -> ErrorCode:
    assert answer.base_offset == -1
    return ErrorCode(answer.error_code)


# --- writing without adding


@pytest.mark.parametrize("version", [3, 7, 8, 9, 10])
def test_a_partition_that_was_not_added_is_an_invalid_state(
    wire: Wire, topic: str, classic: TransactionalProducer, version: int
) -> None:
    assert refusal(classic.produce_once(topic, "a", version=version)) == ErrorCode.INVALID_TXN_STATE
    assert wire.end(topic) == 0


def test_a_partition_that_was_not_added_is_abortable_for_who_knows_the_code(
    wire: Wire, topic: str, classic: TransactionalProducer
) -> None:
    assert refusal(classic.produce_once(topic, "a", version=11)) == ErrorCode.TRANSACTION_ABORTABLE
    assert wire.end(topic) == 0


def test_another_partition_of_the_same_topic_must_be_added_too(
    wire: Wire, new_name: Callable[[], str], classic: TransactionalProducer
) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=2)
    classic.write(topic, "a", partition=0)
    assert refusal(classic.produce_once(topic, "b", partition=1)) == ErrorCode.TRANSACTION_ABORTABLE
    assert wire.end(topic, 1) == 0


def test_a_new_transaction_must_add_its_partitions_again(
    wire: Wire, topic: str, classic: TransactionalProducer
) -> None:
    classic.write(topic, "a")
    classic.commit()
    assert refusal(classic.produce_once(topic, "b", sequence=1)) == ErrorCode.TRANSACTION_ABORTABLE
    assert wire.end(topic) == 2


@pytest.mark.parametrize("version", [12, 13])
def test_the_second_protocol_adds_by_writing(
    wire: Wire, new_name: Callable[[], str], bumping: TransactionalProducer, version: int
) -> None:
    name = new_name()
    topic_id = wire.create_topic(name)
    assert stored(bumping.produce_once(topic_id if version >= 13 else name, "a", version=version)) == 0
    assert bumping.state == "Ongoing"
    bumping.commit()
    assert committed(wire, name) == ["a"]


@pytest.mark.parametrize(
    ("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)], ids=["v3", "v4"]
)
def test_offsets_of_a_group_that_was_not_added(
    topic: str, group: str, classic: TransactionalProducer, version: int, code: ErrorCode
) -> None:
    classic.write(topic, "a")
    assert classic.commit_offset_once(group, topic, 1, version=version) == code


def test_the_second_protocol_adds_the_group_by_committing(
    topic: str, group: str, bumping: TransactionalProducer
) -> None:
    eventually(lambda: bumping.commit_offset_once(group, topic, 1) == ErrorCode.NONE, "the offset is taken")
    assert bumping.state == "Ongoing"


# --- V1: what is added


def test_partitions_are_added_all_or_none(topic: str, classic: TransactionalProducer) -> None:
    assert classic.add_once({topic: [0, 7], "no-such-topic": [0]}) == {
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert classic.state == "Empty"


def test_adding_again_changes_nothing(topic: str, classic: TransactionalProducer) -> None:
    for _ in range(3):
        assert classic.add_once({topic: [0]}) == {(topic, 0): ErrorCode.NONE}
    assert classic.state == "Ongoing"


def test_a_transaction_without_a_write_can_be_ended(wire: Wire, topic: str, classic: TransactionalProducer) -> None:
    for end in (classic.commit, classic.abort):
        classic.add(topic)
        end()
    assert [marker.is_commit for marker in markers(wire, topic)] == [True, False]
    assert committed(wire, topic) == []


def test_an_added_partition_holds_nothing_back_before_it_is_written(
    wire: Wire, topic: str, classic: TransactionalProducer
) -> None:
    classic.add(topic)
    wire.produce(topic, batch("plain"))
    assert committed(wire, topic) == ["plain"]


def test_a_topic_that_is_deleted_in_a_transaction_does_not_keep_it_from_ending(
    wire: Wire, new_name: NewName, producer: TransactionalProducer
) -> None:
    stays, goes = new_name(), new_name()
    wire.create_topic(stays)
    wire.create_topic(goes)
    producer.write(stays, "a")
    producer.write(goes, "a")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=goes)], timeout_ms=10_000)
    assert wire.ask(request).responses[0].error_code == ErrorCode.NONE
    eventually(lambda: wire.metadata(name=goes).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is gone")
    producer.commit()
    assert committed(wire, stays) == ["a"]


# --- V2: what is added by a write that is refused


def test_a_write_to_an_unknown_topic_begins_no_transaction(bumping: TransactionalProducer) -> None:
    assert refusal(bumping.produce_once("no-such-topic", "a")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bumping.state == "Empty"


def test_a_refused_write_to_a_partition_begins_a_transaction_all_the_same(
    wire: Wire, topic: str, bumping: TransactionalProducer
) -> None:
    """The partition is added before the batch is looked at: the client has to abort, and can."""
    assert refusal(bumping.produce_once(topic, "a", sequence=5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert bumping.state == "Ongoing"
    assert wire.end(topic) == 0
    bumping.abort()
    assert wire.end(topic) == wire.stable_end(topic) == 1


# --- v4 and later: several transactions in one request, as brokers ask each other


def ask_for_many(
    wire: Wire, *producers: TransactionalProducer, topic: str, verify_only: bool, version: int
) -> dict[str, ErrorCode]:
    wanted = [AddPartitionsToTxnTopic(name=topic, partitions=[0])]
    transactions = [
        AddPartitionsToTxnTransaction(
            transactional_id=each.transactional_id,
            producer_id=each.id,
            producer_epoch=each.epoch,
            verify_only=verify_only,
            topics=wanted,
        )
        for each in producers
    ]
    answer = wire.ask(AddPartitionsToTxnRequest(transactions=transactions), version)
    assert answer.error_code == ErrorCode.NONE
    return {
        each.transactional_id: ErrorCode(each.topic_results[0].results_by_partition[0].partition_error_code)
        for each in answer.results_by_transaction
    }


@pytest.mark.parametrize("version", [4, 5])
def test_several_transactions_are_added_to_with_one_request(
    wire: Wire, topic: str, new_producer: Callable[[], TransactionalProducer], version: int
) -> None:
    one, two, old = new_producer(), new_producer(), new_producer()
    old.init().epoch -= 1
    assert ask_for_many(wire, one, two, old, topic=topic, verify_only=False, version=version) == {
        one.transactional_id: ErrorCode.NONE,
        two.transactional_id: ErrorCode.NONE,
        old.transactional_id: ErrorCode.PRODUCER_FENCED,
    }
    assert describe(wire, one.transactional_id).transaction_state == "Ongoing"


@pytest.mark.parametrize("version", [4, 5])
def test_a_verification_adds_nothing(
    wire: Wire, topic: str, new_producer: Callable[[], TransactionalProducer], version: int
) -> None:
    inside, outside = new_producer(), new_producer()
    inside.write(topic, "a")
    assert ask_for_many(wire, inside, outside, topic=topic, verify_only=True, version=version) == {
        inside.transactional_id: ErrorCode.NONE,
        outside.transactional_id: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert outside.state == "Empty"
