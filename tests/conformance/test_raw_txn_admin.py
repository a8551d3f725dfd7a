"""Looking at transactions from outside, and ending one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.raw import Wire, batch, now_ms
from tests.support.raw_groups import committed as committed_offset
from tests.support.raw_groups import ready
from tests.support.raw_transactions import V1, V2, Marker, TransactionalProducer, committed, describe, markers
from tests.support.waiting import eventually

NewName = Callable[[], str]
NewProducer = Callable[[], TransactionalProducer]
COMMIT, ABORT = True, False


# --- ListTransactions


def ask_list(wire: Wire, *, version: int | None = None, **filters: Any) -> ListTransactionsResponse:
    def ask() -> ListTransactionsResponse | None:
        answer = wire.ask(ListTransactionsRequest(**filters), version)
        return None if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else answer

    return eventually(ask, "the coordinator has read its log")


def listed(wire: Wire, **filters: Any) -> dict[str, tuple[int, str]]:
    answer = ask_list(wire, **filters)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return {each.transactional_id: (each.producer_id, each.transaction_state) for each in answer.transaction_states}


@pytest.mark.parametrize(("protocol", "version"), [(V1, 0), (V1, 1), (V2, 2)])
def test_every_transactional_id_is_listed_with_its_state(
    wire: Wire, topic: str, new_producer: NewProducer, version: int
) -> None:
    empty, ongoing, complete, aborted = (new_producer() for _ in range(4))
    for producer in (ongoing, complete, aborted):
        producer.write(topic, "a")
    complete.commit()
    aborted.abort()
    found = listed(wire, version=version)
    assert found[empty.transactional_id] == (empty.id, "Empty")
    assert found[ongoing.transactional_id] == (ongoing.id, "Ongoing")
    assert found[complete.transactional_id] == (complete.id, "CompleteCommit")
    assert found[aborted.transactional_id] == (aborted.id, "CompleteAbort")


def test_a_list_may_be_filtered_by_state(wire: Wire, topic: str, new_producer: NewProducer) -> None:
    empty, ongoing = new_producer(), new_producer()
    ongoing.write(topic, "a")
    found = listed(wire, state_filters=["Ongoing"])
    assert ongoing.transactional_id in found
    assert {state for _, state in found.values()} == {"Ongoing"}
    both = listed(wire, state_filters=["Ongoing", "Empty"])
    assert {empty.transactional_id, ongoing.transactional_id} <= both.keys()


def test_a_state_that_does_not_exist_is_named_and_finds_nothing(wire: Wire, producer: TransactionalProducer) -> None:
    answer = ask_list(wire, state_filters=["Nonsense"])
    assert answer.error_code == ErrorCode.NONE
    assert answer.unknown_state_filters == ["Nonsense"]
    assert answer.transaction_states == []


def test_a_list_may_be_filtered_by_producer_id(wire: Wire, new_producer: NewProducer) -> None:
    one, two, _ = new_producer(), new_producer(), new_producer()
    found = listed(wire, producer_id_filters=[one.id, two.id, 987_654_321])
    assert found == {one.transactional_id: (one.id, "Empty"), two.transactional_id: (two.id, "Empty")}


def test_filters_work_together(wire: Wire, topic: str, new_producer: NewProducer) -> None:
    one, two = new_producer(), new_producer()
    one.write(topic, "a")
    found = listed(wire, producer_id_filters=[one.id, two.id], state_filters=["Ongoing"])
    assert found.keys() == {one.transactional_id}


def test_a_list_may_be_filtered_by_duration(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    mine = {"producer_id_filters": [producer.id]}
    assert listed(wire, duration_filter=60_000, **mine) == {}
    eventually(lambda: listed(wire, duration_filter=50, **mine), "the transaction runs for longer than 50 ms")
    assert listed(wire, duration_filter=-1, **mine) == {producer.transactional_id: (producer.id, "Ongoing")}


def test_the_duration_of_an_id_without_a_transaction_is_endless(wire: Wire, producer: TransactionalProducer) -> None:
    """Its start is -1, and the filter counts from there."""
    found = listed(wire, duration_filter=3_600_000, producer_id_filters=[producer.id])
    assert found == {producer.transactional_id: (producer.id, "Empty")}


def test_a_list_may_be_filtered_by_a_pattern_for_the_whole_name(wire: Wire, new_name: NewName, protocol: Any) -> None:
    name = new_name()
    for suffix in ("-one", "-two", "-three"):
        TransactionalProducer(wire, name + suffix, protocol).init()
    assert listed(wire, transactional_id_pattern=f"{name}-t.*").keys() == {f"{name}-two", f"{name}-three"}
    assert listed(wire, transactional_id_pattern=name).keys() == set()
    assert listed(wire, transactional_id_pattern="").keys() >= {f"{name}-one"}


def test_a_pattern_that_is_none_is_refused(wire: Wire, producer: TransactionalProducer) -> None:
    answer = ask_list(wire, transactional_id_pattern="(ab(c")
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.transaction_states == []


# --- DescribeTransactions


def test_an_open_transaction_is_described(wire: Wire, new_name: NewName, producer: TransactionalProducer) -> None:
    one, two = new_name(), new_name()
    wire.create_topic(one, partitions=3)
    wire.create_topic(two)
    before = now_ms()
    producer.write(one, "a", partition=2)
    producer.write(one, "a", partition=0)
    producer.write(two, "a")
    state = describe(wire, producer.transactional_id)
    assert state.error_code == ErrorCode.NONE
    assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (state.producer_id, state.producer_epoch) == producer.identity
    assert before <= state.transaction_start_time_ms <= now_ms()
    assert {each.topic: sorted(each.partitions) for each in state.topics} == {one: [0, 2], two: [0]}


def test_an_ended_transaction_has_no_partitions(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    assert describe(wire, producer.transactional_id).transaction_start_time_ms == -1
    producer.write(topic, "a")
    producer.commit()
    state = describe(wire, producer.transactional_id)
    assert (state.transaction_state, state.topics) == ("CompleteCommit", [])
    assert (state.producer_id, state.producer_epoch) == producer.identity


def test_several_transactional_ids_are_described_with_one_question(wire: Wire, new_producer: NewProducer) -> None:
    one, two = new_producer(), new_producer()
    request = DescribeTransactionsRequest(transactional_ids=[one.transactional_id, "nobody", two.transactional_id, ""])
    answer = wire.ask(request)
    found = {each.transactional_id: (each.error_code, each.producer_id) for each in answer.transaction_states}
    assert found[one.transactional_id] == (ErrorCode.NONE, one.id)
    assert found[two.transactional_id] == (ErrorCode.NONE, two.id)
    assert found["nobody"][0] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert found[""][0] == ErrorCode.INVALID_REQUEST


# --- DescribeProducers


def producer_state(wire: Wire, topic: str, producer_id: int) -> ProducerState:
    answer = wire.ask(DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[0])]))
    [found] = [each for each in answer.topics[0].partitions[0].active_producers if each.producer_id == producer_id]
    return found


def test_an_open_transaction_is_seen_at_the_partition(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    wire.produce(topic, batch("before"))
    producer.write(topic, "a", "b")
    producer.write(topic, "c")
    state = producer_state(wire, topic, producer.id)
    assert (state.producer_epoch, state.last_sequence) == (producer.epoch, 2)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (1, -1)


def test_an_ended_transaction_leaves_the_coordinators_epoch_at_the_partition(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a", "b")
    producer.commit()
    state = producer_state(wire, topic, producer.id)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, 0)
    # The marker of the second protocol begins a new epoch, in which nothing was written yet.
    assert state.producer_epoch == producer.epoch
    assert state.last_sequence == (-1 if producer.protocol.is_v2 else 1)


# --- WriteTxnMarkers, as `kafka-transactions abort` sends it


def write_marker(
    wire: Wire,
    topic: str,
    producer: tuple[int, int],
    *,
    committed: bool = ABORT,
    partitions: tuple[int, ...] = (0,),
    coordinator_epoch: int = 0,
    version: int = 1,
    transaction_version: int = 0,
) -> dict[int, ErrorCode]:
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=committed,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    [answer] = wire.ask(WriteTxnMarkersRequest(markers=[marker]), version).markers
    assert answer.producer_id == producer[0]
    return {each.partition_index: ErrorCode(each.error_code) for each in answer.topics[0].partitions}


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_from_outside_ends_a_hanging_transaction(
    wire: Wire, topic: str, producer: TransactionalProducer, version: int
) -> None:
    producer.write(topic, "hanging")
    wire.produce(topic, batch("behind"))
    assert write_marker(wire, topic, producer.identity, version=version) == {0: ErrorCode.NONE}
    assert wire.stable_end(topic) == 3
    assert committed(wire, topic) == ["behind"]
    assert markers(wire, topic) == [Marker(2, producer.identity, ABORT)]
    state = producer_state(wire, topic, producer.id)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, 0)


def test_a_marker_from_outside_changes_nothing_at_the_coordinator(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    write_marker(wire, topic, producer.identity)
    assert producer.state == "Ongoing"


def test_a_marker_from_outside_may_commit(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    assert write_marker(wire, topic, producer.identity, committed=COMMIT) == {0: ErrorCode.NONE}
    assert committed(wire, topic) == ["a"]


@pytest.mark.parametrize(("protocol", "version"), [(V1, 1), (V1, 2), (V2, 2)])
def test_a_marker_with_an_old_epoch_is_refused(
    wire: Wire, topic: str, producer: TransactionalProducer, version: int
) -> None:
    old = producer.identity
    producer.init()
    producer.write(topic, "a")
    assert write_marker(wire, topic, old, version=version) == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert wire.stable_end(topic) == 0
    assert wire.end(topic) == 1


@pytest.mark.parametrize(("is_commit", "offset"), [(COMMIT, 5), (ABORT, -1)], ids=["commit", "abort"])
def test_a_marker_from_outside_ends_pending_offsets(
    wire: Wire, topic: str, new_name: NewName, producer: TransactionalProducer, is_commit: bool, offset: int
) -> None:
    group = ready(wire, new_name())
    producer.commit_offset(group, topic, 5)
    [offsets] = describe(wire, producer.transactional_id).topics
    place = tuple(offsets.partitions)
    codes = write_marker(wire, offsets.topic, producer.identity, partitions=place, committed=is_commit)
    assert set(codes.values()) == {ErrorCode.NONE}
    assert committed_offset(wire, group, topic, require_stable=True) == offset


def test_a_marker_with_a_newer_epoch_is_taken_and_fences(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    assert write_marker(wire, topic, (producer.id, producer.epoch + 3)) == {0: ErrorCode.NONE}
    assert wire.stable_end(topic) == 2
    answer = producer.produce_once(topic, "b", sequence=1)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_of_an_older_coordinator_is_refused(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    assert write_marker(wire, topic, producer.identity, coordinator_epoch=7) == {0: ErrorCode.NONE}
    late = write_marker(wire, topic, producer.identity, coordinator_epoch=6)
    assert late == {0: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    assert wire.end(topic) == 2


def test_a_marker_of_the_second_protocol_needs_a_higher_epoch(
    wire: Wire, topic: str, bumping: TransactionalProducer
) -> None:
    """It carries the epoch after the transaction, so one with the same epoch comes late from the one before."""
    bumping.write(topic, "a")
    same = write_marker(wire, topic, bumping.identity, version=2, transaction_version=2)
    assert same == {0: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert wire.stable_end(topic) == 0
    higher = (bumping.id, bumping.epoch + 1)
    assert write_marker(wire, topic, higher, version=2, transaction_version=2) == {0: ErrorCode.NONE}
    assert wire.stable_end(topic) == 2


def test_a_marker_for_an_unknown_partition(wire: Wire, topic: str, producer: TransactionalProducer) -> None:
    producer.write(topic, "a")
    codes = write_marker(wire, topic, producer.identity, partitions=(0, 5))
    assert codes == {0: ErrorCode.NONE, 5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert write_marker(wire, "no-such-topic", producer.identity) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_marker_where_nothing_is_open_is_written_and_harmless(
    wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    wire.produce(topic, batch("plain"))
    assert write_marker(wire, topic, producer.identity) == {0: ErrorCode.NONE}
    assert wire.end(topic) == wire.stable_end(topic) == 2
    assert committed(wire, topic) == ["plain"]
    assert wire.fetch(topic, 0, isolation_level=1).aborted_transactions == []
