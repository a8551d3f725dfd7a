"""One classic group: joining, syncing, heartbeats, leaving, and what happens when one of them does not come.

A generation in five steps:

    1. somebody joins, leaves, falls silent or changes its mind: PreparingRebalance, everybody is to join again
    2. all have joined, or the rebalance timeout is over (dynamic members that did not come are removed): the next
       generation, all joins are answered, the leader gets the list of members
    3. the leader syncs with the assignment: it is written to the log
    4. it is on disk: Stable, all syncs are answered with their part
    5. members that do not sync in time are removed, which begins again at 1

Every function says what it leads to (`Effects`) and changes the group accordingly at once. The log is behind: it
learns of a group when a generation is complete and when the group becomes empty, and that is what a restart finds.

The rules are those of Kafka's GroupMetadataManager and ClassicGroup. In one point this group is kinder: a request
whose place is taken by a later one of the same member is answered (27) and not left hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic_base import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, ClassicSettings
from onceflow.group.classic_rebalance import ClassicRebalance, join_refusal
from onceflow.group.effects import Client, Effects, Ticket
from onceflow.group.members import Member, protocols_of
from onceflow.wire.messages.join_group import JoinGroupRequest
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from onceflow.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

__all__ = ["ClassicGroup", "ClassicSettings", "Join", "join_refusal"]

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""How long a newcomer is kept that waits for its first generation; Kafka has no setting for it either."""
MEMBER_ID_REQUIRED_FROM = 4
PENDING_MAX = 1_000
"""Who was given an id comes back with it at once; this many at a time are those of a large application that starts."""
SKIP_ASSIGNMENT_FROM = 9


class Join(NamedTuple):
    """A request to join, whose answer comes when the group has its next generation."""

    request: JoinGroupRequest
    version: int
    client: Client
    ticket: Ticket


def new_member_id(prefix: str) -> str:
    return f"{prefix}-{uuid4()}"


class ClassicGroup(ClassicRebalance):
    def __init__(
        self,
        group_id: str,
        settings: ClassicSettings,
        now_ms: int,
        *,
        make_member_id: Callable[[str], str] = new_member_id,
    ) -> None:
        super().__init__(group_id, settings, now_ms)
        self._make_member_id = make_member_id

    # Joining

    def join(self, join: Join, now_ms: int) -> Effects:
        effects = Effects()
        try:
            self._join(effects, join, now_ms)
        except ProtocolError as error:
            full = error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            effects.answer(join.ticket, join_refusal(error.code, "" if full else join.request.member_id))
        return effects

    def _join(self, effects: Effects, join: Join, now_ms: int) -> None:
        request = join.request
        if not self._has_room_for(request.member_id):
            self.members.remove(request.member_id)
            raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if self.state is DEAD:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not self._supports(request):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id == "":
            self._join_newcomer(effects, join, now_ms)
        elif request.member_id in self.members.pending:
            if request.group_instance_id is not None:
                raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, "A pending member cannot turn into a static one.")
            self._add_member(effects, join, request.member_id, now_ms)
        else:
            member = self.members.known(request.member_id, request.group_instance_id)
            self._rejoin(effects, member, join, now_ms)

    def _has_room_for(self, member_id: str) -> bool:
        member = self.members.get(member_id)
        if self.state is PREPARING:
            joining = sum(member.is_joining for member in self.members)
            return (member is not None and member.is_joining) or joining < self._settings.max_size
        if self.state in (COMPLETING, STABLE):
            return member is not None or len(self.members) < self._settings.max_size
        return True

    def _supports(self, request: JoinGroupRequest) -> bool:
        names = {protocol.name for protocol in request.protocols}
        if self.state is EMPTY:
            return bool(request.protocol_type and names)
        if self._protocol_type != request.protocol_type:
            return False
        return bool(names & self.members.common_protocols()) if self.members else bool(names)

    def _join_newcomer(self, effects: Effects, join: Join, now_ms: int) -> None:
        instance_id = join.request.group_instance_id
        member_id = self._make_member_id(join.client.id if instance_id is None else instance_id)
        replaced = self.members.of_instance(instance_id)
        if replaced is not None:
            self._replace_static(effects, replaced, member_id, join, now_ms)
        elif instance_id is None and join.version >= MEMBER_ID_REQUIRED_FROM:
            if len(self.members.pending) >= PENDING_MAX:
                raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.members.pending[member_id] = now_ms + join.request.session_timeout_ms
            effects.answer(join.ticket, join_refusal(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(effects, join, member_id, now_ms)

    def _add_member(self, effects: Effects, join: Join, member_id: str, now_ms: int) -> None:
        request = join.request
        member = Member(
            member_id,
            request.group_instance_id,
            join.client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request),
        )
        member.is_new = True
        member.join_ticket = join.ticket
        member.deadline_ms = now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
        if not self.members:
            self._protocol_type = request.protocol_type
        self.members.add(member)
        self._newcomer_meanwhile = self._newcomer_meanwhile or self._is_initial
        self._rebalance_or_complete(effects, now_ms)

    def _rejoin(self, effects: Effects, member: Member, join: Join, now_ms: int) -> None:
        is_leader = member.id == self.leader
        unchanged = member.protocols == protocols_of(join.request)
        if self.state is EMPTY:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        if (self.state is COMPLETING and unchanged) or (self.state is STABLE and unchanged and not is_leader):
            # It did not get our answer, or a static member came back: this generation is still good for it.
            effects.answer(join.ticket, self._joined(member, tell_members=is_leader and self.state is COMPLETING))
            return
        self._give_up_waiting(effects, member)
        member.update(join.request, join.ticket)
        self._rebalance_or_complete(effects, now_ms)

    # A static member that comes back under a new id (KIP-345)

    def _replace_static(self, effects: Effects, member: Member, member_id: str, join: Join, now_ms: int) -> None:
        before = (member.id, self.leader, member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._give_up_waiting(effects, member, ErrorCode.FENCED_INSTANCE_ID)
        self._still_to_sync.discard(member.id)
        self.members.rename(member, member_id)
        member.heard_of(now_ms)
        member.update(join.request, join.ticket)
        if self.state is STABLE and self.members.choose_protocol() == self.protocol:
            # Nothing changes for the others, so nobody is disturbed: only the new id has to be on disk.
            effects.write(
                [self.stored()],
                partial(self._static_replaced, member, member_id, before, join.version),
            )
        elif self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(effects, now_ms)
        else:
            self._complete_if_all_joined(effects, now_ms)

    def _static_replaced(
        self,
        member: Member,
        member_id: str,
        before: tuple[str, str | None, tuple[tuple[str, bytes], ...], int, int],
        version: int,
        error: ErrorCode,
        now_ms: int,
    ) -> Effects:
        effects = Effects()
        if self.state is not STABLE or member.id != member_id:
            return effects  # a rebalance answers it, or another one has replaced it and it was told so
        ticket, member.join_ticket = member.join_ticket, None
        old_id, old_leader, protocols, rebalance_timeout_ms, session_timeout_ms = before
        if error:
            self.members.rename(member, old_id)
            member.protocols = protocols
            member.rebalance_timeout_ms, member.session_timeout_ms = rebalance_timeout_ms, session_timeout_ms
            effects.answer(ticket, join_refusal(error))
            return effects
        is_leader = member.id == self.leader
        answer = self._joined(member, tell_members=is_leader and version >= SKIP_ASSIGNMENT_FROM)
        if version >= SKIP_ASSIGNMENT_FROM:
            answer.skip_assignment = is_leader
        else:
            # Told who leads, this client would assign again, for a generation that has its assignment (KIP-814).
            answer.leader = old_leader or ""
        effects.answer(ticket, answer)
        return effects

    # Syncing

    def sync(self, request: SyncGroupRequest, ticket: Ticket, now_ms: int) -> Effects:
        effects = Effects()
        try:
            self._sync(effects, request, ticket)
        except ProtocolError as error:
            effects.answer(ticket, SyncGroupResponse(error_code=error.code))
        return effects

    def _sync(self, effects: Effects, request: SyncGroupRequest, ticket: Ticket) -> None:
        if self.state is DEAD:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.state is EMPTY:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.known(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if not _agree(request.protocol_type, self._protocol_type) or not _agree(request.protocol_name, self.protocol):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.state is PREPARING:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._has_synced(member)
        if self.state is STABLE:
            effects.answer(ticket, self._synced(member, ErrorCode.NONE))
            return
        self._give_up_waiting(effects, member)
        member.sync_ticket = ticket
        if member.id == self.leader:
            given = {each.member_id: each.assignment for each in request.assignments}
            assignment = {each.id: given.get(each.id, b"") for each in self.members}
            effects.write([self._record(assignment)], partial(self._assignment_stored, self.generation, assignment))

    def _has_synced(self, member: Member) -> None:
        self._still_to_sync.discard(member.id)
        if not self._still_to_sync:
            self._sync_deadline_ms = None

    def _assignment_stored(
        self, generation: int, assignment: Mapping[str, bytes], error: ErrorCode, now_ms: int
    ) -> Effects:
        effects = Effects()
        if self.state is not COMPLETING or generation != self.generation:
            return effects  # a rebalance has begun meanwhile, and everybody was told
        if error:
            self._assign(effects, {}, error, now_ms)
            self._prepare_rebalance(effects, now_ms)
        else:
            self._assign(effects, assignment, ErrorCode.NONE, now_ms)
            self._move_to(STABLE, now_ms)
        return effects

    # Staying and leaving

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        if self.state is DEAD:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = self.members.known(member_id, instance_id)
        if generation != self.generation:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        member.heard_of(now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest, now_ms: int) -> tuple[list[MemberResponse], Effects]:
        if self.state is DEAD:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        effects = Effects()
        answers = [self._leave(effects, identity) for identity in request.members]
        if any(answer.error_code == ErrorCode.NONE for answer in answers) and self.state is not EMPTY:
            self._rebalance_or_complete(effects, now_ms)
        return answers, effects

    def _leave(self, effects: Effects, identity: MemberIdentity) -> MemberResponse:
        answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        try:
            if identity.member_id in self.members.pending:
                self.members.remove(identity.member_id)
            else:
                self._put_out(effects, self._leaving(identity))
        except ProtocolError as error:
            answer.error_code = error.code
        return answer

    def _leaving(self, identity: MemberIdentity) -> Member:
        if identity.member_id:
            return self.members.known(identity.member_id, identity.group_instance_id)
        member = self.members.of_instance(identity.group_instance_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _put_out(self, effects: Effects, member: Member) -> None:
        self._give_up_waiting(effects, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.members.remove(member.id)
        self._still_to_sync.discard(member.id)

    # Time

    def next_deadline_ms(self) -> int | None:
        deadlines = [member.deadline_ms for member in self.members if member.deadline_ms is not None]
        deadlines += self.members.pending.values()
        deadlines += [at for at in (self._join_deadline_ms, self._sync_deadline_ms) if at is not None]
        return min(deadlines, default=None)

    def on_time(self, now_ms: int) -> Effects:
        effects = Effects()
        self._end_sessions(effects, now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._join_time_is_over(effects, now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._sync_time_is_over(effects, now_ms)
        return effects

    def _end_sessions(self, effects: Effects, now_ms: int) -> None:
        for member_id in [id for id, deadline_ms in self.members.pending.items() if deadline_ms <= now_ms]:
            self.members.remove(member_id)
            self._after_removal(effects, now_ms)
        for member in list(self.members):
            if member.deadline_ms is None or member.deadline_ms > now_ms or self.members.get(member.id) is not member:
                continue
            if member.is_waiting:
                member.deadline_ms = None
                continue
            self._put_out(effects, member)
            if self.state in (STABLE, COMPLETING):
                self._prepare_rebalance(effects, now_ms)
            else:
                self._after_removal(effects, now_ms)

    def _after_removal(self, effects: Effects, now_ms: int) -> None:
        if self.state is PREPARING and self.members.have_all_joined:
            self._complete_join(effects, now_ms)

    def _sync_time_is_over(self, effects: Effects, now_ms: int) -> None:
        self._sync_deadline_ms = None
        if self.state not in (COMPLETING, STABLE) or not self._still_to_sync:
            return
        for member_id in list(self._still_to_sync):
            self.members.remove(member_id)
        self._prepare_rebalance(effects, now_ms)

    def on_loaded(self, now_ms: int) -> Effects:
        effects = Effects()
        for member in self.members:
            member.heard_of(now_ms)
        if len(self.members) > self._settings.max_size:
            self._prepare_rebalance(effects, now_ms)
        return effects

    def abandon(self, error: ErrorCode) -> Effects:
        effects = Effects()
        for member in self.members:
            self._give_up_waiting(effects, member, error)
            member.deadline_ms = None
        self.members.pending.clear()
        self._join_deadline_ms = self._sync_deadline_ms = None
        self._move_to(DEAD, self.state_since_ms)
        return effects


def _agree(asked: str | None, actual: str | None) -> bool:
    """A client may leave its protocol out, and so may the group."""
    return asked is None or actual is None or asked == actual
