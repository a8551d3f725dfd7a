"""Waiting fetches of many partitions: how many of these there may be."""

from __future__ import annotations

from onceflow.broker.large_fetches import PARTITIONS_MAX, LargeFetches


class Fetch:
    def __init__(self, fetches: LargeFetches, partitions: int) -> None:
        self._fetches = fetches
        self.is_answered = False
        fetches.add(self, partitions)

    def answer(self) -> None:
        self.is_answered = True
        self._fetches.remove(self)


def test_who_has_waited_longest_is_answered_when_there_are_too_many() -> None:
    fetches = LargeFetches()
    first, second, third = (Fetch(fetches, PARTITIONS_MAX // 4) for _ in range(3))
    assert not first.is_answered
    fourth = Fetch(fetches, PARTITIONS_MAX // 2)
    assert [each.is_answered for each in (first, second, third, fourth)] == [True, False, False, False]
    assert fetches.partitions == PARTITIONS_MAX


def test_who_was_answered_makes_room() -> None:
    fetches = LargeFetches()
    for _ in range(10):
        Fetch(fetches, PARTITIONS_MAX // 2).answer()
    assert fetches.partitions == 0
