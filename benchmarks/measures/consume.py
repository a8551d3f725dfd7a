"""Consume: records per second of a whole topic, by assigned consumers, from the page cache."""

from __future__ import annotations

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, watched
from benchmarks.plan import SIZES
from benchmarks.results import Case
from benchmarks.targets import CONSUME_RATE

SMALL_FETCH_BYTES = 16 * 1024


def run(bench: Bench, flavour: Flavour) -> None:
    broker = bench.warm(flavour)
    for size in SIZES:
        records = bench.plan.java_records(size)
        topic = bench.fill(broker, records, size)
        bench.settle()
        # Uncounted, and in small bites: thousands of requests, so that Kafka's JVM compiles its fetch path.
        clients.confluent_consume(broker.bootstrap, topic, records=records, fetch_bytes=SMALL_FETCH_BYTES)

        with watched(broker) as usage:
            rate = clients.java_consumer(broker.bootstrap, topic, records=records)
        bench.record(_case("java", size), flavour, rate, usage.cpu_seconds / records * 1e6)

        with watched(broker) as usage:
            rate = clients.confluent_consume(broker.bootstrap, topic, records=records)
        bench.record(_case("confluent", size), flavour, rate, usage.cpu_seconds / records * 1e6)


def _case(client: str, size: int) -> Case:
    return Case(
        key=f"consume/{client}/{size}",
        title=f"consume {SIZES[size]}, {client}",
        unit="rec/s",
        record_bytes=size,
        target=CONSUME_RATE,
    )
