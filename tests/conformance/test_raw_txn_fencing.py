"""Zombies and timeouts: who has been replaced may change nothing any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.produce import PartitionProduceResponse
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_groups import ready
from tests.support.raw_transactions import (
    V1,
    V2,
    Marker,
    TransactionalProducer,
    TransactionProtocol,
    committed,
    describe,
    markers,
)
from tests.support.waiting import eventually

NewName = Callable[[], str]
COMMIT, ABORT = True, False


@pytest.fixture
def second_wire(broker: RunningBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as other:
        yield other


def refusal(answer: PartitionProduceResponse) -> ErrorCode:
    assert answer.base_offset == -1
    return ErrorCode(answer.error_code)


def successor(producer: TransactionalProducer, wire: Wire) -> TransactionalProducer:
    """Another instance of the same application, with the same transactional id."""
    return TransactionalProducer(wire, producer.transactional_id, producer.protocol).init()


# --- a new instance


def test_a_new_instance_fences_the_old_one_everywhere(
    wire: Wire, second_wire: Wire, topic: str, new_name: NewName, producer: TransactionalProducer
) -> None:
    group = ready(wire, new_name())
    producer.write(topic, "a")
    producer.commit()
    newer = successor(producer, second_wire)
    assert (newer.id, newer.epoch) == (producer.id, producer.epoch + 1)
    assert refusal(producer.produce_once(topic, "b", sequence=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end_once(COMMIT).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.end_once(ABORT).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.init_once(identity=producer.identity).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.commit_offset_once(group, topic, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add_once({topic: [0]}) == {(topic, 0): ErrorCode.PRODUCER_FENCED}
    assert producer.add_offsets_once(group) == ErrorCode.PRODUCER_FENCED
    assert newer.state == "Empty"
    assert wire.end(topic) == 2


def test_a_new_instance_aborts_what_the_old_one_left_open(
    wire: Wire, second_wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "of the old")
    newer = successor(producer, second_wire)
    assert newer.epoch == producer.epoch + 2
    assert wire.stable_end(topic) == 2
    newer.write(topic, "of the new")
    assert refusal(producer.produce_once(topic, "zombie", sequence=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end_once(COMMIT).error_code == ErrorCode.PRODUCER_FENCED
    newer.commit()
    assert committed(wire, topic) == ["of the new"]


def test_the_old_one_cannot_end_the_transaction_of_the_new(
    wire: Wire, second_wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    newer = successor(producer, second_wire)
    newer.write(topic, "of the new")
    assert producer.end_once(ABORT).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.end_once(COMMIT).error_code == ErrorCode.PRODUCER_FENCED
    assert newer.state == "Ongoing"


def test_an_old_instance_that_starts_again_fences_the_new_one(
    second_wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    newer = successor(producer, second_wire)
    producer.init()
    assert refusal(newer.produce_once(topic, "b")) == ErrorCode.INVALID_PRODUCER_EPOCH
    producer.write(topic, "a")


def test_producers_with_other_transactional_ids_are_not_fenced(
    topic: str, new_producer: Callable[[], TransactionalProducer], wire: Wire
) -> None:
    one, two = new_producer(), new_producer()
    one.write(topic, "one")
    successor(two, wire)
    one.commit()
    assert committed(wire, topic) == ["one"]


def test_instances_that_start_at_once_never_share_an_epoch(
    broker: RunningBroker, producer: TransactionalProducer
) -> None:
    request = InitProducerIdRequest(transactional_id=producer.transactional_id, transaction_timeout_ms=60_000)
    epochs: list[int] = []
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.bootstrap)) for _ in range(8)]
        for wire in wires:
            wire.highest(InitProducerIdRequest)  # asked now, so that the requests below leave together
        for _ in range(5):
            for wire in wires:
                wire.send(request)
            answers = [wire.receive(request)[1] for wire in wires]
            codes = {each.error_code for each in answers}
            assert ErrorCode.NONE in codes
            assert codes <= {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
            epochs += [each.producer_epoch for each in answers if each.error_code == ErrorCode.NONE]
    assert sorted(epochs) == list(range(producer.epoch + 1, producer.epoch + 1 + len(epochs)))


# --- a transaction that lasts too long


@pytest.fixture
def hasty(wire: Wire, new_name: NewName, protocol: TransactionProtocol) -> TransactionalProducer:
    """Has a second for a transaction."""
    return TransactionalProducer(wire, new_name(), protocol, timeout_ms=1_000).init()


def timed_out(producer: TransactionalProducer) -> TransactionalProducer:
    eventually(lambda: producer.state == "CompleteAbort", "the transaction times out")
    return producer


def test_a_transaction_that_lasts_too_long_is_aborted(wire: Wire, topic: str, hasty: TransactionalProducer) -> None:
    hasty.write(topic, "a")
    timed_out(hasty)
    assert committed(wire, topic) == []
    assert wire.stable_end(topic) == wire.end(topic) == 2
    assert markers(wire, topic) == [Marker(1, (hasty.id, hasty.epoch + 1), ABORT)]
    assert describe(wire, hasty.transactional_id).producer_epoch == hasty.epoch + 1


def test_a_timeout_fences_the_producer(wire: Wire, topic: str, new_name: NewName, hasty: TransactionalProducer) -> None:
    group = ready(wire, new_name())
    hasty.write(topic, "a")
    timed_out(hasty)
    assert refusal(hasty.produce_once(topic, "b", sequence=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert hasty.add_once({topic: [0]}) == {(topic, 0): ErrorCode.PRODUCER_FENCED}
    assert hasty.add_offsets_once(group) == ErrorCode.PRODUCER_FENCED
    assert hasty.commit_offset_once(group, topic, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(topic) == 2


@pytest.mark.parametrize(("protocol", "version"), [(V1, 1), (V1, 2), (V1, 4), (V2, 4)])
def test_a_classic_end_after_the_timeout_is_fenced(topic: str, hasty: TransactionalProducer, version: int) -> None:
    code = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    hasty.write(topic, "a")
    timed_out(hasty)
    assert hasty.end_once(COMMIT, version=version).error_code == code
    assert hasty.end_once(ABORT, version=version).error_code == code


def test_an_end_of_the_second_protocol_after_the_timeout(topic: str, hasty: TransactionalProducer) -> None:
    """The epoch is one below, as it is for a retry: an abort has happened, a commit has not."""
    hasty.write(topic, "a")
    timed_out(hasty)
    assert hasty.end_once(COMMIT, version=5).error_code == ErrorCode.INVALID_TXN_STATE
    answer = hasty.end_once(ABORT, version=5)
    assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, hasty.epoch + 1)
    assert describe(hasty.wire, hasty.transactional_id).producer_epoch == hasty.epoch + 1


def test_a_producer_that_timed_out_can_start_again(wire: Wire, topic: str, hasty: TransactionalProducer) -> None:
    hasty.write(topic, "a")
    old = hasty.epoch
    timed_out(hasty)
    again = TransactionalProducer(wire, hasty.transactional_id, hasty.protocol).init()
    assert (again.id, again.epoch) == (hasty.id, old + 2)
    again.write(topic, "b")
    again.commit()
    assert committed(wire, topic) == ["b"]


def test_a_producer_that_timed_out_can_go_on_with_its_old_epoch(topic: str, hasty: TransactionalProducer) -> None:
    """KIP-588: InitProducerId with the epoch before the timeout is not fenced."""
    hasty.write(topic, "a")
    old = hasty.identity
    timed_out(hasty)
    answer = hasty.init_once(identity=old)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.NONE, old[0], old[1] + 1)


def test_an_idle_producer_does_not_time_out(
    wire: Wire, topic: str, new_name: NewName, protocol: TransactionProtocol
) -> None:
    idle = TransactionalProducer(wire, new_name(), protocol, timeout_ms=2_000).init()
    busy = TransactionalProducer(wire, new_name(), protocol, timeout_ms=2_100).init()
    idle.write(topic, "a")
    idle.commit()
    busy.write(topic, "b")
    timed_out(busy)
    assert idle.state == "CompleteCommit"
    idle.write(topic, "c")
    idle.commit()
    assert committed(wire, topic) == ["a", "c"]


def test_a_write_does_not_prolong_the_transaction(wire: Wire, topic: str, hasty: TransactionalProducer) -> None:
    """The timeout counts from the first partition on."""
    hasty.write(topic, "a")

    def keeps_writing() -> bool:
        answer = hasty.produce_once(topic, "b", sequence=1)
        return answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH

    eventually(keeps_writing, "the transaction times out")
    timed_out(hasty)
    assert committed(wire, topic) == []
