"""One interface over every Kafka client that the conformance suite drives.

The scenarios (`tests/conformance/scenarios.py`) are written once against `Client`; each module here says how one real
client does it. An adapter translates names, types and the client's own errors (into `Refused`), and adds nothing: no
retries, no waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pytest

from onceflow.errors import ErrorCode

__all__ = [
    "CODECS",
    "TIMEOUT_S",
    "Client",
    "Cluster",
    "Config",
    "Reader",
    "Received",
    "Record",
    "Refused",
    "read",
    "refused",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 15.0
"""How long an adapter waits for an answer that is due at once."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record as a test sends it."""

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    """None leaves it to the client, which takes the time of sending."""
    partition: int = 0


@dataclass(frozen=True, kw_only=True)
class Received:
    """A record as a client hands it over."""

    record: Record
    offset: int
    append_time: bool
    """Is the timestamp the broker's (LogAppendTime) rather than the producer's?"""

    @property
    def value(self) -> bytes | None:
        return self.record.value


@dataclass(frozen=True, kw_only=True)
class Config:
    value: str | None
    is_default: bool


@dataclass(frozen=True, kw_only=True)
class Cluster:
    cluster_id: str | None
    controller_id: int | None
    nodes: frozenset[tuple[int, str, int]] = field(default=frozenset())
    """Node id, host and port of each."""


class Refused(Exception):
    """The broker's answer was an error code."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Reader(Protocol):
    """A consumer with one partition assigned by hand: no group, no commits."""

    def poll(self, timeout_s: float) -> list[Received]:
        """What arrives within the time, at least one record if there is any; `[]` if not."""
        ...


class Client(Protocol):
    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None, *, replication: int = 1
    ) -> None: ...
    def validate_topic(self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        """`create_topic` with validate_only: the same refusals, but nothing is created."""
        ...

    def delete_topic(self, name: str) -> None: ...
    def topics(self) -> set[str]: ...
    def partition_count(self, topic: str) -> int:
        """Zero for a topic that does not exist."""
        ...

    def topic_id(self, topic: str) -> str: ...
    def create_partitions(self, topic: str, total: int) -> None: ...
    def describe_config(self, topic: str) -> Mapping[str, Config]: ...
    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Changes some settings and leaves the others alone; None puts one back to its default."""
        ...

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        """The new start of the log. `before` -1 means: all there is."""
        ...

    def cluster(self) -> Cluster: ...
    def produce(
        self, topic: str, records: Sequence[Record], *, codec: str = "none", idempotence: bool = False, acks: int = -1
    ) -> list[int]:
        """The offset of each record."""
        ...

    def reader(
        self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500
    ) -> AbstractContextManager[Reader]: ...
    def earliest(self, topic: str, partition: int = 0) -> int: ...
    def latest(self, topic: str, partition: int = 0) -> int: ...
    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        """The first offset whose timestamp is not earlier; None if there is none."""
        ...

    def max_timestamp_offset(self, topic: str, partition: int = 0) -> int | None: ...
    def close(self) -> None: ...


def read(client: Client, topic: str, count: int, *, offset: int = 0, partition: int = 0) -> list[Received]:
    """Exactly the next `count` records of a partition from an offset on."""
    received: list[Received] = []
    with client.reader(topic, offset, partition) as reader:
        while len(received) < count:
            arrived = reader.poll(TIMEOUT_S)
            assert arrived, f"Only {len(received)} of {count} records arrived within {TIMEOUT_S} s: {received}"
            received += arrived
    return received[:count]


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """The broker refuses what happens inside, with this code."""
    with pytest.raises(Refused) as refusal:
        yield
    assert refusal.value.code == code, f"refused with {refusal.value}, not {code.name} ({code})"
