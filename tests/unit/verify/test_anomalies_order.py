"""Records, positions and offsets that must keep their order: on histories told by hand."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.verify.history import Derivation
from tests.unit.verify.story import COPY, OK, UNKNOWN, Story, found, names_in, seen

# --- reordering


def test_records_in_another_order_than_they_were_written_are_reordered() -> None:
    story = Story()
    write = story.write("p.1", "a", "b")
    [anomaly] = found("reordering", story.ends_with(seen("b", 0), seen("a", 1)))
    assert "p.1 wrote a before b" in anomaly.sentence
    assert "orders-0@1 and orders-0@0" in anomaly.sentence
    assert anomaly.operations == [write]
    assert anomaly.records == [seen("b", 0), seen("a", 1)]


def test_records_of_two_writes_keep_the_order_of_the_writes() -> None:
    story = Story()
    first = story.write("p.1", "a", at=(1, 5))
    second = story.write("p.1", "b", at=(2, 3))
    assert found("reordering", story.ends_with(seen("b", 0), seen("a", 1)))[0].operations == [first, second]
    assert names_in(story.ends_with(seen("a", 0), seen("b", 1))) == set()


def test_transactions_of_one_process_keep_their_order() -> None:
    story = Story()
    for number, id in enumerate("ab", 1):
        story.write("p.1", id, transaction=f"p.1/{number}")
        story.commit(f"p.1/{number}")
    assert names_in(story.ends_with(seen("b", 0, "p.1/2"), seen("a", 2, "p.1/1"))) == {"reordering"}


def test_partitions_and_processes_have_no_order_between_them() -> None:
    story = Story()
    story.write("p.1", "a", "b")
    story.write("p.2", "c")
    assert names_in(story.ends_with(seen("c", 0), seen("b", 1), seen("a", 5, partition=1))) == set()


def test_record_missing_in_between_is_no_reordering() -> None:
    story = Story()
    story.write("p.1", "a", "b", "c", outcome=UNKNOWN, written=["a", "c"])
    assert names_in(story.ends_with(seen("a", 0), seen("c", 1))) == set()


def test_write_that_was_not_acknowledged_may_arrive_late() -> None:
    story = Story()
    story.write("p.1", "a", outcome=UNKNOWN)
    story.write("p.1", "b", written=["b"])
    assert names_in(story.ends_with(seen("b", 0), seen("a", 1))) == set()


def test_record_written_twice_may_be_either_of_them() -> None:
    story = Story()
    story.write("p.1", "a", outcome=UNKNOWN)
    story.write("p.1", "b")
    story.write("p.1", "a")
    assert names_in(story.ends_with(seen("b", 0), seen("a", 1))) == set()


def test_attempts_at_the_same_output_are_told_apart_by_their_transactions() -> None:
    story = Story()
    story.write("p.1", "a", "b", transaction="p.1/1")
    story.abort("p.1/1")
    story.write("p.1", "b", "a", transaction="p.1/2")
    story.commit("p.1/2")
    assert names_in(story.ends_with(seen("b", 3, "p.1/2"), seen("a", 4, "p.1/2"))) == set()


def test_of_a_duplicate_the_first_place_counts() -> None:
    story = Story()
    story.write("p.1", "a", "b")
    assert names_in(story.ends_with(seen("a", 0), seen("b", 1), seen("a", 2))) == {"duplicate"}


def copied(*copies: str, is_ordered: bool = True) -> set[str]:
    """Of a and b in partition 0 and c in partition 1."""
    story = Story()
    story.write("p.1", "a", "b", "c")
    story.commit("driver.1/1")
    sources = [seen("a", 3), seen("b", 4), seen("c", 0, partition=1)]
    targets = [seen(id, offset, "driver.1/1", topic="copies") for offset, id in enumerate(copies)]
    return names_in(story.ends_with(*sources, *targets, derivations=[Derivation("orders", "copies", is_ordered)]))


def test_copies_keep_the_order_of_their_source_partition() -> None:
    assert copied("a", "b", "c") == copied("c", "a", "b") == copied("a", "c", "b") == set()
    assert copied("b", "c", "a") == {"reordering"}


def test_copies_without_a_promise_of_order_need_not_keep_it() -> None:
    assert copied("b", "c", "a", is_ordered=False) == set()


def test_reordered_copies_are_shown_with_their_sources() -> None:
    story = Story()
    story.write("p.1", "a", "b")
    records = [seen("a", 3), seen("b", 4), seen("b", 0, topic="copies"), seen("a", 1, topic="copies")]
    [anomaly] = found("reordering", story.ends_with(*records, derivations=[COPY]))
    assert "a comes before b at their source (orders-0@3 and orders-0@4)" in anomaly.sentence
    assert anomaly.records == records


# --- skipped offsets


def three() -> Story:
    story = Story()
    story.write("p.1", "a", "b", "c")
    return story


A, B, C = seen("a", 0), seen("b", 1), seen("c", 2)


def test_record_in_the_middle_of_a_poll_that_was_not_shown_was_skipped() -> None:
    story = three()
    read = story.read("r.1", A, C, moved=(0, 3))
    [anomaly] = found("skipped offsets", story.ends_with(A, B, C))
    assert "r.1 went from 0 to 3 in orders-0" in anomaly.sentence
    assert "never shown b at 1" in anomaly.sentence
    assert anomaly.operations == [read]
    assert anomaly.records == [B]
    assert names_in(story.ends_with(A, B, C)) == {"skipped offsets"}


def test_record_between_two_polls_was_skipped() -> None:
    story = three()
    polls = [story.read("r.1", A, moved=(0, 1)), story.read("r.1", C, moved=(2, 3))]
    [anomaly] = found("skipped offsets", story.ends_with(A, B, C))
    assert "r.1 went from 1 to 3" in anomaly.sentence
    assert anomaly.operations == polls


def test_reader_that_is_shown_everything_skips_nothing() -> None:
    story = three()
    story.read("r.1", A, moved=(0, 1))
    story.read("r.1", moved=(1, 1))
    story.read("r.1", B, C, moved=(1, 5))
    assert names_in(story.ends_with(A, B, C)) == set()


def test_gap_in_which_nothing_is_visible_is_no_skip() -> None:
    story = Story()
    story.write("p.1", "a", "c")
    story.read("r.1", A, moved=(0, 1))
    story.read("r.1", C, moved=(2, 3))
    assert names_in(story.ends_with(A, C)) == set()


def test_reader_that_begins_in_the_middle_skips_nothing() -> None:
    story = three()
    story.read("r.1", A, moved=(0, 1))
    story.read("r.2", C, moved=(2, 3))
    assert names_in(story.ends_with(A, B, C)) == set()


def test_two_readers_of_one_process_have_positions_of_their_own() -> None:
    story = three()
    story.read("r.1", A, moved=(0, 1), reader="one")
    story.read("r.1", C, moved=(2, 3), reader="two")
    assert names_in(story.ends_with(A, B, C)) == set()


def test_reader_does_not_pass_over_what_comes_later() -> None:
    story = three()
    story.read("r.1", A, B, moved=(0, 2))
    assert names_in(story.ends_with(A, B, C)) == set()


def test_poll_that_was_not_answered_has_shown_nothing() -> None:
    story = three()
    story.read("r.1", A, moved=(0, 3), outcome=UNKNOWN)
    assert names_in(story.ends_with(A, B, C)) == set()


def test_member_of_a_group_goes_on_where_another_one_has_left_a_partition() -> None:
    story = three()
    story.read("copier-1.1", A, moved=(0, 1))
    story.commit("copier-1.1/1", group="copiers", offsets=[["orders", 0, 1]])
    story.commit("copier-2.1/1", group="copiers", offsets=[["orders", 0, 2]], outcome=UNKNOWN)
    story.read("copier-1.1", C, moved=(2, 3))
    assert names_in(story.ends_with(A, B, C)) == set()


def test_member_of_a_group_that_goes_on_beyond_what_was_committed_skips() -> None:
    story = three()
    story.read("copier-1.1", A, moved=(0, 1))
    story.commit("copier-1.1/1", group="copiers", offsets=[["orders", 0, 1]])
    story.read("copier-1.1", C, moved=(2, 3))
    assert names_in(story.ends_with(A, B, C)) == {"skipped offsets"}


# --- offsets moved back


def test_committed_offset_of_a_group_that_falls_moved_back() -> None:
    story = Story()
    polls = [story.offsets(5, 7), story.offsets(5, 6)]
    [anomaly] = found("offsets moved back", story.ends_with())
    assert "committed offset of group copiers in orders-1 was 7" in anomaly.sentence
    assert "later 6" in anomaly.sentence
    assert anomaly.operations == polls


@pytest.mark.parametrize("later", [(-1, 7), (), (5,)])
def test_committed_offset_that_is_gone_moved_back(later: tuple[int, ...]) -> None:
    story = Story()
    story.offsets(5, 7)
    story.offsets(*later)
    anomalies = found("offsets moved back", story.ends_with())
    assert anomalies
    assert all("later nothing" in each.sentence for each in anomalies)


def test_offsets_that_grow_and_groups_that_differ_are_fine() -> None:
    story = Story()
    story.offsets(-1)
    story.offsets(5, 7)
    story.offsets(5, 8)
    story.offsets(1, group="others")
    assert names_in(story.ends_with()) == set()


def test_offset_is_compared_with_the_highest_before_it_and_not_only_with_the_last() -> None:
    story = Story()
    story.tell("o.1", "offsets", at=(1, 2), group="g", told={"offsets": [["orders", 0, 9]]})
    story.tell("o.2", "offsets", at=(1, 3), group="g", told={"offsets": [["orders", 0, 5]]})
    story.tell("o.1", "offsets", at=(4, 5), group="g", told={"offsets": [["orders", 0, 7]]})
    [anomaly] = found("offsets moved back", story.ends_with())
    assert "was 9 (o.1:1" in anomaly.sentence


def test_offset_asked_for_at_the_same_time_may_be_less() -> None:
    story = Story()
    story.tell("o.1", "offsets", at=(1, 3), group="g", told={"offsets": [["orders", 0, 9]]})
    story.tell("o.2", "offsets", at=(2, 4), group="g", told={"offsets": [["orders", 0, 5]]})
    assert names_in(story.ends_with()) == set()


def test_fall_is_reported_once() -> None:
    story = Story()
    for offset in (9, 4, 4, 5):
        story.offsets(offset)
    assert len(found("offsets moved back", story.ends_with())) == 1


def test_end_of_a_partition_that_falls_moved_back() -> None:
    story = Story()
    story.offsets(9, f="ends", isolation="read_committed")
    story.offsets(8, f="ends", isolation="read_committed")
    [anomaly] = found("offsets moved back", story.ends_with())
    assert "end under read_committed in orders-0 was 9" in anomaly.sentence


def test_last_stable_offset_may_be_less_than_the_end() -> None:
    story = Story()
    story.offsets(9, f="ends", isolation="read_uncommitted")
    story.offsets(8, f="ends", isolation="read_committed")
    assert names_in(story.ends_with()) == set()


def test_end_that_was_not_told_did_not_fall() -> None:
    story = Story()
    story.offsets(9, 4, f="ends", isolation="read_committed")
    story.offsets(9, f="ends", isolation="read_committed")
    assert names_in(story.ends_with()) == set()


def commits(*offsets: int, second: Any = OK) -> set[str]:
    story = Story()
    for number, (offset, outcome) in enumerate(zip(offsets, (OK, second), strict=True), 1):
        story.commit(f"c-{number}.1/1", group="copiers", offsets=[["orders", 0, offset]], outcome=outcome)
    return names_in(story.ends_with())


def test_commit_of_offsets_below_those_committed_before_moves_them_back() -> None:
    assert commits(5, 4) == {"offsets moved back"}
    assert commits(5, 5) == commits(5, 6) == set()


def test_commit_of_unknown_outcome_moves_nothing() -> None:
    assert commits(5, 4, second=UNKNOWN) == set()


def test_reader_that_goes_back_by_itself_moved_back() -> None:
    story = three()
    polls = [story.read("r.1", A, B, moved=(0, 2)), story.read("r.1", B, C, moved=(1, 3))]
    [anomaly] = found("offsets moved back", story.ends_with(A, B, C))
    assert "r.1 had come to 2 in orders-0" in anomaly.sentence
    assert anomaly.operations == polls
    assert names_in(story.ends_with(A, B, C)) == {"offsets moved back"}


def test_next_life_of_a_reader_may_begin_further_back() -> None:
    story = three()
    story.read("r.1", A, B, moved=(0, 2))
    story.read("r.2", A, B, C, moved=(0, 3))
    assert names_in(story.ends_with(A, B, C)) == set()


def test_member_of_a_group_goes_back_after_an_abort() -> None:
    story = three()
    story.read("copier-1.1", A, B, moved=(0, 2))
    story.abort("copier-1.1/1")
    story.read("copier-1.1", A, moved=(0, 1))
    story.read("copier-1.1", C, moved=(2, 3))
    assert names_in(story.ends_with(A, B, C)) == set()
