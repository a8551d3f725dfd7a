"""How a classic group comes from one generation to the next: the middle of the story that `classic` tells.

prepare      everybody is to join again; syncs that wait are refused (27)
wait         until all have joined, or the rebalance timeout is over. A group that was empty waits a little longer, in
             steps, as long as newcomers come: the members of a starting application do not come all at once
complete     who did not join is removed, unless it is static; the next generation begins, or the group is empty
assign       everybody that waits for its part gets it
"""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.errors import ErrorCode
from onceflow.group.classic_base import COMPLETING, EMPTY, PREPARING, STABLE, ClassicBase, ClassicSettings
from onceflow.group.effects import Effects
from onceflow.group.members import Member
from onceflow.wire.messages.join_group import JoinGroupResponse
from onceflow.wire.messages.sync_group import SyncGroupResponse

__all__ = ["ClassicRebalance", "join_refusal"]


def join_refusal(error: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)


class ClassicRebalance(ClassicBase):
    def __init__(self, group_id: str, settings: ClassicSettings, now_ms: int) -> None:
        super().__init__(group_id, settings, now_ms)
        self._still_to_sync: set[str] = set()
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial_delay_left_ms = 0
        self._newcomer_meanwhile = False

    @property
    def _is_initial(self) -> bool:
        return self.state is PREPARING and self._state_before is EMPTY

    def _rebalance_or_complete(self, effects: Effects, now_ms: int) -> None:
        if self.state in (EMPTY, COMPLETING, STABLE):
            self._prepare_rebalance(effects, now_ms)
        else:
            self._complete_if_all_joined(effects, now_ms)

    def rebalance(self, now_ms: int) -> None:
        """Have all members join again. None of them waits for anything."""
        self._prepare_rebalance(Effects(), now_ms)

    def _prepare_rebalance(self, effects: Effects, now_ms: int) -> None:
        if self.state is COMPLETING:
            self._assign(effects, {}, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._still_to_sync.clear()
        self._sync_deadline_ms = None
        self._move_to(PREPARING, now_ms)
        if self._is_initial:
            # Members of a starting application come one after the other: wait a little, and for each a little more.
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._newcomer_meanwhile = False
            self._join_deadline_ms = now_ms + delay_ms
            self._initial_delay_left_ms = max(self.members.rebalance_timeout_ms - delay_ms, 0)
        elif self.members.have_all_joined:
            self._complete_join(effects, now_ms)
        else:
            self._join_deadline_ms = now_ms + self.members.rebalance_timeout_ms

    def _complete_if_all_joined(self, effects: Effects, now_ms: int) -> None:
        if self.state is PREPARING and not self._is_initial and self.members.have_all_joined:
            self._complete_join(effects, now_ms)

    def _join_time_is_over(self, effects: Effects, now_ms: int) -> None:
        if self._is_initial and self._newcomer_meanwhile and self._initial_delay_left_ms > 0:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_delay_left_ms)
            self._newcomer_meanwhile = False
            self._join_deadline_ms = now_ms + delay_ms
            self._initial_delay_left_ms = max(self._initial_delay_left_ms - delay_ms, 0)
        else:
            self._complete_join(effects, now_ms)

    def _complete_join(self, effects: Effects, now_ms: int) -> None:
        self._join_deadline_ms = None
        for member in list(self.members):
            if not member.is_joining and member.instance_id is None:
                self._give_up_waiting(effects, member, ErrorCode.UNKNOWN_MEMBER_ID)
                self.members.remove(member.id)
        if not self.members.elect() and self.members:
            # Only static members are left and none is here; they keep their place until their sessions end.
            self._join_deadline_ms = now_ms + self.members.rebalance_timeout_ms
            return
        self.generation += 1
        self._still_to_sync.clear()
        if self.members:
            self._begin_generation(effects, now_ms)
        else:
            self.protocol = None
            self._topics = self._subscribed_topics()
            self._move_to(EMPTY, now_ms)
            effects.write([self._record({})])

    def _begin_generation(self, effects: Effects, now_ms: int) -> None:
        self.protocol = self.members.choose_protocol()
        self._topics = self._subscribed_topics()
        self._move_to(COMPLETING, now_ms)
        for member in self.members:
            if member.join_ticket is not None:
                effects.answer(member.join_ticket, self._joined(member, tell_members=member.id == self.leader))
                member.join_ticket = None
            member.heard_of(now_ms)
            member.is_new = False
            self._still_to_sync.add(member.id)
        self._sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms

    # Answers

    def _joined(self, member: Member, *, tell_members: bool) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self._protocol_type or None,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member.id,
            members=self.members.described(self.protocol or "") if tell_members else [],
        )

    def _give_up_waiting(self, effects: Effects, member: Member, error: ErrorCode | None = None) -> None:
        """Answer what a member still waits for, since nobody else will."""
        error = error or ErrorCode.REBALANCE_IN_PROGRESS
        if member.join_ticket is not None:
            known = member.id if error is not ErrorCode.UNKNOWN_MEMBER_ID else ""
            effects.answer(member.join_ticket, join_refusal(error, known))
            member.join_ticket = None
        if member.sync_ticket is not None:
            effects.answer(member.sync_ticket, SyncGroupResponse(error_code=error))
            member.sync_ticket = None

    def _assign(self, effects: Effects, assignment: Mapping[str, bytes], error: ErrorCode, now_ms: int) -> None:
        for member in self.members:
            member.assignment = assignment.get(member.id, b"")
            if member.sync_ticket is not None:
                effects.answer(member.sync_ticket, self._synced(member, error))
                member.sync_ticket = None
                member.heard_of(now_ms)

    def _synced(self, member: Member, error: ErrorCode) -> SyncGroupResponse:
        if error:
            return SyncGroupResponse(error_code=error)
        return SyncGroupResponse(
            protocol_type=self._protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )
