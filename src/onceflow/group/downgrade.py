"""A consumer group becomes a classic one (KIP-848): its last member with the new protocol has gone, and others stay.

Generation, members and what they are to have go on. A classic group is ahead of its records, so it is made here, and
takes the place of the consumer group when the tombstones of that and its own first record are written. A restart finds
it stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceflow.errors import MalformedMessage
from onceflow.group.assignors import Assignment
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_members import Member
from onceflow.group.effects import Client
from onceflow.group.members import Member as ClassicMember
from onceflow.group.subscription import version_of, write_assignment

if TYPE_CHECKING:
    from onceflow.group.consumer_group import ConsumerGroup

__all__ = ["downgraded"]


def downgraded(group: ConsumerGroup, members: Sequence[Member], now_ms: int) -> ClassicGroup | None:
    """The classic group of these members, who are all that will be left; None if it stays a consumer group.

    One of them may be the heir of a static member, whose share it gets.
    """
    settings = group.settings
    if not members or not settings.migration.may_downgrade or len(members) > settings.classic.max_size:
        return None
    if any(member.classic is None for member in members):
        return None
    classic = ClassicGroup.stable(
        group.id,
        [_classic(member) for member in members],
        generation=group.epoch,
        settings=settings.classic,
        now_ms=now_ms,
    )
    for member in classic.members:
        target = _target(group, member)
        member.assignment = _assignment(group, target, member.metadata(classic.protocol or ""))
    return classic


def _classic(member: Member) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        Client(member.client_id, member.client_host),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
    )


def _target(group: ConsumerGroup, member: ClassicMember) -> Assignment:
    member_id = member.id
    if member.instance_id is not None:
        member_id = group.static_ids.get(member.instance_id, member_id)
    return group.target.get(member_id, {})


def _assignment(group: ConsumerGroup, target: Assignment, metadata: bytes) -> bytes:
    """In the version in which the member speaks. Topics that are gone have no name any more."""
    named = {info.name: target[id] for id in target if (info := group.topics.with_id(id)) is not None}
    try:
        return write_assignment(named, version_of(metadata))
    except MalformedMessage:
        return b""  # it has something else to say for this protocol, and will be asked again in a moment
