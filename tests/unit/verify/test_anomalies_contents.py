"""What must be there, once, and nothing besides: anomalies of the contents, on histories told by hand."""

from __future__ import annotations

import pytest

from onceflow.verify.history import Derivation, Outcome, Record, Seen
from tests.unit.verify.story import COPY, FAILED, OK, UNKNOWN, Story, found, names_in, seen

# --- lost write


def test_acknowledged_write_that_is_gone_is_lost() -> None:
    story = Story()
    write = story.write("p.1", "a", "b", written=["a", "b"])
    [lost] = found("lost write", story.ends_with(seen("a", 0)))
    assert "b (orders)" in lost.sentence
    assert "a (orders)" not in lost.sentence
    assert lost.operations == [write]


def test_write_that_is_there_is_not_lost() -> None:
    story = Story()
    story.write("p.1", "a", "b", written=["a", "b"])
    assert names_in(story.ends_with(seen("a", 0), seen("b", 1))) == set()


def test_record_in_another_topic_does_not_make_up_for_it() -> None:
    story = Story()
    story.write("p.1", "a", written=["a"])
    assert found("lost write", story.ends_with(seen("a", 0, topic="payments")))


def test_ok_without_a_list_of_what_was_written_acknowledges_everything() -> None:
    story = Story()
    story.write("p.1", "a")
    assert found("lost write", story.ends_with())


@pytest.mark.parametrize("outcome", [UNKNOWN, FAILED])
def test_write_that_was_not_acknowledged_may_be_missing(outcome: Outcome) -> None:
    story = Story()
    story.write("p.1", "a", outcome=outcome)
    assert names_in(story.ends_with()) == set()


def test_of_an_unknown_write_what_was_acknowledged_all_the_same_must_be_there() -> None:
    story = Story()
    story.write("p.1", "a", "b", outcome=UNKNOWN, written=["a"])
    assert "a (orders)" in found("lost write", story.ends_with(seen("b", 0)))[0].sentence
    assert names_in(story.ends_with(seen("a", 0))) == set()


def test_committed_transaction_of_which_nothing_is_there_is_lost_and_not_torn() -> None:
    story = Story()
    write = story.write("p.1", "a", "b", transaction="p.1/1")
    commit = story.commit("p.1/1")
    history = story.ends_with()
    [lost] = found("lost write", history)
    assert lost.operations == [write, commit]
    assert names_in(history) == {"lost write"}


def test_same_output_of_another_attempt_does_not_make_up_for_a_lost_commit() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    story.write("p.2", "a", transaction="p.2/1")
    story.commit("p.2/1")
    assert "p.1/1" in found("lost write", story.ends_with(seen("a", 3, "p.2/1")))[0].sentence


@pytest.mark.parametrize("outcome", [UNKNOWN, FAILED])
def test_transaction_whose_commit_was_not_confirmed_may_be_missing(outcome: Outcome) -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1", outcome=outcome)
    assert names_in(story.ends_with()) == set()


def test_write_that_failed_is_not_part_of_a_transaction_that_was_committed() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.write("p.1", "b", transaction="p.1/1", outcome=FAILED)
    story.commit("p.1/1")
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"))) == set()


def test_commit_confirmed_when_asked_for_again_is_a_promise() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1", outcome=UNKNOWN)
    story.commit("p.1/1")
    assert found("lost write", story.ends_with())


def test_counted_transaction_of_which_nothing_is_there_is_lost() -> None:
    story = Story()
    story.take("driver.1")
    story.commit("driver.1/1", count=3)
    assert names_in(story.ends_with()) == {"lost write"}


def test_empty_transaction_cannot_be_lost() -> None:
    story = Story()
    story.commit("driver.1/1", count=0)
    assert names_in(story.ends_with()) == set()


def test_source_record_that_never_arrives_is_lost() -> None:
    story = Story()
    story.write("p.1", "a", "b")
    history = story.ends_with(seen("a", 0), seen("b", 1), seen("a", 0, topic="copies"), derivations=[COPY])
    [lost] = found("lost write", history)
    assert "b, at orders-0@1, never arrived in copies" in lost.sentence
    assert lost.records == [seen("b", 1)]


def test_nothing_is_lost_while_it_may_still_come() -> None:
    story = Story()
    story.write("p.1", "a", "b", "c")
    story.write("p.1", "d", transaction="p.1/1")
    story.commit("p.1/1")
    assert names_in(story.ends_with(seen("a", 0), derivations=[COPY], is_drained=False)) == set()


# --- duplicate


def test_id_at_two_places_of_a_topic_is_a_duplicate() -> None:
    story = Story()
    story.write("p.1", "a")
    places = [seen("a", 0), seen("a", 3, partition=1)]
    [anomaly] = found("duplicate", story.ends_with(*places))
    assert "a is there 2 times" in anomaly.sentence
    assert "orders-0@0" in anomaly.sentence
    assert "orders-1@3" in anomaly.sentence
    assert anomaly.records == places


def test_both_attempts_of_an_output_being_there_is_a_duplicate_that_shows_both() -> None:
    story = Story()
    operations = []
    for attempt in ("p.1/1", "p.2/1"):
        operations.append(story.write(attempt[:3], "a", transaction=attempt))
        operations.append(story.commit(attempt))
    [anomaly] = found("duplicate", story.ends_with(seen("a", 0, "p.1/1"), seen("a", 2, "p.2/1")))
    assert anomaly.operations == operations


def test_same_id_in_two_topics_is_no_duplicate() -> None:
    story = Story()
    story.write("p.1", "a")
    history = story.ends_with(seen("a", 0), seen("a", 0, topic="copies"), derivations=[COPY])
    assert names_in(history) == set()


def test_retry_of_an_attempt_that_is_not_visible_is_no_duplicate() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1", outcome=UNKNOWN)
    story.write("p.2", "a", transaction="p.2/1")
    story.commit("p.2/1")
    assert names_in(story.ends_with(seen("a", 2, "p.2/1"))) == set()


def test_reader_shown_an_id_at_two_places_saw_a_duplicate() -> None:
    story = Story()
    story.write("p.1", "a")
    story.read("r.1", seen("a", 0))
    second = story.read("r.1", seen("a", 5))
    [anomaly] = found("duplicate", story.ends_with(seen("a", 0)))
    assert "in what r.1 was shown" in anomaly.sentence
    assert anomaly.operations == [second]


def test_duplicate_in_the_end_is_reported_once_whoever_saw_it() -> None:
    story = Story()
    story.write("p.1", "a")
    story.read("r.1", seen("a", 0), seen("a", 5))
    assert len(found("duplicate", story.ends_with(seen("a", 0), seen("a", 5)))) == 1


def test_reading_the_same_place_again_is_no_duplicate() -> None:
    story = Story()
    story.write("p.1", "a")
    story.read("r.1", seen("a", 0))
    story.read("r.1", seen("a", 0))
    story.read("r.2", seen("a", 0))
    assert names_in(story.ends_with(seen("a", 0))) == set()


def test_reader_of_what_is_not_committed_may_see_every_attempt() -> None:
    story = Story()
    for process, outcome in (("p.1", FAILED), ("p.2", OK)):
        story.write(process, "a", transaction=f"{process}/1")
        story.commit(f"{process}/1", outcome=outcome)
    story.read("r.1", seen("a", 0, "p.1/1"), seen("a", 2, "p.2/1"), isolation="read_uncommitted")
    assert names_in(story.ends_with(seen("a", 2, "p.2/1"))) == set()


def test_states_have_no_id_to_be_duplicated() -> None:
    states = [Seen("state", 0, offset, Record(state="k", n=0)) for offset in (0, 1)]
    assert not found("duplicate", Story().ends_with(*states))


# --- torn transaction


@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_transaction_of_which_part_is_visible_is_torn(outcome: Outcome) -> None:
    story = Story()
    write = story.write("p.1", "a", "b", transaction="p.1/1")
    commit = story.commit("p.1/1", outcome=outcome)
    [torn] = found("torn transaction", story.ends_with(seen("b", 1, "p.1/1")))
    assert "p.1/1" in torn.sentence
    assert "b is visible at orders-0@1" in torn.sentence
    assert "but not a (orders)" in torn.sentence
    assert torn.operations == [write, commit]


def test_transaction_torn_over_two_topics() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.write("p.1", "a", transaction="p.1/1", topic="payments")
    story.commit("p.1/1", outcome=UNKNOWN)
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"))) == {"torn transaction"}


@pytest.mark.parametrize("visible", [0, 2])
def test_transaction_of_unknown_outcome_may_be_there_or_not(visible: int) -> None:
    story = Story()
    story.write("p.1", "a", "b", transaction="p.1/1")
    story.dies_while("p.1", "commit", transaction="p.1/1")
    assert names_in(story.ends_with(*[seen("a", 0, "p.1/1"), seen("b", 1, "p.1/1")][:visible])) == set()


def test_write_without_acknowledgement_is_not_held_to_be_part_of_what_was_aborted() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.write("p.1", "b", transaction="p.1/1", outcome=UNKNOWN)
    story.abort("p.1/1")
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"))) == {"aborted read"}


def test_aborted_transaction_of_which_part_is_visible_is_torn_as_well() -> None:
    story = Story()
    story.write("p.1", "a", "b", transaction="p.1/1")
    story.abort("p.1/1")
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"))) == {"aborted read", "torn transaction"}


@pytest.mark.parametrize(("visible", "is_torn"), [(0, False), (1, True), (2, False), (3, True)])
def test_counted_transaction_is_there_as_a_whole_or_not_at_all(visible: int, is_torn: bool) -> None:
    story = Story()
    story.take("driver.1")
    story.commit("driver.1/7", count=2, outcome=UNKNOWN)
    history = story.ends_with(*(seen(f"a{number}", number, "driver.1/7") for number in range(visible)))
    assert names_in(history) == ({"torn transaction"} if is_torn else set())


def test_nothing_is_torn_while_it_may_still_come() -> None:
    story = Story()
    story.write("p.1", "a", "b", transaction="p.1/1")
    story.commit("p.1/1")
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"), is_drained=False)) == set()


# --- taken back


def test_record_that_a_reader_saw_and_that_is_gone_was_taken_back() -> None:
    story = Story()
    story.write("p.1", "a", outcome=UNKNOWN)
    read = story.read("r.1", seen("a", 4))
    history = story.ends_with()
    [anomaly] = found("taken back", history)
    assert "r.1 was shown a at orders-0@4" in anomaly.sentence
    assert "there is nothing" in anomaly.sentence
    assert anomaly.operations == [read]
    assert names_in(history) == {"taken back"}


def test_another_record_at_the_place_means_taken_back() -> None:
    story = Story()
    story.write("p.1", "a", "b", outcome=UNKNOWN)
    story.read("r.1", seen("a", 4))
    [anomaly] = found("taken back", story.ends_with(seen("b", 4), seen("a", 5)))
    assert "there is b" in anomaly.sentence


def test_place_taken_back_is_reported_once() -> None:
    story = Story()
    story.read("r.1", seen("a", 4))
    story.read("r.2", seen("a", 4))
    assert len(found("taken back", story.ends_with())) == 1


def test_what_a_reader_of_uncommitted_records_saw_may_go_away() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.read("r.1", seen("a", 4, "p.1/1"), isolation="read_uncommitted")
    story.abort("p.1/1")
    assert names_in(story.ends_with()) == set()


def test_final_read_that_did_not_get_there_takes_nothing_back() -> None:
    story = Story()
    story.write("p.1", "a", "b", "c", outcome=UNKNOWN)
    story.read("r.1", seen("a", 1), seen("c", 5))
    assert found("taken back", story.ends_with(seen("b", 2), is_drained=False))[0].records == [seen("a", 1)]
    assert names_in(story.ends_with(is_drained=False)) == set()


# --- phantom


def test_record_that_nobody_asked_to_write_is_a_phantom() -> None:
    story = Story()
    story.write("p.1", "a")
    [anomaly] = found("phantom", story.ends_with(seen("a", 0), seen("x", 1)))
    assert "x at orders-0@1" in anomaly.sentence
    assert anomaly.records == [seen("x", 1)]


def test_record_in_a_topic_it_was_not_written_to_is_a_phantom() -> None:
    story = Story()
    story.write("p.1", "a")
    assert found("phantom", story.ends_with(seen("a", 0), seen("a", 0, topic="payments")))


def test_record_in_a_transaction_that_did_not_write_it_is_a_phantom() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    assert found("phantom", story.ends_with(seen("a", 0, "p.1/1"), seen("b", 1, "p.1/1")))


def test_record_of_a_transaction_that_its_writer_never_began_is_a_phantom() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    assert names_in(story.ends_with(seen("a", 0, "p.1/1"), seen("b", 1, "p.1/2"))) == {"phantom"}


def test_record_of_a_process_that_nobody_knows_is_a_phantom() -> None:
    assert names_in(Story().ends_with(seen("a", 0, "p.1/1"))) == {"phantom"}


def test_record_that_is_no_record_of_ours_is_a_phantom() -> None:
    assert names_in(Story().ends_with(Seen("orders", 0, 0, Record()))) == {"phantom"}
    assert names_in(Story().ends_with(Seen("orders", 0, 0, Record.from_bytes(b"\xff")))) == {"phantom"}


def test_record_whose_write_failed_is_a_phantom() -> None:
    story = Story()
    story.write("p.1", "a", outcome=FAILED)
    [anomaly] = found("phantom", story.ends_with(seen("a", 0)))
    assert "known to have failed" in anomaly.sentence


def test_record_whose_write_failed_once_and_is_unknown_once_may_be_there() -> None:
    story = Story()
    story.write("p.1", "a", outcome=FAILED)
    story.write("p.1", "a", outcome=UNKNOWN)
    assert names_in(story.ends_with(seen("a", 0))) == set()


def test_record_of_a_write_that_was_cut_off_may_be_there() -> None:
    story = Story()
    story.dies_while("p.1", "write", transaction=None, records=[["orders", 0, "a"]])
    assert names_in(story.ends_with(seen("a", 0))) == set()


def test_phantom_that_only_a_reader_saw_names_the_reader() -> None:
    story = Story()
    read = story.read("r.1", seen("x", 1))
    [anomaly] = found("phantom", story.ends_with())
    assert "r.1" in anomaly.sentence
    assert anomaly.operations == [read]


def test_writes_of_a_process_that_does_not_list_them_are_judged_by_their_source_only() -> None:
    story = Story()
    story.write("p.1", "a")
    story.take("driver.1")
    story.commit("driver.1/1")
    copies = [seen("a", 0, "driver.1/1", topic="copies")]
    assert names_in(story.ends_with(seen("a", 0), *copies, derivations=[COPY])) == set()
    copies.append(seen("x", 1, "driver.1/1", topic="copies"))
    [anomaly] = found("phantom", story.ends_with(seen("a", 0), *copies, derivations=[COPY]))
    assert "there is no such record in orders" in anomaly.sentence


def test_copy_may_come_from_any_of_several_sources() -> None:
    story = Story()
    story.write("p.1", "a")
    story.commit("driver.1/1")
    derivations = [COPY, Derivation("payments", "copies")]
    history = story.ends_with(seen("a", 0), seen("a", 0, "driver.1/1", topic="copies"), derivations=derivations)
    assert names_in(history) == set()


def test_source_that_was_not_read_to_its_end_makes_no_phantoms() -> None:
    story = Story()
    story.commit("driver.1/1")
    history = story.ends_with(seen("a", 0, "driver.1/1", topic="copies"), derivations=[COPY], is_drained=False)
    assert names_in(history) == set()
