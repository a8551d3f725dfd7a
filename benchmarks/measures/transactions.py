"""What transactions cost a producer at full speed: one each 100 ms, beside the same without (idempotent).

Runs without and with transactions take turns on the same broker, now one first and now the other, and each pair gives
a share: so the machine's mood is in both. What the client sends while its JVM is cold is not counted. It commits in the
thread that sends, so a commit that takes long is time without sending.
"""

from __future__ import annotations

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, RunningBroker, watched
from benchmarks.plan import LARGE, SIZES
from benchmarks.results import Case
from benchmarks.targets import SHARE_IN_TRANSACTIONS

TRANSACTION_MS = 100
WITHOUT = 0
FIRST_RECORDS = 50_000
WARM_UP_PART = 4


def run(bench: Bench, flavour: Flavour) -> None:
    broker = bench.warm(flavour)
    # Uncounted: the coordinator's topic comes to be.
    _produce(bench, broker, FIRST_RECORDS, LARGE, TRANSACTION_MS)
    for size in SIZES:
        for number in range(bench.plan.transaction_pairs):
            order = (WITHOUT, TRANSACTION_MS) if number % 2 == 0 else (TRANSACTION_MS, WITHOUT)
            _pair(bench, flavour, broker, size, order)


def _pair(bench: Bench, flavour: Flavour, broker: RunningBroker, size: int, order: tuple[int, int]) -> None:
    records = bench.plan.java_records(size)
    rates, cpu = {}, {}
    for transaction_ms in order:
        bench.settle()
        with watched(broker) as usage:
            rates[transaction_ms] = _produce(bench, broker, records, size, transaction_ms)
        cpu[transaction_ms] = usage.cpu_seconds / (records + records // WARM_UP_PART) * 1e6
    bench.record(_rate_case(size), flavour, rates[TRANSACTION_MS], cpu[TRANSACTION_MS])
    bench.record(_share_case(size), flavour, rates[TRANSACTION_MS] / rates[WITHOUT] * 100)


def _produce(bench: Bench, broker: RunningBroker, records: int, size: int, transaction_ms: int) -> float:
    topic = bench.topic(broker)
    warm_up = records // WARM_UP_PART
    filled = clients.java_fill(
        broker.bootstrap, topic, records=records, size=size, transaction_ms=transaction_ms, warm_up=warm_up
    )
    if filled.committed != warm_up + records:
        raise clients.ClientError(f"{warm_up + records} records were to be committed, {filled.committed} were")
    return filled.records_per_s


def _rate_case(size: int) -> Case:
    return Case(
        key=f"transactions/{size}/rate",
        title=f"produce {SIZES[size]}, java, a transaction each {TRANSACTION_MS} ms",
        unit="rec/s",
        record_bytes=size,
    )


def _share_case(size: int) -> Case:
    return Case(
        key=f"transactions/{size}/share",
        title=f"{SIZES[size]} in transactions, of the rate without",
        unit="%",
        target=SHARE_IN_TRANSACTIONS if size == LARGE else None,
    )
