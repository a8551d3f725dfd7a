"""Produce latency at a modest, even rate of 1 KB records: no lingering, acks=all, send to acknowledgement."""

from __future__ import annotations

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour
from benchmarks.plan import LARGE
from benchmarks.results import Case


def run(bench: Bench, flavour: Flavour) -> None:
    rate, seconds = bench.plan.latency_rate, bench.plan.latency_seconds
    broker = bench.warm(flavour)
    bench.settle()
    p50, p99 = clients.confluent_latency(
        broker.bootstrap, bench.topic(broker, partitions=1), rate=rate, seconds=seconds, size=LARGE
    )
    bench.record(_case("confluent", "p50"), flavour, p50)
    bench.record(_case("confluent", "p99"), flavour, p99)

    # Includes the first records of a cold JVM, so its p99 is higher; whole milliseconds.
    produced = clients.producer_performance(
        broker.bootstrap,
        bench.topic(broker, partitions=1),
        records=rate * seconds,
        size=LARGE,
        throughput=rate,
        linger_ms=0,
    )
    bench.record(_case("java", "p50"), flavour, produced.p50_ms)
    bench.record(_case("java", "p99"), flavour, produced.p99_ms)


def _case(client: str, percentile: str) -> Case:
    return Case(
        key=f"latency/{client}/{percentile}",
        title=f"produce latency {percentile}, {client}",
        unit="ms",
    )
