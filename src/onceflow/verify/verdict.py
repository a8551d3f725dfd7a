"""What came of a run: the anomalies that were found, what kept the run from being judged, and the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceflow.verify.history import NEVER, Operation, Seen

__all__ = ["Anomaly", "Verdict"]


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """Something that exactly-once forbids, with the few operations and records that show it."""

    name: str
    """One of `anomalies.ANOMALIES`: "lost write", "duplicate", ..."""
    sentence: str
    """What happened, in words, with the names of everything in it."""
    operations: Sequence[Operation] = ()
    records: Sequence[Seen] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "anomaly": self.name,
            "sentence": self.sentence,
            "operations": [operation_to_json(each) for each in self.operations],
            "records": [[*each[:3], each.record.to_json()] for each in self.records],
        }


@dataclass(kw_only=True)
class Verdict:
    workload: str
    seed: int
    brokers: str
    """What was verified: "onceflow", "Apache Kafka at 10.0.0.1:9092", ..."""
    seconds: float
    anomalies: Sequence[Anomaly] = ()
    problems: Sequence[str] = ()
    """Why the run proves less than it should: not drained, a worker that gave up. With any of them it is not clean."""
    faults: Sequence[Operation] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Operations by kind and outcome ("commit ok": 120), and records."""

    @property
    def is_clean(self) -> bool:
        return not self.anomalies and not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "workload": self.workload,
            "seed": self.seed,
            "brokers": self.brokers,
            "seconds": round(self.seconds, 3),
            "anomalies": [each.to_json() for each in self.anomalies],
            "problems": list(self.problems),
            "counts": dict(self.counts),
            "faults": [operation_to_json(each) for each in self.faults],
        }


def operation_to_json(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "f": operation.f,
        "began": operation.began,
        "ended": None if operation.ended == NEVER else operation.ended,
        "outcome": operation.outcome.value,
        "asked": dict(operation.asked),
        "told": dict(operation.told),
    }
