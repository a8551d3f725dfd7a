"""What a driver program is to do, as one argument of it: this module is all that both sides share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

EXACTLY_ONCE, AT_LEAST_ONCE, SPARK = "exactly_once", "at_least_once", "spark"
ENGINES = {
    EXACTLY_ONCE: "ours, exactly once",
    AT_LEAST_ONCE: "ours, at least once",
    SPARK: "Spark's own",
}
MAP, COUNT = "map", "count"
JOBS = {MAP: "map", COUNT: "keyed count"}


@dataclass(frozen=True, kw_only=True)
class Query:
    """One streaming query of the job."""

    source: str
    target: str
    per_trigger: int
    """maxOffsetsPerTrigger."""

    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Job:
    engine: str
    kind: str
    bootstrap: str
    jars: str
    """For `spark.jars`: what Spark's own engine needs, and ours does not."""

    warm_up: Query
    measured: Query
    trigger_seconds: float = 0.0
    """0: the query takes all that there is and ends; else a processing-time trigger, and it runs until told."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Job:
        fields = json.loads(argument)
        warm_up, measured = (Query(**fields.pop(name)) for name in ("warm_up", "measured"))
        return cls(warm_up=warm_up, measured=measured, **fields)
