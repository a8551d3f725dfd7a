"""A classic group with members becomes a consumer group (KIP-848), because somebody joins with the new protocol.

Its members go on with what they were assigned last, and with their generation as epoch. They are told to join again
with their next heartbeat, and from then on the broker assigns to them (`consumer_classic`). Who waited for the end of a
rebalance is told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from onceflow.errors import ErrorCode, MalformedMessage, ProtocolError
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_decision import current_record, member_record, target_record
from onceflow.group.consumer_members import Classic, Member
from onceflow.group.consumer_records import ConsumerRecord, TargetMetadataKey, TargetMetadataValue, group_record
from onceflow.group.consumer_settings import ConsumerSettings
from onceflow.group.consumer_topics import Topics, metadata_hash
from onceflow.group.members import Member as ClassicMember
from onceflow.group.subscription import read_assignment, read_subscription

__all__ = ["upgrade_records"]


def upgrade_records(group: ClassicGroup, topics: Topics, settings: ConsumerSettings) -> list[ConsumerRecord]:
    """The records of the consumer group; raises `ProtocolError` if there can be none."""
    if not settings.migration.may_upgrade:
        raise _refusal(group, "online upgrade is disabled")
    if not group.speaks_consumer:
        raise _refusal(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > settings.members_max:
        raise _refusal(group, "the group size exceeds the consumer group maximum size")
    try:
        members = [_member(group, member, topics) for member in group.members]
    except MalformedMessage as error:
        raise _refusal(group, "the embedded consumer protocol is malformed") from error
    wanted = set[str]().union(*(member.topic_names for member in members))
    epoch = group.generation
    return [
        *(member_record(group.id, member) for member in members),
        group_record(group.id, epoch, metadata_hash(wanted, topics)),
        *(target_record(group.id, member.member_id, _without_epochs(member)) for member in members),
        (TargetMetadataKey(group_id=group.id), TargetMetadataValue(assignment_epoch=epoch)),
        *(current_record(group.id, member) for member in members),
    ]


def _member(group: ClassicGroup, member: ClassicMember, topics: Topics) -> Member:
    subscription = read_subscription(_metadata(group, member))
    return Member(
        member.id,
        epoch=group.generation,
        previous_epoch=group.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client.id,
        client_host=member.client.host,
        topic_names=subscription.topics,
        assigned=_assigned(group, member, topics),
        classic=Classic(member.session_timeout_ms, member.protocols),
    )


def _metadata(group: ClassicGroup, member: ClassicMember) -> bytes:
    """What the member says for the protocol of the group. In its first rebalance a group has none yet, and a newcomer
    may not know that of the others; Kafka fails with an unknown error then, which clients take for final."""
    return dict(member.protocols).get(group.protocol or "", member.protocols[0][1])


def _assigned(group: ClassicGroup, member: ClassicMember, topics: Topics) -> Mapping[UUID, Mapping[int, int]]:
    if not member.assignment:
        return {}
    partitions, user_data = read_assignment(member.assignment)
    if user_data:
        raise _refusal(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    assigned = {}
    for topic, indexes in partitions.items():
        info = topics.named(topic)
        there = [at for at in indexes if info is not None and 0 <= at < info.partitions]
        if info is not None and there:
            assigned[info.id] = dict.fromkeys(there, group.generation)
    return assigned


def _without_epochs(member: Member) -> Mapping[UUID, frozenset[int]]:
    return {topic: frozenset(given) for topic, given in member.assigned.items()}


def _refusal(group: ClassicGroup, reason: str) -> ProtocolError:
    return ProtocolError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group.id} to consumer group because {reason}."
    )
