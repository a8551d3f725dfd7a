"""The last quarter of an hour in figures, for the charts: one point each five seconds, and never more than 180 of them.

A point holds what happened between the end of the interval before and its own: rates are differences of totals, so it
does not matter how often, or how regularly, somebody looked. A total that went down (the broker was started anew) gives
no rate rather than a wrong one, and what a snapshot does not know is None in every point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.monitor.snapshot import Snapshot, Timing

__all__ = ["History", "merged", "quantile", "since"]

STEP_MS: Final = 5_000
POINTS: Final = 180
GROUPS_SHOWN: Final = 10
GROUPS_KEPT: Final = 30
RECENT_STEPS: Final = 13
"""Timings are kept in full for the last minute only: they are most of what a sample weighs."""
OFFSET_COMMITS: Final = ("OffsetCommit", "TxnOffsetCommit")
RATES: Final = ("commits", "aborts", "fencings", "records_in", "records_out", "bytes_in", "bytes_out")
LEVELS: Final = ("open", "oldest_ms", "lso_lag", "lag")
LATENCIES: Final = ("produce_p99_ms", "offset_commit_p99_ms")

Timings = Mapping[str, Timing]
Point = dict[str, float | None]


def since(now: Timing, before: Timing | None) -> Timing:
    """What was timed after `before`; all of it, if the totals went down since."""
    if before is None or before.bounds != now.bounds:
        return now
    counts = tuple(a - b for a, b in zip(now.counts, before.counts, strict=True))
    if min(counts) < 0:
        return now
    return Timing(bounds=now.bounds, counts=counts, total_s=now.total_s - before.total_s)


def merged(timings: Timings, names: tuple[str, ...]) -> Timing | None:
    """Several kinds of requests as one."""
    found = [timings[name] for name in names if name in timings]
    if not found:
        return None
    counts = tuple(map(sum, zip(*(each.counts for each in found), strict=True)))
    return Timing(bounds=found[0].bounds, counts=counts, total_s=sum(each.total_s for each in found))


def quantile(timing: Timing, fraction: float) -> float | None:
    """In seconds, placed within its bucket as Prometheus' histogram_quantile does it; None if nothing was timed."""
    rank = fraction * timing.count
    if not timing.count:
        return None
    lower = 0.0
    for upper, count in zip(timing.bounds, timing.counts, strict=False):  # the last count has no bound
        if count and rank <= count:
            return lower + (upper - lower) * rank / count
        rank -= count
        lower = upper
    return lower


@dataclass(frozen=True, slots=True)
class Sample:
    at_ms: int
    totals: dict[str, int | None]
    levels: dict[str, float | None]
    produce: Timing | None
    offset_commit: Timing | None
    group_lags: dict[str, int]


def _sample(snapshot: Snapshot) -> Sample:
    traffic, counters = snapshot.traffic.values(), snapshot.counters
    totals: dict[str, int | None] = {
        "commits": counters.commits,
        "aborts": counters.aborts,
        "fencings": counters.fencings if snapshot.started_ms is not None else None,
        "records_in": sum(each.records_in for each in traffic) if traffic else None,
        "records_out": sum(each.records_out for each in traffic) if traffic else None,
        "bytes_in": sum(each.bytes_in for each in traffic) if traffic else None,
        "bytes_out": sum(each.bytes_out for each in traffic) if traffic else None,
    }
    lags = {group.group_id: group.lag for group in snapshot.groups}
    kept = sorted(lags, key=lambda name: -lags[name])[:GROUPS_KEPT]
    return Sample(
        snapshot.at_ms,
        totals,
        _levels(snapshot) | {"lag": sum(lags.values())},
        snapshot.timings.get("Produce"),
        merged(snapshot.timings, OFFSET_COMMITS),
        {name: lags[name] for name in kept},
    )


def _levels(snapshot: Snapshot) -> dict[str, float | None]:
    open_ones = [each for each in snapshot.transactions if each.is_open]
    starts = [each.started_ms for each in open_ones if each.started_ms is not None]
    return {
        "open": len(open_ones),
        "oldest_ms": max(0, snapshot.at_ms - min(starts)) if starts else 0,
        "lso_lag": sum(each.lso_lag for each in snapshot.partitions),
    }


def _point(now: Sample, before: Sample | None) -> Point:
    """Of a first look nothing is known but how it is: a rate needs two."""
    point: Point = dict(now.levels) | dict.fromkeys((*RATES, *LATENCIES))
    if before is None:
        return point
    seconds = max(0.001, (now.at_ms - before.at_ms) / 1000)
    for name in RATES:
        point[name] = _rate(now.totals[name], before.totals[name], seconds)
    for name, timing, earlier in (
        (LATENCIES[0], now.produce, before.produce),
        (LATENCIES[1], now.offset_commit, before.offset_commit),
    ):
        value = quantile(since(timing, earlier), 0.99) if timing else None
        point[name] = None if value is None else _short(value * 1000)
    return point


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or now < before:
        return None
    return _short((now - before) / seconds)


def _short(value: float) -> float:
    """Four digits are more than a chart can show."""
    return float(f"{value:.4g}")


class History:
    def __init__(self) -> None:
        self._past: deque[tuple[Sample, Point]] = deque(maxlen=POINTS)
        """Ends of intervals; the last one is of the interval that goes on, and is replaced until it is over."""
        self._bases: deque[Sample] = deque(maxlen=2)
        """The ends of the two intervals before the last, the newer one at the end."""
        self._recent: deque[tuple[int, Timings]] = deque(maxlen=RECENT_STEPS)
        self._timings: Timings = {}

    def see(self, snapshot: Snapshot) -> None:
        now = _sample(snapshot)
        last = self._past[-1][0] if self._past else None
        if last is None or last.at_ms // STEP_MS != now.at_ms // STEP_MS:
            if last is not None:
                self._bases.append(last)
            self._recent.append((now.at_ms, snapshot.timings))
        else:
            self._past.pop()
        self._past.append((now, _point(now, self._base(now))))
        self._timings = snapshot.timings

    def _base(self, now: Sample) -> Sample | None:
        """What the last point is compared with. An interval that has just begun says little: it is taken together with
        the one before."""
        if not self._bases:
            return None
        return self._bases[0] if now.at_ms - self._bases[-1].at_ms < STEP_MS // 2 else self._bases[-1]

    def charts(self) -> dict[str, Any]:
        """Lists of equal length, oldest first: `at_ms`, one per figure, and `groups` with the lag of each."""
        points = [point for _, point in self._past]
        return {
            "step_ms": STEP_MS,
            "at_ms": [sample.at_ms for sample, _ in self._past],
            **{name: [point[name] for point in points] for name in (*RATES, *LEVELS, *LATENCIES)},
            "groups": self._group_lags(),
        }

    def _group_lags(self) -> dict[str, list[int | None]]:
        if not self._past:
            return {}
        latest = list(self._past[-1][0].group_lags)[:GROUPS_SHOWN]
        return {name: [sample.group_lags.get(name) for sample, _ in self._past] for name in latest}

    def last_minute(self) -> tuple[float, dict[str, Timing]]:
        """How many seconds, and what was timed in them."""
        if not self._recent:
            return 0.0, {}
        began_ms, earlier = self._recent[0]
        seconds = (self._past[-1][0].at_ms - began_ms) / 1000
        return seconds, {name: since(timing, earlier.get(name)) for name, timing in self._timings.items()}
