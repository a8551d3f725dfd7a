"""What happened per second in the last minute, from snapshots: for the metrics that are to be read without a formula.

    rates = Rates()
    rates.see(snapshot)                                   each time one is taken (`Watcher.see`)
    exposition(snapshot, alerts, accept, rates.minute)    for a scrape (`Watcher.scrape`)

A `Minute` never changes: a scrape is given the one that belongs to its snapshot, and may read it in another thread.

Totals that go down (the broker was started anew, a topic was deleted) count from zero again, as Prometheus does it. A
rate needs two snapshots: before, it is None, never 0. Memory is bounded by the minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from onceflow.monitor.history import merged, quantile, since
from onceflow.monitor.snapshot import Snapshot, Timing

__all__ = ["COUNTED", "Minute", "Rates"]

WINDOW_MS: Final = 60_000
SAMPLES_MAX: Final = 200
COUNTED: Final = ("commits", "aborts", "failed_authentications", "records_in", "records_out")


class _Sample(NamedTuple):
    at_ms: int
    counted: Mapping[str, int]
    """Since the first snapshot; never goes down."""
    timings: Mapping[str, Timing]


class Minute:
    """What happened between the first and the last snapshot of the last minute."""

    __slots__ = ("_window",)

    def __init__(self, window: tuple[_Sample, _Sample] | None = None) -> None:
        self._window = window

    def per_second(self, name: str) -> float | None:
        """One of `COUNTED`; None as long as nothing can be said."""
        if self._window is None:
            return None
        first, last = self._window
        return (last.counted[name] - first.counted[name]) / _seconds(first, last)

    def requests_per_second(self) -> dict[str, float]:
        """Of everything that is timed, by name; empty as long as nothing can be said."""
        if self._window is None:
            return {}
        seconds = _seconds(*self._window)
        return {name: timing.count / seconds for name, timing in self.timings().items()}

    def timings(self) -> dict[str, Timing]:
        """What was timed in the last minute, by name; empty as long as nothing can be said."""
        if self._window is None:
            return {}
        first, last = self._window
        return {name: since(timing, first.timings.get(name)) for name, timing in last.timings.items()}

    def p99_ms(self, *names: str) -> float | None:
        """Of several kinds of requests together; None if there were none."""
        timing = merged(self.timings(), names)
        seconds = None if timing is None else quantile(timing, 0.99)
        return None if seconds is None else seconds * 1000


class Rates:
    def __init__(self) -> None:
        self.minute = Minute()
        """As of the last snapshot."""
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_MAX)
        self._last: dict[tuple[str, str], int] = {}
        self._counted = dict.fromkeys(COUNTED, 0)

    def see(self, snapshot: Snapshot) -> None:
        samples = self._samples
        if samples and snapshot.at_ms <= samples[-1].at_ms:
            samples.clear()  # the clock was set back, and nobody knows how far
        self._count(snapshot)
        samples.append(_Sample(snapshot.at_ms, dict(self._counted), snapshot.timings))
        while len(samples) > 2 and samples[1].at_ms <= snapshot.at_ms - WINDOW_MS:
            samples.popleft()
        self.minute = Minute((samples[0], samples[-1]) if len(samples) > 1 else None)

    def _count(self, snapshot: Snapshot) -> None:
        totals = _totals(snapshot)
        is_first = not self._last
        for key, total in totals.items():
            before = self._last.get(key, 0)
            if not is_first:
                self._counted[key[0]] += total - before if total >= before else total
        self._last = totals


def _seconds(first: _Sample, last: _Sample) -> float:
    return (last.at_ms - first.at_ms) / 1000


def _totals(snapshot: Snapshot) -> dict[tuple[str, str], int]:
    """By what is counted and whatever it is counted apart for."""
    counters = snapshot.counters
    totals = {("commits", ""): counters.commits, ("aborts", ""): counters.aborts}
    for mechanism, failed in counters.failed_authentications.items():
        totals["failed_authentications", mechanism] = failed
    for topic, traffic in snapshot.traffic.items():
        totals["records_in", topic] = traffic.records_in
        totals["records_out", topic] = traffic.records_out
    return totals
