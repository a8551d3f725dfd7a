"""Produce: records per second at two sizes, idempotent or not, from Java and from librdkafka; acks=all.

Afterwards the log is asked how many records it holds: a rate of records that did not arrive would be no rate.
"""

from __future__ import annotations

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, RunningBroker, watched
from benchmarks.plan import LARGE, SIZES
from benchmarks.results import Case
from benchmarks.targets import PRODUCE_CPU, PRODUCE_RATE


def run(bench: Bench, flavour: Flavour) -> None:
    broker = bench.warm(flavour)
    for client in ("java", "confluent"):
        for size in SIZES:
            for idempotent in (False, True):
                measure(bench, flavour, broker, case(client, size, idempotent), client, idempotent)


def run_fsync(bench: Bench, flavour: Flavour) -> None:
    """Ours with each acknowledged write on disk, beside Kafka, which leaves that to the kernel; no target."""
    beside = case("java", LARGE, True)
    fsync = Case(
        key=f"{beside.key}/fsync",
        title=f"{beside.title}; fsync, Kafka without",
        unit=beside.unit,
        record_bytes=LARGE,
        kafka_key=beside.key,
    )
    # No warm-up: there is no JVM in it, and Kafka's side comes from the warm broker above.
    with bench.fresh(flavour) as broker:
        measure(bench, flavour, broker, fsync, "java", True)


def case(client: str, size: int, idempotent: bool) -> Case:
    return Case(
        key=f"produce/{client}/{size}/{'idempotent' if idempotent else 'plain'}",
        title=f"produce {SIZES[size]}, {client}{', idempotent' if idempotent else ''}",
        unit="rec/s",
        record_bytes=size,
        target=PRODUCE_RATE,
        cpu_target=PRODUCE_CPU,
    )


def measure(bench: Bench, flavour: Flavour, broker: RunningBroker, case: Case, client: str, idempotent: bool) -> None:
    size = case.record_bytes
    topic = bench.topic(broker)
    bench.settle()
    with watched(broker) as usage:
        if client == "java":
            records = bench.plan.java_records(size)
            rate = clients.producer_performance(
                broker.bootstrap, topic, records=records, size=size, enable_idempotence=str(idempotent).lower()
            ).records_per_s
        else:
            records = bench.plan.confluent_records(size)
            rate = clients.confluent_produce(broker.bootstrap, topic, records=records, size=size, idempotent=idempotent)
    stored = clients.count_records(broker.bootstrap, topic)
    # Without idempotence a retry may write twice; it may never lose.
    if stored != records and (idempotent or stored < records):
        raise clients.ClientError(f"{case.title}: {records} records acknowledged, {stored} in the log")
    bench.record(case, flavour, rate, usage.cpu_seconds / records * 1e6)
