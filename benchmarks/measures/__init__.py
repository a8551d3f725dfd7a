"""What is measured: one module each, in the order of the run. `--only` takes these names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.brokers import KAFKA, ONCEFLOW, ONCEFLOW_FSYNC, Flavour
from benchmarks.measures import (
    commits,
    consume,
    growth,
    isolation,
    latency,
    memory,
    produce,
    restart,
    startup,
    transactions,
)
from benchmarks.plan import Plan


@dataclass(frozen=True)
class Measure:
    name: str
    run: Callable[[Bench, Flavour], None]
    flavours: tuple[Flavour, ...] = (KAFKA, ONCEFLOW)
    rounds: Callable[[Plan], int] = lambda plan: plan.rounds


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("startup", startup.run),
        Measure("memory", memory.run),
        Measure("produce", produce.run),
        Measure("fsync", produce.run_fsync, flavours=(ONCEFLOW_FSYNC,)),
        Measure("consume", consume.run),
        Measure("latency", latency.run),
        Measure("commits", commits.run),
        Measure("commits-fsync", commits.run_fsync, flavours=(ONCEFLOW_FSYNC,)),
        Measure("transactions", transactions.run),
        Measure("isolation", isolation.run),
        Measure("restart", restart.run, rounds=lambda plan: plan.restart_rounds),
        Measure("growth", growth.run, rounds=lambda plan: plan.growth_rounds),
    )
}
