"""The table of anomalies, and `check` over all of them."""

from __future__ import annotations

import pytest

from onceflow.verify.anomalies import ANOMALIES, KIND_MAX, check
from tests.unit.verify.story import Story, names_in, seen


def test_the_table_has_every_anomaly() -> None:
    assert list(ANOMALIES) == [
        "lost write",
        "duplicate",
        "aborted read",
        "read before commit",
        "torn transaction",
        "reordering",
        "skipped offsets",
        "fenced write",
        "offsets moved back",
        "state mismatch",
        "taken back",
        "phantom",
    ]


@pytest.mark.parametrize("name", ANOMALIES)
def test_every_anomaly_is_defined_in_a_sentence(name: str) -> None:
    definition = ANOMALIES[name].__doc__ or ""
    assert definition.endswith(".")
    assert len(definition) > 40


def test_nothing_happened_and_nothing_is_wrong() -> None:
    assert check(Story().ends_with()) == []


def test_anomalies_of_all_kinds_are_told() -> None:
    story = Story()
    story.write("p.1", "a", "b")
    assert names_in(story.ends_with(seen("a", 0), seen("a", 1), seen("x", 2))) == {"lost write", "duplicate", "phantom"}


@pytest.mark.parametrize(("phantoms", "listed", "more"), [(50, 50, None), (51, 49, 2), (120, 49, 71)])
def test_of_too_many_of_a_kind_the_last_says_how_many_more_there_are(
    phantoms: int, listed: int, more: int | None
) -> None:
    anomalies = check(Story().ends_with(*(seen(f"x{number}", number) for number in range(phantoms))))
    assert len(anomalies) == KIND_MAX
    assert sum(bool(each.records) for each in anomalies) == listed
    assert anomalies[-1].name == "phantom"
    assert (f"{more} more of this kind" in anomalies[-1].sentence) == (more is not None)
