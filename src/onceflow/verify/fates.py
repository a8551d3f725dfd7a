"""What can happen to a frame, and who decides it.

A `Plan` is asked about every frame that passes a proxy and names its `Fate`:

    PASS       forward it
    SWALLOW    drop it and cut the connection: a request that never arrived, an acknowledgement that was lost
    TEAR       forward the first half of it, then cut the connection
    LATE       cut the client's connection at once, and deliver the request to the broker `delay_s` later: the client
               has tried again by then, and the broker gets the older request after the newer one. What the broker
               answers is thrown away. Only for requests: to a response it is the same as SWALLOW
    EMPTY      forward the answer to a Fetch without its records, and with everything else that it says: so a broker
               with tiered storage answers while a remote read is slow. To any other frame it is the same as PASS
    delayed    any of the first three, after a while; what follows on the same way waits behind it, as with TCP
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

__all__ = ["PASS", "Action", "Fate", "Frame", "Hooks", "Plan", "RandomFaults"]

PRODUCE, FETCH = 0, 1  # api keys


class Fate(enum.Enum):
    """What happens to a frame."""

    PASS = "pass"
    SWALLOW = "swallow"
    TEAR = "tear"
    LATE = "late"
    EMPTY = "empty"


class Action(NamedTuple):
    fate: Fate
    delay_s: float = 0.0


PASS = Action(Fate.PASS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What is known of a request, or of the response to it."""

    connection: int
    """Counts from 1 in the order of arrival."""
    api_key: int
    """Of the request; -1 for a response to nothing we saw."""
    api_version: int
    correlation_id: int
    size: int
    """Bytes, without the length prefix."""

    @property
    def is_produce(self) -> bool:
        return self.api_key == PRODUCE


class Plan(Protocol):
    """Decides about each frame. Called in the proxy's thread, one frame at a time."""

    def request(self, frame: Frame) -> Action: ...

    def response(self, frame: Frame) -> Action: ...


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """A plan of two functions, for tests that want one particular fault at one particular moment."""

    request: Callable[[Frame], Action] = lambda _frame: PASS
    response: Callable[[Frame], Action] = lambda _frame: PASS


@dataclass(kw_only=True)
class RandomFaults:
    """Faults by probability from a seed. Only Produce requests and their responses are touched.

    The same seed draws the same numbers, but which frame meets which number depends on the client's timing.
    """

    seed: int = 0
    lose_ack: float = 0.0
    """Chance that the response to a Produce is swallowed and the connection cut."""
    cut_before: float = 0.0
    """Chance that a Produce is swallowed on its way up and the connection cut: the broker never sees it."""
    tear_request: float = 0.0
    """Chance that a Produce is cut in the middle on its way up."""
    tear_response: float = 0.0
    """Chance that the response to a Produce is cut in the middle."""
    delay: float = 0.0
    """Chance that a Produce or its response waits, up to `delay_ms_max`."""
    delay_ms_max: int = 20
    budget: int | None = None
    """No more cuts after this many, so that a run ends. Delays are free."""
    spent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for name in ("lose_ack", "cut_before", "tear_request", "tear_response", "delay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a probability: it is between 0 and 1, not {getattr(self, name)}")
        self._random = random.Random(self.seed)

    def request(self, frame: Frame) -> Action:
        return self._draw(frame, swallow=self.cut_before, tear=self.tear_request)

    def response(self, frame: Frame) -> Action:
        return self._draw(frame, swallow=self.lose_ack, tear=self.tear_response)

    def _draw(self, frame: Frame, *, swallow: float, tear: float) -> Action:
        if not frame.is_produce:
            return PASS
        # Always three draws, so that the sequence does not depend on what the earlier ones led to.
        what, whether, how_long = self._random.random(), self._random.random(), self._random.random()
        delay_s = how_long * self.delay_ms_max / 1000 if whether < self.delay else 0.0
        if self.budget is not None and self.spent >= self.budget:
            return Action(Fate.PASS, delay_s)
        if what < swallow + tear:
            self.spent += 1
            return Action(Fate.SWALLOW if what < swallow else Fate.TEAR, delay_s)
        return Action(Fate.PASS, delay_s)
