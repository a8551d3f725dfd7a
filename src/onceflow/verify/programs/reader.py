"""A read_committed consumer that looks on: it records everything that it is shown, and how far it has been.

It reads all partitions from the beginning; a later life begins a little before the end. It takes part in no group:
what is recorded is what the brokers show, and not what a group makes of it.
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.verify.history import Outcome, Record
from onceflow.verify.programs.life import Life

POLL_S = 0.3
BEFORE_THE_END = 300
ASK_S = 10.0


class Reader:
    at_once = 500
    """Records of a read at most."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._consumer = Consumer(
            life.client_config(
                group_id=life.process,
                isolation_level="read_committed",
                enable_auto_commit=False,
                enable_auto_offset_store=False,
                auto_offset_reset="error",
                fetch_wait_max_ms=100,
                reconnect_backoff_max_ms=500,
            )
        )
        self._positions = {place: self._start(*place) for place in _places(life.settings["topics"])}
        self._consumer.assign([TopicPartition(*place, offset) for place, offset in self._positions.items()])

    def _start(self, topic: str, partition: int) -> int:
        low, high = _patiently(
            lambda: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ASK_S)
        )
        return int(low if self._life.settings["life"] == 1 else max(low, high - BEFORE_THE_END))

    def run(self) -> None:
        while not self._life.is_over:
            op = self._life.record.begin("read", isolation="read_committed")
            messages = self._consumer.consume(self.at_once, timeout=POLL_S)
            good = [each for each in messages if each.error() is None]
            for each in messages:
                if (error := each.error()) is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    problem = f"{each.topic()}-{each.partition()} no longer has a reader's position: {error}"
                    self._life.record.end(op, Outcome.FAILED, problem=problem)
                    raise KafkaException(error)
            self._life.record.end(op, Outcome.OK, **self.told(good), moved=self._moved(good))

    def told(self, messages: list[Any]) -> dict[str, Any]:
        """What is written down about what was shown."""
        return {"records": [_seen(each) for each in messages]}

    def _moved(self, messages: list[Any]) -> list[tuple[str, int, int, int]]:
        ends = {(each.topic(), each.partition()): each.offset() + 1 for each in messages}
        moved = [(*place, self._positions[place], end) for place, end in ends.items()]
        self._positions |= ends
        return moved

    def close(self) -> None:
        self._consumer.close()


def _places(topics: dict[str, int]) -> list[tuple[str, int]]:
    return [(topic, partition) for topic, count in topics.items() for partition in range(count)]


def _seen(message: Any) -> tuple[str, int, int, dict[str, Any]]:
    record = Record.from_bytes(message.value()).to_json()
    return message.topic(), message.partition(), message.offset(), record


def _patiently(ask: Any, attempts: int = 6) -> Any:
    for attempt in range(attempts):
        try:
            return ask()
        except KafkaException:
            if attempt == attempts - 1:
                raise
    raise AssertionError


def main(kind: type[Reader] = Reader) -> int:
    life = Life.begin()
    try:
        reader = kind(life)
        reader.run()
    except KafkaException as problem:
        print(problem, file=sys.stderr)
        return 1
    reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
