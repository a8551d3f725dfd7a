"""What a consumer group decides (KIP-848): heartbeats, leaving, members that are gone, expressions that match anew.

Every function here looks at a group and returns records, and changes nothing. The caller writes the records, has the
group `apply` them and then calls `Decision.settle`; the answer goes out when they are on disk. A refusal is a
`ProtocolError`.

A heartbeat goes through these steps, each of which may add records:

    who       the member, or a new one, or the heir of a static one; is its epoch right?
    wants     names, expression, assignor; other wishes mean a new group epoch, and so do other topics
    target    if the group has a newer epoch than the target assignment: share out anew
    has       the member's next step towards its target (`consumer_members.reconcile`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.assignors import Assignment, Subscriber
from onceflow.group.consumer_group import ConsumerGroup, ConsumerSettings, ResolvedRegex, metadata_hash
from onceflow.group.consumer_members import (
    LEFT_EPOCH,
    STATIC_LEFT_EPOCH,
    Member,
    Owned,
    Situation,
    Target,
    reconcile,
)
from onceflow.group.consumer_records import (
    ConsumerRecord,
    CurrentAssignmentKey,
    MemberKey,
    PartitionMetadataKey,
    RegexKey,
    RegexValue,
    TargetMemberKey,
    TargetMemberValue,
    TargetMetadataKey,
    TargetMetadataValue,
    TargetTopic,
    encode_record,
    group_record,
    member_tombstones,
)
from onceflow.group.effects import Client, Effects
from onceflow.group.topic_regex import BadRegex, TopicRegex
from onceflow.wire.messages.consumer_group_heartbeat import (
    Assignment as AnsweredAssignment,
)
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse

__all__ = ["Decision", "check_request", "heartbeat", "leave", "leave_on_behalf", "resolve_regexes"]

JOIN_EPOCH: Final = 0
MEMBER_ID_FROM_CLIENT: Final = 1
"""The first version in which a client makes its own member id (KIP-1082)."""


@dataclass(slots=True)
class Decision:
    records: list[ConsumerRecord] = field(default_factory=list)
    answer: ConsumerGroupHeartbeatResponse | None = None
    heard: str | None = None
    """Whose session starts anew."""
    moved: bool = False
    """Whether what that member has, or must give back, has changed."""
    checked_version: int | None = None
    """The version of the topics that was looked at."""
    resolved_version: int | None = None
    """The same for expressions."""
    unresolved: frozenset[str] = frozenset()
    """Expressions that are to be matched with the topics after this (`resolve_regexes`)."""

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


# --- requests that nobody may send


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerSettings) -> None:
    """What can be said of a request without its group; the conditions and their order are Kafka's."""
    epoch = request.member_epoch
    if version >= MEMBER_ID_FROM_CLIENT or epoch > JOIN_EPOCH or epoch == LEFT_EPOCH:
        _refuse_blank(request.member_id, "MemberId")
    _refuse_blank(request.group_id, "GroupId")
    _refuse_blank(request.instance_id, "InstanceId")
    _refuse_blank(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEFT_EPOCH and request.instance_id is None:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif epoch < STATIC_LEFT_EPOCH:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


def _refuse_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise ProtocolError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


# --- heartbeats


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    client: Client,
    now_ms: int,
    new_member_id: Callable[[], str],
) -> Decision:
    """A member joins or goes on; `group` is a new one, in no register yet, if the member is the first."""
    known = request.member_id in group.members
    if len(group.members) >= group.settings.members_max and not known:
        raise ProtocolError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {group.settings.members_max} members.",
        )
    return _Heartbeat(group, request, client, now_ms, request.member_id or new_member_id()).decide()


class _Heartbeat:
    """One heartbeat on its way to a decision."""

    def __init__(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now_ms: int,
        member_id: str,
    ) -> None:
        self._group = group
        self._request = request
        self._client = client
        self._now_ms = now_ms
        self._member_id = member_id
        self._decision = Decision(heard=member_id)
        self._records = self._decision.records

    @cached_property
    def _owned(self) -> Owned | None:
        if self._request.topic_partitions is None:
            return None
        return {
            topic.topic_id: set(topic.partitions)
            for topic in self._request.topic_partitions
            if topic.topic_id is not None
        }

    def decide(self) -> Decision:
        before = self._find()
        wanting = self._wishes(before)
        if wanting != before:
            self._records.append(_member_record(self._group.id, wanting))
        names_changed = wanting.topic_names != before.topic_names
        regex_changed, resolved = self._regex(before, wanting)
        epoch = self._group_epoch(wanting, bump=names_changed or resolved)
        target = self._target(epoch, wanting)
        after = self._reconcile(wanting, target, subscription_changed=names_changed or regex_changed)
        self._decision.answer = self._answer(before, after)
        return self._decision

    # who

    def _find(self) -> Member:
        joining = self._request.member_epoch == JOIN_EPOCH
        if self._request.instance_id is not None:
            return self._find_static(self._request.instance_id, joining)
        if joining:
            return self._group.members.get(self._member_id) or Member(self._member_id)
        member = self._group.member(self._member_id)
        self._check_epoch(member)
        return member

    def _find_static(self, instance_id: str, joining: bool) -> Member:
        existing = self._group.static_member(instance_id)
        if not joining:
            member = _known_static(existing, instance_id, self._member_id)
            self._check_epoch(member)
            return member
        if existing is None:
            return self._group.members.get(self._member_id) or Member(self._member_id)
        if existing.epoch != STATIC_LEFT_EPOCH:
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
        self._records.append(_member_record(group.id, heir))
        self._records.append(_target_record(group.id, heir.member_id, group.target.get(existing.member_id, {})))
        self._records.append(_current_record(group.id, heir))
        self._decision.moved = True

    def _check_epoch(self, member: Member) -> None:
        """A member that missed the last answer has the epoch before it, and no partition that it was not given."""
        epoch = self._request.member_epoch
        if epoch > member.epoch:
            raise _fenced("greater", epoch, member.epoch)
        if epoch < member.epoch and not (epoch == member.previous_epoch and self._owns_only_assigned(member)):
            raise _fenced("smaller", epoch, member.epoch)

    def _owns_only_assigned(self, member: Member) -> bool:
        if self._owned is None:
            return False
        return all(partitions <= member.assigned.get(topic, {}).keys() for topic, partitions in self._owned.items())

    # wants

    def _wishes(self, member: Member) -> Member:
        """The member with what this request says of it; what it does not say stays."""
        said = self._request
        names, timeout = said.subscribed_topic_names, said.rebalance_timeout_ms
        regex = said.subscribed_topic_regex
        return replace(
            member,
            instance_id=member.instance_id if said.instance_id is None else said.instance_id,
            rack_id=member.rack_id if said.rack_id is None else said.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
            assignor=member.assignor if said.server_assignor is None else said.server_assignor,
            topic_names=member.topic_names if names is None else frozenset(names),
            topic_regex=member.topic_regex if regex is None else regex,
            client_id=self._client.id,
            client_host=self._client.host,
        )

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
                _compile(new)
            resolved = not new or (not is_first and new in group.regexes)
        self._decision.unresolved = self._to_resolve(old, new, is_first=is_first)
        return changed, resolved

    def _to_resolve(self, old: str, new: str, *, is_first: bool) -> frozenset[str]:
        """The expressions to match with the topics again: all of the group's, or none."""
        group, settings = self._group, self._group.settings
        if not is_first and not any(member.topic_regex for member in group.members.values()):
            return frozenset()
        last_ms = min((resolved.timestamp_ms for resolved in group.regexes.values()), default=None)
        if last_ms is not None and self._now_ms <= last_ms + settings.regex_refresh_min_ms:
            return frozenset()
        others = (member.topic_regex for id, member in group.members.items() if id != self._member_id)
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
                self._records.append(_target_record(group.id, member_id, assignment))
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
            self._records.append(_current_record(self._group.id, after))
            self._decision.moved = True
        return after

    def _answer(self, before: Member, after: Member) -> ConsumerGroupHeartbeatResponse:
        answer = ConsumerGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self._group.settings.heartbeat_interval_ms,
        )
        said = self._request
        is_full = (
            said.rebalance_timeout_ms != -1
            and (said.subscribed_topic_names is not None or said.subscribed_topic_regex is not None)
            and said.topic_partitions is not None
        )
        if said.member_epoch == JOIN_EPOCH or is_full or before.assigned != after.assigned:
            answer.assignment = AnsweredAssignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(after.assigned.items())
                ]
            )
        return answer


def _known_static(existing: Member | None, instance_id: str, member_id: str) -> Member:
    if existing is None:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing.member_id != member_id:
        raise ProtocolError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {existing.member_id}.",
        )
    return existing


def _fenced(how: str, received: int, known: int) -> ProtocolError:
    return ProtocolError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({received}) than the one known by the group coordinator "
        f"({known}). The member must abandon all its partitions and rejoin.",
    )


# --- leaving


def leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> Decision:
    """A member goes: for good, or (a static one) for a moment, in which nobody else gets what it had."""
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        existing = group.static_member(request.instance_id)
        member = _known_static(existing, request.instance_id, request.member_id)
    answer = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.instance_id is not None and request.member_epoch == STATIC_LEFT_EPOCH:
        return Decision([_current_record(group.id, member.static_leave())], answer)
    return Decision(group.removal([member]), answer)


def leave_on_behalf(group: ConsumerGroup, request: LeaveGroupRequest) -> tuple[list[MemberResponse], Effects]:
    """LeaveGroup, with which tools remove members of any group."""
    answers: list[MemberResponse] = []
    gone: dict[str, Member] = {}
    for identity in request.members:
        answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        try:
            member = _identified(group, identity)
            gone[member.member_id] = member
        except ProtocolError as error:
            answer.error_code = error.code
        answers.append(answer)
    effects = Effects()
    effects.applies = True
    effects.records = [encode_record(record) for record in group.removal(list(gone.values()))]
    return answers, effects


def _identified(group: ConsumerGroup, identity: MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    static = group.static_member(identity.group_instance_id)
    member_id = identity.member_id or (static.member_id if static is not None else "")
    return _known_static(static, identity.group_instance_id, member_id)


# --- expressions


def resolve_regexes(group: ConsumerGroup, regexes: Iterable[str], now_ms: int) -> Decision:
    """Match expressions with the topics that there are; a different outcome means a new group epoch."""
    version = group.topics.version
    decision = Decision(resolved_version=version)
    outcome = dict(group.regexes)
    for regex in sorted(regexes):
        if not group.regex_subscribers(regex):
            continue
        compiled = _compile(regex)
        topics = frozenset(name for name in group.topics.names() if compiled.matches(name))
        outcome[regex] = ResolvedRegex(topics, version, now_ms)
        value = RegexValue(topics=sorted(topics), version=version, timestamp=now_ms)
        decision.records.append((RegexKey(group_id=group.id, regular_expression=regex), value))
    before = {regex: resolved.topics for regex, resolved in group.regexes.items()}
    wanted = set().union(*(member.topic_names for member in group.members.values()))
    wanted |= set().union(*(resolved.topics for resolved in outcome.values()))
    hashed = metadata_hash(wanted, group.topics)
    if before != {regex: resolved.topics for regex, resolved in outcome.items()} or hashed != group.metadata_hash:
        decision.records.append(group_record(group.id, group.epoch + 1, hashed))
    decision.checked_version = version
    return decision


def _compile(regex: str) -> TopicRegex:
    try:
        return TopicRegex(regex)
    except BadRegex as error:
        raise ProtocolError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from error


# --- records


def _member_record(group_id: str, member: Member) -> ConsumerRecord:
    return MemberKey(group_id=group_id, member_id=member.member_id), member.metadata()


def _current_record(group_id: str, member: Member) -> ConsumerRecord:
    return CurrentAssignmentKey(group_id=group_id, member_id=member.member_id), member.current_assignment()


def _target_record(group_id: str, member_id: str, assignment: Assignment) -> ConsumerRecord:
    topics = [TargetTopic(topic_id=id, partitions=sorted(partitions)) for id, partitions in sorted(assignment.items())]
    return TargetMemberKey(group_id=group_id, member_id=member_id), TargetMemberValue(topic_partitions=topics)
