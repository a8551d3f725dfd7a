"""Producers: Kafka's answers to every sequence and epoch, and the snapshot that keeps them over a restart."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import CorruptLog, ErrorCode, ProtocolError
from onceflow.log.producers import REMEMBERED_BATCHES, BatchMemory, Producer, ProducerStates, read_snapshot
from onceflow.wire.batch import MAX_SEQUENCE, BatchHeader
from onceflow.wire.records import EndTxnMarker, build_batch
from tests.support.effort import examples
from tests.unit.log.support import T0, header_of, make_batch

ID = 7


def batch(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = ID, timestamp: int = T0) -> BatchHeader:
    return header_of(make_batch(count, producer=(producer_id, epoch, sequence), timestamps=[timestamp] * count))


def marker(epoch: int, producer_id: int = ID) -> BatchHeader:
    record = EndTxnMarker(commit=True, coordinator_epoch=0).to_record(offset=0, timestamp=T0)
    sealed = build_batch(
        [record], base_offset=0, producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True
    )
    return header_of(sealed)


def having(*written: BatchHeader) -> ProducerStates:
    """The state after these batches, one after the other from offset 0."""
    states = ProducerStates()
    offset = 0
    for header in written:
        if header.is_control:
            states.complete_marker(header, EndTxnMarker(commit=True, coordinator_epoch=0), offset, T0)
        else:
            states.complete(header, offset, T0)
        offset += header.last_offset_delta + 1
    return states


def refusal(states: ProducerStates, header: BatchHeader) -> ErrorCode:
    """The code with which a batch is refused; nothing moves."""
    before = states.to_snapshot()
    with pytest.raises(ProtocolError) as refused:
        states.check(header)
    assert states.to_snapshot() == before
    return refused.value.code


# Kafka's answers


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    assert ProducerStates().check(batch(0)) is None
    assert ProducerStates().check(batch(41)) is None
    assert ProducerStates().check(batch(41, epoch=3)) is None


def test_the_next_sequence_is_accepted() -> None:
    assert having(batch(0, 3)).check(batch(3)) is None


@pytest.mark.parametrize("sequence", [4, 5, 1_000, MAX_SEQUENCE])
def test_a_gap_is_out_of_order(sequence: int) -> None:
    assert refusal(having(batch(0, 3)), batch(sequence)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_each_of_the_last_five_batches_is_recognised_with_the_offset_it_got() -> None:
    sent = [batch(0, 2), batch(2), batch(3, 4), batch(7), batch(8, 2)]
    states = having(*sent)
    offsets = [0, 2, 3, 7, 8]
    for again, offset in zip(sent, offsets, strict=True):
        earlier = states.check(again)
        assert earlier is not None
        assert (earlier.first_offset, earlier.first_sequence) == (offset, again.base_sequence)


def test_the_sixth_last_batch_is_out_of_order() -> None:
    states = having(*(batch(sequence) for sequence in range(REMEMBERED_BATCHES + 1)))
    assert refusal(states, batch(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(1)) is not None


@pytest.mark.parametrize(("sequence", "count"), [(0, 2), (0, 4), (1, 2), (2, 1)])
def test_a_repeat_with_other_bounds_is_no_repeat(sequence: int, count: int) -> None:
    assert refusal(having(batch(0, 3)), batch(sequence, count)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repeat_is_recognised_by_its_sequences_not_its_content() -> None:
    states = having(batch(0, 3, timestamp=T0))
    assert states.check(batch(0, 3, timestamp=T0 + 5)) is not None


@pytest.mark.parametrize("sequence", [0, 1, 3])
def test_a_lower_epoch_is_fenced(sequence: int) -> None:
    assert refusal(having(batch(0, epoch=2)), batch(sequence, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_begins_with_sequence_0() -> None:
    states = having(batch(0, 3))
    assert states.check(batch(0, epoch=1)) is None
    assert refusal(states, batch(3, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    states = having(batch(0, 3), batch(0, 3, epoch=1))
    earlier = states.check(batch(0, 3, epoch=1))
    assert earlier is not None
    assert earlier.first_offset == 3
    assert refusal(states, batch(0, 3)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_do_not_know_of_each_other() -> None:
    states = having(batch(0, 3), batch(0, producer_id=8))
    assert states.check(batch(3)) is None
    assert states.check(batch(1, producer_id=8)) is None
    assert len(states) == 2


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    states = having(batch(MAX_SEQUENCE))
    assert states.check(batch(0)) is None
    assert refusal(states, batch(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_may_lie_across_the_wrap() -> None:
    across = batch(MAX_SEQUENCE - 1, 4)
    assert across.last_sequence == 1
    states = having(across)
    assert states.check(batch(2)) is None
    earlier = states.check(across)
    assert earlier is not None
    assert (earlier.first_sequence, earlier.last_sequence) == (MAX_SEQUENCE - 1, 1)
    assert refusal(states, batch(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_marker_of_the_same_epoch_leaves_the_sequences_alone() -> None:
    states = having(batch(0, 3), marker(epoch=0))
    assert states.check(batch(3)) is None
    assert states.check(batch(0, 3)) is not None


def test_after_a_marker_with_a_new_epoch_the_first_batch_has_sequence_0() -> None:
    """KIP-890: the marker brings the new epoch. A second batch that overtakes the first one must not get in."""
    states = having(batch(0, 3), marker(epoch=1))
    assert states.check(batch(0, epoch=1)) is None
    assert refusal(states, batch(2, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, batch(3, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_checking_changes_nothing() -> None:
    states = having(batch(0, 3))
    before = states.to_snapshot()
    states.check(batch(3))
    states.check(batch(0, epoch=1))
    states.check(batch(9, producer_id=8))
    assert states.to_snapshot() == before


def test_what_is_told_of_a_producer() -> None:
    states = having(batch(0, 3, timestamp=T0 + 9))
    producer = states.get(ID)
    assert producer is not None
    assert (producer.epoch, producer.last_sequence, producer.last_timestamp) == (0, 2, T0 + 9)
    assert states.get(8) is None
    assert (Producer(0).last_sequence, Producer(0).last_timestamp) == (-1, -1)


# Expiry


def test_expiry_forgets_who_was_not_seen_since() -> None:
    states = ProducerStates()
    states.complete(batch(0, producer_id=1), 0, now_ms=100)
    states.complete(batch(0, producer_id=2), 1, now_ms=200)
    assert states.expire(before_ms=200) == 1
    assert [producer_id for producer_id, _ in states] == [2]
    assert states.check(batch(9, producer_id=1)) is None, "a producer that was forgotten may go on with any sequence"


def test_expiry_goes_by_our_clock_and_not_by_the_records() -> None:
    states = ProducerStates()
    states.complete(batch(0, timestamp=5), 0, now_ms=T0)
    assert states.expire(before_ms=T0) == 0


def test_expiry_spares_open_transactions() -> None:
    states = having(batch(0))
    producer = states.get(ID)
    assert producer is not None
    producer.transaction_first_offset = 0
    assert states.expire(before_ms=T0 + 1) == 0
    producer.transaction_first_offset = -1
    assert states.expire(before_ms=T0 + 1) == 1


# Snapshots


def test_a_snapshot_keeps_everything() -> None:
    states = having(
        *(batch(sequence, timestamp=T0 + sequence) for sequence in range(9)), batch(0, producer_id=8), marker(1, 9)
    )
    producer = states.get(8)
    assert producer is not None
    producer.transaction_first_offset, producer.coordinator_epoch = 9, 4
    again = ProducerStates.from_snapshot(states.to_snapshot(), T0)
    assert dict(again) == dict(states)


def test_an_empty_snapshot() -> None:
    assert len(ProducerStates.from_snapshot(ProducerStates().to_snapshot(), T0)) == 0


def test_the_last_entry_of_an_id_is_what_kafka_would_have_saved() -> None:
    """Kafka's reader keeps the last entry per id: version 1, CRC-32C, count, and per producer one entry."""
    data = having(batch(0, 3), batch(3, 2, timestamp=T0 + 1)).to_snapshot()
    version, crc, count = struct.unpack_from(">hIi", data)
    assert (version, crc, count) == (1, google_crc32c.value(data[6:]), 2)
    assert struct.unpack(">qhiqiqiq", data[-46:]) == (ID, 0, 4, 4, 1, T0 + 1, -1, -1)


def test_after_a_snapshot_producers_count_as_seen_now() -> None:
    again = ProducerStates.from_snapshot(having(batch(0)).to_snapshot(), now_ms=T0 + 1000)
    assert again.expire(before_ms=T0 + 1000) == 0


@pytest.mark.parametrize("size", [0, 1, 5, 9])
def test_a_snapshot_that_is_too_short_is_refused(size: int) -> None:
    with pytest.raises(CorruptLog, match="cut short"):
        read_snapshot(having(batch(0)).to_snapshot()[:size])


def test_a_snapshot_of_another_version_is_refused() -> None:
    data = bytearray(having(batch(0)).to_snapshot())
    data[1] = 2
    with pytest.raises(CorruptLog, match="version 2"):
        read_snapshot(bytes(data))


def test_a_snapshot_with_fewer_entries_than_it_says_is_refused() -> None:
    data = having(batch(0), batch(1)).to_snapshot()[6:-46]
    with pytest.raises(CorruptLog, match="as many entries"):
        read_snapshot(struct.pack(">hI", 1, google_crc32c.value(data)) + data)


@examples(30, soak=10_000)
@given(st.data())
def test_no_damaged_snapshot_is_believed(data: st.DataObject) -> None:
    whole = having(batch(0), batch(1), batch(0, producer_id=8)).to_snapshot()
    damage = data.draw(st.sampled_from(["flip", "cut", "zeros", "longer"]))
    if damage == "flip":
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    elif damage == "cut":
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    elif damage == "zeros":
        at = data.draw(st.integers(0, len(whole) - 1))
        damaged = whole[:at] + bytes(len(whole) - at)
    else:
        damaged = whole + data.draw(st.binary(min_size=1, max_size=50))
    if damaged != whole:
        with pytest.raises(CorruptLog):
            ProducerStates.from_snapshot(damaged, T0)


histories = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 4)), max_size=40)


@examples(30, soak=10_000)
@given(histories, st.integers(0, 40))
def test_a_snapshot_anywhere_and_the_rest_of_the_log_give_the_same_state(
    history: list[tuple[int, int, int]], at: int
) -> None:
    """What recovery does: the newest snapshot, then `complete` for every batch behind it."""
    states = ProducerStates()
    written: list[tuple[BatchHeader, int]] = []
    snapshot = states.to_snapshot()
    offset = 0
    for number, (producer_id, bump, count) in enumerate(history):
        known = states.get(producer_id)
        epoch = (known.epoch if known else 0) + (bump == 2)
        fresh = known is None or epoch != known.epoch
        header = batch(
            0 if fresh or known is None else known.last_sequence + 1, count, epoch=epoch, producer_id=producer_id
        )
        assert states.check(header) is None
        states.complete(header, offset, T0)
        written.append((header, offset))
        offset += count
        if number + 1 == at:
            snapshot, written = states.to_snapshot(), []
    recovered = ProducerStates.from_snapshot(snapshot, T0)
    for header, base_offset in written:
        recovered.complete(header, base_offset, T0)
    assert dict(recovered) == dict(states)


def test_a_remembered_batch_knows_its_first_offset_and_sequence() -> None:
    memory = BatchMemory(last_sequence=1, last_offset=103, offset_delta=3, timestamp=T0)
    assert (memory.first_offset, memory.first_sequence) == (100, MAX_SEQUENCE - 1)
