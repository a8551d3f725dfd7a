"""Cost per record as a log grows: one topic of one partition is filled up to each mark, and probed there.

The probe at a mark produces the same number of records from there on, then reads the last records a few
times. A broker whose costs depend on what the log already holds shows it as a slope.
"""

from __future__ import annotations

import statistics

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, RunningBroker, watched
from benchmarks.plan import SMALL, Plan
from benchmarks.results import Case


def run(bench: Bench, flavour: Flavour) -> None:
    plan = bench.plan
    broker = bench.warm(flavour)
    # Uncounted: what the probe is made of, once, for Kafka's compiler.
    warm_up = bench.topic(broker, partitions=1)
    _probe_produce(plan, broker, warm_up)
    _probe_fetch(plan, broker, warm_up)
    topic = bench.topic(broker, partitions=1)
    held = 0
    for mark in plan.growth_marks:
        if mark > held:
            bench.fill(broker, mark - held, SMALL, topic)
        _probe(bench, flavour, broker, topic, mark)
        held = mark + plan.growth_probe


def _probe(bench: Bench, flavour: Flavour, broker: RunningBroker, topic: str, mark: int) -> None:
    plan = bench.plan
    bench.settle()
    with watched(broker) as usage:
        rate = _probe_produce(plan, broker, topic)
    bench.record(_case("produce", mark), flavour, rate, usage.cpu_seconds / plan.growth_probe * 1e6)

    with watched(broker) as usage:
        rate = _probe_fetch(plan, broker, topic)
    read = plan.growth_tail * plan.growth_tail_reads
    bench.record(_case("fetch", mark), flavour, rate, usage.cpu_seconds / read * 1e6)


def _probe_produce(plan: Plan, broker: RunningBroker, topic: str) -> float:
    return clients.confluent_produce(broker.bootstrap, topic, records=plan.growth_probe, size=SMALL, idempotent=True)


def _probe_fetch(plan: Plan, broker: RunningBroker, topic: str) -> float:
    reads = (
        clients.confluent_consume(broker.bootstrap, topic, tail=plan.growth_tail) for _ in range(plan.growth_tail_reads)
    )
    return statistics.median(reads)


def _case(what: str, mark: int) -> Case:
    return Case(
        key=f"growth/{what}/{mark}",
        title=f"log of {mark:,}: {'produce' if what == 'produce' else 'fetch the tail'}",
        unit="rec/s",
        record_bytes=SMALL,
    )
