"""Memory for answers that are not taken: who goes when there is too much."""

from __future__ import annotations

from onceflow.broker.answer_memory import AnswerMemory


class Client:
    def __init__(self, took_at: float) -> None:
        self.took_at = took_at
        self.is_closed = False

    def give_up_answers(self) -> None:
        self.is_closed = True


def test_who_has_taken_nothing_for_the_longest_time_goes_first() -> None:
    memory = AnswerMemory(100)
    stalled, slow, fresh = Client(1.0), Client(5.0), Client(9.0)
    for each in (slow, stalled, fresh):
        memory.hold(each, 33)
    assert not any(each.is_closed for each in (stalled, slow, fresh))
    memory.hold(fresh, 60)
    assert (stalled.is_closed, slow.is_closed, fresh.is_closed) == (True, False, False)
    assert memory.total == 93


def test_so_many_go_as_are_needed() -> None:
    memory = AnswerMemory(100)
    stalled = [Client(at) for at in range(10)]
    for each in stalled:
        memory.hold(each, 10)
    fresh = Client(100)
    memory.hold(fresh, 35)
    assert [each.is_closed for each in stalled] == [True] * 4 + [False] * 6
    assert not fresh.is_closed
    assert memory.total == 95


def test_of_those_that_stopped_at_the_same_time_the_largest_goes() -> None:
    memory = AnswerMemory(100)
    small, large = Client(1.0), Client(1.0)
    memory.hold(small, 30)
    memory.hold(large, 71)
    assert (small.is_closed, large.is_closed) == (False, True)


def test_what_was_taken_is_free_again() -> None:
    memory = AnswerMemory(100)
    one, two = Client(1.0), Client(2.0)
    memory.hold(one, 90)
    memory.hold(one, 20)
    memory.release(one)
    memory.release(one)
    memory.hold(two, 100)
    assert not one.is_closed
    assert not two.is_closed
    assert memory.total == 100
