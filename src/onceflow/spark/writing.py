"""How to write: the settings that `KafkaSink` and `write` share, and what a DataFrame must look like."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.spark.packed_rows import PACKED
from onceflow.spark.progress import PROGRESS_TOPIC
from onceflow.wire.compression import LEVELS, Codec

__all__ = ["EXACTLY_ONCE", "WriteSettings", "check_columns"]

EXACTLY_ONCE: Final = "exactly_once"
AT_LEAST_ONCE: Final = "at_least_once"
COLUMNS: Final = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}
"""As in Spark's Kafka sink, and the record's timestamp, which that one cannot write."""


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """Checked at construction: a wrong value is an error before anything starts."""

    bootstrap_servers: str
    topic: str | None = None
    """For all rows. Without it each row needs a `topic` column."""
    guarantee: str = EXACTLY_ONCE
    partitioning: str = "kafka"
    """"kafka": by the hash of the key, as Kafka's own producers do. "task": each task fills one partition, whatever
    the keys."""
    compression: str = "none"
    compression_level: int | None = None
    batch_bytes: int = 1_000_000
    """The largest record batch, unpacked. Kafka's default limit for topics (max.message.bytes) is 1,048,588."""
    buffer_bytes: int = 8_000_000
    """How much a task collects before it writes."""
    transaction_timeout_ms: int = 300_000
    """After this time the broker aborts a transaction whose driver is gone: so long readers may be held back. A
    micro-batch must end within it."""
    delivery_timeout_ms: int = 120_000
    """How long a task tries to have a record batch acknowledged, and the driver to reach a coordinator."""
    batch_header: str | None = None
    """A header of this name for every record, with the number of the micro-batch as its value: who reads can tell what
    was written together."""
    dead_letter_topic: str | None = None
    """Where rows are written that their topic can never take: too large for it, or without a key where it is compacted.
    In the same transaction, with headers that say why. Without it such a row fails the micro-batch."""
    retries: int = 3
    """How often a batch that failed is aborted and run again as a whole."""
    driver_host: str | None = None
    """Under which address executors reach the driver; by default spark.driver.host."""
    driver_port: int = 0
    """The driver's port for the tasks' turns; 0: any free one. Set it if there is a firewall in between."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Further Kafka client settings under Kafka's names: security.protocol, sasl.*, ssl.*, client.id."""

    def __post_init__(self) -> None:
        _one_of("guarantee", self.guarantee, (EXACTLY_ONCE, AT_LEAST_ONCE))
        _one_of("partitioning", self.partitioning, ("kafka", "task"))
        _one_of("compression", self.compression, tuple(each.name.lower() for each in Codec))
        for name, least in (
            ("batch_bytes", 1024),
            ("buffer_bytes", 1024),
            ("transaction_timeout_ms", 1000),
            ("delivery_timeout_ms", 1000),
            ("retries", 0),
            ("driver_port", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name}={value!r} is not possible: it must be a number from {least} on")
        if self.compression_level is not None and self.compression_level not in LEVELS.get(self.codec, ()):
            raise ConfigError(f"compression_level={self.compression_level!r} does not exist for {self.compression}")
        if self.batch_header is not None and (not isinstance(self.batch_header, str) or not self.batch_header):
            raise ConfigError(f"batch_header={self.batch_header!r} is no name for a header")
        if self.topic == PROGRESS_TOPIC:
            raise ConfigError(f"{PROGRESS_TOPIC} is where progress is kept; choose another topic")
        if self.dead_letter_topic is not None and (
            not self.dead_letter_topic or self.dead_letter_topic in (self.topic, PROGRESS_TOPIC)
        ):
            raise ConfigError(f"dead_letter_topic={self.dead_letter_topic!r} is not possible: it is a topic of its own")
        if self.topic is not None and not self.topic:
            raise ConfigError("topic='' is not a topic; leave it out if rows have a topic column")
        if wrong := [name for name in self.kafka if name.startswith("kafka.")]:
            raise ConfigError(
                f"kafka={{{wrong[0]!r}: ...}} has the prefix twice: write {wrong[0].removeprefix('kafka.')!r}"
            )
        if refused := sorted(_OURS & set(self.kafka)):
            raise ConfigError(f"kafka={{{refused[0]!r}: ...}} cannot be set: {_OURS_BECAUSE}")
        _ = self.client  # a bad address is refused here

    @property
    def codec(self) -> Codec:
        return Codec[self.compression.upper()]

    @property
    def client(self) -> ClientSettings:
        return ClientSettings(bootstrap=self.bootstrap_servers, extra=dict(self.kafka), timeout_s=10.0)

    @property
    def is_exactly_once(self) -> bool:
        return self.guarantee == EXACTLY_ONCE


_OURS: Final = frozenset(
    {"transactional.id", "enable.idempotence", "acks", "bootstrap.servers", "max.in.flight.requests.per.connection"}
)
_OURS_BECAUSE: Final = "the sink needs it as it is, or has an argument of its own for it"


def check_columns(schema: Any, topic: str | None, batch_header: str | None = None) -> None:
    """Raises `ConfigError` unless a DataFrame with this schema can be written."""
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    if types == {PACKED: "binary"}:
        return  # what is in there was made by `packed_rows`
    for name, kind in types.items():
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            raise ConfigError(
                f"column {name!r} means nothing to Kafka: a row has {', '.join(COLUMNS)}"
                + (f". Did you mean {near[0]!r}?" if near else ". Put it into the value, or drop it")
            )
        if kind not in COLUMNS[name]:
            raise ConfigError(f"column {name!r} is {kind}; it must be {' or '.join(COLUMNS[name])}")
    if "value" not in types:
        raise ConfigError("there is no column 'value'")
    if batch_header is not None and "headers" in types:
        raise ConfigError("rows with a column 'headers' cannot have a batch_header as well: put it into the column")
    if topic is None and "topic" not in types:
        raise ConfigError("where to? Give the sink topic='...', or the rows a column 'topic'")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        near = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{name}={value!r} does not exist; there is {', '.join(map(repr, allowed))}{hint}")
