"""How members leave a consumer group (KIP-848): by themselves, or because a tool removes them."""

from __future__ import annotations

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.consumer_decision import Decision, current_record
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_members import STATIC_LEFT_EPOCH, Member
from onceflow.group.effects import Effects
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse

__all__ = ["known_static", "leave", "leave_on_behalf"]


def leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Decision:
    """A member goes: for good, or (a static one) for a moment, in which nobody else gets what it had."""
    if request.instance_id is None:
        member = group.member(request.member_id)
    else:
        existing = group.static_member(request.instance_id)
        member = known_static(existing, request.instance_id, request.member_id)
    answer = ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
    if request.instance_id is not None and request.member_epoch == STATIC_LEFT_EPOCH:
        return Decision([current_record(group.id, member.static_leave())], answer)
    removal = group.removal([member], now_ms)
    return Decision(removal.records, answer, successor=removal.successor)


def leave_on_behalf(
    group: ConsumerGroup, request: LeaveGroupRequest, now_ms: int
) -> tuple[list[MemberResponse], Effects]:
    """LeaveGroup, with which classic members leave, and tools remove members of any group."""
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
    return answers, group.removal(list(gone.values()), now_ms).effects()


def _identified(group: ConsumerGroup, identity: MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    static = group.static_member(identity.group_instance_id)
    member_id = identity.member_id or (static.member_id if static is not None else "")
    return known_static(static, identity.group_instance_id, member_id)


def known_static(existing: Member | None, instance_id: str, member_id: str) -> Member:
    """The member of an instance id, if it is the one that asks."""
    if existing is None:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if existing.member_id != member_id:
        raise ProtocolError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {existing.member_id}.",
        )
    return existing
