"""The records that the jobs read, and whether those that they wrote are the right ones."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.kafka_jars import classpath, java

from benchmarks.clients import JAVA_HEAP, QUIET, ClientError
from benchmarks.spark_jobs.job import COUNT

FILL_SOURCE = Path(__file__).with_name("KeyedFill.java")
FILL_SECONDS_MAX = 1800.0
SILENCE_SECONDS_MAX = 15.0
"""The last transaction is committed before its markers are written; so long the end of the output is waited for."""
MESSAGES_AT_ONCE = 10_000


class Fill:
    """Kafka's own producer at work on a topic, with its defaults: 16 KB batches, idempotent, no compression."""

    def __init__(self, bootstrap: str, topic: str, *, records: int, size: int, keys: int, per_second: int = 0) -> None:
        self._records = records
        self._process = subprocess.Popen(
            [
                *(java(), JAVA_HEAP, "-cp", classpath(), str(FILL_SOURCE), bootstrap, topic),
                *map(str, (records, size, keys, per_second)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_it_sends(self) -> None:
        """Java compiles the program first, which takes seconds where something else is busy."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"sending"'):
                return
        self.wait()

    def wait(self) -> None:
        """Until everything is acknowledged."""
        assert self._process.stdout is not None
        limit = threading.Timer(FILL_SECONDS_MAX, self._process.kill)
        limit.start()
        try:
            said = self._process.stdout.read()
            self._process.wait()
        finally:
            limit.cancel()
            self.end()
        if self._process.returncode != 0 or json.loads(said.splitlines()[-1])["records"] != self._records:
            raise ClientError(f"the input could not be written:\n{said[-2000:]}")

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Output(Protocol):
    """What a job should have written."""

    def add(self, key: bytes, value: bytes) -> None: ...

    def is_complete(self) -> bool: ...

    def problem(self) -> str | None:
        """A sentence, if the output is not what it should be."""


class Copies:
    """Each record of the input once, in upper case."""

    def __init__(self, records: int) -> None:
        self._expected = records
        self._found = 0
        self._unchanged = 0

    def add(self, key: bytes, value: bytes) -> None:
        self._found += 1
        if not value.isupper():
            self._unchanged += 1

    def is_complete(self) -> bool:
        return self._found >= self._expected

    def problem(self) -> str | None:
        if self._found != self._expected:
            return f"the output has {self._found:,} visible records, and the input {self._expected:,}"
        return f"{self._unchanged:,} values are not in upper case" if self._unchanged else None


class Counts:
    """The last value of each key is how often the input has it."""

    def __init__(self, records: int) -> None:
        self._expected = records
        self._last: dict[bytes, int] = {}

    def add(self, key: bytes, value: bytes) -> None:
        self._last[key] = int(value)

    def is_complete(self) -> bool:
        return sum(self._last.values()) >= self._expected

    def problem(self) -> str | None:
        total = sum(self._last.values())
        if total == self._expected:
            return None
        return f"the last counts of {len(self._last):,} keys sum up to {total:,}, and the input has {self._expected:,}"


def expected_output(kind: str, records: int) -> Output:
    return Counts(records) if kind == COUNT else Copies(records)


def check_output(bootstrap: str, topic: str, partitions: int, expected: Output) -> None:
    """Read what is committed with librdkafka, which is neither engine's client. Raises `ClientError` if it is wrong."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "benchmark",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            **QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        _read(consumer, partitions, expected)
    finally:
        consumer.close()
    problem = expected.problem()
    if problem:
        raise ClientError(f"{topic}: {problem}")


def _read(consumer: Consumer, partitions: int, expected: Output) -> None:
    """To the end of all partitions; further, while something is missing."""
    ended: set[int] = set()
    deadline = time.monotonic() + SILENCE_SECONDS_MAX
    while time.monotonic() < deadline and not (len(ended) == partitions and expected.is_complete()):
        for message in consumer.consume(MESSAGES_AT_ONCE, timeout=0.5):
            problem, partition = message.error(), message.partition()
            assert partition is not None
            if problem is None:
                ended.discard(partition)
                expected.add(message.key() or b"", message.value() or b"")
                deadline = time.monotonic() + SILENCE_SECONDS_MAX
            elif problem.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
            else:
                raise KafkaException(problem)


def delete_topics(bootstrap: str, *topics: str) -> None:
    """Gigabytes that nobody needs any more would push the rest out of the page cache."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for deleted in admin.delete_topics(list(topics)).values():
        deleted.result(30)
