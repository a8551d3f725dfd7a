"""The members of a classic group: who they are, what they can do, what they wait for.

- *Dynamic* members are known by the id that the coordinator gave them; *static* ones (KIP-345) by an instance id of
  their own, under which a member id can be replaced by a newer one.
- *Pending* members have been given an id and have yet to join with it (KIP-394).
- The *leader* is one of the members, whenever there are members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.effects import Client, Ticket
from onceflow.group.records import GroupMember
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupResponseMember

__all__ = ["Member", "Members", "Protocol"]

Protocol = tuple[str, bytes]
"""A way of assigning that a member can do, by name, and what it has to say for it."""


class Member:
    __slots__ = (
        "assignment",
        "client",
        "deadline_ms",
        "id",
        "instance_id",
        "is_new",
        "join_ticket",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_ticket",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client: Client,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Sequence[Protocol],
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client = client
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.join_ticket: Ticket | None = None
        self.sync_ticket: Ticket | None = None
        self.is_new = False
        """Has not been part of a generation yet."""
        self.deadline_ms: int | None = None
        """When it is put out unless it is heard of before; None while it waits for us."""

    @classmethod
    def of(cls, stored: GroupMember, protocol: str | None) -> Member:
        """As it was written: with the one protocol that the group had chosen."""
        return cls(
            stored.member_id,
            stored.group_instance_id,
            Client(stored.client_id, stored.client_host),
            rebalance_timeout_ms=stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout,
            session_timeout_ms=stored.session_timeout,
            protocols=[(protocol or "", stored.subscription)],
            assignment=stored.assignment,
        )

    def stored(self, protocol: str, assignment: bytes) -> GroupMember:
        return GroupMember(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client.id,
            client_host=self.client.host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @property
    def is_joining(self) -> bool:
        return self.join_ticket is not None

    @property
    def is_waiting(self) -> bool:
        """We owe it an answer, so its silence means nothing; but a newcomer may be gone without our knowing."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise RuntimeError(f"Member {self.id} does not know the protocol {protocol!r}.")

    def heard_of(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    def update(self, request: JoinGroupRequest, ticket: Ticket) -> None:
        self.protocols = protocols_of(request)
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.join_ticket = ticket


def protocols_of(request: JoinGroupRequest) -> tuple[Protocol, ...]:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


class Members:
    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, str] = {}
        self.pending: dict[str, int] = {}
        """Member ids that were given out, and when each is forgotten unless its owner joins."""
        self.leader: str | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def of_instance(self, instance_id: str | None) -> Member | None:
        return self._by_id.get(self._by_instance.get(instance_id, "")) if instance_id is not None else None

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """The member, or `ProtocolError`: 82 if a newer one has taken over its instance id, 25 if nobody knows it."""
        if instance_id is not None:
            current = self.of_instance(instance_id)
            if current is None:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            if current.id != member_id:
                raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID)
        member = self._by_id.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # Changing

    def add(self, member: Member) -> None:
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.id
        self._by_id[member.id] = member
        self.pending.pop(member.id, None)
        self.leader = self.leader or member.id

    def remove(self, member_id: str) -> None:
        member = self._by_id.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._by_id), None)
        self.pending.pop(member_id, None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member a new id; whoever comes with the old one is fenced."""
        assert member.instance_id is not None
        if self.leader == member.id:
            self.leader = member_id
        self._by_id = {member_id if known is member else known.id: known for known in self}
        self._by_instance[member.instance_id] = member_id
        member.id = member_id

    def elect(self) -> bool:
        """See to it that the leader is one who has joined. False if nobody has."""
        leader = self._by_id.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.is_joining:
            return True
        joined = next((member for member in self if member.is_joining), None)
        if leader is None or joined is None:
            return False
        self.leader = joined.id
        return True

    # Protocols

    def common_protocols(self) -> set[str]:
        """What every member can do."""
        shared: set[str] | None = None
        for member in self:
            names = {name for name, _ in member.protocols}
            shared = names if shared is None else shared & names
        return shared or set()

    def choose_protocol(self) -> str:
        """Each member votes for the first of its protocols that all can do; the most votes win."""
        candidates = self.common_protocols()
        votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in self)
        return votes.most_common(1)[0][0]

    def described(self, protocol: str) -> list[JoinGroupResponseMember]:
        """What the leader is told, to assign by."""
        return [
            JoinGroupResponseMember(
                member_id=member.id, group_instance_id=member.instance_id, metadata=member.metadata(protocol)
            )
            for member in self
        ]

    @property
    def said_bytes(self) -> int:
        return sum(len(metadata) for member in self for _, metadata in member.protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The most patient member decides how long all are waited for."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and all(member.is_joining for member in self)
