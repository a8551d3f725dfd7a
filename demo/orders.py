"""The orders of the demo: their topics, who writes them, and where everybody's history is kept."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from onceflow.errors import OnceflowError
from onceflow.verify.history import Outcome, Record, Recorder

CUSTOMERS = 200
SOURCE_PARTITIONS = 2
WRITE_SIZE = 2_000
"""Orders that are written, and acknowledged, together."""


@dataclass(frozen=True, kw_only=True)
class Names:
    app_id: str
    orders: str
    copies: str
    counts: str

    @classmethod
    def with_ending(cls, ending: str) -> Names:
        return cls(
            app_id=f"copy-and-count{ending}",
            orders=f"orders{ending}",
            copies=f"orders-copied{ending}",
            counts=f"orders-per-customer{ending}",
        )

    @property
    def outputs(self) -> dict[str, int]:
        """With their numbers of partitions."""
        return {self.copies: 4, self.counts: 2}

    @property
    def topics(self) -> dict[str, int]:
        return {self.orders: SOURCE_PARTITIONS, **self.outputs}


class Chronicles:
    """Where everybody keeps a history of their own. All times count from the same moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zero = time.monotonic()
        folder.mkdir()

    def path(self, process: str) -> Path:
        return self.folder / f"{process}.jsonl"

    def recorder(self, process: str) -> Recorder:
        return Recorder(self.path(process), process, self.zero)


def order(number: int) -> Record:
    """Some customers order more than others."""
    return Record(id=f"order-{number}", key=f"customer-{number // 7 % (1 + number % CUSTOMERS)}")


class Shop:
    """Writes the orders, before anything is killed."""

    def __init__(self, bootstrap: str, topic: str, record: Recorder) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})
        self._topic = topic
        self._record = record
        self._problem: KafkaError | None = None

    def write(self, orders: int) -> None:
        for first in range(0, orders, WRITE_SIZE):
            self._write(range(first, min(orders, first + WRITE_SIZE)))

    def _write(self, numbers: range) -> None:
        placed = [(number % SOURCE_PARTITIONS, order(number)) for number in numbers]
        op = self._record.begin("write", records=[[self._topic, partition, each.id] for partition, each in placed])
        for partition, each in placed:
            self._producer.produce(self._topic, each.to_bytes(), partition=partition, on_delivery=self._delivered)
        left = self._producer.flush(60)
        if self._problem is not None or left:
            raise OnceflowError(f"the orders could not be written: {self._problem or f'{left} of them after a minute'}")
        self._record.end(op, Outcome.OK)

    def _delivered(self, problem: KafkaError | None, _: Message) -> None:
        self._problem = self._problem or problem
