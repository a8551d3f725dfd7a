"""What the tests of `consume_into` share: a topic that is written to, tables where it lands, and what must be in them.

The function under test writes each record twice: as a row of `applied`, which has no key, so that a record that is
applied twice is seen twice; and into `counted`, a number per key. In the end `applied` is exactly what the producer was
told is in the topic and committed, and `counted` its sum.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Producer

from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.sinks.consuming import Consumed, Record, consume_into
from tests.support.raw import Wire
from tests.support.spark import SparkProcess
from tests.support.waiting import eventually

__all__ = ["Consumer", "Landed", "Topic", "land", "wait_for_rows"]

PROGRAM = "tests.sinks.programs.consuming_job"
ROOT = Path(__file__).parents[2]
QUICK_GROUP = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300}
"""A member that died is missed soon. The brokers of these tests allow it."""


def land(cursor: Any, records: list[Record]) -> None:
    mark = "%s" if isinstance(cursor, psycopg.Cursor) else "?"
    for record in records:
        assert record.key is not None
        assert record.value is not None
        cursor.execute(
            f"INSERT INTO applied VALUES ({', '.join([mark] * 4)})",
            [record.partition, record.offset, record.key.decode(), record.value.decode()],
        )
        cursor.execute(
            f"INSERT INTO counted AS known VALUES ({mark}, 1) "
            "ON CONFLICT (name) DO UPDATE SET number = known.number + 1",
            [record.key.decode()],
        )


class Row(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str


class Landed:
    """A database, as somebody sees it who is not the consumer."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.execute("CREATE TABLE applied (partition_number int, offset_number bigint, name text, value text)")
        self.execute("CREATE TABLE counted (name varchar(20) PRIMARY KEY, number bigint)")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            cursor = connection.execute(statement)
            rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)) as connection:
                yield connection
        else:
            with psycopg.connect(self.url) as connection:
                yield connection

    def rows(self) -> list[Row]:
        return sorted(Row(*row) for row in self.execute("SELECT * FROM applied"))

    def count(self) -> int:
        return int(self.execute("SELECT count(*) FROM applied")[0][0])

    def positions(self) -> dict[int, tuple[int, int]]:
        """By partition, the next offset and the epoch."""
        found = self.execute('SELECT "partition", next_offset, epoch FROM onceflow_offsets')
        return {partition: (at, epoch) for partition, at, epoch in found}

    def check(self, topic: Topic) -> None:
        """Everything that was committed to the topic is here once, and nothing else."""
        assert self.rows() == sorted(topic.committed)
        numbers = {name: int(number) for name, number in self.execute("SELECT name, number FROM counted")}
        assert numbers == Counter(row.key for row in topic.committed)


class Topic:
    """A topic, and what the broker has said is in it."""

    def __init__(self, bootstrap: str, name: str, *, partitions: int = 2) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.partitions = partitions
        self.committed: list[Row] = []
        with Wire(bootstrap) as wire:
            wire.create_topic(name, partitions)

    def write(self, count: int, *, partition: int | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2})
        self.committed += self._produce(producer, count, partition)

    @contextmanager
    def transaction(self, count: int, *, aborted: bool = False) -> Iterator[None]:
        """Open, with its records at the broker, while the block runs."""
        name = f"{self.name}-{len(self.committed)}-{aborted}"
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 2, "transactional.id": name})
        producer.init_transactions(30)
        producer.begin_transaction()
        rows = self._produce(producer, count, None)
        yield
        if aborted:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            self.committed += rows
        eventually(self._is_decided, "the markers are written, which the answer does not wait for")

    def _is_decided(self) -> bool:
        admin = Admin(ClientSettings(bootstrap=self.bootstrap))
        places = [(self.name, partition) for partition in range(self.partitions)]
        return admin.offsets(places, read_committed=True) == admin.offsets(places)

    def _produce(self, producer: Producer, count: int, partition: int | None) -> list[Row]:
        delivered: list[Row] = []

        def on_delivery(error: Any, message: Any) -> None:
            assert error is None, error
            place = (message.partition(), message.offset())
            delivered.append(Row(*place, message.key().decode(), message.value().decode()))

        for number in range(count):
            producer.produce(
                self.name,
                key=f"key {number % 7}",
                value=f"{number}",
                partition=number % self.partitions if partition is None else partition,
                on_delivery=on_delivery,
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        return delivered

    def consume(self, url: str, function: Any = land, **settings: Any) -> Consumed:
        """In this process, to the end of what is there."""
        given = {"group": self.name, "bootstrap_servers": self.bootstrap, "until_now": True, **settings}
        return consume_into(url, self.name, function, **given)


class Consumer(SparkProcess):
    """`consume_into` in a process of its own, which says what it does; see `programs/consuming_job.py`."""

    def __init__(self, topic: Topic, url: str, folder: Path, **options: Any) -> None:
        self.folder = folder
        given = {
            "url": url,
            "topic": topic.name,
            "bootstrap": topic.bootstrap,
            "folder": str(folder),
            "kafka": QUICK_GROUP,
            **options,
        }
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
        super().__init__([sys.executable, "-m", PROGRAM, json.dumps(given)], folder, environment)

    def go_on(self) -> None:
        """Where it was told to pause."""
        (self.folder / "go on").touch()

    def end(self) -> None:
        """As `stop` is meant: after the transaction that is running."""
        (self.folder / "stop").touch()
        assert self.wait(60) == 0, self.log[-4000:]


def wait_for_rows(landed: Landed, topic: Topic, *, timeout_s: float = 60) -> None:
    """Until as many are there as were committed; `check` then says whether they are the same."""
    wanted = len(topic.committed)
    eventually(lambda: landed.count() >= wanted, f"{wanted} rows are there", timeout_s=timeout_s, every_s=0.1)
