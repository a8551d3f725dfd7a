"""One interface over the clients' transactions and groups, for `transaction_scenarios.py` and `group_scenarios.py`.

The adapters here extend those of `tests.support.clients`, under the same rule: they translate and add nothing. A
client's own word for a fenced producer becomes the broker's, PRODUCER_FENCED, and that for a commit by who is no member
(any more) becomes UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tests.support.clients import Client, Reader, Received, Record

__all__ = [
    "CLASSIC",
    "CONSUMER",
    "CoordinatedClient",
    "DyingMember",
    "Group",
    "GroupMember",
    "Member",
    "Membership",
    "Offsets",
    "Partition",
    "TransactionalProducer",
]

CLASSIC = "classic"
CONSUMER = "consumer"
"""The group protocol of KIP-848, in which the broker assigns the partitions."""

Partition = tuple[str, int]
Offsets = Mapping[Partition, int]


@dataclass(frozen=True, kw_only=True)
class Membership:
    """How a consumer takes part in its group."""

    protocol: str = CLASSIC
    assignor: str = "range"
    instance_id: str | None = None
    """For static members (KIP-345)."""
    reset: str = "earliest"
    """Where to begin when nothing is committed."""
    committed_only: bool = False
    session_timeout_ms: int = 10_000
    """Of the classic protocol; in the other one the broker decides."""
    auto_commit_ms: int | None = None


class TransactionalProducer(Protocol):
    """A producer that has called init_transactions."""

    def begin(self) -> None: ...
    def send(self, topic: str, records: Sequence[Record]) -> None:
        """When it returns, the broker has acknowledged them."""
        ...

    def send_offsets(self, member: Member, offsets: Offsets) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None:
        """For tidying up: a crash is a producer that is left alone, since some clients abort here what is open."""
        ...


class Member(Protocol):
    """A consumer in a group; without topics it only commits and asks."""

    def poll(self, timeout_s: float) -> list[Received]: ...
    def assignment(self) -> set[Partition]: ...
    def revoked(self) -> list[Partition]:
        """All that was taken away from it so far."""
        ...

    def commit(self, offsets: Offsets) -> None: ...
    def commit_async(self, offsets: Offsets) -> None: ...
    def committed(self, at: Partition) -> int | None: ...
    def position(self, at: Partition) -> int: ...
    def seek(self, at: Partition, offset: int) -> None: ...
    def close(self) -> None:
        """Leaves the group, if it is not a static member."""
        ...


class DyingMember(Protocol):
    """A member that will end without a word to its group."""

    def join(self) -> None:
        """Returns when it has partitions, which it gets at once in a group of its own."""
        ...

    def die(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class GroupMember:
    instance_id: str | None
    partitions: frozenset[Partition]


@dataclass(frozen=True, kw_only=True)
class Group:
    state: str
    protocol: str
    """Empty where a client does not tell."""
    assignor: str
    members: tuple[GroupMember, ...]


class CoordinatedClient(Client, Protocol):
    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer: ...
    def member(self, group: str, topics: Sequence[str], membership: Membership = ...) -> Member: ...
    def poll_each(self, members: Sequence[Member]) -> list[Received]:
        """One short turn for every member: long enough to get on, whatever the others do meanwhile."""
        ...

    def dying_member(self, group: str, topic: str, membership: Membership) -> DyingMember: ...
    def committed_reader(self, topic: str, partition: int = 0) -> AbstractContextManager[Reader]:
        """From the beginning, what read_committed lets through."""
        ...

    def groups(self) -> set[str]: ...
    def describe_group(self, group: str) -> Group: ...
    def group_offsets(self, group: str) -> Offsets: ...
    def alter_group_offsets(self, group: str, offsets: Offsets) -> None: ...
    def delete_group_offsets(self, group: str, partitions: Collection[Partition]) -> None: ...
    def delete_group(self, group: str) -> None: ...
