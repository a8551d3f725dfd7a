"""The names of the source's options: which there are, which change nothing here, and which are refused and why."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.client.security import SECURITY_SETTINGS
from onceflow.errors import ConfigError

__all__ = ["OPTIONS", "PASSED_ON", "SECURITY_PREFIXES", "SUBSCRIPTIONS", "check_names"]

log = logging.getLogger(__name__)

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")

OPTIONS: Final = (
    *SUBSCRIPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "minRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)

KAFKA_SETTINGS: Final = (
    "kafka.bootstrap.servers",
    "kafka.isolation.level",
    "kafka.group.id",
    "kafka.client.id",
    "kafka.request.timeout.ms",
    "kafka.default.api.timeout.ms",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    *(f"kafka.{name}" for name in SECURITY_SETTINGS),
)

PASSED_ON: Final = ("kafka.client.id", "kafka.security.protocol", "kafka.enable.ssl.certificate.verification")
"""Beside those that begin with `SECURITY_PREFIXES`: what the client takes under Kafka's own names."""

SECURITY_PREFIXES: Final = ("kafka.ssl.", "kafka.sasl.")

# Tuning of a Java consumer that is a member of a group, or keeps connections and sessions. There is none here.
WITHOUT_EFFECT: Final = frozenset(
    f"kafka.{name}"
    for name in (
        "allow.auto.create.topics",
        "check.crcs",
        "client.dns.lookup",
        "client.rack",
        "connections.max.idle.ms",
        "exclude.internal.topics",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.instance.id",
        "group.protocol",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.max.age.ms",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    )
)

_JAVA_CLASSES: Final = "it names Java classes, and this source has no Java client to load them"
REFUSED: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "the query says where to start with startingOffsets, and its checkpoint where to go on",
    "kafka.enable.auto.commit": "the query's checkpoint keeps the position; KafkaSink commits it with the output",
    "kafka.key.deserializer": "keys come as bytes: decode them with DataFrame operations",
    "kafka.value.deserializer": "values come as bytes: decode them with DataFrame operations",
    "kafka.interceptor.classes": _JAVA_CLASSES,
    "kafka.metric.reporters": _JAVA_CLASSES,
    "kafka.security.providers": _JAVA_CLASSES,
    "topic": "it is an option of a sink: subscribe, subscribePattern or assign says what to read",
    "path": "there are no files to load: subscribe, subscribePattern or assign says what to read",
}


def check_names(names: Iterable[str]) -> None:
    """Raises `ConfigError` for an option that there is not, or that is refused; names are in lower case."""
    known = {name.lower() for name in (*OPTIONS, *KAFKA_SETTINGS)}
    for name in sorted(names):
        if name in REFUSED:
            raise ConfigError(f"option {name!r} is not taken: {REFUSED[name]}")
        if name in WITHOUT_EFFECT or name == "groupidprefix":
            log.warning("option %r has no effect: this source reads without a consumer group", name)
        elif name not in known and not name.startswith(SECURITY_PREFIXES):
            raise ConfigError(f"there is no option {name!r}{_nearest(name)}")


def _nearest(name: str) -> str:
    names = {each.lower(): each for each in (*OPTIONS, *KAFKA_SETTINGS, *sorted(WITHOUT_EFFECT))}
    if f"kafka.{name}" in names:
        return f": Kafka's own settings begin with 'kafka.', so this one is {names[f'kafka.{name}']!r}"
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f": did you mean {names[near[0]]!r}?"
    return f"; there are {', '.join(OPTIONS)}, and Kafka's client settings behind 'kafka.'"
