"""What is in a pipeline's topics, as a reader of committed records finds it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from onceflow.client.settings import ClientSettings
from onceflow.pipelines.job import BATCH_HEADER
from onceflow.pipelines.judging import Written
from onceflow.pipelines.reference import Raw

__all__ = ["NotRead", "Place", "everything_in", "raw_in", "written_in"]

Place = tuple[str, int]
POLL_S: Final = 0.2
POLL_MAX: Final = 10_000
ASK_S: Final = 10.0


class NotRead(Exception):
    """The end of a partition was not reached in time."""


def everything_in(settings: ClientSettings, ends: Mapping[Place, int], timeout_s: float) -> Iterator[Any]:
    """The messages of all partitions, up to their ends: `confluent_kafka.Message`s. Raises `NotRead`."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    deadline = time.monotonic() + timeout_s
    consumer = Consumer(
        settings.librdkafka(
            error_cb=lambda _: None,
            group_id="onceflow-final-read",
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="error",
        )
    )
    unread = {place for place, end in ends.items() if end > 0}
    try:
        consumer.assign([TopicPartition(*place, 0) for place in unread])
        while unread:
            if time.monotonic() > deadline:
                names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(unread))
                raise NotRead(f"{names} could not be read to the end within {timeout_s:g} s")
            for message in consumer.consume(POLL_MAX, timeout=POLL_S):
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard((message.topic(), message.partition()))
                elif not error.retriable() and error.code() != KafkaError._ALL_BROKERS_DOWN:
                    raise KafkaException(error)
    finally:
        consumer.close()


def raw_in(message: Any, prefix: str = "") -> Raw:
    _, timestamp = message.timestamp()
    topic = message.topic().removeprefix(prefix)
    return Raw(timestamp, topic, message.partition(), message.offset(), message.key(), message.value())


def written_in(message: Any, prefix: str = "") -> Written:
    topic = message.topic().removeprefix(prefix)
    batch = _batch(message.headers())
    return Written(topic, message.partition(), message.offset(), message.key(), message.value(), batch)


def _batch(headers: list[tuple[str, bytes | None]] | None) -> int | None:
    """None unless there is one such header, and it is a number."""
    found = [value for name, value in headers or () if name == BATCH_HEADER]
    return int(found[0]) if len(found) == 1 and found[0] is not None and found[0].isdigit() else None
