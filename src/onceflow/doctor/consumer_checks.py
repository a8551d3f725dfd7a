"""Checks of consumers' settings, of Kafka Streams, and of what all clients' settings have in common."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from onceflow.doctor.facts import UNSEEN, Case, ClientFacts
from onceflow.doctor.findings import Finding, fault, note, some, warning
from onceflow.doctor.registry import client_check, consumer_check, streams_check
from onceflow.doctor.setting_names import KNOWN_NAMES, SECURITY_PREFIXES

__all__: list[str] = []

POLL_MS_DEFAULT: Final = 300_000
SESSION_MS_DEFAULT: Final = 45_000
HEARTBEAT_MS_DEFAULT: Final = 3_000
SHORT_POLL_MS: Final = 10_000
FROM_THE_START: Final = ("earliest", "smallest", "beginning", "none", "error", UNSEEN)

NUMBERS: Final = (
    "transaction.timeout.ms",
    "delivery.timeout.ms",
    "message.timeout.ms",
    "request.timeout.ms",
    "linger.ms",
    "retries",
    "message.send.max.retries",
    "max.in.flight.requests.per.connection",
    "max.in.flight",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "replication.factor",
)
CHOICES: Final = {
    "enable.idempotence": ("true", "false"),
    "enable.auto.commit": ("true", "false"),
    "acks": ("all", "-1", "0", "1"),
    "isolation.level": ("read_committed", "read_uncommitted"),
    "group.protocol": ("classic", "consumer"),
    "processing.guarantee": ("exactly_once_v2", "exactly_once", "exactly_once_beta", "at_least_once"),
}


@client_check(
    "client.names",
    "Names of settings",
    why="A setting that is misspelt has no effect, and clients say so in a log line at most.",
)
def names(client: ClientFacts, case: Case) -> Iterator[Finding]:
    for name in sorted(client.values):
        if name in KNOWN_NAMES or name.startswith(SECURITY_PREFIXES):
            continue
        # Of a short name, such as acks, one letter is a larger part.
        near = difflib.get_close_matches(name, KNOWN_NAMES, n=1, cutoff=0.85 if len(name) > 8 else 0.75)
        if near:
            yield warning(f"{name} does not exist", f"{near[0]}, is that what is meant?")
        else:
            yield note(f"{name} is no setting of Kafka's clients: a serializer's or the application's own?")


@client_check(
    "client.values",
    "Values of settings",
    why="A client with a value that it cannot read does not start.",
)
def values(client: ClientFacts, case: Case) -> Iterator[Finding]:
    for name in NUMBERS:
        text = client.get(name)
        if text not in (None, UNSEEN) and client.number(name) is None and not _is_placeholder(text):
            yield fault(f"{name} is not a whole number", f"{name}=NUMBER, without a unit")
    for name, allowed in CHOICES.items():
        text = client.get(name)
        if text not in (None, UNSEEN) and text.lower() not in allowed and not _is_placeholder(text):
            yield fault(f"{name} has a value that does not exist", f"{name}= one of {', '.join(allowed)}")


def _is_placeholder(text: str | None) -> bool:
    """`${ACKS}`: somebody fills it in later."""
    return text is not None and ("${" in text or "{{" in text)


@consumer_check(
    "consumer.isolation",
    "isolation.level",
    why="A read_uncommitted consumer is shown records of transactions that were aborted, or are going to be.",
)
def isolation(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = (client.get("isolation.level") or "").lower()
    if value == "read_uncommitted":
        yield fault("isolation.level=read_uncommitted", "isolation.level=read_committed")
    elif not value and client.may_be_java:
        whose = "Java's default" if client.flavor == "java" else "the default of Java's consumer, not of librdkafka"
        yield fault(f"not set: read_uncommitted is {whose}", "isolation.level=read_committed")


@consumer_check(
    "consumer.auto-commit",
    "enable.auto.commit",
    why="Offsets that are committed by time, not with the output, skip or repeat records after a crash.",
)
def auto_commit(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = (client.get("enable.auto.commit") or "").lower()
    if value == "true":
        yield fault("enable.auto.commit=true", "enable.auto.commit=false, and commit the offsets with the output")
    elif not value:
        yield fault("not set: true is the default", "enable.auto.commit=false, and commit the offsets with the output")


@consumer_check(
    "consumer.offset-reset",
    "auto.offset.reset",
    why="Where there is no committed offset, or it is gone, `latest` skips everything up to now without a word.",
)
def offset_reset(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get("auto.offset.reset")
    fix = "auto.offset.reset=none (stop and ask), or earliest"
    if value is None:
        yield warning("not set: latest is the default", fix)
    elif value.lower() not in FROM_THE_START:
        yield warning(f"auto.offset.reset={value}", fix)


@consumer_check(
    "consumer.group",
    "group.id",
    why="Without a group there are no committed offsets to go on from.",
)
def group(client: ClientFacts, case: Case) -> Iterator[Finding]:
    if not client.get("group.id"):
        yield warning("not set", "group.id=NAME, unless the application keeps its offsets elsewhere, with its output")


@consumer_check(
    "consumer.poll-interval",
    "max.poll.interval.ms",
    why="A consumer that works for longer between two polls is put out of its group, and another one does it again.",
)
def poll_interval(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.number("max.poll.interval.ms") or POLL_MS_DEFAULT
    if case.processing_ms is not None and value <= case.processing_ms:
        yield fault(f"max.poll.interval.ms={value}, and processing takes up to {case.processing_ms} ms",
                    f"max.poll.interval.ms={2 * case.processing_ms}, or a smaller max.poll.records")  # fmt: skip
    elif value < SHORT_POLL_MS:
        yield warning(f"max.poll.interval.ms={value}: less than ten seconds", "max.poll.interval.ms=300000")


@consumer_check(
    "consumer.session",
    "session.timeout.ms and heartbeat.interval.ms",
    why="Three heartbeats must fit into a session, or one that is late makes the group rebalance.",
)
def session(client: ClientFacts, case: Case) -> Iterator[Finding]:
    given = [name for name in ("session.timeout.ms", "heartbeat.interval.ms") if client.get(name)]
    if (client.get("group.protocol") or "").lower() == "consumer":
        if given:
            fix = "leave it out: the broker decides (group.consumer.session.timeout.ms)"
            yield fault(f"{some(given)} with group.protocol=consumer: it does not start", fix)
        return
    session_ms = client.number("session.timeout.ms") or SESSION_MS_DEFAULT
    heartbeat_ms = client.number("heartbeat.interval.ms") or HEARTBEAT_MS_DEFAULT
    if heartbeat_ms >= session_ms:
        yield fault(f"heartbeat.interval.ms={heartbeat_ms}, session.timeout.ms={session_ms}",
                    f"heartbeat.interval.ms={max(1, session_ms // 3)}")  # fmt: skip
    elif 3 * heartbeat_ms > session_ms:
        yield warning(f"heartbeat.interval.ms={heartbeat_ms}, session.timeout.ms={session_ms}",
                      f"heartbeat.interval.ms={session_ms // 3}")  # fmt: skip
    yield from _session_at_the_broker(session_ms, case)


def _session_at_the_broker(session_ms: int, case: Case) -> Iterator[Finding]:
    if case.cluster is None:
        return
    low, high = (case.cluster.number(f"group.{bound}.session.timeout.ms") for bound in ("min", "max"))
    if (low is not None and session_ms < low) or (high is not None and session_ms > high):
        yield fault(f"session.timeout.ms={session_ms}, and the brokers take {low} to {high}: it is refused",
                    f"session.timeout.ms={SESSION_MS_DEFAULT}")  # fmt: skip


@consumer_check(
    "consumer.static",
    "group.instance.id",
    why="Of two members with the same one, the older is put out.",
)
def static(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get("group.instance.id")
    if value and not _is_placeholder(value) and value != UNSEEN:
        yield note(f"group.instance.id={value}: right for one instance", "another value for each instance of the group")


@streams_check(
    "streams.guarantee",
    "processing.guarantee",
    why="Kafka Streams is at-least-once unless it is told otherwise.",
)
def guarantee(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get("processing.guarantee")
    fix = "processing.guarantee=exactly_once_v2"
    if value is None or value == "at_least_once":
        yield fault("not set: at_least_once is the default" if value is None else f"processing.guarantee={value}", fix)
    elif value in ("exactly_once", "exactly_once_beta"):
        yield fault(f"processing.guarantee={value}: Kafka Streams 4.0 and newer do not know it", fix)


@streams_check(
    "streams.replication",
    "replication.factor of Kafka Streams' own topics",
    why="State that has one replica is gone with its machine.",
)
def streams_replication(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.number("replication.factor")
    brokers = len(case.cluster.brokers) if case.cluster is not None else None
    if value is not None and 0 < value < 3 and (brokers is None or brokers >= 3):
        yield warning(f"replication.factor={value}", "replication.factor=3, or -1 for the brokers' default")
