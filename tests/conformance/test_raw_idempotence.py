"""Producer ids, epochs and sequences: what makes a retry harmless."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.produce import PartitionProduceResponse
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire, batch, now_ms, rewrite

LAST_SEQUENCE = 2**31 - 1


class Producer:
    """Sends single batches to one partition as (producer id, epoch), with any sequence."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._wire = wire
        self._topic = topic
        self.id, self.epoch = wire.new_producer()

    def send(self, sequence: int, *values: str, epoch: int | None = None) -> PartitionProduceResponse:
        identity = (self.id, self.epoch if epoch is None else epoch)
        return self._wire.produce(self._topic, batch(*(values or ("v",)), producer=identity, sequence=sequence))


@pytest.fixture
def producer(wire: Wire, topic: str) -> Producer:
    return Producer(wire, topic)


def stored(answer: PartitionProduceResponse) -> int:
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer.base_offset


def refusal(answer: PartitionProduceResponse) -> ErrorCode:
    assert answer.base_offset == -1
    return ErrorCode(answer.error_code)


@pytest.mark.parametrize("version", range(6))
def test_every_producer_gets_an_id_of_its_own(wire: Wire, version: int) -> None:
    wire.new_producer()
    answers = [wire.ask(InitProducerIdRequest(transaction_timeout_ms=1000), version) for _ in range(5)]
    assert {(each.error_code, each.producer_epoch) for each in answers} == {(ErrorCode.NONE, 0)}
    assert len({each.producer_id for each in answers}) == 5


def test_two_connections_get_different_ids(wire: Wire, broker: RunningBroker) -> None:
    with Wire(broker.bootstrap) as other:
        assert wire.new_producer()[0] != other.new_producer()[0]


def test_each_of_the_last_five_batches_may_be_repeated(wire: Wire, topic: str, producer: Producer) -> None:
    for sequence in range(8):
        assert stored(producer.send(sequence)) == sequence
    for sequence in range(7, 2, -1):
        assert stored(producer.send(sequence)) == sequence
    assert wire.end(topic) == 8


def test_a_batch_before_the_last_five_is_out_of_order(wire: Wire, topic: str, producer: Producer) -> None:
    for sequence in range(8):
        producer.send(sequence)
    for sequence in range(3):
        assert refusal(producer.send(sequence)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.end(topic) == 8


def test_a_repeat_is_known_by_its_sequences_not_by_its_content(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0, "first", "second")
    assert stored(producer.send(0, "other", "words")) == 0
    assert [record.value for record in wire.records(topic)] == [b"first", b"second"]


def test_a_repeat_that_covers_other_sequences_is_out_of_order(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0, "a", "b")
    assert refusal(producer.send(0, "a")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producer.send(1, "b", "c")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert wire.end(topic) == 2


def test_a_repeat_is_told_the_append_time_of_the_first(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_type="LogAppendTime")
    producer = Producer(wire, topic)
    first = producer.send(0)
    assert first.log_append_time_ms > 0
    assert producer.send(0).log_append_time_ms == first.log_append_time_ms


def test_a_gap_is_out_of_order_and_can_still_be_filled(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0)
    assert refusal(producer.send(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert stored(producer.send(1)) == 1
    assert stored(producer.send(2)) == 2


def test_a_new_epoch_begins_with_zero(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0)
    assert refusal(producer.send(1, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert stored(producer.send(0, epoch=1)) == 1
    assert stored(producer.send(1, epoch=1)) == 2


def test_an_old_epoch_is_fenced(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0, epoch=3)
    assert refusal(producer.send(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producer.send(0, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stored(producer.send(1, epoch=3)) == 1


def test_a_batch_of_a_past_epoch_is_no_repeat(wire: Wire, topic: str, producer: Producer) -> None:
    producer.send(0)
    producer.send(0, epoch=1)
    assert refusal(producer.send(0, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert stored(producer.send(0, epoch=1)) == 1


def test_an_unknown_producer_may_begin_anywhere(wire: Wire, topic: str, producer: Producer) -> None:
    # Its earlier batches may have been deleted by retention, and its state with them.
    assert stored(producer.send(17)) == 0
    assert stored(producer.send(18)) == 1
    assert refusal(producer.send(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_around(wire: Wire, topic: str, producer: Producer) -> None:
    assert stored(producer.send(LAST_SEQUENCE - 1)) == 0
    assert stored(producer.send(LAST_SEQUENCE, "a", "b", "c")) == 1
    assert stored(producer.send(2)) == 4
    assert stored(producer.send(LAST_SEQUENCE, "a", "b", "c")) == 1
    assert wire.end(topic) == 5


def test_a_producer_id_need_not_come_from_this_broker(wire: Wire, topic: str) -> None:
    assert stored(wire.produce(topic, batch("a", producer=(987_654_321, 0)))) == 0


def test_a_producer_without_a_sequence_is_refused(wire: Wire, topic: str, producer: Producer) -> None:
    records = rewrite(batch("a", producer=(producer.id, 0)), base_sequence=-1)
    assert refusal(wire.produce(topic, records)) == ErrorCode.INVALID_RECORD


def test_partitions_count_on_their_own(wire: Wire, new_name: Callable[[], str]) -> None:
    topic, producer = new_name(), wire.new_producer()
    wire.create_topic(topic, partitions=2)
    for partition in (0, 1):
        assert stored(wire.produce(topic, batch("a", producer=producer), partition=partition)) == 0
        assert stored(wire.produce(topic, batch("b", producer=producer, sequence=1), partition=partition)) == 1


def test_describe_producers_shows_who_wrote_last(wire: Wire, topic: str, producer: Producer) -> None:
    before = now_ms()
    producer.send(0, "a", "b", epoch=4)
    answer = wire.ask(DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0, 5])]))
    known, unknown = sorted(answer.topics[0].partitions, key=lambda each: each.partition_index)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [state] = known.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer.id, 4, 1)
    assert before <= state.last_timestamp <= now_ms()
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)
