"""The load of confluent-kafka: `python -m benchmarks.confluent_client COMMAND BOOTSTRAP OPTIONS`.

A process of its own, as the Java clients are: the progress bar and the memory sampler of the benchmark share
no interpreter lock with it. A command prints one JSON object; its clock starts once the client is connected.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

SILENCE_SECONDS_MAX = 30.0
CONSUME_BATCH = 10_000
TRANSACTION_RECORD_BYTES = 100
WARM_UP_SECONDS = 2  # of latency: connections, the producer id, and the JVM's compiler


def produce(bootstrap: str, *, topic: str, records: int, size: int, idempotent: bool) -> dict[str, Any]:
    """Send as fast as the client can; done when the last record is acknowledged."""
    failures: list[str] = []
    producer = _producer(bootstrap, idempotent, failures)
    producer.list_topics(topic, timeout=30)
    payload = random.Random(0).randbytes(size)
    send, poll = producer.produce, producer.poll
    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                send(topic, payload)
                break
            except BufferError:
                poll(0.01)
        if number % 1_000 == 0:
            poll(0)
    unsent = producer.flush(120)
    seconds = time.perf_counter() - started
    if unsent or failures:
        raise SystemExit(f"{unsent} records left, {len(failures)} failed: {failures[:1]}")
    return {"records": records, "seconds": seconds}


def latency(bootstrap: str, *, topic: str, rate: int, seconds: int, size: int) -> dict[str, Any]:
    """Send at an even rate without lingering; the times from produce() to the delivery callback."""
    failures: list[str] = []
    producer = _producer(bootstrap, True, failures, **{"linger.ms": 0, "socket.nagle.disable": True})
    producer.list_topics(topic, timeout=30)
    payload = random.Random(0).randbytes(size)
    times_ms: list[float] = []
    stopped = threading.Event()

    def serve_callbacks() -> None:
        while not stopped.is_set():
            producer.poll(0.1)

    poller = threading.Thread(target=serve_callbacks)
    poller.start()
    warm_up = rate * WARM_UP_SECONDS
    try:
        begin = time.perf_counter()
        for number in range(warm_up + rate * seconds):
            delay = begin + number / rate - time.perf_counter()
            if delay > 0:
                time.sleep(delay)
            sent = time.perf_counter()

            def delivered(
                error: KafkaError | None, _: Message, sent: float = sent, counts: bool = number >= warm_up
            ) -> None:
                if error is not None:
                    failures.append(str(error))
                elif counts:
                    times_ms.append((time.perf_counter() - sent) * 1e3)

            producer.produce(topic, payload, on_delivery=delivered)
        unsent = producer.flush(60)
    finally:
        stopped.set()
        poller.join()
    if unsent or failures:
        raise SystemExit(f"{unsent} records left, {len(failures)} failed: {failures[:1]}")
    percentiles = statistics.quantiles(times_ms, n=100)
    return {"records": len(times_ms), "p50_ms": percentiles[49], "p99_ms": percentiles[98]}


def commit(bootstrap: str, *, topic: str, partitions: int, warm_up_seconds: float, seconds: float) -> dict[str, Any]:
    """Small transactions back to back, a record for each partition; how long commit_transaction() takes once warm."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    payload = random.Random(0).randbytes(TRANSACTION_RECORD_BYTES)
    committed = 0
    times_ms: list[float] = []
    begin = time.perf_counter() + warm_up_seconds
    end = begin + seconds
    while time.perf_counter() < end:
        producer.begin_transaction()
        for partition in range(partitions):
            producer.produce(topic, payload, partition=partition)
        asked = time.perf_counter()
        producer.commit_transaction(60)
        answered = time.perf_counter()
        committed += 1
        if begin <= asked and answered <= end:
            times_ms.append((answered - asked) * 1e3)
    percentiles = statistics.quantiles(times_ms, n=100)
    return {
        "committed": committed,
        "transactions": len(times_ms),
        "seconds": seconds,
        "p50_ms": percentiles[49],
        "p99_ms": percentiles[98],
    }


def consume(bootstrap: str, *, topic: str, records: int, tail: int, fetch_bytes: int, isolation: str) -> dict[str, Any]:
    """Read `records` from the beginning of all partitions; with `tail`, the last that many of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",  # librdkafka wants a name even when no group is joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "max.partition.fetch.bytes": fetch_bytes,
            "isolation.level": isolation,
            # By default librdkafka rests for a second whenever 100,000 records wait for the application:
            # at 100 B that would be most of what is measured.
            "fetch.queue.backoff.ms": 1,
        }
    )
    try:
        places = []
        for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            places.append(TopicPartition(topic, partition, max(low, high - tail) if tail else low))
        wanted = tail or records
        started = time.perf_counter()
        consumer.assign(places)
        size = _read(consumer, wanted)
        return {"records": wanted, "bytes": size, "seconds": time.perf_counter() - started}
    finally:
        consumer.close()


def _read(consumer: Consumer, wanted: int) -> int:
    """Poll until that many records were there; their bytes."""
    records = size = 0
    last = time.monotonic()
    while records < wanted:
        batch = consumer.consume(min(CONSUME_BATCH, wanted - records), timeout=1.0)
        for message in batch:
            if message.error() is not None:
                raise SystemExit(f"consumer: {message.error()}")
            size += len(message.value() or b"")
        records += len(batch)
        if batch:
            last = time.monotonic()
        elif time.monotonic() - last > SILENCE_SECONDS_MAX:
            raise SystemExit(f"no record for {SILENCE_SECONDS_MAX:.0f} s; {records} of {wanted} had arrived")
    return size


def _producer(bootstrap: str, idempotent: bool, failures: list[str], **more: Any) -> Producer:
    def failed(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": idempotent,
            "delivery.report.only.error": not more,
            "on_delivery": failed,
            **more,
        }
    )


Command = Callable[..., dict[str, Any]]
COMMANDS: dict[str, Command] = {
    "produce": produce,
    "latency": latency,
    "consume": consume,
    "commit": commit,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.confluent_client")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("bootstrap")
    parser.add_argument("options", help="the keyword arguments of the command, as JSON")
    arguments = parser.parse_args()
    command = COMMANDS[arguments.command]
    json.dump(command(arguments.bootstrap, **json.loads(arguments.options)), sys.stdout)


if __name__ == "__main__":
    main()
