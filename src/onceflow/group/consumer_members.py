"""One member of a consumer group, and how it gets from what it has to what it is to have.

    state                  the member                                                   leaves it
    STABLE                 has its target of `epoch`                                    when there is a newer target
    UNREVOKED_PARTITIONS   still has partitions to give back; stays in its epoch        when it no longer reports them
    UNRELEASED_PARTITIONS  has the target's epoch, but waits for partitions of others   when those have let go

A partition is given to a member only when nobody has it: not as assigned, and not as being given back. That is the
whole safety of the protocol, and `reconcile` (Kafka's CurrentAssignmentBuilder) is the only place that gives one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from uuid import UUID

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.assignors import Assignment
from onceflow.group.consumer_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    CurrentAssignmentValue,
    MemberValue,
    TopicEpochs,
)

__all__ = [
    "JOIN_EPOCH",
    "LEFT_EPOCH",
    "STATIC_LEFT_EPOCH",
    "Classic",
    "Epochs",
    "Member",
    "MemberState",
    "Owned",
    "Situation",
    "Target",
    "reconcile",
]

Epochs = Mapping[UUID, Mapping[int, int]]
"""By topic id and partition: the epoch in which a member was given it. Never changed in place."""
Owned = Mapping[UUID, Set[int]]
"""What a member says it has."""

JOIN_EPOCH = 0
LEFT_EPOCH = -1
STATIC_LEFT_EPOCH = -2
"""The epoch of a static member that went away and is expected back."""


class MemberState(enum.IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """Read from a record of a later version; only a member that has nothing may go on from here."""

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Classic:
    """What is known besides of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """The ways of assigning that it can do, and what it has to say for each; the broker assigns, whatever it can do."""

    @classmethod
    def of(cls, stored: ClassicMemberMetadata) -> Classic:
        protocols = tuple((protocol.name, protocol.metadata) for protocol in stored.supported_protocols)
        return cls(stored.session_timeout_ms, protocols)

    def stored(self) -> ClassicMemberMetadata:
        return ClassicMemberMetadata(
            session_timeout_ms=self.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in self.protocols],
        )


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    """That of the last but one answer: a member that missed the last one still reports it."""
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    assignor: str | None = None
    assigned: Epochs = field(default_factory=dict)
    revoking: Epochs = field(default_factory=dict)
    classic: Classic | None = None
    """None for a member that uses the protocol of consumer groups."""

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def epoch_of(self, topic_id: UUID, partition: int) -> int | None:
        """Since when the member has a partition, also one that it is giving back."""
        found = self.assigned.get(topic_id, {}).get(partition)
        return self.revoking.get(topic_id, {}).get(partition) if found is None else found

    def moved_to(self, epoch: int) -> Member:
        return replace(self, epoch=epoch, previous_epoch=self.epoch)

    def static_leave(self) -> Member:
        """Gone, but its partitions wait for it. Whatever it commits from now on is too old."""
        zeroed = {topic: dict.fromkeys(partitions, 0) for topic, partitions in self.assigned.items()}
        return replace(self, epoch=STATIC_LEFT_EPOCH, revoking={}, assigned=zeroed)

    # As records

    def metadata(self) -> MemberValue:
        return MemberValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
            subscribed_topic_regex=self.topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None if self.classic is None else self.classic.stored(),
        )

    def with_metadata(self, value: MemberValue) -> Member:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None if value.classic_member_metadata is None else Classic.of(value.classic_member_metadata),
        )

    def current_assignment(self) -> CurrentAssignmentValue:
        return CurrentAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_to_topics(self.assigned),
            partitions_pending_revocation=_to_topics(self.revoking),
        )

    def with_current_assignment(self, value: CurrentAssignmentValue) -> Member:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_from_topics(value.assigned_partitions, value.member_epoch),
            revoking=_from_topics(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> Member:
        return replace(self, epoch=LEFT_EPOCH, previous_epoch=LEFT_EPOCH, assigned={}, revoking={})


def _to_topics(epochs: Epochs) -> list[TopicEpochs]:
    return [
        TopicEpochs(topic_id=topic, partitions=sorted(given), assignment_epochs=[given[at] for at in sorted(given)])
        for topic, given in sorted(epochs.items())
    ]


def _from_topics(topics: list[TopicEpochs], member_epoch: int) -> Epochs:
    """Records from before there were epochs per partition count as given in the member's epoch."""
    epochs: dict[UUID, Mapping[int, int]] = {}
    for topic in topics:
        since = topic.assignment_epochs
        if since is None or len(since) != len(topic.partitions):
            since = [max(member_epoch, 0)] * len(topic.partitions)
        if topic.topic_id is not None:
            epochs[topic.topic_id] = dict(zip(topic.partitions, since, strict=True))
    return epochs


# --- from what it has to what it is to have


@dataclass(frozen=True, slots=True)
class Target:
    epoch: int
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a member's next step depends on besides itself."""

    target: Target
    subscribed: Set[UUID]
    """The topics it wants, as far as they exist."""
    subscription_changed: bool
    owned: Owned | None
    """What it says it has; None if it says nothing of it."""
    is_taken: Callable[[UUID, int], bool]
    """Whether any member has a partition, or is still giving it back."""

    def still_owns_any(self, revoking: Epochs) -> bool:
        """Silence means that nothing has changed."""
        if self.owned is None:
            return True
        return any(partitions & revoking.get(topic, {}).keys() for topic, partitions in self.owned.items())


def reconcile(member: Member, now: Situation) -> Member:
    """The member after its next step towards its target; the same if it has none to make."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch != now.target.epoch:
                return _next(member, now, member.epoch)
            return _drop_unsubscribed(member, now) if now.subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if not now.still_owns_any(member.revoking):
                return _next(member, now, member.epoch)
            return _drop_unsubscribed(member, now) if now.subscription_changed else member
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(member, now, member.epoch)
        case _:
            if now.owned is None or now.owned:
                raise ProtocolError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in a unknown state. The member must abandon all its partitions "
                    "and rejoin.",
                )
            return _next(member, now, now.target.epoch)


def _drop_unsubscribed(member: Member, now: Situation) -> Member:
    """A member that wants fewer topics gives them back at once, before there is a new target."""
    assigned = {topic: given for topic, given in member.assigned.items() if topic in now.subscribed}
    if len(assigned) == len(member.assigned):
        return member
    revoking = dict(member.revoking)
    for topic in member.assigned.keys() - assigned.keys():
        revoking[topic] = {**revoking.get(topic, {}), **member.assigned[topic]}
    moved = replace(member.moved_to(member.epoch), assigned=assigned)
    if now.still_owns_any(revoking):
        return replace(moved, state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)
    return moved


def _next(member: Member, now: Situation, epoch: int) -> Member:
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    pending: dict[UUID, Set[int]] = {}
    waits = False
    for topic in now.target.assignment.keys() | member.assigned.keys():
        wanted = now.target.assignment.get(topic, frozenset()) if topic in now.subscribed else frozenset()
        has = member.assigned.get(topic, {})
        own_revoking = member.revoking.get(topic, {})
        missing = wanted - has.keys()
        free = {at for at in missing if at in own_revoking or not now.is_taken(topic, at)}
        waits = waits or len(free) < len(missing)
        _put(assigned, topic, {at: since for at, since in has.items() if at in wanted})
        _put(revoking, topic, {at: since for at, since in has.items() if at not in wanted})
        if free:
            pending[topic] = free
    if revoking and now.still_owns_any(revoking):
        moved = member.moved_to(epoch)
        return replace(moved, state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking)
    for topic, partitions in pending.items():
        assigned.setdefault(topic, {}).update(dict.fromkeys(sorted(partitions), now.target.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return replace(member.moved_to(now.target.epoch), state=state, assigned=assigned, revoking={})


def _put(epochs: dict[UUID, dict[int, int]], topic: UUID, given: dict[int, int]) -> None:
    if given:
        epochs[topic] = given
