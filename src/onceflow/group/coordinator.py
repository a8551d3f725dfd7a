"""The groups of one partition of `__consumer_offsets`: who they are, what they may do together, and how they come back.

A group id names one group, which is classic or a consumer group (KIP-848); offsets are kept per group id whatever the
group is. Everything that both kinds share goes through here and asks the group what it allows (`base.Group`).

Decide, write, apply:

- A request is *decided* on what is in memory. What has to be written comes back as records.
- When they are written, `apply` changes memory, with the code that a restart replays the log with. (A classic group is
  ahead of its records: it has changed already, see `classic`.)
- `replay` reads a whole log. Afterwards `loaded` gives all members a fresh session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError
from onceflow.group import consumer_classic
from onceflow.group.base import Group
from onceflow.group.classic import ClassicGroup, ClassicSettings, Join, join_refusal
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_leave import leave_on_behalf
from onceflow.group.deadlines import Deadlines
from onceflow.group.effects import Effects, Ticket
from onceflow.group.offsets import NO_EXPIRY, CommittedOffset, Offsets, offset_tombstone
from onceflow.group.records import (
    GROUP_METADATA,
    OFFSET_COMMIT_KINDS,
    GroupMetadataKey,
    GroupMetadataValue,
    KeyValue,
    OffsetCommitKey,
    OffsetCommitValue,
    kind_of,
    read_key,
    read_value,
)
from onceflow.wire.batch import BatchHeader
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberResponse
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from onceflow.wire.records import EndTxnMarker, Record

__all__ = ["Coordinator", "is_listed", "names"]

NO_PRODUCER = -1
GROUP_ID_NOT_FOUND_FROM = 9
"""The version of OffsetCommit from which a client is told that the group is gone; before, 22 had to do."""

Replayer = Callable[[bytes, bytes | None, int], None]
"""Applies the key and value of one kind of record; the last argument is what time it is."""

TopicCheck = Callable[[str, UUID | None], bool]
"""Whether there is a topic of that name and id; without an id the name has to do."""


class Coordinator:
    def __init__(self, settings: ClassicSettings) -> None:
        self._settings = settings
        self.groups: dict[str, Group] = {}
        self.offsets = Offsets()
        self.deadlines = Deadlines()
        self.replayers: dict[int, Replayer] = {GROUP_METADATA: self._apply_group_metadata}
        """How records are applied, by kind; offsets apart, which need to know more. Consumer groups add theirs."""

    # Finding

    def get(self, group_id: str) -> Group | None:
        return self.groups.get(group_id)

    def known(self, group_id: str, missing: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise ProtocolError(missing, f"Group {group_id} not found.")
        return group

    def classic(self, group_id: str, missing: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND) -> ClassicGroup:
        group = self.known(group_id, missing)
        if not isinstance(group, ClassicGroup):
            raise ProtocolError(missing, f"Group {group_id} is not a classic group.")
        return group

    # The classic protocol

    def make_room(self, join: Join, now_ms: int) -> list[KeyValue]:
        """The records that make the classic group for a join, in the place of a consumer group without members.

        They have to be written and applied before `join`. None if the group is there, or if the join is refused.
        """
        group = self.groups.get(join.request.group_id)
        if _takes_joins(group) or self._refuses(join, group) is not None:
            return []
        replaced = [] if group is None else group.tombstones()
        return [*replaced, ClassicGroup(join.request.group_id, self._settings, now_ms).first_record()]

    def join(self, join: Join, now_ms: int) -> Effects:
        """Join the group that `make_room` has seen to."""
        group = self.groups.get(join.request.group_id)
        refused = self._refuses(join, group)
        if refused is not None:
            return refused
        if isinstance(group, ConsumerGroup):
            return consumer_classic.join(group, join, now_ms)
        assert isinstance(group, ClassicGroup)
        effects = group.join(join, now_ms)
        self.deadlines.watch(group)
        return effects

    @staticmethod
    def _refuses(join: Join, group: Group | None) -> Effects | None:
        if not _takes_joins(group) and join.request.member_id:
            return _join_refused(join, ErrorCode.UNKNOWN_MEMBER_ID, join.request.member_id)
        return None

    def sync(self, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> Effects:
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            effects = consumer_classic.sync(group, request, ticket, now_ms)
            self.deadlines.watch(group)
            return effects
        if not isinstance(group, ClassicGroup):
            effects = Effects()
            effects.answer(ticket, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return effects
        effects = group.sync(request, ticket, now_ms)
        self.deadlines.watch(group)
        return effects

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """If it is an error, there may be an earlier deadline than before."""
        known = self.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            error = consumer_classic.heartbeat(known, request, now_ms)
            self.deadlines.watch(known)
            return error
        group = self.classic(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        return group.heartbeat(request.member_id, request.group_instance_id, request.generation_id, now_ms)

    def leave(self, request: LeaveGroupRequest, now_ms: int) -> tuple[list[MemberResponse], Effects]:
        known = self.groups.get(request.group_id)
        if isinstance(known, ConsumerGroup):
            return leave_on_behalf(known, request, now_ms)
        group = self.classic(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)
        answers, effects = group.leave(request, now_ms)
        self.deadlines.watch(group)
        return answers, effects

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        partitions: Iterable[tuple[UUID | None, int]],
        *,
        transactional: bool,
        version: int,
        now_ms: int,
    ) -> None:
        """Raise `ProtocolError` unless this member may commit. A group nobody knows is made by the commit itself.

        The partitions are given by topic id and number.
        """
        group = self.groups.get(group_id)
        if group is not None:
            group.check_commit(
                member_id, instance_id, generation, transactional=transactional, version=version, now_ms=now_ms
            )
            group.check_commit_partitions(member_id, generation, partitions, transactional=transactional)
        elif generation >= 0:
            told = not transactional and version >= GROUP_ID_NOT_FOUND_FROM
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND if told else ErrorCode.ILLEGAL_GENERATION)

    def delete_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> list[KeyValue]:
        """The records that delete those of the offsets that there are."""
        return [
            offset_tombstone(group_id, topic, partition)
            for topic, partition in partitions
            if self.offsets.get(group_id, topic, partition) or self.offsets.is_pending(group_id, topic, partition)
        ]

    def expire(self, now_ms: int, retention_ms: int, exists: TopicCheck) -> list[KeyValue]:
        """The records that delete offsets nobody needs any more, and groups that have neither members nor offsets.

        An offset is not needed when nobody has used it for `retention_ms`, or when its topic is gone.
        """
        records: list[KeyValue] = []
        for group in self.groups.values():
            expired, remain = self._expired(group, now_ms, retention_ms, exists)
            records += expired
            if not remain and group.is_empty and not self.offsets.has_pending(group.id):
                records += group.tombstones()
        return records

    def _expired(self, group: Group, now_ms: int, retention_ms: int, exists: TopicCheck) -> tuple[list[KeyValue], bool]:
        """Tombstones of a group's expired offsets, and whether others remain."""
        expired: list[KeyValue] = []
        remain = False
        for topic, offsets in self.offsets.of_group(group.id).items():
            subscribed = group.is_subscribed(topic)
            for partition, committed in offsets.items():
                unused = not subscribed and _is_expired(group, committed, now_ms, retention_ms)
                needed = exists(topic, committed.topic_id) and not unused
                if needed or self.offsets.is_pending(group.id, topic, partition):
                    remain = True
                else:
                    expired.append(offset_tombstone(group.id, topic, partition))
        return expired, remain

    # Groups as a whole

    def delete_group(self, group_id: str) -> list[KeyValue]:
        """The records that delete a group with its offsets; raises `ProtocolError` if it is in use."""
        group = self.known(group_id)
        group.check_delete()
        offsets = {(topic, at) for topic, found in self.offsets.of_group(group_id).items() for at in found}
        offsets |= set(self.offsets.pending_of_group(group_id))
        tombstones = [offset_tombstone(group_id, topic, partition) for topic, partition in sorted(offsets)]
        return tombstones + group.tombstones()

    # Time

    def on_time(self, now_ms: int) -> Iterator[tuple[Group, Effects]]:
        """Do what is due in all groups."""
        due = [self.groups[group_id] for group_id in self.deadlines.take_due(now_ms) if group_id in self.groups]
        for group in due:
            group.watched_ms = None
        try:
            for group in due:
                yield group, group.on_time(now_ms)
        finally:
            for group in due:
                self.deadlines.watch(group)

    # Applying what is in the log

    def settle(self, group_id: str, effects: Effects, now_ms: int) -> None:
        """What is in no record, once the records of these effects are applied."""
        if effects.applied is not None:
            effects.applied(now_ms)
        if effects.successor is not None:
            self.groups[group_id] = effects.successor
        group = self.groups.get(group_id)
        if group is not None:
            self.deadlines.watch(group)

    def apply(self, records: Iterable[KeyValue], now_ms: int, *, first_offset: int = -1) -> None:
        """Change memory as these records say, which were just written."""
        for at, (key, value) in enumerate(records):
            self._apply(key, value, NO_PRODUCER, first_offset + at, now_ms)

    def apply_commit(
        self, group_id: str, topic: str, partition: int, committed: CommittedOffset, producer_id: int, now_ms: int
    ) -> None:
        """An offset was written, in the producer's transaction or without one."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, self._settings, now_ms)
        if producer_id == NO_PRODUCER:
            self.offsets.commit(group_id, topic, partition, committed)
        else:
            self.offsets.commit_in_transaction(producer_id, group_id, topic, partition, committed)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """A marker was written."""
        self.offsets.end_transaction(producer_id, commit)

    def replay(self, header: BatchHeader, records: Iterable[Record], now_ms: int) -> list[MalformedMessage]:
        """One batch of the log. Returns what could not be read; the rest of the batch counts."""
        if header.is_control:
            for record in records:
                self.end_transaction(header.producer_id, EndTxnMarker.read(record).commit)
            return []
        problems = []
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER
        for record in records:
            try:
                self._apply(record.key or b"", record.value, producer_id, record.offset, now_ms)
            except MalformedMessage as problem:
                problems.append(problem)
        return problems

    def loaded(self, now_ms: int) -> Iterator[tuple[Group, Effects]]:
        """The whole log was replayed."""
        for group in list(self.groups.values()):
            effects = group.on_loaded(now_ms)
            self.deadlines.watch(group)
            yield group, effects

    def _apply(self, key: bytes, value: bytes | None, producer_id: int, record_offset: int, now_ms: int) -> None:
        kind = kind_of(key)
        if kind in OFFSET_COMMIT_KINDS:
            self._apply_offset(key, value, producer_id, record_offset, now_ms)
        elif kind in self.replayers:
            self.replayers[kind](key, value, now_ms)
        else:
            raise MalformedMessage(f"A record of kind {kind} in __consumer_offsets is of no kind known here.")

    def _apply_offset(self, key: bytes, value: bytes | None, producer_id: int, record_offset: int, now_ms: int) -> None:
        of = read_key(OffsetCommitKey, key)
        if value is None:
            self.offsets.delete(of.group, of.topic, of.partition)
        else:
            committed = CommittedOffset.of(read_value(OffsetCommitValue, value), record_offset)
            self.apply_commit(of.group, of.topic, of.partition, committed, producer_id, now_ms)

    def _apply_group_metadata(self, key: bytes, value: bytes | None, now_ms: int) -> None:
        group_id = read_key(GroupMetadataKey, key).group
        if value is None:
            self.groups.pop(group_id, None)
        else:
            stored = read_value(GroupMetadataValue, value)
            self.groups[group_id] = ClassicGroup.of(group_id, stored, self._settings, now_ms)


def names(said: Iterable[str]) -> frozenset[str]:
    """What a filter names, in any letter case."""
    return frozenset(each.strip().lower() for each in said)


def is_listed(group: Group, states: frozenset[str], types: frozenset[str]) -> bool:
    """Whether a group is in one of the states and of one of the types; no filter lets all through."""
    return (not states or group.state_name.lower() in states) and (not types or group.type.value.lower() in types)


def _takes_joins(group: Group | None) -> bool:
    """A consumer group without members makes room for a classic one."""
    return isinstance(group, ClassicGroup) or (isinstance(group, ConsumerGroup) and not group.is_empty)


def _join_refused(join: Join, error: ErrorCode, member_id: str = "") -> Effects:
    effects = Effects()
    effects.answer(join.ticket, join_refusal(error, member_id))
    return effects


def _is_expired(group: Group, committed: CommittedOffset, now_ms: int, retention_ms: int) -> bool:
    since_ms = group.unused_since_ms(committed)
    if since_ms is None:
        return False
    if committed.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= committed.expire_timestamp_ms
    return now_ms - since_ms >= retention_ms
