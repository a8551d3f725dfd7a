"""What is written to `__consumer_offsets` about offsets and classic groups, byte for byte as Kafka writes it.

A key is an int16 that says what kind of record it is, then the key's fields; a value is an int16 version, then its
fields in that version; no value at all is a tombstone. The kinds here:

    0, 1   an offset that a group has committed for a partition
    2      a classic group: generation, protocol, leader, members and what they were assigned

Kinds 3 and above belong to consumer groups (KIP-848).
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar
from uuid import UUID

from onceflow.errors import MalformedMessage
from onceflow.wire.codec import decode, encode
from onceflow.wire.schema import Message, field

__all__ = [
    "GROUP_METADATA",
    "OFFSET_COMMIT",
    "OFFSET_COMMIT_KINDS",
    "GroupMember",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "KeyValue",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "kind_of",
    "read_key",
    "read_value",
    "write_key",
    "write_value",
]

KeyValue = tuple[bytes, bytes | None]
"""A record; without a value it is a tombstone."""

OFFSET_COMMIT: Final = 1
OFFSET_COMMIT_KINDS: Final = (0, 1)
GROUP_METADATA: Final = 2

OFFSET_VERSION: Final = 4
OFFSET_VERSION_WITH_EXPIRY: Final = 1
"""The only version that says when an offset expires; OffsetCommit v2-4 can ask for it."""
GROUP_VERSION: Final = 3
"""What Kafka 4.3 writes; 4 would be the first that older brokers cannot read."""

_INT16: Final = struct.Struct(">h")

M = TypeVar("M", bound=Message)


class OffsetCommitKey(Message, flexible=None):
    group: str = field("string", "0+")
    topic: str = field("string", "0+")
    partition: int = field("int32", "0+")


class OffsetCommitValue(Message, flexible=4):
    offset: int = field("int64", "0+")
    leader_epoch: int = field("int32", "3+", default=-1)
    metadata: str = field("string", "0+")
    commit_timestamp: int = field("int64", "0+")
    expire_timestamp: int = field("int64", "1", default=-1)
    topic_id: UUID | None = field("uuid", "4+", tag=0)


class GroupMetadataKey(Message, flexible=None):
    group: str = field("string", "0+")


class GroupMember(Message, flexible=4):
    member_id: str = field("string", "0+")
    group_instance_id: str | None = field("string", "3+", null="3+", default=None)
    client_id: str = field("string", "0+")
    client_host: str = field("string", "0+")
    rebalance_timeout: int = field("int32", "1+", default=-1)
    session_timeout: int = field("int32", "0+")
    subscription: bytes = field("bytes", "0+")
    assignment: bytes = field("bytes", "0+")


class GroupMetadataValue(Message, flexible=4):
    protocol_type: str = field("string", "0+")
    generation: int = field("int32", "0+")
    protocol: str | None = field("string", "0+", null="0+", default=None)
    leader: str | None = field("string", "0+", null="0+", default=None)
    current_state_timestamp: int = field("int64", "2+", default=-1)
    members: list[GroupMember] = field([GroupMember], "0+")


def kind_of(key: bytes) -> int:
    """What a record is about; raises `MalformedMessage` for a key that no coordinator writes."""
    if len(key) < _INT16.size:
        raise MalformedMessage(f"The key {key!r} in a state topic has no kind.")
    kind: int = _INT16.unpack_from(key)[0]
    return kind


def write_key(kind: int, key: Message) -> bytes:
    return _INT16.pack(kind) + encode(key, 0)


def read_key(cls: type[M], key: bytes) -> M:
    return decode(cls, 0, key, _INT16.size)


def write_value(version: int, value: Message) -> bytes:
    return _INT16.pack(version) + encode(value, version)


def read_value(cls: type[M], value: bytes) -> M:
    (version,) = _INT16.unpack_from(value)
    return decode(cls, version, value, _INT16.size)
