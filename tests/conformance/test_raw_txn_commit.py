"""Whole transactions: what is committed is there, what is aborted is not, whatever was lost or sent twice before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from onceflow.wire.schema import Message
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire, batch, produce_request
from tests.support.raw_transactions import V1, V2, Marker, TransactionalProducer, committed, describe, markers
from tests.support.waiting import eventually

NewName = Callable[[], str]
NewProducer = Callable[[], TransactionalProducer]


def test_a_committed_transaction_is_seen(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a", "b")
    producer.write(topic, "c")
    producer.commit()
    assert committed(wire, topic) == ["a", "b", "c"]
    assert wire.end(topic) == wire.stable_end(topic) == 4


def test_an_aborted_transaction_is_not_seen(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a", "b")
    producer.abort()
    assert committed(wire, topic) == []
    assert wire.end(topic) == wire.stable_end(topic) == 3


def test_a_transaction_ends_in_all_partitions_of_all_topics(
    wire: Wire, new_name: NewName, producer: TransactionalProducer
) -> None:
    topics = [new_name() for _ in range(3)]
    for topic in topics:
        wire.create_topic(topic, partitions=4)
    places = [(topic, partition) for topic in topics for partition in range(4)]
    for end in (producer.commit, producer.abort, producer.commit):
        for topic, partition in places:
            producer.write(topic, f"{end.__name__} {partition}", partition=partition)
        end()
    for topic, partition in places:
        assert committed(wire, topic, partition=partition) == [f"commit {partition}"] * 2
        assert [marker.is_commit for marker in markers(wire, topic, partition)] == [True, False, True]


def test_one_request_writes_to_many_partitions(wire: Wire, new_name: NewName, producer: TransactionalProducer) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=5)
    if not producer.protocol.is_v2:
        producer.add(topic, *range(5))
    records = batch("a", producer=producer.identity, transactional=True)
    data = [PartitionProduceData(index=partition, records=records) for partition in range(5)]
    request = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=data)],
    )
    answer = wire.ask(request, producer.protocol.produce)
    assert {each.error_code for each in answer.responses[0].partition_responses} == {ErrorCode.NONE}
    producer.commit()
    assert [committed(wire, topic, partition=partition) for partition in range(5)] == [["a"]] * 5


def test_a_partition_that_was_added_and_not_written_gets_a_marker_too(wire: Wire, new_name: NewName) -> None:
    """Only V1 can do that."""
    topic, producer = new_name(), TransactionalProducer(wire, new_name(), V1).init()
    wire.create_topic(topic, partitions=2)
    producer.write(topic, "a", partition=0)
    producer.add(topic, 1)
    producer.commit()
    assert markers(wire, topic, 1) == [Marker(0, producer.identity, True)]


def test_transactions_follow_each_other(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    for number in range(10):
        producer.write(topic, f"{number}")
        producer.commit() if number % 3 else producer.abort()
    assert committed(wire, topic) == ["1", "2", "4", "5", "7", "8"]
    assert wire.end(topic) == 20


def test_what_was_aborted_can_be_written_again(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.abort()
    producer.write(topic, "a")
    producer.commit()
    assert committed(wire, topic) == ["a"]
    assert [record.value for record in wire.records(topic)][::2] == [b"a", b"a"]


def test_after_an_abort_the_first_protocol_counts_on_and_the_second_anew(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a", "b")
    producer.abort()
    producer.write(topic, "c")
    sequences = [header.base_sequence for header in wire.headers(topic) if not header.is_control]
    assert sequences == ([0, 0] if producer.protocol.is_v2 else [0, 2])


def test_two_producers_interleave_on_one_partition(wire: Wire, topic: str, new_producer: NewProducer) -> None:
    one, two = new_producer(), new_producer()
    for number in range(3):
        one.write(topic, f"one {number}")
        two.write(topic, f"two {number}")
    two.abort()
    one.write(topic, "one 3")
    one.commit()
    assert committed(wire, topic) == ["one 0", "one 1", "one 2", "one 3"]
    ends = [(marker.offset, marker.producer[0], marker.is_commit) for marker in markers(wire, topic)]
    assert ends == [(6, two.id, False), (8, one.id, True)]


def test_a_plain_producer_writes_between_the_batches_of_a_transaction(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "transactional")
    wire.produce(topic, batch("plain"))
    wire.produce(topic, batch("idempotent", producer=wire.new_producer()))
    producer.abort()
    assert committed(wire, topic) == ["plain", "idempotent"]


def test_the_requests_of_a_transaction_may_be_sent_without_waiting_for_answers(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    """They are answered one after the other, in their order."""
    if not producer.protocol.is_v2:
        producer.add(topic)
    requests: list[tuple[Message, int]] = []
    for sequence, value in enumerate("abc"):
        records = batch(value, producer=producer.identity, sequence=sequence, transactional=True)
        request = produce_request(topic, records, transactional_id=producer.transactional_id)
        requests.append((request, producer.protocol.produce))
    end = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=True,
    )
    requests.append((end, producer.protocol.end))
    sent = [wire.send(request, version) for request, version in requests]
    answers = [wire.receive(request, version) for request, version in requests]
    assert [correlation_id for correlation_id, _ in answers] == sent
    *written, (_, ended) = answers
    assert [each.responses[0].partition_responses[0].error_code for _, each in written] == [ErrorCode.NONE] * 3
    assert ended.error_code == ErrorCode.NONE
    producer.settle()
    assert committed(wire, topic) == ["a", "b", "c"]


def test_a_transaction_begins_with_the_first_write(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    assert producer.state == "Empty"
    producer.write(topic, "a")
    state = describe(wire, producer.transactional_id)
    assert state.transaction_state == "Ongoing"
    assert [(each.topic, each.partitions) for each in state.topics] == [(topic, [0])]


@pytest.mark.parametrize("compression", [1, 4])
def test_transactional_batches_may_be_compressed(
    wire: Wire, topic: str, producer: TransactionalProducer, compression: int
) -> None:
    if not producer.protocol.is_v2:
        producer.add(topic)
    records = batch("a", "b", producer=producer.identity, transactional=True, compression=compression)
    version, name = producer.protocol.produce, producer.transactional_id
    assert wire.produce(topic, records, version=version, transactional_id=name).error_code == ErrorCode.NONE
    producer.commit()
    assert committed(wire, topic) == ["a", "b"]


# --- twice, or on another connection


def test_a_batch_that_is_sent_twice_is_stored_once(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    producer.write(topic, "b")
    assert producer.produce_once(topic, "a", sequence=0).base_offset == 0
    assert producer.produce_once(topic, "b", sequence=1).base_offset == 1
    producer.commit()
    assert committed(wire, topic) == ["a", "b"]


def test_a_write_whose_answer_is_lost_is_repeated_on_a_new_connection(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    if not producer.protocol.is_v2:
        producer.add(topic)
    records = batch("a", producer=producer.identity, transactional=True)
    with Wire(broker.bootstrap) as lost:
        request = produce_request(topic, records, transactional_id=producer.transactional_id)
        lost.send(request, producer.protocol.produce)
        eventually(lambda: wire.end(topic) == 1, "the batch arrived")
    with Wire(broker.bootstrap) as other:
        assert producer.on(other).write(topic, "a") == 0
    producer.commit()
    assert committed(wire, topic) == ["a"]


def test_a_transaction_does_not_end_with_its_connection(
    broker: RunningBroker, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    with Wire(broker.bootstrap) as other:
        producer.on(other).write(topic, "a")
    assert producer.state == "Ongoing"
    with Wire(broker.bootstrap) as other:
        producer.on(other).commit()
    assert committed(wire, topic) == ["a"]


def test_the_repeat_of_a_batch_comes_too_late_after_the_end(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    """V1 keeps its epoch, and the partition is no longer part of a transaction. V2 has a new epoch by then."""
    producer.write(topic, "a")
    identity = producer.identity
    producer.commit()
    answer = producer.produce_once(topic, "a", identity=identity)
    v2 = producer.protocol.is_v2
    assert answer.error_code == (ErrorCode.INVALID_PRODUCER_EPOCH if v2 else ErrorCode.TRANSACTION_ABORTABLE)
    assert wire.end(topic) == wire.stable_end(topic) == 2
    assert producer.state == "CompleteCommit"


def test_a_repeat_that_the_next_transaction_makes_is_answered_with_the_offset_of_the_first(
    wire: Wire, topic: str, new_name: NewName
) -> None:
    """V1 counts its sequences over transactions, and the memory of a partition does not end with one."""
    producer = TransactionalProducer(wire, new_name(), V1).init()
    producer.write(topic, "a")
    producer.abort()
    producer.add(topic)
    answer = producer.produce_once(topic, "a", sequence=0)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
    assert wire.end(topic) == wire.stable_end(topic) == 2


# --- both protocols, one id


def test_a_producer_may_change_to_the_second_protocol(wire: Wire, topic: str, new_name: NewName) -> None:
    producer = TransactionalProducer(wire, new_name(), V1).init()
    producer.write(topic, "a")
    producer.commit()
    newer = TransactionalProducer(wire, producer.transactional_id, V2).init()
    newer.write(topic, "b")
    newer.commit()
    assert (newer.id, committed(wire, topic)) == (producer.id, ["a", "b"])


def test_a_transaction_of_the_first_protocol_may_be_ended_with_the_second(
    wire: Wire, topic: str, new_name: NewName
) -> None:
    producer = TransactionalProducer(wire, new_name(), V1).init()
    producer.write(topic, "a")
    answer = producer.end_once(True, version=5)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, producer.epoch + 1)
    producer.settle()
    assert markers(wire, topic) == [Marker(1, (producer.id, producer.epoch + 1), True)]


def test_a_transaction_of_the_second_protocol_may_be_ended_with_the_first(
    wire: Wire, topic: str, new_name: NewName
) -> None:
    producer = TransactionalProducer(wire, new_name(), V2).init()
    producer.write(topic, "a")
    assert producer.end_once(True, version=4).error_code == ErrorCode.NONE
    producer.settle()
    assert markers(wire, topic) == [Marker(1, producer.identity, True)]
