"""What is in a pipeline's topics, as a reader of committed records finds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onceflow.client.final_read import NotRead, committed_messages
from onceflow.client.settings import ClientSettings
from onceflow.digits import whole_number_of
from onceflow.pipelines.job import BATCH_HEADER
from onceflow.pipelines.judging import Written
from onceflow.pipelines.reference import Raw

__all__ = ["NotRead", "Place", "everything_in", "raw_in", "written_in"]

Place = tuple[str, int]


def everything_in(settings: ClientSettings, ends: Mapping[Place, int], timeout_s: float) -> Iterator[Any]:
    """The messages of all partitions that have any, by their ends: `confluent_kafka.Message`s. Raises `NotRead`."""
    return committed_messages(settings, [place for place, end in ends.items() if end > 0], timeout_s)


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
    if len(found) != 1 or found[0] is None:
        return None
    return whole_number_of(found[0].decode("utf-8", "replace"))
