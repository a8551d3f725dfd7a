"""Offsets, committed and pending."""

from __future__ import annotations

import pytest

from onceflow.group.offsets import CommittedOffset, Offsets

PRODUCER, OTHER = 1, 2


def at(offset: int, record_offset: int = 0) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 0, record_offset=record_offset)


@pytest.fixture
def offsets() -> Offsets:
    return Offsets()


def read(offsets: Offsets) -> int | None:
    found = offsets.get("g", "t", 0)
    return None if found is None else found.offset


def test_a_pending_offset_is_not_shown(offsets: Offsets) -> None:
    offsets.commit("g", "t", 0, at(1))
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5))
    assert read(offsets) == 1
    assert offsets.is_pending("g", "t", 0)
    assert not offsets.is_pending("g", "t", 1)


def test_a_committed_transaction_shows_its_offsets(offsets: Offsets) -> None:
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5))
    offsets.end_transaction(PRODUCER, commit=True)
    assert read(offsets) == 5
    assert not offsets.has_pending("g")


def test_an_aborted_transaction_leaves_nothing(offsets: Offsets) -> None:
    offsets.commit("g", "t", 0, at(1))
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5))
    offsets.end_transaction(PRODUCER, commit=False)
    assert read(offsets) == 1
    assert not offsets.has_pending("g")


def test_the_later_record_wins_over_a_transaction_that_commits_after_it(offsets: Offsets) -> None:
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5, record_offset=10))
    offsets.commit("g", "t", 0, at(9, record_offset=11))
    offsets.end_transaction(PRODUCER, commit=True)
    assert read(offsets) == 9


def test_an_offset_is_pending_until_the_last_transaction_on_it_ends(offsets: Offsets) -> None:
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5, record_offset=1))
    offsets.commit_in_transaction(OTHER, "g", "t", 0, at(6, record_offset=2))
    offsets.end_transaction(PRODUCER, commit=True)
    assert offsets.is_pending("g", "t", 0)
    offsets.end_transaction(OTHER, commit=False)
    assert not offsets.is_pending("g", "t", 0)
    assert read(offsets) == 5


def test_of_two_commits_in_a_transaction_the_last_counts(offsets: Offsets) -> None:
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5))
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(6))
    offsets.end_transaction(PRODUCER, commit=True)
    assert read(offsets) == 6


def test_deleting_takes_the_pending_offset_along(offsets: Offsets) -> None:
    offsets.commit("g", "t", 0, at(1))
    offsets.commit_in_transaction(PRODUCER, "g", "t", 0, at(5))
    offsets.commit_in_transaction(PRODUCER, "g", "t", 1, at(6))
    offsets.delete("g", "t", 0)
    offsets.end_transaction(PRODUCER, commit=True)
    assert read(offsets) is None
    assert offsets.of_group("g") == {"t": {1: at(6)}}


def test_a_marker_of_a_producer_without_offsets_changes_nothing(offsets: Offsets) -> None:
    offsets.commit("g", "t", 0, at(1))
    offsets.end_transaction(PRODUCER, commit=True)
    offsets.end_transaction(PRODUCER, commit=False)
    assert read(offsets) == 1


def test_deleting_what_is_not_there_changes_nothing(offsets: Offsets) -> None:
    offsets.commit("g", "t", 0, at(1))
    offsets.delete("g", "t", 1)
    offsets.delete("g", "other", 0)
    offsets.delete("nobody", "t", 0)
    assert read(offsets) == 1
