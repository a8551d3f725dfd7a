"""What a classic group is, apart from how it changes: its state, its members, its rules for offsets, its records.

How it changes is in `classic`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.base import Group, GroupType
from onceflow.group.members import Member, Members
from onceflow.group.offsets import CommittedOffset
from onceflow.group.records import (
    GROUP_METADATA,
    GROUP_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    KeyValue,
    write_key,
    write_value,
)
from onceflow.group.states import ClassicState, check_move
from onceflow.group.subscription import CONSUMER_PROTOCOL, subscribed_topics

__all__ = ["COMPLETING", "DEAD", "EMPTY", "PREPARING", "STABLE", "ClassicBase", "ClassicSettings"]

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicState


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassicSettings:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


class ClassicBase(Group):
    type = GroupType.CLASSIC

    def __init__(self, group_id: str, settings: ClassicSettings, now_ms: int) -> None:
        super().__init__(group_id)
        self._settings = settings
        self.state = EMPTY
        self._state_before = DEAD
        self.state_since_ms = now_ms
        """When the group came into its state; -1 if nobody knows."""
        self.generation = 0
        self.protocol: str | None = None
        self._protocol_type = ""
        self.members = Members()
        self._topics: frozenset[str] | None = None
        """What the members subscribe to; None if nobody can tell."""

    @classmethod
    def of(cls, group_id: str, stored: GroupMetadataValue, settings: ClassicSettings, now_ms: int) -> Self:
        """A group as the log has it."""
        group = cls(group_id, settings, now_ms)
        group.state = STABLE if stored.members else EMPTY
        group.state_since_ms = stored.current_state_timestamp
        group.generation = stored.generation
        group.protocol = stored.protocol
        group._protocol_type = stored.protocol_type
        for member in stored.members:
            group.members.add(Member.of(member, stored.protocol))
        group.members.leader = stored.leader if stored.members else None
        group._topics = group._subscribed_topics()
        return group

    @classmethod
    def stable(
        cls, group_id: str, members: Iterable[Member], *, generation: int, settings: ClassicSettings, now_ms: int
    ) -> Self:
        """A group whose members are those of a consumer group."""
        group = cls(group_id, settings, now_ms)
        group.state = STABLE
        group.generation = generation
        group._protocol_type = CONSUMER_PROTOCOL
        for member in members:
            group.members.add(member)
            member.heard_of(now_ms)
        group.protocol = group.members.choose_protocol()
        group._topics = group._subscribed_topics()
        return group

    # What others see

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type(self) -> str:
        return self._protocol_type

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_simple(self) -> bool:
        """Nobody ever joined; it exists because offsets were committed."""
        return self.is_empty and not self._protocol_type and not self.members.pending

    @property
    def leader(self) -> str | None:
        return self.members.leader

    @property
    def speaks_consumer(self) -> bool:
        return self._protocol_type == CONSUMER_PROTOCOL

    def is_subscribed(self, topic: str) -> bool:
        return topic in self._topics if self._topics is not None else self.speaks_consumer

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.speaks_consumer:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members:
            subscribed = subscribed_topics(member.metadata(self.protocol))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def _move_to(self, state: ClassicState, now_ms: int) -> None:
        check_move(self.id, self.state, state)
        self._state_before, self.state = self.state, state
        self.state_since_ms = now_ms

    # Offsets

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        transactional: bool,
        version: int,
        now_ms: int,
    ) -> None:
        if self.state is DEAD:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation < 0 and self.state is EMPTY:
            return
        member = None
        if generation >= 0 or member_id or instance_id is not None:
            member = self.members.known(member_id, instance_id)
            if generation != self.generation:
                raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        elif not transactional:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not transactional and self.state is COMPLETING:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        if member is not None and not transactional:
            member.heard_of(now_ms)

    def check_commit_partitions(
        self, member_id: str, generation: int, partitions: Iterable[tuple[UUID | None, int]], *, transactional: bool
    ) -> None:
        """Nobody but the leader knows what is whose in a classic group."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Offsets of a classic group may be read by anybody."""

    def check_offset_delete(self) -> None:
        if self.state is not EMPTY and not self.speaks_consumer:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self) -> None:
        if self.state is not EMPTY:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def unused_since_ms(self, offset: CommittedOffset) -> int | None:
        if not self._protocol_type:
            return offset.commit_timestamp_ms
        if self.state is EMPTY:
            return self.state_since_ms if self.state_since_ms != -1 else offset.commit_timestamp_ms
        if self.speaks_consumer and self._topics is not None and self.state is STABLE:
            return offset.commit_timestamp_ms
        return None

    # The log

    def _record(self, assignment: Mapping[str, bytes]) -> KeyValue:
        value = GroupMetadataValue(
            protocol_type=self._protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.state_since_ms,
            members=[member.stored(self.protocol or "", assignment[member.id]) for member in self.members],
        )
        return self._key, write_value(GROUP_VERSION, value)

    def stored(self) -> KeyValue:
        """The group as it is."""
        return self._record({member.id: member.assignment for member in self.members})

    def first_record(self) -> KeyValue:
        """What is written when somebody asks to join a group that did not exist."""
        return self._key, write_value(GROUP_VERSION, GroupMetadataValue(current_state_timestamp=self.state_since_ms))

    def tombstones(self) -> list[KeyValue]:
        return [(self._key, None)]

    @property
    def _key(self) -> bytes:
        return write_key(GROUP_METADATA, GroupMetadataKey(group=self.id))
