"""Virtual time, one queue of events, and one source of chance: everything in a simulated run hangs on these three.

A run is a function of its seed. So nothing in it may ask the real clock, iterate over a set of objects (their hashes
are addresses) or draw from any other chance than `World.chance`. Two events never have the same time by accident: what
is due at the same moment happens in the order in which it was asked for.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from typing import Final

__all__ = ["Timer", "World"]

BEGINNING_MS: Final = 1_700_000_000_000
"""What the broker's clock shows at the beginning of a run."""


class Timer:
    """Something that will be done, unless it is cancelled."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run

    def cancel(self) -> None:
        self._run = None

    def fire(self) -> None:
        if self._run is not None:
            self._run()


class World:
    """Also the broker's `Clock`."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        """In seconds since the beginning."""
        self.problems: list[str] = []
        self.trace: list[str] = []
        self.is_traced = is_traced
        self._order = itertools.count()
        self._events: list[tuple[float, int, Timer]] = []

    def now_ms(self) -> int:
        return BEGINNING_MS + int(self.now * 1000)

    def after(self, seconds: float, run: Callable[[], None]) -> Timer:
        timer = Timer(run)
        heapq.heappush(self._events, (self.now + seconds, next(self._order), timer))
        return timer

    def between(self, least: float, most: float) -> float:
        return least + (most - least) * self.chance.random()

    def run(self, is_over: Callable[[], bool], deadline: float) -> bool:
        """Let things happen until it is over (True), or until nothing happens any more or the deadline is past."""
        while not is_over():
            if not self._events or self._events[0][0] > deadline:
                return False
            self.now, _, timer = heapq.heappop(self._events)
            timer.fire()
        return True

    def say(self, text: str) -> None:
        if self.is_traced:
            self.trace.append(f"{self.now:9.4f}  {text}")

    def problem(self, text: str) -> None:
        self.say(f"PROBLEM {text}")
        self.problems.append(text)

    def problem_with(self, doing: str) -> None:
        """An exception that nobody expected, the one being handled."""
        self.problem(f"{doing}:\n{traceback.format_exc()}")
