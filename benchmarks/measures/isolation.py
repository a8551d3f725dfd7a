"""read_committed against read_uncommitted, on a log written in transactions of 100 ms, and on one half aborted.

The rate is that of records of the log gone through, given to the program or not: a consumer of committed records is
sent the aborted ones too and leaves them out. So both levels go through the same bytes, and the share of one in the
other is what isolation costs.
"""

from __future__ import annotations

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, RunningBroker, watched
from benchmarks.clients import READ_COMMITTED, READ_UNCOMMITTED
from benchmarks.measures.consume import SMALL_FETCH_BYTES
from benchmarks.measures.transactions import TRANSACTION_MS
from benchmarks.plan import LARGE, SIZES
from benchmarks.results import Case

LOGS = {False: "committed log", True: "half aborted log"}
READERS = {"java": clients.java_consumer, "confluent": clients.confluent_consume}


def run(bench: Bench, flavour: Flavour) -> None:
    broker = bench.warm(flavour)
    for aborting in LOGS:
        records = bench.plan.java_records(LARGE)
        topic = bench.topic(broker)
        committed = clients.java_fill(
            broker.bootstrap, topic, records=records, size=LARGE, transaction_ms=TRANSACTION_MS, aborting=aborting
        ).committed
        bench.settle()
        # Uncounted, and in small bites: thousands of requests, so that Kafka's JVM compiles its fetch path.
        clients.confluent_consume(broker.bootstrap, topic, records=committed, fetch_bytes=SMALL_FETCH_BYTES)
        for client in READERS:
            _read_both(bench, flavour, broker, topic, client, aborting, committed)


def _read_both(
    bench: Bench, flavour: Flavour, broker: RunningBroker, topic: str, client: str, aborting: bool, committed: int
) -> None:
    held = bench.plan.java_records(LARGE)
    rates = {}
    for level, given in ((READ_UNCOMMITTED, held), (READ_COMMITTED, committed)):
        with watched(broker) as usage:
            rate = READERS[client](broker.bootstrap, topic, records=given, isolation=level)
        rates[level] = rate / given * held
        bench.record(_rate_case(client, aborting, level), flavour, rates[level], usage.cpu_seconds / held * 1e6)
    bench.record(_share_case(client, aborting), flavour, rates[READ_COMMITTED] / rates[READ_UNCOMMITTED] * 100)


def _rate_case(client: str, aborting: bool, level: str) -> Case:
    return Case(
        key=f"{_key(client, aborting)}/{level}",
        title=f"{level} {SIZES[LARGE]}, {client}, {LOGS[aborting]}",
        unit="rec/s",
        record_bytes=LARGE,
    )


def _share_case(client: str, aborting: bool) -> Case:
    return Case(
        key=f"{_key(client, aborting)}/share",
        title=f"committed of uncommitted, {client}, {LOGS[aborting]}",
        unit="%",
    )


def _key(client: str, aborting: bool) -> str:
    return f"isolation/{client}/{'half-aborted' if aborting else 'committed'}"
