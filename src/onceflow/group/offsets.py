"""Committed offsets, and those of open transactions, which count only once the transaction is committed.

Invariants:

- An offset of an open transaction is in `pending` of its producer and nowhere else; nobody is shown it.
- A commit moves a producer's pending offsets to the committed ones, except where a later record of the log has
  overtaken one; an abort drops them.
- Deleting an offset takes the pending ones of that partition with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from onceflow.group.records import (
    OFFSET_COMMIT,
    OFFSET_VERSION,
    OFFSET_VERSION_WITH_EXPIRY,
    KeyValue,
    OffsetCommitValue,
    write_value,
)
from onceflow.wire.primitives import varint

__all__ = ["CommittedOffset", "Offsets", "offset_record", "offset_tombstone"]

NO_EXPIRY = -1

_INT16 = struct.Struct(">h").pack
_TWO_INT16 = struct.Struct(">hh").pack
_INT32 = struct.Struct(">i").pack
_TIMESTAMP = struct.Struct(">q").pack
_VALUE_BEGIN = struct.Struct(">hqi").pack
_NO_TAGS = b"\0"
_TOPIC_ID_TAG = b"\1\0\x10"
"""One tagged field: number 0, 16 bytes."""


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY
    topic_id: UUID | None = None
    """Of the topic that it is meant for: a new one of the same name begins afresh."""
    record_offset: int = -1
    """Where in the log it stands: of two commits the later record wins."""

    @classmethod
    def of(cls, value: OffsetCommitValue, record_offset: int) -> CommittedOffset:
        return cls(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            value.topic_id,
            record_offset,
        )


def offset_record(group: str, topic: str, partition: int, committed: CommittedOffset) -> KeyValue:
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return _key(group, topic, partition), _expiring_value(committed)
    # By hand, since this is what the coordinator writes most: a third of what the codec needs for the same bytes.
    metadata = committed.metadata.encode()
    topic_id = committed.topic_id
    value = (
        _VALUE_BEGIN(OFFSET_VERSION, committed.offset, committed.leader_epoch)
        + varint(len(metadata) + 1)
        + metadata
        + _TIMESTAMP(committed.commit_timestamp_ms)
        + (_NO_TAGS if topic_id is None else _TOPIC_ID_TAG + topic_id.bytes)
    )
    return _key(group, topic, partition), value


def _expiring_value(committed: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    return write_value(OFFSET_VERSION_WITH_EXPIRY, value)


def offset_tombstone(group: str, topic: str, partition: int) -> KeyValue:
    return _key(group, topic, partition), None


def _key(group: str, topic: str, partition: int) -> bytes:
    group_bytes, topic_bytes = group.encode(), topic.encode()
    return (
        _TWO_INT16(OFFSET_COMMIT, len(group_bytes))
        + group_bytes
        + _INT16(len(topic_bytes))
        + topic_bytes
        + _INT32(partition)
    )


TopicPartition = tuple[str, int]


class Offsets:
    """The offsets of all groups of one partition of the state topic."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[int, dict[tuple[str, str, int], CommittedOffset]] = {}
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        """Per group and partition the producers with an open transaction that commits an offset there."""

    # Reading

    def of_group(self, group: str) -> dict[str, dict[int, CommittedOffset]]:
        """Committed offsets by topic and partition; not to be changed."""
        return self._committed.get(group, {})

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group, {}).get(topic, {}).get(partition)

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change this offset."""
        return (topic, partition) in self._open.get(group, {})

    def pending_of_group(self, group: str) -> Iterator[TopicPartition]:
        yield from self._open.get(group, {})

    def has_pending(self, group: str) -> bool:
        return group in self._open

    # Changing; a restart goes through the same functions

    def commit(self, group: str, topic: str, partition: int, committed: CommittedOffset) -> None:
        self._committed.setdefault(group, {}).setdefault(topic, {})[partition] = committed

    def commit_in_transaction(
        self, producer_id: int, group: str, topic: str, partition: int, committed: CommittedOffset
    ) -> None:
        self._pending.setdefault(producer_id, {})[group, topic, partition] = committed
        self._open.setdefault(group, {}).setdefault((topic, partition), set()).add(producer_id)

    def delete(self, group: str, topic: str, partition: int) -> None:
        topics = self._committed.get(group)
        if topics is not None and topic in topics:
            topics[topic].pop(partition, None)
            if not topics[topic]:
                del topics[topic]
            if not topics:
                del self._committed[group]
        for producer_id in self._open.get(group, {}).get((topic, partition), ()):
            del self._pending[producer_id][group, topic, partition]
        self._close(group, (topic, partition))

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        for (group, topic, partition), committed in self._pending.pop(producer_id, {}).items():
            producers = self._open[group][topic, partition]
            producers.discard(producer_id)
            if not producers:
                self._close(group, (topic, partition))
            if commit:
                before = self.get(group, topic, partition)
                if before is None or committed.record_offset > before.record_offset:
                    self.commit(group, topic, partition, committed)

    def _close(self, group: str, partition: TopicPartition) -> None:
        opened = self._open.get(group)
        if opened is not None:
            opened.pop(partition, None)
            if not opened:
                del self._open[group]
