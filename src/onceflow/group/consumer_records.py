"""What a consumer group (KIP-848) leaves in `__consumer_offsets`, in Kafka's format.

    type  key                                  value
    3     ConsumerGroupMetadata                the group's epoch, and the hash of the topics it was computed from
    4     ConsumerGroupPartitionMetadata       no longer written since Kafka 4.1; a tombstone is, where one is found
    5     ConsumerGroupMemberMetadata          what a member asked for
    6     ConsumerGroupTargetAssignmentMetadata  the epoch of the target assignment
    7     ConsumerGroupTargetAssignmentMember  what a member is to have
    8     ConsumerGroupCurrentMemberAssignment what a member has, and what it is giving back
    16    ConsumerGroupRegularExpression       the topics that a regular expression matched

On disk a key is an int16 with the type and then the message; a value is an int16 with its version and then the message.
A tombstone has no value. All values have one version, 0.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from onceflow.errors import MalformedMessage
from onceflow.group.records import KeyValue
from onceflow.wire.codec import decode, encode
from onceflow.wire.schema import Message, field

__all__ = [
    "ClassicMemberMetadata",
    "ClassicProtocol",
    "ConsumerRecord",
    "CurrentAssignmentKey",
    "CurrentAssignmentValue",
    "GroupKey",
    "GroupValue",
    "MemberKey",
    "MemberValue",
    "PartitionMetadataKey",
    "PartitionMetadataValue",
    "RegexKey",
    "RegexValue",
    "TargetMemberKey",
    "TargetMemberValue",
    "TargetMetadataKey",
    "TargetMetadataValue",
    "TargetTopic",
    "TopicEpochs",
    "decode_record",
    "encode_record",
    "group_record",
    "member_tombstones",
]

VALUE_VERSION: Final = 0
_INT16: Final = struct.Struct(">h")


class GroupKey(Message):
    group_id: str = field("string", "0+")


class GroupValue(Message, flexible=0):
    epoch: int = field("int32", "0+")
    metadata_hash: int = field("int64", "0+", tag=0)


class PartitionMetadataKey(Message):
    group_id: str = field("string", "0+")


class PartitionRacks(Message, flexible=0):
    partition: int = field("int32", "0+")
    racks: list[str] = field(["string"], "0+")


class TopicMetadata(Message, flexible=0):
    topic_id: UUID | None = field("uuid", "0+")
    topic_name: str = field("string", "0+")
    num_partitions: int = field("int32", "0+")
    partition_metadata: list[PartitionRacks] = field([PartitionRacks], "0+")


class PartitionMetadataValue(Message, flexible=0):
    topics: list[TopicMetadata] = field([TopicMetadata], "0+")


class MemberKey(Message):
    group_id: str = field("string", "0+")
    member_id: str = field("string", "0+")


class ClassicProtocol(Message, flexible=0):
    name: str = field("string", "0+")
    metadata: bytes = field("bytes", "0+")


class ClassicMemberMetadata(Message, flexible=0):
    session_timeout_ms: int = field("int32", "0+")
    supported_protocols: list[ClassicProtocol] = field([ClassicProtocol], "0+")


class MemberValue(Message, flexible=0):
    instance_id: str | None = field("string", "0+", null="0+")
    rack_id: str | None = field("string", "0+", null="0+")
    client_id: str = field("string", "0+")
    client_host: str = field("string", "0+")
    subscribed_topic_names: list[str] = field(["string"], "0+")
    subscribed_topic_regex: str | None = field("string", "0+", null="0+")
    rebalance_timeout_ms: int = field("int32", "0+", default=-1)
    server_assignor: str | None = field("string", "0+", null="0+")
    classic_member_metadata: ClassicMemberMetadata | None = field(ClassicMemberMetadata, "0+", null="0+", tag=0)
    """Of a member that uses the classic protocol. None for the others, which is written out: its absence would say that
    the member uses the classic protocol and supports nothing."""


class TargetMetadataKey(Message):
    group_id: str = field("string", "0+")


class TargetMetadataValue(Message, flexible=0):
    assignment_epoch: int = field("int32", "0+")
    assignment_timestamp: int = field("int64", "0+", tag=0)


class TargetMemberKey(Message):
    group_id: str = field("string", "0+")
    member_id: str = field("string", "0+")


class TargetTopic(Message, flexible=0):
    topic_id: UUID | None = field("uuid", "0+")
    partitions: list[int] = field(["int32"], "0+")


class TargetMemberValue(Message, flexible=0):
    topic_partitions: list[TargetTopic] = field([TargetTopic], "0+")


class CurrentAssignmentKey(Message):
    group_id: str = field("string", "0+")
    member_id: str = field("string", "0+")


class TopicEpochs(Message, flexible=0):
    topic_id: UUID | None = field("uuid", "0+")
    partitions: list[int] = field(["int32"], "0+")
    assignment_epochs: list[int] | None = field(["int32"], "0+", null="0+", default=None, tag=0)
    """Since which epoch the member has each partition; a record without them is older than Kafka 4.2."""


class CurrentAssignmentValue(Message, flexible=0):
    member_epoch: int = field("int32", "0+")
    previous_member_epoch: int = field("int32", "0+")
    state: int = field("int8", "0+")
    assigned_partitions: list[TopicEpochs] = field([TopicEpochs], "0+")
    partitions_pending_revocation: list[TopicEpochs] = field([TopicEpochs], "0+")


class RegexKey(Message):
    group_id: str = field("string", "0+")
    regular_expression: str = field("string", "0+")


class RegexValue(Message, flexible=0):
    topics: list[str] = field(["string"], "0+")
    version: int = field("int64", "0+")
    timestamp: int = field("int64", "0+")


ConsumerRecord = tuple[Message, Message | None]
"""A key and a value of the classes above; without a value it is a tombstone."""

KINDS: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    3: (GroupKey, GroupValue),
    4: (PartitionMetadataKey, PartitionMetadataValue),
    5: (MemberKey, MemberValue),
    6: (TargetMetadataKey, TargetMetadataValue),
    7: (TargetMemberKey, TargetMemberValue),
    8: (CurrentAssignmentKey, CurrentAssignmentValue),
    16: (RegexKey, RegexValue),
}
_TYPES: Final = {key: number for number, (key, _) in KINDS.items()}


def encode_record(record: ConsumerRecord) -> KeyValue:
    key, value = record
    stored_key = _INT16.pack(_TYPES[type(key)]) + encode(key, 0)
    return stored_key, None if value is None else _INT16.pack(VALUE_VERSION) + encode(value, VALUE_VERSION)


def decode_record(key: bytes, value: bytes | None) -> ConsumerRecord | None:
    """The record, or None if its type is not one of a consumer group's; raises `MalformedMessage`."""
    try:
        kind = KINDS.get(_INT16.unpack_from(key)[0])
        if kind is None:
            return None
        return decode(kind[0], 0, key, _INT16.size), _decode_value(kind[1], value)
    except (struct.error, MalformedMessage) as error:
        raise MalformedMessage(f"A record of a consumer group cannot be read: {error}") from error


def _decode_value(cls: type[Message], value: bytes | None) -> Message | None:
    if value is None:
        return None
    (version,) = _INT16.unpack_from(value)
    if version != VALUE_VERSION:
        raise MalformedMessage(f"A {cls.__name__} has version {version}; this broker reads {VALUE_VERSION}.")
    return decode(cls, VALUE_VERSION, value, _INT16.size)


def group_record(group_id: str, epoch: int, metadata_hash: int) -> ConsumerRecord:
    return GroupKey(group_id=group_id), GroupValue(epoch=epoch, metadata_hash=metadata_hash)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerRecord]:
    """In this order: a member gives up its partitions before it goes."""
    return [
        (CurrentAssignmentKey(group_id=group_id, member_id=member_id), None),
        (TargetMemberKey(group_id=group_id, member_id=member_id), None),
        (MemberKey(group_id=group_id, member_id=member_id), None),
    ]
