"""Memory for answers that their clients have not taken, shared by all connections.

What is small is not counted, as each connection has at most one such answer; nor are parts of files, which are read
when they are sent. What is large is here: if all of it comes to more than the limit, who has taken nothing for the
longest time is closed, and others after it, until the rest fits.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["ANSWERS_MAX", "AnswerMemory", "Holder"]

ANSWERS_MAX: Final = 64 * 1024 * 1024


class Holder(Protocol):
    @property
    def took_at(self) -> float:
        """When its client has last taken something."""
        ...

    def give_up_answers(self) -> None:
        """Close: the memory is needed."""
        ...


class AnswerMemory:
    def __init__(self, limit: int = ANSWERS_MAX) -> None:
        self._limit = limit
        self._held: dict[Holder, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def hold(self, who: Holder, size: int) -> None:
        """It holds so much now, in all. May close it, or others."""
        self.release(who)
        self._held[who] = size
        self._total += size
        while self._total > self._limit:
            slowest = min(self._held, key=lambda each: (each.took_at, -self._held[each]))
            self.release(slowest)
            slowest.give_up_answers()

    def release(self, who: Holder) -> None:
        self._total -= self._held.pop(who, 0)
