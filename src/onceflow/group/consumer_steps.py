"""What a member's step in a consumer group consists of, in whichever protocol it asks (KIP-848).

A step goes through these, each of which may add records:

    who       the member, or a new one, or the heir of a static one; is its epoch right?
    wants     names, expression, assignor; other wishes mean a new group epoch, and so do other topics
    target    if the group has a newer epoch than the target assignment: share out anew
    has       the member's next step towards its target (`consumer_members.reconcile`)

What differs between the protocols is in `consumer_heartbeat` and in `consumer_classic`.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.assignors import Assignment, Subscriber
from onceflow.group.consumer_decision import Decision, current_record, member_record, target_record
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_leave import known_static
from onceflow.group.consumer_members import STATIC_LEFT_EPOCH, Member, Owned, Situation, Target, reconcile
from onceflow.group.consumer_records import (
    PartitionMetadataKey,
    RegexKey,
    TargetMetadataKey,
    TargetMetadataValue,
    group_record,
    member_tombstones,
)
from onceflow.group.consumer_regexes import compile_regex
from onceflow.group.consumer_topics import metadata_hash

__all__ = ["MemberStep", "check_room"]


def check_room(group: ConsumerGroup, member_id: str) -> None:
    if len(group.members) >= group.settings.members_max and member_id not in group.members:
        raise ProtocolError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {group.settings.members_max} members.",
        )


class MemberStep:
    """A request of a member on its way to a decision."""

    def __init__(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        self._group = group
        self._member_id = member_id
        self._now_ms = now_ms
        self._decision = Decision(heard=member_id)
        self._records = self._decision.records

    @property
    def _owned(self) -> Owned | None:
        """What the member says it has; None if it says nothing of it."""
        raise NotImplementedError

    # who

    def _known_or_new(self) -> Member:
        return self._group.members.get(self._member_id) or Member(self._member_id)

    def _static(self, instance_id: str, *, joining: bool, is_classic: bool) -> Member:
        """The member of an instance id, or its heir. Who changes the protocol need not have left before."""
        existing = self._group.static_member(instance_id)
        if not joining:
            return known_static(existing, instance_id, self._member_id)
        if existing is None:
            return self._known_or_new()
        if existing.epoch != STATIC_LEFT_EPOCH and not is_classic and existing.classic is None:
            raise ProtocolError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {self._member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {existing.member_id} member.",
            )
        heir = replace(existing, member_id=self._member_id, epoch=0, previous_epoch=0)
        self._replace(existing, heir)
        return heir

    def _replace(self, existing: Member, heir: Member) -> None:
        group = self._group
        self._records += member_tombstones(group.id, existing.member_id)
        self._records.append(member_record(group.id, heir))
        self._records.append(target_record(group.id, heir.member_id, group.target.get(existing.member_id, {})))
        self._records.append(current_record(group.id, heir))
        self._decision.moved = True

    # wants

    def _regex(self, before: Member, wanting: Member) -> tuple[bool, bool]:
        """Whether the expression is another one, and whether it is known by now what it matches."""
        group = self._group
        old, new = before.topic_regex or "", wanting.topic_regex or ""
        changed = (before.topic_regex or "") != (wanting.topic_regex or "")
        is_first = False
        resolved = False
        if changed:
            if old and group.regex_subscribers(old) == 1:
                self._records.append((RegexKey(group_id=group.id, regular_expression=old), None))
            is_first = bool(new) and group.regex_subscribers(new) == 0
            if is_first:
                compile_regex(new)
            resolved = not new or (not is_first and new in group.regexes)
        self._decision.unresolved = self._to_resolve(old, new, is_first=is_first)
        return changed, resolved

    def _to_resolve(self, old: str, new: str, *, is_first: bool) -> frozenset[str]:
        """The expressions to match with the topics again: all of the group's, or none."""
        group, settings = self._group, self._group.settings
        if group.is_resolving or (not is_first and not group.regex_members):
            return frozenset()
        last_ms = min((resolved.timestamp_ms for resolved in group.regexes.values()), default=None)
        if last_ms is not None and self._now_ms <= last_ms + settings.regex_refresh_min_ms:
            return frozenset()
        others = (group.members[id].topic_regex for id in group.regex_members - {self._member_id})
        wanted = frozenset(filter(None, (*others, new)))
        is_due = (
            last_ms is None
            or wanted != group.regexes.keys()
            or group.resolved_version != group.topics.version
            or self._now_ms > last_ms + settings.regex_refresh_interval_ms
        )
        return wanted if is_due else frozenset()

    def _members_with(self, member: Member) -> dict[str, Member]:
        """All members as they will be after this heartbeat."""
        members = dict(self._group.members)
        if member.instance_id is not None:
            members.pop(self._group.static_ids.get(member.instance_id, ""), None)
        members[member.member_id] = member
        return members

    def _group_epoch(self, wanting: Member, *, bump: bool) -> int:
        group = self._group
        if not bump and group.checked_version == group.topics.version:
            return group.epoch
        wanted = group.topics_of(self._members_with(wanting).values())
        hashed = metadata_hash(wanted, group.topics)
        epoch = group.epoch
        if bump or hashed != group.metadata_hash:
            epoch += 1
            self._records.append(group_record(group.id, epoch, hashed))
        if group.has_partition_metadata:
            self._records.append((PartitionMetadataKey(group_id=group.id), None))
        self._decision.checked_version = group.topics.version
        return epoch

    # target

    def _target(self, epoch: int, wanting: Member) -> Target:
        group = self._group
        if group.assignment_epoch >= epoch or not self._may_assign():
            member_id: str | None = wanting.member_id
            if wanting.instance_id is not None:
                member_id = group.static_ids.get(wanting.instance_id)
            return Target(group.assignment_epoch, group.target.get(member_id or "", {}))
        assigned = self._share_out(wanting)
        for member_id, assignment in assigned.items():
            if assignment != group.target.get(member_id):
                self._records.append(target_record(group.id, member_id, assignment))
        value = TargetMetadataValue(assignment_epoch=epoch, assignment_timestamp=self._now_ms)
        self._records.append((TargetMetadataKey(group_id=group.id), value))
        return Target(epoch, assigned.get(wanting.member_id, {}))

    def _may_assign(self) -> bool:
        last_ms, interval_ms = self._group.assignment_timestamp_ms, self._group.settings.assignment_interval_ms
        return not last_ms or self._now_ms >= last_ms + interval_ms

    def _share_out(self, wanting: Member) -> dict[str, Assignment]:
        group = self._group
        members = self._members_with(wanting)
        subscribers = {id: self._subscriber(member) for id, member in members.items()}
        counts = {}
        for topic_id in set[UUID]().union(*(subscriber.topics for subscriber in subscribers.values())):
            info = group.topics.with_id(topic_id)
            counts[topic_id] = info.partitions if info is not None else 0
        return group.settings.assignor(group.preferred_assignor(members.values()))(subscribers, counts)

    def _subscriber(self, member: Member) -> Subscriber:
        group = self._group
        had = group.target.get(member.member_id, {})
        if member.instance_id is not None:
            had = group.target.get(group.static_ids.get(member.instance_id, member.member_id), had)
        return Subscriber(group.topic_ids_of(member), had, member.instance_id)

    # has

    def _reconcile(self, member: Member, target: Target, *, subscription_changed: bool) -> Member:
        if not subscription_changed and member.is_reconciled_to(target.epoch):
            return member
        now = Situation(
            target=target,
            subscribed=self._group.topic_ids_of(member),
            subscription_changed=subscription_changed,
            owned=self._owned,
            is_taken=self._group.is_taken,
        )
        after = reconcile(member, now)
        if after != member:
            self._records.append(current_record(self._group.id, after))
            self._decision.moved = True
        return after
