"""What the broker counts while it works. On the hot path: plain attributes, one thread, no locks, no labels.

`broker/watching.py` turns all of it into a snapshot when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from typing import Final

from onceflow.monitor.snapshot import EndedTransaction, Fencing, Timing

__all__ = ["Meters", "Stopwatch"]

BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
LAST_EVENTS: Final = 200


class Stopwatch:
    """A histogram of durations."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def timing(self) -> Timing:
        return Timing(bounds=BOUNDS_S, counts=tuple(self.counts), total_s=self.total_s)


class Meters:
    def __init__(self) -> None:
        self.commits = self.aborts = self.timeouts = 0
        self.fencings = self.duplicates = self.out_of_order = 0
        self.connections = 0
        self.connections_refused: Counter[str] = Counter()
        self.failed_authentications: Counter[str] = Counter()
        self.successful_authentications: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.produce_errors: Counter[str] = Counter()
        self.fsync = Stopwatch()
        self.requests: dict[int, Stopwatch] = {}
        """By api key."""
        self.last_ended: deque[EndedTransaction] = deque(maxlen=LAST_EVENTS)
        self.last_fencings: deque[Fencing] = deque(maxlen=LAST_EVENTS)
