"""What was measured, and what is compared with what.

Ratios are taken within a round: the machine's mood changes from round to round. Spark's own writer counts with the
better of its two settings in that round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.landing.processes import Usage
from benchmarks.targets import Target

OURS, JDBC = "sink", "jdbc-tuned"
STREAMED = {OURS: "SqlSink", JDBC: "Spark's JDBC writer, tuned"}


@dataclass(frozen=True)
class WayInfo:
    title: str
    jdbc: tuple[str, ...] = ()
    """Spark's own writer for the same work; the best of them in a round is the one to compare with."""

    copy: str | None = None
    """The bare load of the same rows."""

    jdbc_target: Target | None = None
    copy_target: Target | None = None


WAYS: dict[str, WayInfo] = {
    "jdbc": WayInfo("Spark's JDBC writer, defaults", copy="copy"),
    "jdbc-tuned": WayInfo("Spark's JDBC writer, tuned", copy="copy"),
    "copy": WayInfo("bare COPY"),
    "copy-2": WayInfo("bare COPY, two connections", copy="copy"),
    "sink": WayInfo(
        "SqlSink, append",
        jdbc=("jdbc", "jdbc-tuned"),
        copy="copy",
        jdbc_target=Target(2.0, at_least=True),
        copy_target=Target(0.5, at_least=True),
    ),
    "jdbc-key": WayInfo("primary key: Spark's JDBC writer, tuned", copy="copy-key"),
    "copy-key": WayInfo("primary key: bare COPY"),
    "sink-key": WayInfo("primary key: SqlSink, append", jdbc=("jdbc-key",), copy="copy-key"),
    "sink-upsert": WayInfo("primary key: SqlSink, upsert, half of the keys known", copy="copy-key"),
    "sink-increment": WayInfo("SqlSink, increment, 100,000 counters, half of them known", copy="copy"),
    "sqlite-executemany": WayInfo("SQLite: executemany"),
    "sqlite-sink": WayInfo("SQLite: SqlSink, append", copy="sqlite-executemany"),
}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    way: str
    round: int
    rows: int
    usage: Usage
    parts: dict[str, float] = field(default_factory=dict)
    """Milliseconds by step, of a `SqlSink`."""

    @property
    def rate(self) -> float:
        return self.rows / self.usage.seconds


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A micro-batch of a streaming query: how long it was in the sink."""

    engine: str
    rows: int
    ms: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """Of rates."""

    median: float
    by_round: tuple[float, ...]
    """Sorted."""

    target: Target | None = None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met_by(self.median)


@dataclass(frozen=True)
class Row:
    """A way, over all rounds: medians."""

    way: str
    rate: float
    job_cpu_s: float
    """Per million rows."""

    server_cpu_s: float
    parts: dict[str, float]
    to_jdbc: Ratio | None
    to_copy: Ratio | None

    @property
    def title(self) -> str:
        return WAYS[self.way].title


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """One for each way, in the order of WAYS."""
    taken: dict[str, list[Measurement]] = {}
    for each in measurements:
        taken.setdefault(each.way, []).append(each)
    return [_row(name, taken) for name in WAYS if name in taken]


def _row(name: str, taken: dict[str, list[Measurement]]) -> Row:
    own, info = taken[name], WAYS[name]
    return Row(
        way=name,
        rate=_median(own, lambda each: each.rate),
        job_cpu_s=_median(own, lambda each: each.usage.job_cpu_s / each.rows * 1e6),
        server_cpu_s=_median(own, lambda each: each.usage.server_cpu_s / each.rows * 1e6),
        parts=_medians(each.parts for each in own),
        to_jdbc=_ratio(own, _best(taken, info.jdbc), info.jdbc_target),
        to_copy=_ratio(own, _best(taken, filter(None, [info.copy])), info.copy_target),
    )


def _best(taken: dict[str, list[Measurement]], names: Iterable[str]) -> dict[int, float]:
    """The highest rate of these ways in each round."""
    best: dict[int, float] = {}
    for name in names:
        for each in taken.get(name, []):
            best[each.round] = max(best.get(each.round, 0.0), each.rate)
    return best


def _ratio(own: Sequence[Measurement], theirs: dict[int, float], target: Target | None) -> Ratio | None:
    found = sorted(each.rate / theirs[each.round] for each in own if each.round in theirs)
    return Ratio(statistics.median(found), tuple(found), target) if found else None


@dataclass(frozen=True)
class StreamRow:
    """Micro-batches of one size: medians, and the slowest."""

    engine: str
    rows: int
    batches: int
    ms: float
    slowest_ms: float
    parts: dict[str, float]

    @property
    def rate(self) -> float:
        return self.rows / self.ms * 1000


def stream_rows(batches: Sequence[Batch]) -> list[StreamRow]:
    taken: dict[tuple[int, str], list[Batch]] = {}
    for each in batches:
        taken.setdefault((each.rows, each.engine), []).append(each)
    return [
        StreamRow(
            engine=engine,
            rows=size,
            batches=len(own),
            ms=statistics.median(each.ms for each in own),
            slowest_ms=max(each.ms for each in own),
            parts=_medians(each.parts for each in own),
        )
        for (size, engine), own in taken.items()
    ]


def _median(own: Sequence[Measurement], metric: Callable[[Measurement], float]) -> float:
    return statistics.median(metric(each) for each in own)


def _medians(found: Iterable[dict[str, float]]) -> dict[str, float]:
    """By name; of what all of them have."""
    every = list(found)
    names = [name for name in every[0] if all(name in each for each in every)] if every else []
    return {name: statistics.median(each[name] for each in every) for name in names}
