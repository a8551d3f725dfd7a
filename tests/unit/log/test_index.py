"""Sparse indexes: they may miss entries, and never send a reader too far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.log.index import OffsetIndex, TimeIndex
from tests.support.effort import examples

BASE = 1_000_000


def offset_index(*entries: tuple[int, int]) -> OffsetIndex:
    index = OffsetIndex(BASE)
    for offset, position in entries:
        index.add(offset, position)
    return index


def time_index(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex(BASE)
    for timestamp, offset in entries:
        index.add(timestamp, offset)
    return index


def test_an_empty_index_points_to_the_start() -> None:
    assert offset_index().position_for(BASE + 5) == 0
    assert time_index().offset_before(5) == BASE
    assert time_index().last is None


@pytest.mark.parametrize(
    ("offset", "position"),
    [(BASE, 0), (BASE + 9, 0), (BASE + 10, 400), (BASE + 19, 400), (BASE + 20, 900), (BASE + 10_000, 900)],
)
def test_an_offset_is_looked_for_from_the_last_batch_that_ends_at_or_before_it(offset: int, position: int) -> None:
    assert offset_index((BASE + 10, 400), (BASE + 20, 900)).position_for(offset) == position


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(0, BASE), (50, BASE), (51, BASE + 10), (70, BASE + 10), (71, BASE + 20), (500, BASE + 20)],
)
def test_a_time_is_looked_for_from_the_last_batch_before_which_all_is_older(timestamp: int, offset: int) -> None:
    assert time_index((50, BASE + 10), (70, BASE + 20)).offset_before(timestamp) == offset


def test_the_time_index_takes_only_what_is_newer() -> None:
    index = time_index((50, BASE + 10), (50, BASE + 15), (40, BASE + 20))
    assert len(index) == 1
    assert index.last == (50, BASE + 10)


def test_cutting_forgets_what_is_at_or_behind_a_place() -> None:
    offsets = offset_index((BASE + 10, 400), (BASE + 20, 900))
    offsets.saved = 2
    offsets.cut(900, BASE + 19)
    assert (len(offsets), offsets.saved, offsets.position_for(BASE + 99)) == (1, 1, 400)
    offsets.cut(900, BASE + 10)  # the position was torn: it is too small for the offset
    assert (len(offsets), offsets.saved, offsets.position_for(BASE + 99)) == (0, 0, 0)
    times = time_index((50, BASE + 10), (70, BASE + 20))
    times.saved = 1
    times.cut(BASE + 20)
    assert (len(times), times.saved, times.last) == (1, 1, (50, BASE + 10))
    times.cut(BASE)
    assert (len(times), times.saved, times.last) == (0, 0, None)


def test_kafkas_file_formats() -> None:
    assert offset_index((BASE + 10, 400)).to_bytes().hex() == "0000000a" + "00000190"
    assert time_index((50, BASE + 10)).to_bytes().hex() == "0000000000000032" + "0000000a"


def test_only_the_new_entries_are_written_to_a_file_that_has_the_others() -> None:
    index = offset_index((BASE + 10, 400), (BASE + 20, 900))
    assert index.to_bytes(1) == index.to_bytes()[8:]
    assert index.to_bytes(2) == b""


rising = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), max_size=30)


@examples(20, soak=5_000)
@given(rising)
def test_what_was_written_is_read_again(steps: list[tuple[int, int]]) -> None:
    offsets, times = OffsetIndex(BASE), TimeIndex(BASE)
    offset = position = timestamp = 0
    for step, size in steps:
        offset, position, timestamp = offset + step, position + size, timestamp + step
        offsets.add(BASE + offset, position)
        times.add(timestamp, BASE + offset)
    for index in (offsets, times):
        again = type(index).from_bytes(BASE, index.to_bytes())
        assert again is not None
        assert again.to_bytes() == index.to_bytes()
        assert again.saved == len(again) == len(index)


def test_an_empty_file_is_an_empty_index() -> None:
    for kind in (OffsetIndex, TimeIndex):
        index = kind.from_bytes(BASE, b"")
        assert index is not None
        assert len(index) == 0


SOUND = [(10, 400), (20, 900), (30, 1500)]
OFFSETS = offset_index(*((BASE + offset, position) for offset, position in SOUND)).to_bytes()
TIMES = time_index(*((position, BASE + offset) for offset, position in SOUND)).to_bytes()


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_no_file_is_no_index(kind: type[OffsetIndex] | type[TimeIndex]) -> None:
    assert kind.from_bytes(BASE, None) is None


@pytest.mark.parametrize(("kind", "data"), [(OffsetIndex, OFFSETS), (TimeIndex, TIMES)])
def test_a_part_of_an_entry_is_no_index(kind: type[OffsetIndex] | type[TimeIndex], data: bytes) -> None:
    for size in range(len(data)):
        assert (kind.from_bytes(BASE, data[:size]) is None) == bool(size % kind.entry_size)


@pytest.mark.parametrize(("kind", "data"), [(OffsetIndex, OFFSETS), (TimeIndex, TIMES)])
def test_entries_that_do_not_rise_are_no_index(kind: type[OffsetIndex] | type[TimeIndex], data: bytes) -> None:
    size = kind.entry_size
    first, second, third = data[:size], data[size : 2 * size], data[2 * size :]
    assert kind.from_bytes(BASE, first + third + second) is None
    assert kind.from_bytes(BASE, first + first) is None


@pytest.mark.parametrize(("kind", "data"), [(OffsetIndex, OFFSETS), (TimeIndex, TIMES)])
def test_a_page_of_zeros_is_no_index_wherever_it_stands(kind: type[OffsetIndex] | type[TimeIndex], data: bytes) -> None:
    """A file can have its new size and not its bytes. Zeros alone would say that nothing is newer than 1970."""
    zeros = bytes(kind.entry_size)
    for damaged in (zeros, zeros + data, data + zeros, zeros * 3, zeros + data[kind.entry_size :]):
        assert kind.from_bytes(BASE, damaged) is None
