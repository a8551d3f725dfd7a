"""What was measured: cases, samples, and the comparison that comes of them.

A case is one row of the table. Every round adds a sample for each broker; the comparison takes medians, and
the ratio's range over the rounds tells how much of it is noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from benchmarks.targets import OwnTarget, Target


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row: what, in which unit, and what we want of it."""

    key: str
    title: str
    unit: str
    record_bytes: int = 0
    """Set for rates: lets `rec/s` be shown as MB/s."""

    target: Target | OwnTarget | None = None
    cpu_target: Target | None = None
    kafka_key: str = ""
    """The case whose Apache Kafka samples this one is compared with; its own if empty."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    case: str
    broker: str
    round: int
    value: float
    cpu_s_per_million: float | None = None


Metric = Callable[[Sample], float | None]


def value(sample: Sample) -> float | None:
    return sample.value


def cpu(sample: Sample) -> float | None:
    return sample.cpu_s_per_million


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Medians of one metric, ours over Kafka's; None where something was not measured."""

    kafka: float | None
    ours: float | None
    ratios: tuple[float, ...]
    """Per round, sorted."""

    target: Target | OwnTarget | None
    own: tuple[float, ...] = ()
    """Ours alone per round, sorted: the noise in what an `OwnTarget` is about."""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.kafka if self.kafka and self.ours is not None else None

    @property
    def met(self) -> bool | None:
        if isinstance(self.target, OwnTarget):
            return None if self.ours is None else self.target.met_by(self.ours)
        return None if self.target is None or self.ratio is None else self.target.met_by(self.ratio)


@dataclass
class Results:
    cases: dict[str, Case] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, case: Case, sample: Sample) -> None:
        self.cases[case.key] = case
        self.samples.append(sample)

    def rows(self) -> Iterator[tuple[Case, Comparison, Comparison]]:
        """Each case with the comparison of its value and that of its broker CPU."""
        for case in self.cases.values():
            yield case, self._compare(case, value, case.target), self._compare(case, cpu, case.cpu_target)

    def taken(self, key: str, broker: str, metric: Metric) -> dict[int, list[float]]:
        """The values of one metric by round."""
        by_round: dict[int, list[float]] = {}
        for sample in self.samples:
            taken = metric(sample)
            if sample.case == key and sample.broker.startswith(broker) and taken is not None:
                by_round.setdefault(sample.round, []).append(taken)
        return by_round

    def median(self, key: str, broker: str, metric: Metric) -> float | None:
        values = [taken for one_round in self.taken(key, broker, metric).values() for taken in one_round]
        return statistics.median(values) if values else None

    def _compare(self, case: Case, metric: Metric, target: Target | OwnTarget | None) -> Comparison:
        kafka_key = case.kafka_key or case.key
        kafka = self.taken(kafka_key, "kafka", metric)
        ours = self.taken(case.key, "onceflow", metric)
        ratios = (
            statistics.median(ours[number]) / statistics.median(kafka[number])
            for number in kafka.keys() & ours.keys()
            if statistics.median(kafka[number])
        )
        return Comparison(
            kafka=self.median(kafka_key, "kafka", metric),
            ours=self.median(case.key, "onceflow", metric),
            ratios=tuple(sorted(ratios)),
            target=target,
            own=tuple(sorted(statistics.median(values) for values in ours.values())),
        )
