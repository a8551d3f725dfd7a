"""Members of a consumer group that use the classic protocol, while the group changes from one to the other (KIP-848).

The broker assigns to them, too, and each goes its own way to its target; generation means member epoch here.

    join        a member's step, as a heartbeat is one: what it subscribes to and what it has is in its subscription. It
                is answered at once: nobody leads, and nobody is waited for
    sync        it is given what it has after its step
    heartbeat   it is told to join again (27) if its next step is due: there is a newer target, it has partitions to
                give back, or those that it waits for have become free
    leave       `consumer_leave`

Who is told to join has its rebalance timeout for that, and then as long again until it syncs. The conditions, and their
order, are those of Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Final
from uuid import uuid4

from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError
from onceflow.group.classic import MEMBER_ID_REQUIRED_FROM, ClassicGroup, Join, join_refusal
from onceflow.group.consumer_decision import member_record
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_leave import known_static
from onceflow.group.consumer_members import Classic, Member, MemberState, Owned, Target
from onceflow.group.consumer_records import encode_record
from onceflow.group.consumer_settings import MigrationPolicy
from onceflow.group.consumer_steps import MemberStep, check_room
from onceflow.group.downgrade import downgraded
from onceflow.group.effects import Effects, Ticket
from onceflow.group.members import protocols_of
from onceflow.group.subscription import (
    CONSUMER_PROTOCOL,
    Subscription,
    read_subscription,
    version_of,
    write_assignment,
)
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["heartbeat", "join", "sync"]

NO_TIMEOUT: Final = -1


def join(group: ConsumerGroup, join: Join, now_ms: int) -> Effects:
    """A member joins, or goes on. The answer comes when its step is on disk."""
    request = join.request
    member_id = request.member_id or str(uuid4())
    try:
        if group.settings.migration is MigrationPolicy.DISABLED:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        check_room(group, member_id)
        _check_protocols(group, request)
        if not request.member_id and request.group_instance_id is None and join.version >= MEMBER_ID_REQUIRED_FROM:
            raise ProtocolError(ErrorCode.MEMBER_ID_REQUIRED)
        return _Join(group, join, member_id, now_ms).decide()
    except ProtocolError as error:
        effects = Effects()
        asked = error.code is ErrorCode.MEMBER_ID_REQUIRED
        effects.answer(join.ticket, join_refusal(error.code, member_id if asked else request.member_id))
        return effects


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    """All who use the classic protocol must have a way of assigning in common, though nobody uses it: they may be
    alone again."""
    names = {protocol.name for protocol in request.protocols}
    for member_id in group.classic_members:
        classic = group.members[member_id].classic
        assert classic is not None
        names &= {name for name, _ in classic.protocols}
    if request.protocol_type != CONSUMER_PROTOCOL or not names:
        raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


class _Join(MemberStep):
    """One JoinGroup on its way to a decision."""

    def __init__(self, group: ConsumerGroup, join: Join, member_id: str, now_ms: int) -> None:
        super().__init__(group, member_id, now_ms)
        self._join = join
        self._request = join.request

    @cached_property
    def _subscription(self) -> Subscription:
        try:
            return read_subscription(self._request.protocols[0].metadata)
        except MalformedMessage as error:
            raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error

    @cached_property
    def _owned(self) -> Owned | None:
        named = ((self._group.topics.named(topic), indexes) for topic, indexes in self._subscription.owned.items())
        return {info.id: indexes for info, indexes in named if info is not None}

    def decide(self) -> Effects:
        before = self._find()
        wanting = self._wishes(before)
        if wanting != before:
            self._records.append(member_record(self._group.id, wanting))
        names_changed = wanting.topic_names != before.topic_names
        regex_changed, _ = self._regex(before, wanting)
        changed = names_changed or regex_changed
        epoch = self._group_epoch(wanting, bump=changed)
        successor = self._successor(wanting)
        if successor is not None:
            return self._downgrade(wanting, successor, is_current=self._group.assignment_epoch == epoch)
        after = self._reconcile(wanting, self._target(epoch, wanting), subscription_changed=changed)
        effects = self._effects(after)
        effects.records = [encode_record(record) for record in self._records]
        effects.applied = self._settle
        return effects

    def _find(self) -> Member:
        instance_id = self._request.group_instance_id
        if instance_id is None:
            return self._known_or_new()
        return self._static(instance_id, joining=not self._request.member_id, is_classic=True)

    def _wishes(self, member: Member) -> Member:
        said, subscription = self._request, self._subscription
        timeout_ms = said.rebalance_timeout_ms
        return replace(
            member,
            instance_id=member.instance_id if said.group_instance_id is None else said.group_instance_id,
            rack_id=member.rack_id if subscription.rack_id is None else subscription.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
            topic_names=subscription.topics,
            topic_regex="",
            client_id=self._join.client.id,
            client_host=self._join.client.host,
            classic=Classic(said.session_timeout_ms, protocols_of(said)),
        )

    # The last member with the new protocol is replaced by this one (KIP-345)

    def _successor(self, wanting: Member) -> ClassicGroup | None:
        instance_id = wanting.instance_id
        existing = None if instance_id is None else self._group.static_member(instance_id)
        if existing is None or existing.classic is not None:
            return None
        others = [member for member in self._group.members.values() if member is not existing]
        return downgraded(self._group, [*others, wanting], self._now_ms)

    def _downgrade(self, wanting: Member, successor: ClassicGroup, *, is_current: bool) -> Effects:
        """If the target is the current one, it is the assignment of the classic group, and nobody has to join again."""
        group = self._group
        after = wanting
        if not is_current:
            successor.rebalance(self._now_ms)
        else:
            replaced_id = group.static_ids[wanting.instance_id or ""]
            target = Target(group.assignment_epoch, group.target.get(replaced_id, {}))
            after = self._reconcile(wanting, target, subscription_changed=False)
        effects = self._effects(after)
        effects.records = [*group.tombstones(), successor.stored()]
        effects.successor = successor
        return effects

    # Then

    def _effects(self, after: Member) -> Effects:
        effects = Effects()
        effects.applies = True
        answer = JoinGroupResponse(
            member_id=after.member_id,
            generation_id=after.epoch,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=self._request.protocols[0].name,
        )

        def then(error: ErrorCode, now_ms: int) -> Effects:
            answered = Effects()
            answered.answer(self._join.ticket, join_refusal(error, self._request.member_id) if error else answer)
            return answered

        effects.then = then
        return effects

    def _settle(self, now_ms: int) -> None:
        group = self._group
        self._decision.settle(group, now_ms)
        group.join_deadlines.pop(self._member_id, None)
        group.sync_deadlines[self._member_id] = now_ms + self._request.rebalance_timeout_ms


def sync(group: ConsumerGroup, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> Effects:
    """The assignment, once all that it rests on is on disk."""
    effects = Effects()
    try:
        member = _known(group, request.member_id, request.group_instance_id, request.generation_id)
        _check_protocol(member, request)
        if _is_behind(group, member) and member.state is not MemberState.UNREVOKED_PARTITIONS:
            _tell_to_join(group, member, now_ms)
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
    except ProtocolError as error:
        effects.answer(ticket, SyncGroupResponse(error_code=error.code))
        return effects
    group.sync_deadlines.pop(member.member_id, None)
    group.hear(member.member_id, now_ms)
    answer = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=_assignment(group, member),
    )

    def then(error: ErrorCode, now_ms: int) -> Effects:
        answered = Effects()
        answered.answer(ticket, SyncGroupResponse(error_code=error) if error else answer)
        return answered

    effects.then = then
    return effects


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
    member = _known(group, request.member_id, request.group_instance_id, request.generation_id)
    group.hear(member.member_id, now_ms)
    is_due = (
        _is_behind(group, member)
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
    )
    if not is_due:
        return ErrorCode.NONE
    _tell_to_join(group, member, now_ms)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _known(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = known_static(group.static_member(instance_id), instance_id, member_id)
    if member.classic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if member.epoch != generation:
        raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _is_behind(group: ConsumerGroup, member: Member) -> bool:
    """Where nobody uses the new protocol, it is the joins that share out anew; Kafka waits for a heartbeat then that
    does not come."""
    is_alone = len(group.classic_members) == len(group.members)
    return member.epoch < (group.epoch if is_alone else group.assignment_epoch)


def _check_protocol(member: Member, request: SyncGroupRequest) -> None:
    assert member.classic is not None
    names = (None, member.classic.protocols[0][0])
    if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in names:
        raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _tell_to_join(group: ConsumerGroup, member: Member, now_ms: int) -> None:
    """From the first time on it has its rebalance timeout."""
    group.join_deadlines.setdefault(member.member_id, now_ms + member.rebalance_timeout_ms)


def _assignment(group: ConsumerGroup, member: Member) -> bytes:
    assert member.classic is not None
    found = ((group.topics.with_id(id), partitions) for id, partitions in member.assigned.items())
    named = {info.name: partitions for info, partitions in found if info is not None}
    return write_assignment(named, version_of(member.classic.protocols[0][1]))
