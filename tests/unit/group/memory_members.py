"""Members and offsets on a `MemoryBroker`."""

from __future__ import annotations

from typing import Any

from onceflow.errors import ErrorCode
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.support.memory_broker import MemoryBroker, Reply

__all__ = ["MemoryMember", "outcome", "send_commit"]


def send_commit(
    broker: MemoryBroker, group: str, offset: int, *, topic: str = "t", member: MemoryMember | None = None
) -> Reply:
    at = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[at])],
    )
    return broker.send(request, 9)


def outcome(reply: Reply) -> ErrorCode:
    """What a commit was answered with."""
    return ErrorCode(reply.message.topics[0].partitions[0].error_code)


class MemoryMember:
    def __init__(self, broker: MemoryBroker, group: str) -> None:
        self.broker = broker
        self.group = group
        self.id = ""
        self.instance_id: str | None = None
        self.generation = -1
        self.metadata = b""
        """What it says in the language of the client; a test that looks inside sets it."""
        self.rebalance_timeout_ms = 10_000

    def send_join(self, version: int = 3) -> Reply:
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=self.metadata)],
        )
        return self.broker.send(request, version)

    def joined(self, reply: Reply) -> Any:
        answer = reply.message
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self) -> MemoryMember:
        reply = self.send_join()
        self.broker.pass_time(0)
        self.broker.settle()
        self.joined(reply)
        return self

    def send_sync(self, **assignments: bytes) -> Reply:
        given = assignments or {self.id: b"all"}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[SyncGroupRequestAssignment(member_id=id, assignment=part) for id, part in given.items()],
        )
        return self.broker.send(request, 4)

    def sync(self) -> MemoryMember:
        reply = self.send_sync()
        self.broker.settle()
        assert reply.message.error_code == ErrorCode.NONE
        return self

    def heartbeat(self, broker: MemoryBroker | None = None) -> ErrorCode:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
        return ErrorCode((broker or self.broker).ask(request, 4).error_code)

    def send_leave(self, version: int = 5) -> Reply:
        members = [MemberIdentity(member_id=self.id)]
        return self.broker.send(LeaveGroupRequest(group_id=self.group, member_id=self.id, members=members), version)
