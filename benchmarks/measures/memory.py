"""Resident memory: idle after the start, and the peak while Kafka's own producer writes as fast as it can."""

import time

from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, watched
from benchmarks.plan import LARGE
from benchmarks.results import Case
from benchmarks.targets import MEMORY

IDLE = Case(key="memory/idle", title="memory, idle", unit="MB", target=MEMORY)
PEAK = Case(key="memory/peak", title="memory, peak under produce", unit="MB", target=MEMORY)


def run(bench: Bench, flavour: Flavour) -> None:
    with bench.fresh(flavour) as broker:
        time.sleep(bench.plan.idle_seconds)
        bench.record(IDLE, flavour, broker.rss_mb())
        with watched(broker) as usage:
            bench.fill(broker, bench.plan.memory_records, LARGE)
        bench.record(PEAK, flavour, usage.rss_peak_mb)
