"""The consumer groups among the groups of a coordinator: found, made, described, and brought back from the log.

A group id that a classic group has can become a consumer group's when that group has no members: the classic group's
tombstones and the first records of the consumer group are written together. A classic group with members is not
converted: Kafka answers so too where `group.consumer.migration.policy` is `disabled`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.base import GroupType
from onceflow.group.consumer_decision import Decision
from onceflow.group.consumer_group import ConsumerGroup, ConsumerSettings
from onceflow.group.consumer_heartbeat import heartbeat
from onceflow.group.consumer_leave import leave
from onceflow.group.consumer_members import JOIN_EPOCH, LEFT_EPOCH, STATIC_LEFT_EPOCH, Member
from onceflow.group.consumer_records import KINDS, GroupKey, decode_record, encode_record
from onceflow.group.consumer_topics import Topics
from onceflow.group.coordinator import Coordinator
from onceflow.group.effects import Client
from onceflow.group.records import KeyValue
from onceflow.wire.messages import consumer_group_describe as described
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

__all__ = ["ConsumerGroups", "Decided"]

CONSUMER_MEMBER_TYPE = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision with all that has to be written for it."""

    records: list[KeyValue]
    decision: Decision


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
        if request.member_epoch in (LEFT_EPOCH, STATIC_LEFT_EPOCH):
            group, before = self.get(request.group_id), list[KeyValue]()
            decision = leave(group, request)
        else:
            group, before = self._get_or_make(request.group_id, joining=request.member_epoch == JOIN_EPOCH)
            decision = heartbeat(group, request, client, now_ms, new_member_id)
        return Decided(before + [encode_record(record) for record in decision.records], decision)

    def _get_or_make(self, group_id: str, *, joining: bool) -> tuple[ConsumerGroup, list[KeyValue]]:
        """The group, and what has to be written to make room for it."""
        group = self._coordinator.groups.get(group_id)
        if not joining or isinstance(group, ConsumerGroup):
            return self.get(group_id), []
        new = ConsumerGroup(group_id, self._topics, self._settings)
        if group is None:
            return new, []
        if group.type is GroupType.CLASSIC and group.is_empty:
            return new, group.tombstones()
        raise ProtocolError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group_id} to consumer group because online upgrade is disabled.",
        )

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
            member_type=CONSUMER_MEMBER_TYPE,
        )

    def _describe_assignment(self, assignment: dict[UUID, list[int]]) -> described.Assignment:
        """Topics that are gone are left out, as they have no name any more."""
        topics = [
            described.TopicPartitions(topic_id=id, topic_name=info.name, partitions=sorted(partitions))
            for id, partitions in assignment.items()
            if (info := self._topics.with_id(id)) is not None
        ]
        return described.Assignment(topic_partitions=topics)
