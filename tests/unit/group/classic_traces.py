"""A classic group and its members, for tests that read as a conversation. Time stands still until a test moves it."""

from __future__ import annotations

import itertools
from typing import Any

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic import ClassicGroup, ClassicSettings, Join
from onceflow.group.effects import Client, Effects
from onceflow.group.records import GroupMetadataValue, read_value
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000


class Conversation:
    """Carries out what the group decides: answers are kept by the ticket, records go to a log that a test completes."""

    def __init__(self, **settings: int) -> None:
        numbers = itertools.count(1)
        limits = ClassicSettings(**{"initial_rebalance_delay_ms": DELAY_MS, **settings})
        self.now_ms = 1_000_000
        self.group = ClassicGroup("g", limits, self.now_ms, make_member_id=lambda prefix: f"{prefix}-{next(numbers)}")
        self.limits = limits
        self.answers: dict[str, Any] = {}
        self.log: list[GroupMetadataValue] = []
        self._unwritten: list[Effects] = []

    @property
    def state(self) -> str:
        return self.group.state_name

    def carry_out(self, effects: Effects) -> None:
        for ticket, message in effects.answers:
            assert ticket not in self.answers, f"{ticket} was answered twice"
            self.answers[ticket] = message
        for _, value in effects.records:
            assert value is not None
            self.log.append(read_value(GroupMetadataValue, value))
        if effects.then is not None:
            self._unwritten.append(effects)

    def disk(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """What was written has come to disk, or has been refused."""
        waiting, self._unwritten = self._unwritten, []
        for effects in waiting:
            assert effects.then is not None
            self.carry_out(effects.then(error, self.now_ms))

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        deadline_ms = self.group.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.carry_out(self.group.on_time(self.now_ms))

    # Requests

    def join(
        self,
        ticket: str,
        member_id: str = "",
        *,
        protocols: str = "range",
        instance: str | None = None,
        version: int = 9,
        kind: str = "consumer",
        metadata: bytes = b"",
        rebalance_ms: int = REBALANCE_MS,
    ) -> None:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols.split()],
        )
        self.carry_out(self.group.join(Join(request, version, Client("c", "/h"), ticket), self.now_ms))

    def joined(self, ticket: str) -> JoinGroupResponse:
        answer = self.answers[ticket]
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        return answer

    def sync(self, ticket: str, member_id: str, *, instance: str | None = None, **assignments: bytes) -> None:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.group.generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=member.replace("_", "-"), assignment=assignment)
                for member, assignment in assignments.items()
            ],
        )
        self.carry_out(self.group.sync(request, ticket, self.now_ms))

    def synced(self, ticket: str) -> bytes:
        answer: SyncGroupResponse = self.answers[ticket]
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        return answer.assignment

    def error(self, ticket: str) -> ErrorCode:
        return ErrorCode(self.answers[ticket].error_code)

    def heartbeat(self, member_id: str, *, instance: str | None = None, generation: int | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        try:
            return self.group.heartbeat(member_id, instance, generation, self.now_ms)
        except ProtocolError as error:
            return error.code

    def leave(self, *member_ids: str) -> list[ErrorCode]:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=id) for id in member_ids])
        answers, effects = self.group.leave(request, self.now_ms)
        self.carry_out(effects)
        return [ErrorCode(answer.error_code) for answer in answers]

    def can_commit(
        self, member_id: str = "", generation: int = -1, *, instance: str | None = None, transactional: bool = False
    ) -> ErrorCode:
        try:
            self.group.check_commit(
                member_id, instance, generation, transactional=transactional, version=9, now_ms=self.now_ms
            )
        except ProtocolError as error:
            return error.code
        return ErrorCode.NONE

    # Whole situations

    def stable_pair(self) -> None:
        """c-1 leads, c-2 follows, generation 1."""
        self.join("join 1", version=3)
        self.join("join 2", version=3)
        self.advance(DELAY_MS)
        self.advance(DELAY_MS)
        self.sync("sync 2", "c-2")
        self.sync("sync 1", "c-1", c_1=b"one", c_2=b"two")
        self.disk()
        assert (self.state, self.group.generation, self.group.leader) == ("Stable", 1, "c-1")
