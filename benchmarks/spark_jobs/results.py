"""What was measured: one `Measurement` per run of a job, and the rows of a table that come of all rounds.

A row compares an engine with the reference of its part: Spark's own source and sink, or, where the cost of the
transaction is asked for, ours at least once. Ratios are taken within a round, on the same broker, and a row shows their
median and range: the machine's mood changes from round to round.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.spark_jobs.job import AT_LEAST_ONCE, EXACTLY_ONCE, SPARK
from benchmarks.spark_jobs.processes import JobCpu
from benchmarks.targets import Target

SIDE_BY_SIDE, TRIGGERS, SCALE = "side-by-side", "triggers", "scale"
REFERENCE = {SIDE_BY_SIDE: SPARK, TRIGGERS: AT_LEAST_ONCE, SCALE: SPARK}
COMMIT_MS_MAX = 10.0
TRIGGER_MS = 1000.0


@dataclass(frozen=True, kw_only=True, order=True)
class Case:
    """What is compared: the same work on the same broker."""

    part: str
    job: str
    size: int
    records: int
    broker: str


@dataclass(frozen=True)
class MicroBatch:
    at: float
    """Seconds since 1970, when its trigger fired."""

    rows: int
    ms: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    case: Case
    engine: str
    round: int
    records: int
    """Gone through between the marks."""

    seconds: float
    job_cpu: JobCpu
    broker_cpu_s: float
    rss_mb: float
    pss_mb: float
    other_cores: float
    """Busy with neither the job, nor its broker, nor this benchmark."""

    batches: Sequence[MicroBatch] = ()
    commits_ms: Sequence[float] = ()


Metric = Callable[[Measurement], float | None]


def rate(taken: Measurement) -> float | None:
    return taken.records / taken.seconds


def rate_in_batches(taken: Measurement) -> float | None:
    """Without what it takes to start and end a query."""
    ms = sum(batch.ms for batch in taken.batches)
    return sum(batch.rows for batch in taken.batches) / ms * 1000 if ms else None


def cpu(taken: Measurement) -> float | None:
    """Seconds per million records, all processes but the broker."""
    return taken.job_cpu.total / taken.records * 1e6


def jvm_cpu(taken: Measurement) -> float | None:
    return taken.job_cpu.jvm / taken.records * 1e6


def broker_cpu(taken: Measurement) -> float | None:
    return taken.broker_cpu_s / taken.records * 1e6


def memory(taken: Measurement) -> float | None:
    return taken.pss_mb


def resident(taken: Measurement) -> float | None:
    return taken.rss_mb


def batch_ms(taken: Measurement) -> float | None:
    return statistics.median(batch.ms for batch in taken.batches) if taken.batches else None


def commit_ms(taken: Measurement) -> float | None:
    return statistics.median(taken.commits_ms) if taken.commits_ms else None


def kept_up(taken: Measurement) -> bool:
    """A query that falls behind its trigger does less than came in, and looks cheap."""
    return taken.case.part != TRIGGERS or (batch_ms(taken) or 0.0) <= TRIGGER_MS


METRICS: dict[str, Metric] = {
    "rate": rate,
    "rate_in_batches": rate_in_batches,
    "cpu_s_per_million": cpu,
    "jvm_cpu_s_per_million": jvm_cpu,
    "broker_cpu_s_per_million": broker_cpu,
    "pss_peak_mb": memory,
    "rss_peak_mb": resident,
    "batch_ms": batch_ms,
    "commit_ms": commit_ms,
}

# What the exactly-once engine is to reach against the reference of its part.
TARGETS: dict[str, dict[str, Target]] = {
    SIDE_BY_SIDE: {
        "rate": Target(1.2, at_least=True),
        "cpu_s_per_million": Target(1.0, at_least=False),
        "pss_peak_mb": Target(1.0, at_least=False),
    },
    TRIGGERS: {"cpu_s_per_million": Target(1.03, at_least=False), "batch_ms": Target(1.03, at_least=False)},
    SCALE: {},
}


@dataclass(frozen=True)
class Ratio:
    """Of a metric to that of the reference engine."""

    median: float
    by_round: tuple[float, ...]
    """Sorted."""

    target: Target | None = None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.target.met_by(self.median)


@dataclass(frozen=True)
class Row:
    case: Case
    engine: str
    values: dict[str, float | None]
    """Medians over the rounds, by the names of METRICS."""

    ratios: dict[str, Ratio] = field(default_factory=dict)


def rows(measurements: Iterable[Measurement]) -> list[Row]:
    """One for each case and engine, in the order in which they were first measured."""
    taken: dict[tuple[Case, str], list[Measurement]] = {}
    for each in measurements:
        taken.setdefault((each.case, each.engine), []).append(each)
    return [_row(case, engine, taken) for case, engine in taken]


def _row(case: Case, engine: str, taken: dict[tuple[Case, str], list[Measurement]]) -> Row:
    own = taken[case, engine]
    values = {name: _median(metric(each) for each in own) for name, metric in METRICS.items()}
    reference = taken.get((case, REFERENCE[case.part]), [])
    if engine == REFERENCE[case.part]:
        return Row(case, engine, values)
    is_judged = engine == EXACTLY_ONCE and all(map(kept_up, (*own, *reference)))
    targets = TARGETS[case.part] if is_judged else {}
    ratios = {name: _ratio(metric, own, reference, targets.get(name)) for name, metric in METRICS.items()}
    return Row(case, engine, values, {name: ratio for name, ratio in ratios.items() if ratio})


def _ratio(
    metric: Metric, own: Sequence[Measurement], reference: Sequence[Measurement], target: Target | None
) -> Ratio | None:
    ours, theirs = ({each.round: metric(each) for each in side} for side in (own, reference))
    found = [
        value / other
        for number, value in ours.items()
        if value is not None and (other := theirs.get(number)) is not None and other > 0
    ]
    return Ratio(statistics.median(found), tuple(sorted(found)), target) if found else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


@dataclass(frozen=True)
class Growth:
    """What the records between two marks cost: the fixed costs of a query, which both runs have, are not in it."""

    broker: str
    engine: str
    marks: tuple[int, int]
    cpu_s_per_million: float


def growth(measured: Sequence[Row]) -> list[Growth]:
    by_line: dict[tuple[str, str], list[Row]] = {}
    for row in measured:
        by_line.setdefault((row.case.broker, row.engine), []).append(row)
    found = []
    for (broker, engine), line in by_line.items():
        marks = sorted(line, key=lambda row: row.case.records)
        for low, high in itertools.pairwise(marks):
            more = _cpu_s(high) - _cpu_s(low)
            between = high.case.records - low.case.records
            found.append(Growth(broker, engine, (low.case.records, high.case.records), more / between * 1e6))
    return found


def _cpu_s(row: Row) -> float:
    return (row.values["cpu_s_per_million"] or 0.0) * row.case.records / 1e6


def within(
    taken: Measurement, commits: Iterable[tuple[float, float]], start: float, end: float, *, per_second: int
) -> Measurement:
    """Only what began between two times: batches, and commits (time, ms).

    Records are those that came in, which is the same for all. The rows of batches that began meanwhile would be one
    batch more or less of sixty, and three percent are asked for.
    """
    return replace(
        taken,
        records=round((end - start) * per_second),
        seconds=end - start,
        batches=[batch for batch in taken.batches if start <= batch.at < end],
        commits_ms=[ms for at, ms in commits if start <= at < end],
    )
