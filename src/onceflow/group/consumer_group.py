"""One consumer group (KIP-848): what it is, and how its records change it.

    group epoch        goes up whenever members, subscriptions or the topics behind them change
    assignment epoch   the group epoch that the target assignment was computed for
    member epoch       the assignment epoch that a member has come to

    Empty         without members
    Assigning     the target assignment is older than the group
    Reconciling   a member has not come to its target yet
    Stable        every member has

Nothing here decides: `apply` is the only way in which a group changes, live as after a restart, and takes one record.
What is not in records lives beside it and starts anew with a restart: the members' deadlines, and which state of the
topics was looked at last.

Members may use the classic protocol (`consumer_classic`): the group was a classic one, and becomes one again when
nobody but them is left (`downgrade`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.assignors import Assignment
from onceflow.group.base import Group, GroupType
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_members import Member, MemberState
from onceflow.group.consumer_records import (
    ConsumerRecord,
    CurrentAssignmentKey,
    CurrentAssignmentValue,
    GroupKey,
    GroupValue,
    MemberKey,
    MemberValue,
    PartitionMetadataKey,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    encode_record,
    group_record,
    member_tombstones,
)
from onceflow.group.consumer_settings import ConsumerSettings
from onceflow.group.consumer_topics import ResolvedRegex, Topics, metadata_hash
from onceflow.group.downgrade import downgraded
from onceflow.group.effects import Effects
from onceflow.group.offsets import CommittedOffset
from onceflow.group.records import KeyValue
from onceflow.wire.schema import Message

__all__ = ["ConsumerGroup", "Removal"]

EPOCH_AT_BIRTH: Final = 1
NO_EPOCH: Final = -1
FENCE_RETRY_MS: Final = 500
COMMIT_VERSION_MIN: Final = 9
"""Of OffsetCommit: older ones have no word for a stale member epoch."""


class Removal(NamedTuple):
    """What has to be written for members to be gone, and what the group is then if only classic members stay."""

    records: list[ConsumerRecord]
    successor: ClassicGroup | None = None

    def effects(self) -> Effects:
        effects = Effects()
        effects.applies = True
        effects.records = self.encoded()
        effects.successor = self.successor
        return effects

    def encoded(self) -> list[KeyValue]:
        records = [encode_record(record) for record in self.records]
        return records if self.successor is None else [*records, self.successor.stored()]


class ConsumerGroup(Group):
    type = GroupType.CONSUMER

    def __init__(self, group_id: str, topics: Topics, settings: ConsumerSettings) -> None:
        super().__init__(group_id)
        self.topics = topics
        self.settings = settings
        self.epoch = EPOCH_AT_BIRTH
        self.metadata_hash = 0
        self.assignment_epoch = EPOCH_AT_BIRTH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.target: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.static_ids: dict[str, str] = {}
        """Instance id to member id."""
        self.has_partition_metadata = False
        """Whether a Kafka before 4.1 wrote a record that nobody writes any more."""
        self.regex_members: set[str] = set()
        """The members that have an expression."""
        self.classic_members: set[str] = set()
        """The members that use the classic protocol."""
        self._takers: dict[tuple[UUID, int], str] = {}
        """Who has a partition, or is still giving it back."""
        self.checked_version: int | None = None
        """The version of the topics for which `metadata_hash` holds; None after a restart."""
        self.resolved_version: int | None = None
        """The same for `regexes`."""
        self.is_resolving = False
        """Whether expressions are being matched with the topics, in steps."""
        self.session_deadlines: dict[str, int] = {}
        self.rebalance_deadlines: dict[str, tuple[int, int]] = {}
        """By when a member must have given its partitions back, and the epoch that it is in meanwhile."""
        self.join_deadlines: dict[str, int] = {}
        """By when a classic member must have joined again that was told to."""
        self.sync_deadlines: dict[str, int] = {}
        """By when a classic member must have asked for its assignment."""

    # What it is

    @property
    def protocol_type(self) -> str:
        return "consumer"

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        reconciled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return "Stable" if reconciled else "Reconciling"

    @property
    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> Member:
        found = self.members.get(member_id)
        if found is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.id}.")
        return found

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def is_taken(self, topic_id: UUID, partition: int) -> bool:
        return (topic_id, partition) in self._takers

    def waits_for_others(self, member: Member) -> bool:
        """Whether somebody still has a partition that this member is to have."""
        return any(
            self.is_taken(topic_id, partition)
            for topic_id, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions - member.assigned.get(topic_id, {}).keys()
        )

    def preferred_assignor(self, members: Iterable[Member]) -> str:
        """What most of those want who want one in particular."""
        wanted = Counter(member.assignor for member in members if member.assignor is not None)
        return max(wanted, key=lambda name: (wanted[name], name)) if wanted else self.settings.assignors[0]

    # What its members want

    def regex_subscribers(self, regex: str) -> int:
        return sum(self.members[member_id].topic_regex == regex for member_id in self.regex_members)

    def topic_names_of(self, member: Member) -> frozenset[str]:
        resolved = self.regexes.get(member.topic_regex) if member.topic_regex else None
        return member.topic_names | resolved.topics if resolved is not None else member.topic_names

    def topics_of(self, members: Iterable[Member]) -> set[str]:
        """Every topic that one of them wants, whether it exists or not."""
        return set().union(*{self.topic_names_of(member) for member in members})

    def topic_ids_of(self, member: Member) -> frozenset[UUID]:
        found = map(self.topics.named, self.topic_names_of(member))
        return frozenset(info.id for info in found if info is not None)

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in self.topic_names_of(member) for member in self.members.values())

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
        if generation < 0 and not self.members:
            return  # a consumer that is in no group, or a tool
        if transactional and generation == NO_EPOCH and not member_id and instance_id is None:
            return
        member = self.member(member_id)
        if not transactional and member.classic is None and version < COMMIT_VERSION_MIN:
            raise ProtocolError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol",
            )
        if generation > member.epoch:
            reason = f"Received member epoch {generation} is newer than current member epoch {member.epoch}."
            raise ProtocolError(_stale_code(member, transactional), reason)

    def check_commit_partitions(
        self, member_id: str, generation: int, partitions: Iterable[tuple[UUID | None, int]], *, transactional: bool
    ) -> None:
        """After `check_commit`: a commit of an older epoch counts if the member has had all of these since then."""
        member = self.members.get(member_id)
        if member is None or generation == member.epoch:
            return
        for topic_id, partition in partitions:
            since = None if topic_id is None else member.epoch_of(topic_id, partition)
            if since is None or generation < since:
                reason = f"Received member epoch {generation} is too old for partition {partition} of {topic_id}."
                raise ProtocolError(_stale_code(member, transactional), reason)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.epoch:
            raise ProtocolError(
                _stale_code(member, transactional=False),
                f"The received member epoch {member_epoch} does not match the expected member epoch {member.epoch}.",
            )

    def check_offset_delete(self) -> None:
        """Always; `is_subscribed` protects what is in use."""

    def check_delete(self) -> None:
        if self.members:
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP)

    def unused_since_ms(self, offset: CommittedOffset) -> int | None:
        return offset.commit_timestamp_ms

    # Life

    def tombstones(self) -> list[KeyValue]:
        return [encode_record(record) for record in self.tombstone_records()]

    def tombstone_records(self) -> list[ConsumerRecord]:
        keys: list[Message] = [
            *(CurrentAssignmentKey(group_id=self.id, member_id=member_id) for member_id in self.members),
            *(TargetMemberKey(group_id=self.id, member_id=member_id) for member_id in self.members),
            TargetMetadataKey(group_id=self.id),
            *(MemberKey(group_id=self.id, member_id=member_id) for member_id in self.members),
            *(RegexKey(group_id=self.id, regular_expression=regex) for regex in self.regexes),
            PartitionMetadataKey(group_id=self.id),
            GroupKey(group_id=self.id),
        ]
        return [(key, None) for key in keys]

    def next_deadline_ms(self) -> int | None:
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterator[int]:
        yield from self.session_deadlines.values()
        yield from self.join_deadlines.values()
        yield from self.sync_deadlines.values()
        for deadline, _ in self.rebalance_deadlines.values():
            yield deadline

    def on_time(self, now_ms: int) -> Effects:
        """Have members removed that are overdue. If that cannot be written it is tried again soon."""
        gone = self.overdue(now_ms)
        effects = self.removal(gone, now_ms).effects()
        for member in gone:
            self._forget_deadlines(member.member_id)
            self.session_deadlines[member.member_id] = now_ms + FENCE_RETRY_MS
        return effects

    def on_loaded(self, now_ms: int) -> Effects:
        for member_id in self.members:
            self.hear(member_id, now_ms)
            self.watch_revocation(member_id, now_ms)
        return Effects()

    def abandon(self, error: ErrorCode) -> Effects:
        """Nobody waits on a consumer group."""
        return Effects()

    def overdue(self, now_ms: int) -> list[Member]:
        """Members that were silent for too long, or kept for too long what they are to give back; and classic ones
        that did not join or sync when they had to."""
        limits = (self.session_deadlines, self.join_deadlines, self.sync_deadlines)
        silent = {member_id for limit in limits for member_id, deadline in limit.items() if deadline <= now_ms}
        for member_id, (deadline, epoch) in self.rebalance_deadlines.items():
            if deadline <= now_ms and self.members[member_id].epoch == epoch:
                silent.add(member_id)
        return [self.members[member_id] for member_id in sorted(silent)]

    def hear(self, member_id: str, now_ms: int) -> None:
        classic = self.members[member_id].classic
        timeout_ms = self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.session_deadlines[member_id] = now_ms + timeout_ms

    def watch_revocation(self, member_id: str, now_ms: int) -> None:
        """After a member's assignment has changed: it has its rebalance timeout to give back what it must."""
        member = self.members[member_id]
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
            self.rebalance_deadlines[member_id] = (now_ms + member.rebalance_timeout_ms, member.epoch)
        else:
            self.rebalance_deadlines.pop(member_id, None)

    # Records

    def removal(self, members: Sequence[Member], now_ms: int) -> Removal:
        """What takes these members out of the group; whoever remains is told with the next heartbeat."""
        if not members:
            return Removal([])
        gone = {member.member_id for member in members}
        remaining = [member for member_id, member in self.members.items() if member_id not in gone]
        successor = downgraded(self, remaining, now_ms)
        if successor is not None:
            successor.rebalance(now_ms)
            return Removal(self.tombstone_records(), successor)
        records = [record for member in members for record in member_tombstones(self.id, member.member_id)]
        unused = {member.topic_regex for member in members} - {member.topic_regex for member in remaining}
        for regex in sorted(filter(None, unused)):
            records.append((RegexKey(group_id=self.id, regular_expression=regex), None))
        hashed = metadata_hash(self.topics_of(remaining), self.topics)
        return Removal([*records, group_record(self.id, self.epoch + 1, hashed)])

    def apply(self, record: ConsumerRecord) -> None:
        key, value = record
        _APPLY[type(key)](self, key, value)

    def _apply_group(self, key: GroupKey, value: GroupValue | None) -> None:
        if value is not None:
            self.epoch = value.epoch
            self.metadata_hash = value.metadata_hash

    def _apply_partition_metadata(self, key: PartitionMetadataKey, value: Message | None) -> None:
        self.has_partition_metadata = value is not None

    def _apply_member(self, key: MemberKey, value: MemberValue | None) -> None:
        if value is not None:
            self._replace(self._member_or_new(key.member_id).with_metadata(value))
        elif key.member_id in self.members:
            self._forget(key.member_id)

    def _apply_target_metadata(self, key: TargetMetadataKey, value: TargetMetadataValue | None) -> None:
        self.assignment_epoch = NO_EPOCH if value is None else value.assignment_epoch
        self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def _apply_target_member(self, key: TargetMemberKey, value: TargetMemberValue | None) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            topics = ((topic.topic_id, frozenset(topic.partitions)) for topic in value.topic_partitions)
            self.target[key.member_id] = {id: partitions for id, partitions in topics if id is not None}

    def _apply_current(self, key: CurrentAssignmentKey, value: CurrentAssignmentValue | None) -> None:
        if value is not None:
            self._replace(self._member_or_new(key.member_id).with_current_assignment(value))
        elif key.member_id in self.members:
            self._replace(self.members[key.member_id].without_assignment())

    def _apply_regex(self, key: RegexKey, value: RegexValue | None) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[key.regular_expression] = resolved

    def _member_or_new(self, member_id: str) -> Member:
        return self.members.get(member_id) or Member(member_id)

    def _replace(self, member: Member) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._release(before)
        self.members[member.member_id] = member
        for partition in _partitions(member):
            self._takers[partition] = member.member_id
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if member.topic_regex:
            self.regex_members.add(member.member_id)
        else:
            self.regex_members.discard(member.member_id)
        if member.classic is not None:
            self.classic_members.add(member.member_id)
        else:
            self.classic_members.discard(member.member_id)
            self.join_deadlines.pop(member.member_id, None)
            self.sync_deadlines.pop(member.member_id, None)

    def _release(self, member: Member) -> None:
        for partition in _partitions(member):
            if self._takers.get(partition) == member.member_id:
                del self._takers[partition]

    def _forget(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._release(member)
        self.regex_members.discard(member_id)
        self.classic_members.discard(member_id)
        if member.instance_id is not None and self.static_ids.get(member.instance_id) == member_id:
            del self.static_ids[member.instance_id]
        self._forget_deadlines(member_id)

    def _forget_deadlines(self, member_id: str) -> None:
        for limits in (self.session_deadlines, self.rebalance_deadlines, self.join_deadlines, self.sync_deadlines):
            limits.pop(member_id, None)


def _stale_code(member: Member, transactional: bool) -> ErrorCode:
    """TxnOffsetCommit has no word for a stale epoch, nor has the classic protocol."""
    if transactional or member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def _partitions(member: Member) -> Iterator[tuple[UUID, int]]:
    for epochs in (member.assigned, member.revoking):
        for topic_id, partitions in epochs.items():
            for partition in partitions:
                yield topic_id, partition


_APPLY: Final[Mapping[type[Message], Callable[[ConsumerGroup, Any, Any], None]]] = {
    GroupKey: ConsumerGroup._apply_group,
    PartitionMetadataKey: ConsumerGroup._apply_partition_metadata,
    MemberKey: ConsumerGroup._apply_member,
    TargetMetadataKey: ConsumerGroup._apply_target_metadata,
    TargetMemberKey: ConsumerGroup._apply_target_member,
    CurrentAssignmentKey: ConsumerGroup._apply_current,
    RegexKey: ConsumerGroup._apply_regex,
}
