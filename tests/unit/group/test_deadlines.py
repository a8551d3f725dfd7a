"""Who is looked at when."""

from __future__ import annotations

from onceflow.group.classic import ClassicGroup, ClassicSettings
from onceflow.group.deadlines import Deadlines


class Clockwork(ClassicGroup):
    """A group whose next deadline is what a test says."""

    def __init__(self, name: str, deadline_ms: int | None) -> None:
        super().__init__(name, ClassicSettings(), 0)
        self.deadline_ms = deadline_ms

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms


def test_the_earliest_deadline_is_next() -> None:
    deadlines = Deadlines()
    for group in (Clockwork("a", 20), Clockwork("b", 10), Clockwork("c", None)):
        deadlines.watch(group)
    assert deadlines.next_ms == 10
    assert deadlines.take_due(9) == set()
    assert deadlines.take_due(10) == {"b"}
    assert deadlines.next_ms == 20


def test_an_earlier_deadline_counts_at_once() -> None:
    deadlines, group = Deadlines(), Clockwork("a", 20)
    deadlines.watch(group)
    group.deadline_ms = 5
    deadlines.watch(group)
    assert deadlines.next_ms == 5


def test_a_later_deadline_costs_nothing_until_the_first_one_is_due() -> None:
    deadlines, group = Deadlines(), Clockwork("a", 20)
    deadlines.watch(group)
    for later in range(21, 1000):
        group.deadline_ms = later
        deadlines.watch(group)
    assert deadlines.take_due(20) == {"a"}
    assert deadlines.next_ms is None
