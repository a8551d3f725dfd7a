"""Heartbeats of a consumer group (KIP-848): the steps of `consumer_steps`, in what its members say and hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.consumer_decision import Decision, member_record
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.consumer_members import JOIN_EPOCH, Member, Owned
from onceflow.group.consumer_steps import MemberStep, check_room
from onceflow.group.effects import Client
from onceflow.wire.messages.consumer_group_heartbeat import (
    Assignment as AnsweredAssignment,
)
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

__all__ = ["heartbeat"]


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    client: Client,
    now_ms: int,
    new_member_id: Callable[[], str],
) -> Decision:
    """A member joins or goes on; `group` is a new one, in no register yet, if the member is the first."""
    check_room(group, request.member_id)
    return _Heartbeat(group, request, client, now_ms, request.member_id or new_member_id()).decide()


class _Heartbeat(MemberStep):
    """One heartbeat on its way to a decision."""

    def __init__(
        self,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now_ms: int,
        member_id: str,
    ) -> None:
        super().__init__(group, member_id, now_ms)
        self._request = request
        self._client = client

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
            self._records.append(member_record(self._group.id, wanting))
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
            member = self._static(self._request.instance_id, joining=joining, is_classic=False)
        elif joining:
            return self._known_or_new()
        else:
            member = self._group.member(self._member_id)
        if not joining:
            self._check_epoch(member)
        return member

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
            classic=None,
        )

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


def _fenced(how: str, received: int, known: int) -> ProtocolError:
    return ProtocolError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {how} member epoch ({received}) than the one known by the group coordinator "
        f"({known}). The member must abandon all its partitions and rejoin.",
    )
