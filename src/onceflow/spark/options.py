"""The options of the source, as one checked value.

Names and meanings are those of Spark's own Kafka source, so that a query moves by changing one word. Names are
case-insensitive, as everywhere in Spark. What differs:

- `kafka.isolation.level` is `read_committed` unless told otherwise.
- `startingOffsets` also takes `committed`: go on where the transactions of the app `kafka.group.id` left off.
- An option that nobody knows is an error which names the nearest one; Spark ignores it, and the typing error with it.

A Kafka setting is passed on, or has no effect on what is read (tuning of a Java consumer: said in a warning), or is
refused with the reason. Everything that can be checked without a broker is checked here, when the query is loaded.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from onceflow.client.cluster import TopicPartition
from onceflow.client.offsets import EARLIEST, LATEST
from onceflow.client.security import Security
from onceflow.client.settings import ClientSettings
from onceflow.digits import INT32_MAX, INT64_MAX
from onceflow.errors import ConfigError
from onceflow.spark.option_names import OPTIONS, PASSED_ON, SECURITY_PREFIXES, SUBSCRIPTIONS, check_names
from onceflow.spark.planning import NOT_A_TOPIC, topic_ids_in

__all__ = [
    "EARLIEST",
    "LATEST",
    "Committed",
    "Everywhere",
    "Offsets",
    "Position",
    "SourceOptions",
    "Subscription",
    "Timestamps",
]

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

REQUEST_TIMEOUT_MS: Final = 30_000  # Kafka's default for clients
API_TIMEOUT_MS: Final = 60_000  # likewise: how long a broker may be away before a query gives up
FETCH_BYTES: Final = 4 * 1024 * 1024  # of one partition at once; the broker sends one batch whatever its size
RETRY_INTERVAL_MS: Final = 1_000
RETRIES: Final = 3
MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000


@dataclass(frozen=True)
class Subscription:
    """What to read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(self.topics or [f"{topic}-{partition}" for topic, partition in self.partitions])


@dataclass(frozen=True)
class Everywhere:
    """All partitions at `EARLIEST` or all at `LATEST`."""

    at: int


@dataclass(frozen=True)
class Offsets:
    """Each partition at its offset, `EARLIEST` or `LATEST`."""

    of: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Of which topics, if that was said: so a checkpoint's offsets can be given as they are."""


@dataclass(frozen=True)
class Timestamps:
    """Each partition at its first record of that time (ms) or later; where there is none, at the end if `or_latest`."""

    everywhere: int | None
    of: Mapping[TopicPartition, int]
    or_latest: bool


@dataclass(frozen=True)
class Committed:
    """Where the transactions of this app left off."""

    app_id: str


Position = Everywhere | Offsets | Timestamps | Committed


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What a query asked for. Travels to the executors."""

    settings: ClientSettings = field(repr=False)  # may hold passwords
    subscription: Subscription
    starting: Position | None
    """None: the default, which is the end for streams and the beginning for batch queries."""
    ending: Position | None
    ending_option: str | None
    """The option that said so, for the refusal by streams."""
    stream_only: tuple[str, ...]
    """Options that were given and that mean nothing to a batch query."""
    read_committed: bool
    fail_on_data_loss: bool
    include_headers: bool
    records_per_trigger_max: int | None
    records_per_trigger_min: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    records_per_partition_min: int | None
    fetch_bytes: int
    patience_s: float
    """How long a broker may be away before the query fails."""
    read_patience_s: float
    """How long a task waits for records that should be there."""
    retries: int
    retry_interval_s: float

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises `ConfigError` with a sentence for whatever is unknown, contradictory or missing."""
        return _parse(_Given({name.lower(): value for name, value in options.items()}))

    def for_stream(self) -> Position:
        """Where a stream starts; refuses what only batch queries know."""
        if self.ending_option is not None:
            raise ConfigError(f"{self.ending_option} is for batch queries: a stream has no end")
        return self.starting or Everywhere(LATEST)

    def for_batch(self) -> tuple[Position, Position]:
        """Where a batch query starts and ends; refuses what makes no sense there."""
        starting, ending = self.starting or Everywhere(EARLIEST), self.ending or Everywhere(LATEST)
        if isinstance(starting, Committed):
            raise ConfigError(
                "startingOffsets=committed is for streams: it takes over from the running query of that app"
            )
        if _has(starting, LATEST):
            raise ConfigError("startingOffsets cannot be latest in a batch query: there would be nothing to read")
        if _has(ending, EARLIEST):
            raise ConfigError("endingOffsets cannot be earliest in a batch query: there would be nothing to read")
        for name in self.stream_only:
            log.warning("%s has no effect in a batch query", name)
        return starting, ending


def _has(position: Position, special: int) -> bool:
    if isinstance(position, Offsets):
        return special in position.of.values()
    return position == Everywhere(special)


class _Given:
    """The options by their lower-case names, and how to read each kind of value."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.options

    def text(self, name: str) -> str | None:
        value = self.options.get(name.lower())
        return None if value is None else value.strip()

    def number(self, name: str, default: T, at_least: int = 1) -> int | T:
        return self._read(name, default, lambda text: _number(text, at_least), f"a whole number from {at_least} on")

    def flag(self, name: str, default: bool) -> bool:
        return self._read(name, default, lambda text: {"true": True, "false": False}[text.lower()], "true or false")

    def duration_ms(self, name: str, default: int) -> int:
        return self._read(name, default, _duration_ms, "a time such as 30s, 15m or 1h")

    def json(self, name: str, read: Callable[[Any], T], example: str) -> T:
        value = self._read(name, None, lambda text: read(json.loads(text)), f"JSON such as {example}")
        assert value is not None
        return value

    def _read(self, name: str, default: T, read: Callable[[str], R], expected: str) -> T | R:
        text = self.text(name)
        if text is None:
            return default
        try:
            return read(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"{name} must be {expected}, not {text!r}") from None


def _parse(given: _Given) -> SourceOptions:
    check_names(given.options)
    most, least = given.number("maxOffsetsPerTrigger", None), given.number("minOffsetsPerTrigger", None)
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    api_timeout_ms = given.number("kafka.default.api.timeout.ms", API_TIMEOUT_MS)
    return SourceOptions(
        settings=_settings(given),
        subscription=_subscription(given),
        starting=_position(given, "starting"),
        ending=_position(given, "ending"),
        ending_option=next((name for name in OPTIONS if name.startswith("ending") and name in given), None),
        stream_only=tuple(
            name for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay") if name in given
        ),
        read_committed=_read_committed(given),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", False),
        records_per_trigger_max=most,
        records_per_trigger_min=least,
        trigger_delay_ms_max=given.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        partitions_min=given.number("minPartitions", None),
        records_per_partition_max=given.number("maxRecordsPerPartition", None),
        records_per_partition_min=given.number("minRecordsPerPartition", None),
        # One partition is asked for at a time, so both of Kafka's limits are about the same bytes.
        fetch_bytes=min(
            given.number("kafka.fetch.max.bytes", FETCH_BYTES),
            given.number("kafka.max.partition.fetch.bytes", FETCH_BYTES),
        ),
        patience_s=api_timeout_ms / 1000,
        read_patience_s=given.number("kafkaConsumer.pollTimeoutMs", api_timeout_ms) / 1000,
        retries=given.number("fetchOffset.numRetries", RETRIES),
        retry_interval_s=given.number("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS, at_least=0) / 1000,
    )


def _settings(given: _Given) -> ClientSettings:
    bootstrap = given.text("kafka.bootstrap.servers")
    if not bootstrap:
        raise ConfigError("option 'kafka.bootstrap.servers' is missing: the address of a broker, HOST:PORT")
    extra = {
        name.removeprefix("kafka."): value
        for name, value in given.options.items()
        if name.startswith(SECURITY_PREFIXES) or name in PASSED_ON
    }
    Security.of(extra)  # now, where a person sees it, and not in the first task
    timeout_ms = given.number("kafka.request.timeout.ms", REQUEST_TIMEOUT_MS)
    return ClientSettings(bootstrap=bootstrap, extra=extra, timeout_s=timeout_ms / 1000)


def _read_committed(given: _Given) -> bool:
    level = given.text("kafka.isolation.level") or "read_committed"
    if level.lower() not in ("read_committed", "read_uncommitted"):
        raise ConfigError(f"kafka.isolation.level must be read_committed or read_uncommitted, not {level!r}")
    return level.lower() == "read_committed"


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in SUBSCRIPTIONS if name in given]
    if len(chosen) != 1:
        found = " and ".join(chosen) or "none of them"
        raise ConfigError(f"exactly one of {', '.join(SUBSCRIPTIONS)} must say what to read; there is {found}")
    text = given.text(chosen[0])
    if not text:
        raise ConfigError(f"{chosen[0]} is empty: it must say what to read")
    if chosen == ["subscribe"]:
        return Subscription(topics=_topics(text))
    if chosen == ["subscribePattern"]:
        return Subscription(pattern=_pattern(text))
    return Subscription(partitions=given.json("assign", _partition_list, '{"orders": [0, 1]}'))


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise ConfigError(f"subscribe must name topics with commas between, not {text!r}")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as problem:
        raise ConfigError(f"subscribePattern {text!r} is not a regular expression: {problem}") from None
    return text


def _partition_list(value: Any) -> tuple[TopicPartition, ...]:
    partitions = {(topic, _index(partition)) for topic, numbers in value.items() for partition in numbers}
    if not partitions:
        raise ValueError("no partition")
    return tuple(sorted(partitions))


def _position(given: _Given, edge: str) -> Position | None:
    """The most particular one wins, as in Spark: a timestamp, timestamps, offsets."""
    latest = edge == "ending" or _latest_without_match(given)
    if f"{edge}Timestamp" in given:
        return Timestamps(given.number(f"{edge}Timestamp", None, at_least=0), {}, latest)
    if (name := f"{edge}OffsetsByTimestamp") in given:
        return Timestamps(None, given.json(name, lambda value: _by_partition(value, 0), _TIMES), latest)
    if (name := f"{edge}Offsets") not in given:
        return None
    text = (given.text(name) or "").lower()
    if text in ("earliest", "latest"):
        return Everywhere(EARLIEST if text == "earliest" else LATEST)
    if text == "committed" and edge == "starting":
        return Committed(_app_id(given))
    words = "earliest, latest, committed" if edge == "starting" else "earliest, latest"
    return given.json(
        name,
        lambda value: Offsets(_by_partition(value, EARLIEST), topic_ids_in(value)),
        f"{_OFFSETS}, or {words}",
    )


_OFFSETS: Final = '{"orders": {"0": 23, "1": -2}}'
_TIMES: Final = '{"orders": {"0": 1700000000000}}'


def _latest_without_match(given: _Given) -> bool:
    strategy = given.text("startingOffsetsByTimestampStrategy") or "error"
    if strategy.lower() not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy must be error or latest, not {strategy!r}")
    return strategy.lower() == "latest"


def _app_id(given: _Given) -> str:
    group = given.text("kafka.group.id")
    if not group:
        raise ConfigError("startingOffsets=committed needs kafka.group.id: the app_id of the KafkaSink it goes on for")
    return group


def _by_partition(value: Any, at_least: int) -> dict[TopicPartition, int]:
    found = {
        (topic, _index(partition)): _number(number, at_least)
        for topic, partitions in value.items()
        if not topic.startswith(NOT_A_TOPIC)
        for partition, number in partitions.items()
    }
    if not found:
        raise ValueError("no partition")
    return found


def _index(partition: Any) -> int:
    return _number(partition, 0, INT32_MAX)


def _number(value: Any, at_least: int, at_most: int = INT64_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(value)
    if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
        raise ValueError(value)
    number = int(value)
    if not at_least <= number <= at_most:
        raise ValueError(value)
    return number


_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(text: str) -> int:
    """`15m` and the like; a bare number is milliseconds, as Spark reads it."""
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", text.lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]
