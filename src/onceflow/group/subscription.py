"""What consumers of the classic protocol and their leader say to each other through the coordinator, in bytes of their
own: the topics that a member subscribes to, and the partitions that it is assigned.

The coordinator of a classic group passes both on unread; it looks inside only to know which offsets are in use. It
speaks the language itself when a group changes its protocol (KIP-848), and to the members that have not changed yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode_from, encode
from onceflow.wire.schema import Message, field

__all__ = [
    "CONSUMER_PROTOCOL",
    "Subscription",
    "TopicPartitions",
    "read_assignment",
    "read_subscription",
    "subscribed_topics",
    "version_of",
    "write_assignment",
]

CONSUMER_PROTOCOL = "consumer"
VERSION_MAX: Final = 3
"""Later versions begin like this one."""
ELEMENTS_MAX: Final = 100_000
"""Topics and partitions, all together."""
_VERSION: Final = struct.Struct(">h")

TopicPartitions = Mapping[str, Iterable[int]]
"""Partitions by topic."""


class _TopicPartitions(Message, flexible=None):
    topic: str = field("string", "0+")
    partitions: list[int] = field(["int32"], "0+")


class _Subscription(Message, flexible=None):
    topics: list[str] = field(["string"], "0+")
    user_data: bytes | None = field("bytes", "0+", null="0+", default=None)
    owned_partitions: list[_TopicPartitions] = field([_TopicPartitions], "1+")
    generation_id: int = field("int32", "2+", default=-1)
    rack_id: str | None = field("string", "3+", null="3+", default=None)


class _SubscribedTopics(Message, flexible=None):
    """How a subscription of every version begins."""

    topics: list[str] = field(["string"], "0+")


class _Assignment(Message, flexible=None):
    assigned_partitions: list[_TopicPartitions] = field([_TopicPartitions], "0+")
    user_data: bytes | None = field("bytes", "0+", null="0+", default=None)


class Subscription(NamedTuple):
    topics: frozenset[str]
    owned: dict[str, frozenset[int]]
    """What the member says it has; nothing in a version that has no words for it."""
    rack_id: str | None


def version_of(said: bytes) -> int:
    """The version in which a member speaks, and is to be answered; `MalformedMessage` if there is none."""
    if len(said) < _VERSION.size:
        raise MalformedMessage("What a consumer says has no version.")
    version: int = _VERSION.unpack_from(said)[0]
    if version < 0:
        raise MalformedMessage(f"What a consumer says has the version {version}.")
    return min(version, VERSION_MAX)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics; None where a program uses the name of the consumer protocol for bytes of its own."""
    try:
        version = version_of(metadata)
        subscription, _ = decode_from(_SubscribedTopics, version, metadata, _VERSION.size, ELEMENTS_MAX)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)


def read_subscription(metadata: bytes) -> Subscription:
    """Raises `MalformedMessage`."""
    said, _ = decode_from(_Subscription, version_of(metadata), metadata, _VERSION.size, ELEMENTS_MAX)
    return Subscription(frozenset(said.topics), _by_topic(said.owned_partitions), said.rack_id)


def read_assignment(assignment: bytes) -> tuple[dict[str, frozenset[int]], bytes]:
    """The partitions, and what an assignor of the client's own has added. Raises `MalformedMessage`."""
    said, _ = decode_from(_Assignment, version_of(assignment), assignment, _VERSION.size, ELEMENTS_MAX)
    return _by_topic(said.assigned_partitions), said.user_data or b""


def write_assignment(partitions: TopicPartitions, version: int) -> bytes:
    topics = [_TopicPartitions(topic=topic, partitions=sorted(found)) for topic, found in sorted(partitions.items())]
    return _VERSION.pack(version) + encode(_Assignment(assigned_partitions=topics), version)


def _by_topic(topics: list[_TopicPartitions]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for topic in topics:
        found.setdefault(topic.topic, set()).update(topic.partitions)
    return {topic: frozenset(partitions) for topic, partitions in found.items()}
