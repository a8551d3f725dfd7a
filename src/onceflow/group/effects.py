"""What a decision leads to: whom to answer what, what to write, and what comes after it is on disk.

Decisions are made here, without waiting; carrying them out is the shell's work. A *ticket* stands for a request that
waits for its answer: the group keeps it and gives it back with the answer, and never looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from onceflow.errors import ErrorCode
from onceflow.group.records import KeyValue
from onceflow.wire.schema import Message

if TYPE_CHECKING:
    from onceflow.group.base import Group

__all__ = ["Client", "Effects", "Ticket"]

Ticket = Any

Then = Callable[[ErrorCode, int], "Effects"]
"""Called with how the writing went and with what time it is then."""


class Client(NamedTuple):
    """Who sent a request, as tools show it."""

    id: str
    host: str


class Effects:
    """Answers to give now, records to write now, and what follows from their being on disk (or refused).

    An answer that rests on the records belongs into what `then` returns.
    """

    __slots__ = ("answers", "applied", "applies", "records", "successor", "then")

    def __init__(self) -> None:
        self.answers: list[tuple[Ticket, Message]] = []
        self.records: list[KeyValue] = []
        self.then: Then | None = None
        self.applies = False
        """Whether the group changes only by applying the records once they are written (a consumer group does)."""
        self.applied: Callable[[int], None] | None = None
        """Then: what changes in the group besides, with what time it is. It is in no record."""
        self.successor: Group | None = None
        """Then: what takes the place of the group, which the records have made one of the other kind."""

    def answer(self, ticket: Ticket, message: Message) -> None:
        self.answers.append((ticket, message))

    def write(self, records: list[KeyValue], then: Then | None = None) -> None:
        """At most one write with something after it comes of one decision."""
        if then is not None and self.then is not None:
            raise RuntimeError("Two writes of one decision both have something after them.")
        self.records += records
        self.then = then or self.then
