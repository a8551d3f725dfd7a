"""Aborted, too early, or written by somebody fenced: anomalies of isolation, on histories told by hand."""

from __future__ import annotations

import pytest

from onceflow.verify.history import NEVER
from tests.unit.verify.story import FAILED, UNKNOWN, Story, found, names_in, seen

A = seen("a", 0, "p.1/1")


def written() -> Story:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    return story


# --- aborted read


def test_record_of_an_aborted_transaction_in_the_end_is_an_aborted_read() -> None:
    story = written()
    abort = story.abort("p.1/1")
    [anomaly] = found("aborted read", story.ends_with(A))
    assert "a is visible in the end, at orders-0@0, although its transaction p.1/1 was aborted" in anomaly.sentence
    assert abort in anomaly.operations
    assert names_in(story.ends_with(A)) == {"aborted read"}


def test_reader_that_saw_a_record_of_an_aborted_transaction_is_named() -> None:
    story = written()
    story.abort("p.1/1")
    read = story.read("r.1", A)
    [anomaly] = found("aborted read", story.ends_with())
    assert "r.1 was shown a at orders-0@0" in anomaly.sentence
    assert read in anomaly.operations


def test_record_whose_commit_failed_is_an_aborted_read() -> None:
    story = written()
    story.commit("p.1/1", outcome=FAILED)
    [anomaly] = found("aborted read", story.ends_with(A))
    assert "certainly failed" in anomaly.sentence


def test_abort_of_unknown_outcome_never_makes_a_record_visible() -> None:
    story = written()
    story.dies_while("p.1", "abort", transaction="p.1/1")
    assert names_in(story.ends_with(A)) == {"aborted read"}


def test_records_of_one_aborted_transaction_are_one_anomaly() -> None:
    story = Story()
    ids = [f"a{number}" for number in range(20)]
    story.write("p.1", *ids, transaction="p.1/1")
    story.abort("p.1/1")
    [anomaly] = found("aborted read", story.ends_with(*(seen(id, at, "p.1/1") for at, id in enumerate(ids))))
    assert "19 more of the same transaction" in anomaly.sentence
    assert len(anomaly.records) == 6


def test_committed_transaction_is_no_aborted_read() -> None:
    story = written()
    story.commit("p.1/1")
    story.read("r.1", A)
    assert names_in(story.ends_with(A)) == set()


def test_commit_of_unknown_outcome_may_be_visible_whatever_was_asked_after_it() -> None:
    story = written()
    story.commit("p.1/1", outcome=UNKNOWN)
    story.commit("p.1/1", outcome=FAILED)
    story.abort("p.1/1", outcome=FAILED)
    story.read("r.1", A)
    assert names_in(story.ends_with(A)) == set()


def test_aborted_transaction_that_nobody_sees_is_fine() -> None:
    story = written()
    story.abort("p.1/1")
    story.read("r.1", A, isolation="read_uncommitted")
    assert names_in(story.ends_with()) == set()


# --- read before commit


def test_read_that_ended_before_the_commit_was_asked_for_came_too_early() -> None:
    story = written()
    read = story.read("r.1", A)
    commit = story.commit("p.1/1")
    [anomaly] = found("read before commit", story.ends_with(A))
    assert "r.1 was shown a at orders-0@0 by 2.500 s" in anomaly.sentence
    assert "p.1/1 was asked for at 3.000 s only" in anomaly.sentence
    assert read in anomaly.operations
    assert commit in anomaly.operations
    assert names_in(story.ends_with(A)) == {"read before commit"}


def test_commit_may_take_effect_before_it_is_confirmed() -> None:
    story = written()
    story.commit("p.1/1", at=(2, 9))
    story.read("r.1", A, at=(3, 4))
    assert names_in(story.ends_with(A)) == set()


def test_read_that_began_before_the_commit_may_still_show_it() -> None:
    story = written()
    story.read("r.1", A, at=(2, 9))
    story.commit("p.1/1", at=(4, 5))
    assert names_in(story.ends_with(A)) == set()


def test_first_of_several_commits_may_have_been_the_one() -> None:
    story = written()
    story.commit("p.1/1", outcome=UNKNOWN)
    story.read("r.1", A)
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == set()


def test_commit_that_failed_was_not_the_one() -> None:
    story = written()
    story.commit("p.1/1", outcome=FAILED)
    story.read("r.1", A)
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == {"read before commit"}


def test_transaction_that_was_never_asked_to_commit_must_not_be_visible() -> None:
    story = written()
    [anomaly] = found("read before commit", story.ends_with(A))
    assert "was never asked for" in anomaly.sentence
    assert names_in(story.ends_with(A)) == {"read before commit"}


def test_commit_without_an_end_may_have_taken_effect_at_any_time() -> None:
    story = written()
    story.dies_while("p.1", "commit", transaction="p.1/1")
    story.read("r.1", A)
    assert names_in(story.ends_with(A)) == set()


def test_process_that_does_not_list_its_writes_has_to_ask_for_the_commit_all_the_same() -> None:
    story = Story()
    story.take("driver.1")
    assert names_in(story.ends_with(seen("a", 0, "driver.1/1"))) == {"read before commit"}


# --- fenced write


def test_transaction_committed_after_the_take_over_is_a_fenced_write() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    take = story.take("p.2")
    commit = story.commit("p.1/1")
    [anomaly] = found("fenced write", story.ends_with(A))
    assert "p.2 had taken over the transactional id shop from p.1 by 3.500 s" in anomaly.sentence
    assert "asked for at 4.000 s" in anomaly.sentence
    assert take in anomaly.operations
    assert commit in anomaly.operations
    assert names_in(story.ends_with(A)) == {"fenced write"}


def test_write_after_the_take_over_that_becomes_visible_with_the_successor_is_a_fenced_write() -> None:
    story = Story()
    story.take("p.1")
    story.take("p.2")
    write = story.write("p.1", "a", transaction="p.1/1", outcome=UNKNOWN)
    [anomaly] = found("fenced write", story.ends_with(A))
    assert f"{write.id} wrote to it at 3.000 s, after the take-over" in anomaly.sentence
    assert names_in(story.ends_with(A)) == {"fenced write"}


@pytest.mark.parametrize("end", ["nothing", "abort", "failed commit"])
def test_what_was_asked_after_the_fence_does_not_make_it_another_anomaly(end: str) -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.take("p.2")
    if end == "abort":
        story.abort("p.1/1")
    elif end == "failed commit":
        story.commit("p.1/1", outcome=FAILED)
    story.read("r.1", A)
    assert names_in(story.ends_with(A)) == {"fenced write"}


def test_transaction_that_was_aborted_before_the_take_over_is_an_aborted_read() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.abort("p.1/1")
    story.take("p.2")
    assert names_in(story.ends_with(A)) == {"aborted read"}


def test_transaction_that_was_only_seen_before_the_take_over_is_a_read_before_commit() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.read("r.1", A)
    story.take("p.2")
    assert names_in(story.ends_with()) == {"read before commit", "taken back"}


def test_commit_asked_for_before_the_take_over_had_ended_may_have_won() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.take("p.2", at=(3, 6))
    story.commit("p.1/1", at=(5, 7), outcome=UNKNOWN)
    assert names_in(story.ends_with(A)) == set()


def test_commit_asked_for_again_after_the_take_over_may_have_been_done_before() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1", outcome=UNKNOWN)
    story.take("p.2")
    story.commit("p.1/1", outcome=UNKNOWN)
    assert names_in(story.ends_with(A)) == set()


def test_take_of_unknown_outcome_fences_nobody() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.take("p.2", outcome=UNKNOWN, at=(3, NEVER))
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == set()


def test_take_of_another_id_fences_nobody() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.take("q.1", "other")
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == set()


def test_takes_at_the_same_time_leave_it_open_who_is_the_successor() -> None:
    story = Story()
    story.take("p.1", at=(1, 4))
    story.take("p.2", at=(2, 3))
    story.write("p.1", "a", transaction="p.1/1", at=(5, 6))
    story.commit("p.1/1", at=(7, 8))
    assert names_in(story.ends_with(A)) == set()


def test_process_that_takes_its_id_again_is_the_owner_again() -> None:
    story = Story()
    story.take("p.1")
    story.take("p.2")
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == set()


def test_process_that_may_have_taken_its_id_again_may_be_the_owner_again() -> None:
    story = Story()
    story.take("p.1")
    story.take("p.2")
    story.take("p.1", outcome=UNKNOWN)
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    assert names_in(story.ends_with(A)) == set()


def test_transaction_of_a_fenced_owner_that_nobody_sees_is_fine() -> None:
    story = Story()
    story.take("p.1")
    story.write("p.1", "a", transaction="p.1/1")
    story.take("p.2")
    story.commit("p.1/1", outcome=UNKNOWN)
    assert names_in(story.ends_with()) == set()


def test_fenced_transaction_of_a_process_that_does_not_list_its_writes() -> None:
    story = Story()
    story.take("driver.1")
    story.take("driver.2")
    story.commit("driver.1/4", outcome=UNKNOWN)
    assert names_in(story.ends_with(seen("a", 0, "driver.1/4"))) == {"fenced write"}
