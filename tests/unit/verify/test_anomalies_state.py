"""State against the outputs it was counted from: on histories told by hand."""

from __future__ import annotations

import pytest

from onceflow.verify.history import History, Seen
from tests.unit.verify.story import COPY, OK, UNKNOWN, Story, found, names_in, seen, state

DRIVERS = ("driver.1/1", "driver.2/1")


def copied(*records: Seen, is_drained: bool = True) -> History:
    """A driver copied a, b and c, keys k and l, in two transactions; `records` is what is there of that."""
    story = Story()
    story.write("p.1", "a", "b", "c")
    for number, name in enumerate(DRIVERS):
        story.commit(name, outcome=UNKNOWN if number else OK)
    sources = [seen(id, offset) for offset, id in enumerate("abc")]
    return story.ends_with(*sources, *records, derivations=[COPY], is_drained=is_drained)


def copy(id: str, offset: int, attempt: int = 1, key: str = "k") -> Seen:
    return seen(id, offset, DRIVERS[attempt - 1], topic="copies", key=key)


A, B, C = copy("a", 0), copy("b", 1), copy("c", 3, 2)


def test_state_that_follows_from_its_outputs_is_fine() -> None:
    assert names_in(copied(A, B, C, state("k", 2, 0, DRIVERS[0]), state("k", 3, 2, DRIVERS[1]))) == set()


def test_state_that_grew_by_more_than_its_outputs_is_a_mismatch() -> None:
    history = copied(A, B, C, state("k", 2, 0, DRIVERS[0]), state("k", 4, 2, DRIVERS[1]))
    change, total = found("state mismatch", history)
    assert "The state of k went from 2 to 4 at state-0@2, in driver.2/1, which has 1 outputs" in change.sentence
    assert [each.id for each in change.operations] == ["driver.2:1"]
    assert "The state of k is 4 in the end (state-0@2), but there are 3 outputs" in total.sentence
    assert names_in(history) == {"state mismatch"}


def test_state_that_was_written_outside_of_the_transaction_of_its_outputs_is_a_mismatch() -> None:
    assert names_in(copied(A, B, C, state("k", 3, 0, DRIVERS[0]))) == {"state mismatch"}


def test_state_that_starts_over_is_a_mismatch() -> None:
    assert names_in(copied(A, B, C, state("k", 2, 0, DRIVERS[0]), state("k", 1, 2, DRIVERS[1]))) == {"state mismatch"}


def test_outputs_that_are_not_counted_in_the_end_are_a_mismatch() -> None:
    [anomaly] = found("state mismatch", copied(A, B, C, state("k", 2, 0, DRIVERS[0])))
    assert "is 2 in the end" in anomaly.sentence


def test_keys_are_counted_apart() -> None:
    other = copy("b", 1, key="l")
    states = [state("k", 1, 0, DRIVERS[0]), state("l", 1, 1, DRIVERS[0]), state("k", 2, 3, DRIVERS[1])]
    assert names_in(copied(A, other, C, *states)) == set()


def test_outputs_of_a_key_without_state_are_a_mismatch_where_others_have_state() -> None:
    other = copy("b", 1, key="l")
    history = copied(A, other, C, state("k", 1, 0, DRIVERS[0]), state("k", 2, 2, DRIVERS[1]))
    [anomaly] = found("state mismatch", history)
    assert "1 outputs with the key l, and no state of it" in anomaly.sentence
    assert anomaly.records == [other]


def test_pipeline_without_state_has_nothing_to_match() -> None:
    assert names_in(copied(A, B, C)) == set()


def test_records_that_are_not_outputs_are_not_counted() -> None:
    story = Story()
    story.write("p.1", "a", transaction="p.1/1")
    story.commit("p.1/1")
    history = story.ends_with(seen("a", 0, "p.1/1", key="k"), state("k", 0, 0, "p.1/1"))
    assert names_in(history) == set()


@pytest.mark.parametrize(("after", "is_wrong"), [(2, False), (3, False), (1, True)])
def test_unfinished_run_may_lack_outputs_but_not_have_too_many(after: int, is_wrong: bool) -> None:
    history = copied(A, B, state("k", after, 0, DRIVERS[0]), is_drained=False)
    assert names_in(history) == ({"state mismatch"} if is_wrong else set())
