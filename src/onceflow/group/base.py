"""What every group is, classic or consumer (KIP-848), to the paths that they share.

ListGroups, DescribeGroups, DeleteGroups, the offset requests and the expiry of offsets ask the group what it allows;
everything else is each kind's own. A group that refuses raises `ProtocolError` and has changed nothing.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar
from uuid import UUID

from onceflow.errors import ErrorCode
from onceflow.group.effects import Effects
from onceflow.group.offsets import CommittedOffset
from onceflow.group.records import KeyValue

__all__ = ["Group", "GroupType"]


class GroupType(enum.Enum):
    """The value is the name that ListGroups uses."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class Group(ABC):
    type: ClassVar[GroupType]

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.watched_ms: int | None = None
        """When the coordinator will look at this group's deadlines next; only `Deadlines` writes it."""

    # For lists

    @property
    @abstractmethod
    def state_name(self) -> str: ...

    @property
    @abstractmethod
    def protocol_type(self) -> str:
        """`consumer`, `connect` and so on; empty for a group that only ever committed offsets."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Without members."""

    # Offsets

    @abstractmethod
    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        transactional: bool,
        version: int,
        now_ms: int,
    ) -> None:
        """May this member commit offsets? If so, that counts as a sign of life.

        `generation` is the member epoch in a consumer group; `version` is that of the request.
        """

    @abstractmethod
    def check_commit_partitions(
        self, member_id: str, generation: int, partitions: Iterable[tuple[UUID | None, int]], *, transactional: bool
    ) -> None:
        """After `check_commit`: may this member commit these partitions, given by topic id and number?"""

    @abstractmethod
    def check_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    @abstractmethod
    def check_offset_delete(self) -> None: ...

    @abstractmethod
    def check_delete(self) -> None: ...

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Offsets of such a topic neither expire nor can they be deleted."""

    @abstractmethod
    def unused_since_ms(self, offset: CommittedOffset) -> int | None:
        """Since when nobody needs this offset; None while somebody may."""

    # Life

    @abstractmethod
    def tombstones(self) -> list[KeyValue]:
        """What removes the group from the log, its offsets apart."""

    @abstractmethod
    def next_deadline_ms(self) -> int | None:
        """When `on_time` has something to do, at the earliest."""

    @abstractmethod
    def on_time(self, now_ms: int) -> Effects:
        """Do what is due."""

    @abstractmethod
    def on_loaded(self, now_ms: int) -> Effects:
        """The group was read from the log: give its members a fresh start."""

    @abstractmethod
    def abandon(self, error: ErrorCode) -> Effects:
        """This object is no longer the group: answer everybody who waits, and do nothing from now on."""
