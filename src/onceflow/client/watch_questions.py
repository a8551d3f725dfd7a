"""The questions of one take: asked broker by broker, each of which may refuse or be gone without harm to the rest."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from onceflow.client.cluster import Cluster, Refused, error_name
from onceflow.client.connection import ApiMissing, NoAnswer
from onceflow.client.offsets import NotYet
from onceflow.client.problems import ClientError
from onceflow.errors import ErrorCode

__all__ = ["Questions", "once_more", "portions"]

T = TypeVar("T")

ENDED_AT_ONCE_S: Final = 0.5
COORDINATOR_TROUBLE: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "loading",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "unavailable",
}


class Questions:
    def __init__(self, cluster: Cluster, brokers: Sequence[int]) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.away: set[int] = set()
        """Who did not answer: not asked again, or each question would take its whole time."""
        self._notes: list[str] = []
        self._refused: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.truncated = False
        self.coordinators: dict[str, str] = {}
        """Their trouble, by kind, as those say who were asked."""

    def ask(self, broker: int, what: str, question: Callable[[], T]) -> T | None:
        """What a broker answers; None if that cannot be found out. `what` is left out then."""
        if broker in self.away:
            return None
        try:
            return once_more(question)
        except Refused as refusal:
            self.note(f"{what} are left out: {refusal}")
        except (ApiMissing, NotYet) as problem:
            self.note(f"{what} are left out: {problem}")
        except ClientError as problem:
            self.away.add(broker)
            self.note(f"broker {broker} is left out: {problem}")
        return None

    def note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    def refused(self, what: str, name: str, code: int) -> None:
        """Of one topic or group among many: they share a note."""
        self._refused[what, code].add(name)

    @property
    def notes(self) -> tuple[str, ...]:
        shared = (
            f"{what} {_some(names)} are left out: {error_name(code)}" for (what, code), names in self._refused.items()
        )
        return (*self._notes, *shared)

    def coordinator_said(self, kind: str, code: int) -> None:
        if code in COORDINATOR_TROUBLE:
            self.coordinators[kind] = COORDINATOR_TROUBLE[ErrorCode(code)]

    def bounded(self, several: Sequence[T], most: int) -> Sequence[T]:
        if len(several) > most:
            self.truncated = True
        return several[:most]


def once_more(question: Callable[[], T]) -> T:
    """A connection that was kept may have ended since the last take; the next is new. Silence is not asked again."""
    begun = time.monotonic()
    try:
        return question()
    except NoAnswer:
        if time.monotonic() - begun > ENDED_AT_ONCE_S:
            raise
    return question()


def _some(names: set[str]) -> str:
    first = min(names)
    return first if len(names) == 1 else f"{first} and {len(names) - 1} more"


def portions(everything: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(everything), size):
        yield everything[start : start + size]
