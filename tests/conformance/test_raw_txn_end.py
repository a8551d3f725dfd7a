"""EndTxn: what may be ended, what is a retry, and what comes too late.

`settle` waits until the markers are written, so that every answer here is the one of a known state.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_transactions import V1, V2, TransactionalProducer, committed, describe, markers
from tests.support.waiting import eventually

COMMIT, ABORT = True, False
COMPLETE = {COMMIT: "CompleteCommit", ABORT: "CompleteAbort"}


def ended(answer: EndTxnResponse) -> tuple[int, int]:
    """The id and epoch for the next transaction; (-1, -1) where the version has none."""
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer.producer_id, answer.producer_epoch


def refusal(answer: EndTxnResponse) -> ErrorCode:
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    return ErrorCode(answer.error_code)


def epoch_of(producer: TransactionalProducer) -> int:
    return describe(producer.wire, producer.transactional_id).producer_epoch


# --- in both


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_the_next_epoch_is_handed_out_by_the_second_protocol_only(
    topic: str, producer: TransactionalProducer, committed: bool
) -> None:
    producer.write(topic, "a")
    answer = producer.end_once(committed)
    expected = (producer.id, producer.epoch + 1) if producer.protocol.is_v2 else (-1, -1)
    assert ended(answer) == expected
    assert producer.settle() == COMPLETE[committed]
    assert epoch_of(producer) == producer.epoch + producer.protocol.is_v2


def test_a_commit_of_nothing_is_an_invalid_state(producer: TransactionalProducer) -> None:
    assert refusal(producer.end_once(COMMIT)) == ErrorCode.INVALID_TXN_STATE
    assert producer.state == "Empty"
    assert epoch_of(producer) == producer.epoch


@pytest.mark.parametrize("version", range(6))
def test_a_producer_id_of_somebody_else_has_no_mapping(bumping: TransactionalProducer, version: int) -> None:
    answer = bumping.end_once(COMMIT, identity=(bumping.id + 1000, bumping.epoch), version=version)
    assert refusal(answer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [1, 4, 5])
def test_an_unknown_transactional_id_has_no_mapping(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    nobody = TransactionalProducer(wire, new_name(), V2)
    nobody.meet_coordinator()
    assert refusal(nobody.end_once(COMMIT, identity=(1, 0), version=version)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [1, 5])
def test_an_empty_transactional_id_is_an_invalid_request(
    wire: Wire, bumping: TransactionalProducer, version: int
) -> None:
    answer = wire.ask(EndTxnRequest(transactional_id="", producer_id=1, producer_epoch=0, committed=True), version)
    assert refusal(answer) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("protocol", "version", "code"),
    [
        (V1, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (V1, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (V1, 2, ErrorCode.PRODUCER_FENCED),
        (V1, 3, ErrorCode.PRODUCER_FENCED),
        (V1, 4, ErrorCode.PRODUCER_FENCED),
        (V2, 5, ErrorCode.PRODUCER_FENCED),
    ],
)
def test_an_old_epoch_is_fenced(topic: str, producer: TransactionalProducer, version: int, code: ErrorCode) -> None:
    old = producer.identity
    producer.init()
    producer.init()
    producer.write(topic, "a")
    assert refusal(producer.end_once(COMMIT, identity=old, version=version)) == code
    assert producer.state == "Ongoing"


def test_an_epoch_from_the_future_is_fenced(topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    answer = producer.end_once(COMMIT, identity=(producer.id, producer.epoch + 1))
    assert refusal(answer) == ErrorCode.PRODUCER_FENCED
    assert producer.state == "Ongoing"


# --- V1


def test_v1_an_abort_of_nothing_is_an_invalid_state(classic: TransactionalProducer) -> None:
    assert refusal(classic.end_once(ABORT)) == ErrorCode.INVALID_TXN_STATE
    assert classic.state == "Empty"


@pytest.mark.parametrize("version", [0, 2, 4])
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v1_a_repeated_end_succeeds_and_writes_nothing(
    wire: Wire, topic: str, classic: TransactionalProducer, committed: bool, version: int
) -> None:
    classic.write(topic, "a")
    ended(classic.end_once(committed, version=version))
    classic.settle()
    for _ in range(2):
        assert ended(classic.end_once(committed, version=version)) == (-1, -1)
    assert len(markers(wire, topic)) == 1
    assert classic.state == COMPLETE[committed]


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v1_the_other_end_is_an_invalid_state(topic: str, classic: TransactionalProducer, committed: bool) -> None:
    classic.write(topic, "a")
    ended(classic.end_once(committed))
    classic.settle()
    assert refusal(classic.end_once(not committed)) == ErrorCode.INVALID_TXN_STATE
    assert classic.state == COMPLETE[committed]


def test_v1_an_epoch_serves_many_transactions(wire: Wire, topic: str, classic: TransactionalProducer) -> None:
    for value in "abc":
        classic.write(topic, value)
        classic.commit()
    assert classic.epoch == 0
    assert committed(wire, topic) == ["a", "b", "c"]


# --- V2


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v2_the_epoch_before_is_the_retry_and_gets_the_current_pair(
    wire: Wire, topic: str, bumping: TransactionalProducer, committed: bool
) -> None:
    bumping.write(topic, "a")
    after = ended(bumping.end_once(committed))
    bumping.settle()
    for _ in range(2):
        assert ended(bumping.end_once(committed)) == after
    assert len(markers(wire, topic)) == 1
    assert epoch_of(bumping) == after[1]


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v2_a_retry_with_the_other_end_is_an_invalid_state(
    topic: str, bumping: TransactionalProducer, committed: bool
) -> None:
    bumping.write(topic, "a")
    ended(bumping.end_once(committed))
    bumping.settle()
    assert refusal(bumping.end_once(not committed)) == ErrorCode.INVALID_TXN_STATE
    assert bumping.state == COMPLETE[committed]


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v2_two_epochs_before_is_fenced(topic: str, bumping: TransactionalProducer, committed: bool) -> None:
    first = bumping.identity
    for _ in range(2):
        bumping.write(topic, "a")
        bumping.commit()
    assert refusal(bumping.end_once(committed, identity=first)) == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_v2_the_epoch_before_is_fenced_once_the_next_transaction_is_open(
    topic: str, bumping: TransactionalProducer, committed: bool
) -> None:
    """A delayed EndTxn of one transaction must not end the next one."""
    old = bumping.identity
    bumping.write(topic, "a")
    bumping.commit()
    bumping.write(topic, "b")
    assert refusal(bumping.end_once(committed, identity=old)) == ErrorCode.PRODUCER_FENCED
    assert bumping.state == "Ongoing"


def test_v2_the_epoch_before_a_new_instance_is_fenced(bumping: TransactionalProducer) -> None:
    old = bumping.identity
    bumping.init()
    assert refusal(bumping.end_once(ABORT, identity=old)) == ErrorCode.PRODUCER_FENCED


def test_v2_a_commit_with_the_new_epoch_and_nothing_written_is_an_invalid_state(
    topic: str, bumping: TransactionalProducer
) -> None:
    bumping.write(topic, "a")
    bumping.commit()
    assert refusal(bumping.end_patiently(COMMIT)) == ErrorCode.INVALID_TXN_STATE
    bumping.write(topic, "b")
    bumping.abort()
    assert refusal(bumping.end_patiently(COMMIT)) == ErrorCode.INVALID_TXN_STATE


def test_v2_an_abort_of_nothing_bumps_the_epoch(bumping: TransactionalProducer) -> None:
    """A client that lost an answer cannot know whether its write began a transaction: it may abort either way."""
    for epoch in (1, 2):
        assert ended(bumping.end_once(ABORT)) == (bumping.id, epoch)
        assert bumping.settle() == "CompleteAbort"
        bumping.epoch = epoch


@pytest.mark.parametrize("before", [COMMIT, ABORT])
def test_v2_an_abort_of_nothing_after_a_transaction_bumps_the_epoch(
    wire: Wire, topic: str, bumping: TransactionalProducer, before: bool
) -> None:
    bumping.write(topic, "a")
    bumping.commit() if before is COMMIT else bumping.abort()
    assert ended(bumping.end_once(ABORT)) == (bumping.id, bumping.epoch + 1)
    assert bumping.settle() == "CompleteAbort"
    assert len(markers(wire, topic)) == 1
    # The retry of that one, too.
    assert ended(bumping.end_once(ABORT)) == (bumping.id, bumping.epoch + 1)


# --- lost answers


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_an_end_whose_answer_is_lost_is_repeated_on_a_new_connection(
    broker: RunningBroker, topic: str, producer: TransactionalProducer, committed: bool
) -> None:
    producer.write(topic, "a")
    request = EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=committed,
    )
    lost = Wire(broker.bootstrap)
    lost.send(request, producer.protocol.end)
    lost.close()
    eventually(lambda: producer.state.startswith("Complete"), "the end arrived")
    expected = (producer.id, producer.epoch + 1) if producer.protocol.is_v2 else (-1, -1)
    assert ended(producer.end_once(committed)) == expected
    assert len(markers(producer.wire, topic)) == 1
