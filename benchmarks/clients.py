"""The clients that load a broker: each a process of its own, the same for both brokers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.kafka_jars import classpath, java

CLIENT_SECONDS_MAX = 300
JAVA_HEAP = "-Xmx512M"  # what kafka-producer-perf-test.sh gives it
CONSUMER_SOURCE = Path(__file__).with_name("AssignedConsumerPerformance.java")
COMMIT_SOURCE = Path(__file__).with_name("TransactionPerformance.java")
FILL_SOURCE = Path(__file__).with_name("TransactionalFill.java")
ROOT = Path(__file__).resolve().parents[1]
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
"""librdkafka's default, and that of the Java consumer."""
QUIET = {"log_level": 3}  # errors only: librdkafka writes past the progress bar

SUMMARY = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec .*?"
    r"(?P<p50>[\d.]+) ms 50th, .*? (?P<p99>[\d.]+) ms 99th",
    re.MULTILINE,
)


class ClientError(RuntimeError):
    """A client ended with an error, or did not do what it was asked to."""


@dataclass(frozen=True)
class Produced:
    """What ProducerPerformance reports."""

    records_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Committed:
    """What a client that commits small transactions reports."""

    committed: int
    """All of them, those of the warm-up too."""

    transactions_per_s: float
    p50_ms: float
    p99_ms: float


def producer_performance(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    size: int,
    throughput: int = -1,
    **properties: object,
) -> Produced:
    """Kafka's own load generator, its clock started after the producer. Properties have _ for the dots."""
    settings = [f"{name.replace('_', '.')}={value}" for name, value in properties.items()]
    done = _run(
        *(java(), JAVA_HEAP, "-cp", classpath(), "org.apache.kafka.tools.ProducerPerformance"),
        *("--topic", topic, "--num-records", records, "--record-size", size, "--throughput", throughput),
        *("--bootstrap-server", bootstrap, "--command-property", "acks=all", *settings),
    )
    # The last line sums up; those before it are five-second windows without percentiles.
    found = list(SUMMARY.finditer(done.stdout))
    if not found or int(found[-1]["records"]) != records:
        raise ClientError(f"ProducerPerformance did not send {records} records:\n{_tail(done)}")
    return Produced(*(float(found[-1][name]) for name in ("rate", "p50", "p99")))


def java_consumer(bootstrap: str, topic: str, *, records: int, isolation: str = READ_UNCOMMITTED) -> float:
    """Records per second of the Java consumer beside this file."""
    return _rate(_java(CONSUMER_SOURCE, bootstrap, topic, records, isolation))


def java_commits(
    bootstrap: str, topic: str, *, partitions: int, producers: int, warm_up_seconds: float, seconds: float
) -> Committed:
    """Transactions of one record for each partition, by that many producers at once."""
    return _committed(_java(COMMIT_SOURCE, bootstrap, topic, partitions, producers, warm_up_seconds, seconds))


@dataclass(frozen=True)
class Filled:
    committed: int
    """All records but aborted ones, those of the warm-up too."""

    records_per_s: float


def java_fill(
    bootstrap: str,
    topic: str,
    *,
    records: int,
    size: int,
    transaction_ms: int,
    warm_up: int = 0,
    aborting: bool = False,
) -> Filled:
    """Write so many records in transactions (0: without), and `warm_up` more before the clock starts."""
    done = _java(FILL_SOURCE, bootstrap, topic, warm_up, records, size, transaction_ms, str(aborting).lower())
    return Filled(int(done["committed"]), _rate(done))


def confluent_produce(bootstrap: str, topic: str, *, records: int, size: int, idempotent: bool) -> float:
    """Records per second of librdkafka's producer."""
    return _rate(_confluent("produce", bootstrap, topic=topic, records=records, size=size, idempotent=idempotent))


def confluent_consume(
    bootstrap: str,
    topic: str,
    *,
    records: int = 0,
    tail: int = 0,
    fetch_bytes: int = 1 << 20,
    isolation: str = READ_COMMITTED,
) -> float:
    """Records per second of librdkafka's consumer: all of a topic, or the tail of its partition 0."""
    what = {"records": records, "tail": tail, "fetch_bytes": fetch_bytes, "isolation": isolation}
    return _rate(_confluent("consume", bootstrap, topic=topic, **what))


def confluent_commits(
    bootstrap: str, topic: str, *, partitions: int, warm_up_seconds: float, seconds: float
) -> Committed:
    """Transactions of one record for each partition, by one producer."""
    what = {"partitions": partitions, "warm_up_seconds": warm_up_seconds, "seconds": seconds}
    return _committed(_confluent("commit", bootstrap, topic=topic, **what))


def confluent_latency(bootstrap: str, topic: str, *, rate: int, seconds: int, size: int) -> tuple[float, float]:
    """Milliseconds from produce() to the delivery callback, p50 and p99."""
    result = _confluent("latency", bootstrap, topic=topic, rate=rate, seconds=seconds, size=size)
    return result["p50_ms"], result["p99_ms"]


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def count_records(bootstrap: str, topic: str) -> int:
    """How many records the log holds, by the offsets at both ends."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "benchmark", **QUIET})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in partitions]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


def _java(source: Path, *arguments: object) -> dict[str, Any]:
    """Run one of the programs beside this file, which print one JSON object."""
    done = _run(java(), JAVA_HEAP, "-cp", classpath(), source, *arguments)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _confluent(command: str, bootstrap: str, **options: object) -> dict[str, Any]:
    done = _run(sys.executable, "-m", "benchmarks.confluent_client", command, bootstrap, json.dumps(options))
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _committed(result: dict[str, Any]) -> Committed:
    rate = result["transactions"] / result["seconds"]
    return Committed(result["committed"], rate, result["p50_ms"], result["p99_ms"])


def _rate(result: dict[str, Any]) -> float:
    return float(result["records"] / result["seconds"])


def _run(*command: object) -> subprocess.CompletedProcess[str]:
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"{_name(arguments)} was not done after {CLIENT_SECONDS_MAX} s") from error
    if done.returncode != 0:
        raise ClientError(f"{_name(arguments)} ended with {done.returncode}:\n{_tail(done)}")
    return done


def _name(arguments: list[str]) -> str:
    return "the Java client" if arguments[0] == java() else "the confluent-kafka client"


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join([*done.stdout.strip().splitlines()[-3:], *done.stderr.strip().splitlines()[-9:]])
