"""All that a consumer of committed records finds, from the beginning of partitions to their ends."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.client.settings import ClientSettings

__all__ = ["NotRead", "committed_messages"]

POLL_S: Final = 0.2
POLL_MAX: Final = 10_000
ASK_S: Final = 10.0


class NotRead(Exception):
    """The end of a partition was not reached in time."""


def committed_messages(
    settings: ClientSettings, places: Collection[tuple[str, int]], timeout_s: float
) -> Iterator[Any]:
    """`confluent_kafka.Message`s, those of a partition in order. Raises `NotRead`."""
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
    unread = set(places)
    try:
        consumer.assign([TopicPartition(*place, _first(consumer, place)) for place in unread])
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


def _first(consumer: Consumer, place: tuple[str, int]) -> int:
    low, _ = consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
    return int(low)
