"""What a transactional producer is told when it does what it must not, request by request and version by version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.produce import PartitionProduceResponse
from tests.support.raw import Wire, batch
from tests.support.raw_groups import ready
from tests.support.raw_transactions import (
    V1,
    V2,
    TransactionalProducer,
)


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    return ready(wire, new_name())


def stored(answer: PartitionProduceResponse) -> int:
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer.base_offset


def refusal(answer: PartitionProduceResponse) -> ErrorCode:
    assert answer.base_offset == -1
    return ErrorCode(answer.error_code)


# --- who writes


@pytest.mark.parametrize(("protocol", "version"), [(V1, 3), (V1, 10), (V1, 11), (V2, 12)])
def test_an_old_epoch_may_not_write(topic: str, wire: Wire, producer: TransactionalProducer, version: int) -> None:
    old = producer.identity
    producer.write(topic, "a")
    producer.abort()
    producer.init()
    producer.write(topic, "b")
    end = wire.end(topic)
    answer = producer.produce_once(topic, "zombie", sequence=1, identity=old, version=version)
    assert refusal(answer) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(topic) == end


@pytest.mark.parametrize(("protocol", "version"), [(V1, 3), (V1, 10), (V1, 11), (V2, 12)])
def test_an_old_epoch_may_not_write_where_the_new_one_has_not_been_yet(
    topic: str, wire: Wire, producer: TransactionalProducer, version: int
) -> None:
    """The partition does not know of the new epoch; the coordinator does, and is asked."""
    old = producer.identity
    producer.init()
    answer = producer.produce_once(topic, "zombie", identity=old, version=version)
    assert refusal(answer) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(topic) == 0


@pytest.mark.parametrize(("protocol", "version"), [(V1, 3), (V1, 11), (V2, 12)])
def test_a_producer_id_of_somebody_else_may_not_write(
    topic: str, wire: Wire, producer: TransactionalProducer, version: int
) -> None:
    answer = producer.produce_once(topic, "a", identity=(producer.id + 1000, 0), version=version)
    assert refusal(answer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert wire.end(topic) == 0


@pytest.mark.parametrize("sequence", [1, 5])
def test_the_first_batch_of_a_new_epoch_has_sequence_zero(
    topic: str, producer: TransactionalProducer, sequence: int
) -> None:
    producer.write(topic, "a")
    producer.commit()
    producer.init()
    if not producer.protocol.is_v2:
        producer.add(topic)
    answer = producer.produce_once(topic, "b", sequence=sequence)
    assert refusal(answer) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_of_the_first_protocol_may_begin_anywhere(
    topic: str, classic: TransactionalProducer
) -> None:
    classic.add(topic)
    assert stored(classic.produce_once(topic, "a", sequence=5)) == 0


def test_an_unknown_producer_of_the_second_protocol_begins_with_zero(
    wire: Wire, topic: str, bumping: TransactionalProducer
) -> None:
    answer = bumping.produce_once(topic, "a", sequence=5)
    assert refusal(answer) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert stored(bumping.produce_once(topic, "a", sequence=0)) == 0


def test_a_gap_in_a_transaction_is_out_of_order(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    assert refusal(producer.produce_once(topic, "c", sequence=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.write(topic, "b") == 1


def test_a_plain_batch_inside_an_open_transaction_is_an_invalid_state(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    answer = wire.produce(topic, batch("b", producer=producer.identity, sequence=1))
    assert refusal(answer) == ErrorCode.INVALID_TXN_STATE
    assert wire.end(topic) == 1


def test_a_transactional_batch_without_a_transactional_id_is_refused(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    records = batch("a", producer=producer.identity, transactional=True)
    answer = wire.produce(topic, records, version=producer.protocol.produce)
    assert refusal(answer) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert wire.end(topic) == 0


# --- at the coordinator


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, ErrorCode.PRODUCER_FENCED),
        (3, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_an_old_epoch_may_not_add(
    topic: str, group: str, classic: TransactionalProducer, version: int, code: ErrorCode
) -> None:
    old = classic.identity
    classic.init()
    assert classic.add_once({topic: [0]}, identity=old, version=version) == {(topic, 0): code}
    assert classic.add_offsets_once(group, identity=old, version=version) == code
    assert classic.state == "Empty"


def test_an_epoch_from_the_future_may_not_add(topic: str, group: str, classic: TransactionalProducer) -> None:
    future = (classic.id, classic.epoch + 1)
    assert classic.add_once({topic: [0]}, identity=future) == {(topic, 0): ErrorCode.PRODUCER_FENCED}
    assert classic.add_offsets_once(group, identity=future) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", range(4))
def test_a_producer_id_of_somebody_else_may_not_add(
    topic: str, group: str, classic: TransactionalProducer, version: int
) -> None:
    other = (classic.id + 1000, classic.epoch)
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert classic.add_once({topic: [0]}, identity=other, version=version) == {(topic, 0): code}
    assert classic.add_offsets_once(group, identity=other, version=version) == code


def test_an_unknown_transactional_id_may_not_add(
    wire: Wire, topic: str, group: str, classic: TransactionalProducer
) -> None:
    nobody = TransactionalProducer(wire, f"{classic.transactional_id}-unknown", V1)
    nobody.meet_coordinator()
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert nobody.add_once({topic: [0]}, identity=(1, 0)) == {(topic, 0): code}
    assert nobody.add_offsets_once(group, identity=(1, 0)) == code


def test_an_empty_transactional_id_is_an_invalid_request(
    wire: Wire, topic: str, group: str, classic: TransactionalProducer
) -> None:
    classic.transactional_id = ""
    assert classic.add_once({topic: [0]}) == {(topic, 0): ErrorCode.INVALID_REQUEST}
    request = AddOffsetsToTxnRequest(transactional_id="", producer_id=1, producer_epoch=0, group_id=group)
    assert wire.ask(request).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("protocol", "version", "code"),
    [
        (V1, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (V1, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (V1, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
        (V2, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_an_old_epoch_may_not_commit_offsets(
    topic: str, group: str, producer: TransactionalProducer, version: int, code: ErrorCode
) -> None:
    old = producer.identity
    producer.init()
    assert producer.commit_offset_once(group, topic, 1, identity=old, version=version) == code


@pytest.mark.parametrize(("protocol", "version"), [(V1, 0), (V1, 3), (V1, 4), (V2, 5)])
def test_a_producer_id_of_somebody_else_may_not_commit_offsets(
    topic: str, group: str, producer: TransactionalProducer, version: int
) -> None:
    other = (producer.id + 1000, 0)
    code = producer.commit_offset_once(group, topic, 1, identity=other, version=version)
    assert code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- after the end


def test_the_old_epoch_of_the_second_protocol_may_not_write_after_the_end(
    wire: Wire, topic: str, bumping: TransactionalProducer
) -> None:
    bumping.write(topic, "a")
    old = bumping.identity
    bumping.commit()
    answer = bumping.produce_once(topic, "late", sequence=1, identity=old)
    assert refusal(answer) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(topic) == 2


def test_a_late_repeat_of_the_second_protocol_is_refused_after_the_end(
    wire: Wire, topic: str, bumping: TransactionalProducer
) -> None:
    bumping.write(topic, "a")
    old = bumping.identity
    bumping.commit()
    assert refusal(bumping.produce_once(topic, "a", identity=old)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert wire.end(topic) == 2
