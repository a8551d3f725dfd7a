"""What a consumer group decides (KIP-848), and the records that say so.

Decisions look at a group and change nothing. The caller writes their records, has the group `apply` them and then calls
`Decision.settle`; the answer goes out when they are on disk. A refusal is a `ProtocolError`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onceflow.group.assignors import Assignment
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_members import Member
from onceflow.group.consumer_records import (
    ConsumerRecord,
    CurrentAssignmentKey,
    MemberKey,
    TargetMemberKey,
    TargetMemberValue,
    TargetTopic,
)
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

__all__ = ["Decision", "current_record", "member_record", "target_record"]


@dataclass(slots=True)
class Decision:
    records: list[ConsumerRecord] = field(default_factory=list)
    answer: ConsumerGroupHeartbeatResponse | None = None
    heard: str | None = None
    """Whose session starts anew."""
    moved: bool = False
    """Whether what that member has, or must give back, has changed."""
    successor: ClassicGroup | None = None
    """The group has become a classic one."""
    checked_version: int | None = None
    """The version of the topics that was looked at."""
    resolved_version: int | None = None
    """The same for expressions."""
    unresolved: frozenset[str] = frozenset()
    """Expressions that are to be matched with the topics after this (`consumer_regexes`)."""

    def settle(self, group: ConsumerGroup, now_ms: int) -> None:
        """What is in no record, once the records are applied."""
        if self.checked_version is not None:
            group.checked_version = self.checked_version
        if self.resolved_version is not None:
            group.resolved_version = self.resolved_version
        if self.heard is not None:
            group.hear(self.heard, now_ms)
            if self.moved:
                group.watch_revocation(self.heard, now_ms)


def member_record(group_id: str, member: Member) -> ConsumerRecord:
    return MemberKey(group_id=group_id, member_id=member.member_id), member.metadata()


def current_record(group_id: str, member: Member) -> ConsumerRecord:
    return CurrentAssignmentKey(group_id=group_id, member_id=member.member_id), member.current_assignment()


def target_record(group_id: str, member_id: str, assignment: Assignment) -> ConsumerRecord:
    topics = [TargetTopic(topic_id=id, partitions=sorted(partitions)) for id, partitions in sorted(assignment.items())]
    return TargetMemberKey(group_id=group_id, member_id=member_id), TargetMemberValue(topic_partitions=topics)
