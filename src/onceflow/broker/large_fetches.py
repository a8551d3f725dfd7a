"""Waiting fetches of many partitions, which cost memory for each of them: so many partitions at most, all together.

If there are more, who has waited longest is answered with what there is. Its client asks again.
"""

from __future__ import annotations

from typing import Final, Protocol

__all__ = ["PARTITIONS_MAX", "LargeFetch", "LargeFetches"]

PARTITIONS_MAX: Final = 200_000
"""Some hundred megabytes."""


class LargeFetch(Protocol):
    def answer(self) -> None:
        """Answer with what there is, and `remove` it."""
        ...


class LargeFetches:
    def __init__(self) -> None:
        self._waiting: dict[LargeFetch, int] = {}
        self._partitions = 0

    @property
    def partitions(self) -> int:
        return self._partitions

    def add(self, fetch: LargeFetch, partitions: int) -> None:
        while self._waiting and self._partitions + partitions > PARTITIONS_MAX:
            next(iter(self._waiting)).answer()
        self._waiting[fetch] = partitions
        self._partitions += partitions

    def remove(self, fetch: LargeFetch) -> None:
        self._partitions -= self._waiting.pop(fetch, 0)
