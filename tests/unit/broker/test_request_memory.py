"""Memory for large requests: in the order of asking, and never more than there is."""

from __future__ import annotations

import random

import pytest

from onceflow.broker.request_memory import RequestMemory


class Someone:
    def __init__(self, memory: RequestMemory) -> None:
        self.memory = memory
        self.is_granted = False
        self.keeps_for_later = False
        self.gave_up = False

    def claim(self, size: int) -> bool:
        self.is_granted = self.memory.claim(self, size)
        return self.is_granted

    def granted(self) -> None:
        self.is_granted = True

    def give_back(self) -> None:
        if self.keeps_for_later:
            self.memory.release(self)

    def give_up(self, since: float) -> None:
        self.gave_up = True
        self.memory.release(self)


def test_who_comes_first_is_served_first_even_if_a_later_one_would_fit() -> None:
    memory = RequestMemory(100)
    one, two, three = Someone(memory), Someone(memory), Someone(memory)
    assert one.claim(60)
    assert not two.claim(60)
    assert not three.claim(10)
    assert not three.claim(10), "asking again does not count twice"
    memory.release(one)
    assert (two.is_granted, three.is_granted, memory.free) == (True, True, 30)


def test_what_is_kept_only_for_later_is_given_back() -> None:
    memory = RequestMemory(100)
    idle, busy = Someone(memory), Someone(memory)
    assert idle.claim(80)
    idle.keeps_for_later = True
    assert busy.claim(90)
    assert memory.free == 10


def test_who_needs_more_claims_only_the_difference() -> None:
    memory = RequestMemory(100)
    one = Someone(memory)
    assert one.claim(60)
    assert one.claim(100)
    assert one.claim(50)
    memory.release(one)
    assert memory.free == 100


def test_who_leaves_while_waiting_does_not_hold_up_the_others() -> None:
    memory = RequestMemory(100)
    one, two, three = Someone(memory), Someone(memory), Someone(memory)
    assert one.claim(50)
    assert not two.claim(100)
    assert not three.claim(40)
    memory.release(two)
    assert three.is_granted


def test_slow_ones_are_asked_to_go_only_while_somebody_waits() -> None:
    memory = RequestMemory(100)
    slow, waiting = Someone(memory), Someone(memory)
    assert slow.claim(100)
    memory.close_slow()
    assert not slow.gave_up
    assert not waiting.claim(1)
    memory.close_slow()
    assert slow.gave_up
    assert waiting.is_granted


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_more_is_given_than_there_is_and_all_comes_back(seed: int) -> None:
    dice = random.Random(seed)
    memory = RequestMemory(1000)
    people = [Someone(memory) for _ in range(12)]
    for _ in range(300):
        who = dice.choice(people)
        if dice.random() < 0.5:
            who.claim(dice.randrange(1, 1000))
        else:
            memory.release(who)
            who.is_granted = False
        assert 0 <= memory.free <= 1000
    for who in people:
        memory.release(who)
    assert memory.free == 1000
    assert not memory.is_wanted
