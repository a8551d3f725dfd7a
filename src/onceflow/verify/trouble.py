"""Faults on demand, for the frames that pass the proxies of a network.

    trouble = Trouble(seed=7)
    proxy.plan = trouble.plan(node=1)
    strike = trouble.strike("lost answer", api={END_TXN, PRODUCE})
    ...
    strike.struck          # "EndTxn v5 at node 1", or None as long as no such answer came by

A strike waits for the next frame of its kind on any node, spoils it, and is over. It is the handle, too: it says what
it hit and when, and it can be cancelled. Of several that wait for the same frame the oldest gets it. `delay` and
`empty` are not for one frame but for all of them, until they are ended.

Plans are asked in the threads of the proxies, strikes are ordered in others: one lock guards it all.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onceflow.verify.fates import FETCH, PASS, Action, Fate, Frame, Hooks, Plan
from onceflow.wire.messages import REQUESTS

__all__ = ["STRIKES", "Hit", "Strike", "Trouble", "api_name"]

REQUEST: Final = "request"
ANSWER: Final = "answer"
EMPTY_AFTER_S: Final = 0.1
"""A broker gives an answer without records when it has waited in vain; whoever gets one asks again at once."""
STRIKES: Final = {
    "lost request": (REQUEST, Fate.SWALLOW),
    "lost answer": (ANSWER, Fate.SWALLOW),
    "torn request": (REQUEST, Fate.TEAR),
    "torn answer": (ANSWER, Fate.TEAR),
    "late request": (REQUEST, Fate.LATE),
}
"""Kinds of strikes: on which way they wait, and what they do to the frame that comes."""


def api_name(api_key: int) -> str:
    known = REQUESTS.get(api_key)
    return known.request.removesuffix("Request") if known else f"api {api_key}"


class Hit(NamedTuple):
    at: float
    """On the monotonic clock."""
    node: int
    frame: Frame

    def __str__(self) -> str:
        return f"{api_name(self.frame.api_key)} v{self.frame.api_version} at node {self.node}"


@dataclass(kw_only=True)
class Strike:
    kind: str
    apis: frozenset[int] | None
    """None: whatever comes."""
    nodes: frozenset[int] | None
    delay_s: float
    left: int
    """How many frames it still is to hit."""
    skip: int
    """How many that would fit are let pass before."""
    versions_min: Mapping[int, int]
    """Older versions of these apis are let pass, too."""
    lock: threading.Lock = field(repr=False)
    hits: list[Hit] = field(default_factory=list)
    _hit: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def struck(self) -> str | None:
        """What it hit, in words; None as long as that is nothing."""
        return ", ".join(str(hit) for hit in self.hits) or None

    def wait(self, timeout_s: float) -> bool:
        """Whether it hits something within this time."""
        return self._hit.wait(timeout_s)

    def cancel(self) -> None:
        """It waits no longer. After this, `struck` does not change."""
        with self.lock:
            self.left = 0

    def take(self, way: str, node: int, frame: Frame) -> Action | None:
        """What becomes of this frame, if it is one that this strike waits for. Called with the lock held."""
        awaited, fate = STRIKES[self.kind]
        if not self.left or way != awaited:
            return None
        if (self.apis is not None and frame.api_key not in self.apis) or (
            self.nodes is not None and node not in self.nodes
        ):
            return None
        if frame.api_version < self.versions_min.get(frame.api_key, 0):
            return None
        if self.skip:
            self.skip -= 1
            return None
        self.left -= 1
        self.hits.append(Hit(time.monotonic(), node, frame))
        self._hit.set()
        return Action(fate, self.delay_s if fate is Fate.LATE else 0.0)


class Trouble:
    """All strikes of a network."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = random.Random(f"trouble/{seed}")
        self._lock = threading.Lock()
        self._strikes: list[Strike] = []
        self._delays_s: dict[int | None, float] = {}
        self._emptied: frozenset[int] | None = frozenset()
        """The nodes whose answers to Fetch lose their records; None: all."""

    def plan(self, node: int) -> Plan:
        """For the proxy before this node."""
        return Hooks(
            request=lambda frame: self._judge(REQUEST, node, frame),
            response=lambda frame: self._judge(ANSWER, node, frame),
        )

    def strike(
        self,
        kind: str,
        *,
        api: int | Collection[int] | None = None,
        nodes: Collection[int] | None = None,
        count: int = 1,
        among: int = 1,
        delay_s: float = 0.0,
        versions_min: Mapping[int, int] | None = None,
    ) -> Strike:
        """Spoils the next `count` frames of these apis, on their way to or from these nodes; by default any.

        The first one is one of the next `among` that fit, which one is drawn from the seed. `delay_s` is how much later
        a "late request" arrives. Of the apis in `versions_min`, older versions are let pass.
        """
        if kind not in STRIKES:
            raise ValueError(f"There is no strike {kind!r}; there are {', '.join(STRIKES)}.")
        strike = Strike(
            kind=kind,
            apis=None if api is None else frozenset((api,) if isinstance(api, int) else api),
            nodes=None if nodes is None else frozenset(nodes),
            delay_s=delay_s,
            left=count,
            skip=self._chance.randrange(among),
            versions_min=versions_min or {},
            lock=self._lock,
        )
        with self._lock:
            self._strikes.append(strike)
        return strike

    def delay(self, seconds: float, nodes: Collection[int] | None = None) -> None:
        """From now on every frame waits so long, on both ways; until `end_delays`."""
        with self._lock:
            self._delays_s |= dict.fromkeys([None] if nodes is None else nodes, seconds)

    def end_delays(self) -> None:
        with self._lock:
            self._delays_s.clear()

    def empty(self, nodes: Collection[int] | None = None) -> None:
        """From now on every answer to a Fetch comes without records; until `end_empty`."""
        with self._lock:
            self._emptied = None if nodes is None else frozenset(nodes)

    def end_empty(self) -> None:
        with self._lock:
            self._emptied = frozenset()

    def cancel_all(self) -> None:
        with self._lock:
            for strike in self._strikes:
                strike.left = 0
            self._strikes.clear()

    def _judge(self, way: str, node: int, frame: Frame) -> Action:
        with self._lock:
            self._strikes = [each for each in self._strikes if each.left]
            for strike in self._strikes:
                if action := strike.take(way, node, frame):
                    return action
            delay_s = self._delays_s.get(node, self._delays_s.get(None, 0.0))
            is_emptied = self._emptied is None or node in self._emptied
        if is_emptied and way == ANSWER and frame.api_key == FETCH:
            return Action(Fate.EMPTY, max(delay_s, EMPTY_AFTER_S))
        return Action(Fate.PASS, delay_s) if delay_s else PASS
