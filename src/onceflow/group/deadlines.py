"""When to look at which group next, over all groups of a coordinator.

A heartbeat moves a member's deadline to later, thousands of times a second and for nothing most of the time. So moves
to later are not noted: the group is looked at when its deadline was, has nothing to do, and is looked at again when
its deadline now is. Only an earlier deadline has to be told (`watch`).
"""

from __future__ import annotations

import heapq

from onceflow.group.base import Group

__all__ = ["Deadlines"]


class Deadlines:
    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def watch(self, group: Group) -> None:
        """The group may have an earlier deadline than before."""
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None and (group.watched_ms is None or deadline_ms < group.watched_ms):
            group.watched_ms = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, group.id))

    def take_due(self, now_ms: int) -> set[str]:
        """The ids of groups to look at now; the caller has to `watch` them again."""
        due = set()
        while self._heap and self._heap[0][0] <= now_ms:
            due.add(heapq.heappop(self._heap)[1])
        return due
