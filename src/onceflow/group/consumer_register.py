"""The consumer groups among the groups of a coordinator: found, made, described, and brought back from the log.

A group id that a classic group has can become a consumer group's: the classic group's tombstones and the first records
of the consumer group are written together. Members of the classic group stay members (`upgrade`). When a consumer group
becomes a classic one again (`downgrade`), that takes its place in the register.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.base import Group
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_decision import Decision
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_heartbeat import heartbeat
from onceflow.group.consumer_leave import leave
from onceflow.group.consumer_members import JOIN_EPOCH, LEFT_EPOCH, STATIC_LEFT_EPOCH, Member
from onceflow.group.consumer_records import KINDS, GroupKey, decode_record, encode_record
from onceflow.group.consumer_settings import ConsumerSettings
from onceflow.group.consumer_topics import Topics
from onceflow.group.coordinator import Coordinator
from onceflow.group.effects import Client, Effects
from onceflow.group.records import KeyValue
from onceflow.group.upgrade import upgrade_records
from onceflow.wire.messages import consumer_group_describe as described
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["ConsumerGroups", "Decided"]

CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with all that has to be written for it."""

    group_id: str
    records: list[KeyValue]
    decision: Decision
    upgraded: ClassicGroup | None = None
    """The group that was there before, with its members."""


class ConsumerGroups:
    """For one coordinator, which from now on replays the records of consumer groups too."""

    def __init__(self, coordinator: Coordinator, topics: Topics, settings: ConsumerSettings) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._settings = settings
        for kind in KINDS:
            coordinator.replayers[kind] = self._apply

    def get(self, group_id: str) -> ConsumerGroup:
        group = self._coordinator.groups.get(group_id)
        if group is None:
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    # Deciding

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: Client, now_ms: int, new_member_id: Callable[[], str]
    ) -> Decided:
        """Raises `ProtocolError`. What was decided has to be written and applied, and then settled."""
        group_id = request.group_id
        if request.member_epoch in (LEFT_EPOCH, STATIC_LEFT_EPOCH):
            decision = leave(self.get(group_id), request, now_ms)
            records = [encode_record(record) for record in decision.records]
            if decision.successor is not None:
                records.append(decision.successor.stored())
            return Decided(group_id, records, decision)
        there = self._coordinator.groups.get(group_id)
        if request.member_epoch != JOIN_EPOCH or isinstance(there, ConsumerGroup):
            group, before = self.get(group_id), list[KeyValue]()
        else:
            group, before = self._make(group_id, there)
        decision = heartbeat(group, request, client, now_ms, new_member_id)
        records = before + [encode_record(record) for record in decision.records]
        upgraded = there if isinstance(there, ClassicGroup) and group.members else None
        return Decided(group_id, records, decision, upgraded)

    def _make(self, group_id: str, there: Group | None) -> tuple[ConsumerGroup, list[KeyValue]]:
        """A new group, in no register yet, and what has to be written for it to be in the place of the one there."""
        new = ConsumerGroup(group_id, self._topics, self._settings)
        if there is None:
            return new, []
        if not isinstance(there, ClassicGroup):
            raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        upgrade = [] if there.is_empty else upgrade_records(there, self._topics, self._settings)
        for record in upgrade:
            new.apply(record)
        return new, [*there.tombstones(), *(encode_record(record) for record in upgrade)]

    def settle(self, decided: Decided, now_ms: int) -> Effects:
        """What is in no record, once the records are applied: sessions, and answers to who waits for a group that is
        no more."""
        effects = Effects()
        effects.successor = decided.decision.successor
        if effects.successor is None:
            group = self.get(decided.group_id)
            if decided.upgraded is not None:
                effects = decided.upgraded.abandon(ErrorCode.REBALANCE_IN_PROGRESS)
                for member_id in group.members:
                    group.hear(member_id, now_ms)
            decided.decision.settle(group, now_ms)
        if decided.records:
            self._coordinator.settle(decided.group_id, effects, now_ms)
        return effects

    # Records

    def _apply(self, stored_key: bytes, stored_value: bytes | None, now_ms: int) -> None:
        record = decode_record(stored_key, stored_value)
        assert record is not None, "registered for these kinds only"
        key, value = record
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self._coordinator.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = self._coordinator.groups[group_id] = ConsumerGroup(group_id, self._topics, self._settings)
        group.apply(record)
        if isinstance(key, GroupKey) and value is None:
            del self._coordinator.groups[group_id]

    # Describing

    def describe(self, group_id: str) -> described.DescribedGroup:
        try:
            group = self.get(group_id)
        except ProtocolError as error:
            return described.DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
        return described.DescribedGroup(
            group_id=group_id,
            group_state=group.state_name,
            group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.preferred_assignor(group.members.values()),
            members=[self._describe_member(group, member) for member in group.members.values()],
        )

    def _describe_member(self, group: ConsumerGroup, member: Member) -> described.Member:
        has: dict[UUID, list[int]] = {}
        for epochs in (member.assigned, member.revoking):
            for topic_id, partitions in epochs.items():
                has.setdefault(topic_id, []).extend(partitions)
        target = {topic_id: list(partitions) for topic_id, partitions in group.target.get(member.member_id, {}).items()}
        return described.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            assignment=self._describe_assignment(has),
            target_assignment=self._describe_assignment(target),
            member_type=CONSUMER_MEMBER_TYPE if member.classic is None else CLASSIC_MEMBER_TYPE,
        )

    def _describe_assignment(self, assignment: dict[UUID, list[int]]) -> described.Assignment:
        """Topics that are gone are left out, as they have no name any more."""
        topics = [
            described.TopicPartitions(topic_id=id, topic_name=info.name, partitions=sorted(partitions))
            for id, partitions in assignment.items()
            if (info := self._topics.with_id(id)) is not None
        ]
        return described.Assignment(topic_partitions=topics)
