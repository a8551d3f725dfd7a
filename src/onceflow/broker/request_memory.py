"""Memory for large requests on their way in, shared by all connections: `queued.max.request.bytes`.

Every connection has a small buffer of its own. Whoever announces a request that does not fit claims the whole of it
before its buffer grows, and is not read until the claim is granted, in the order of asking: so what has begun can be
finished. Small requests need no claim and never wait.

While somebody waits, a connection that takes too long over its large request loses its place, and its connection. That
goes for those, too, that wait themselves and keep something from the request before: those could wait for each other.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Protocol

__all__ = ["Claimant", "RequestMemory"]

PATIENCE_S: Final = 30.0


class Claimant(Protocol):
    def granted(self) -> None:
        """The memory is there."""
        ...

    def give_back(self) -> None:
        """Let go of what is kept only to be used again, if that is so."""
        ...

    def give_up(self, since: float) -> None:
        """Somebody waits: close, if the request that is being received began before `since`."""
        ...


class RequestMemory:
    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: dict[Claimant, int] = {}
        self._waiting: deque[tuple[Claimant, int]] = deque()

    @property
    def free(self) -> int:
        return self._free

    @property
    def is_wanted(self) -> bool:
        return bool(self._waiting)

    def claim(self, who: Claimant, size: int) -> bool:
        """Whether `who` may have `size` bytes in all. If not, it is told when it may, and may ask again."""
        if self._held.get(who, 0) >= size:
            return True
        if any(each is who for each, _ in self._waiting):
            return False
        if not self._waiting and not self._fits(who, size):
            for each in [each for each in self._held if each is not who]:
                each.give_back()
        if self._waiting or not self._fits(who, size):
            self._waiting.append((who, size))
            return False
        self._grant(who, size)
        return True

    def _fits(self, who: Claimant, size: int) -> bool:
        return size - self._held.get(who, 0) <= self._free

    def _grant(self, who: Claimant, size: int) -> None:
        self._free -= size - self._held.get(who, 0)
        self._held[who] = size

    def release(self, who: Claimant) -> None:
        """All that it has or waits for."""
        self._free += self._held.pop(who, 0)
        if self._waiting:
            self._waiting = deque(each for each in self._waiting if each[0] is not who)
            self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(*self._waiting[0]):
            who, size = self._waiting.popleft()
            self._grant(who, size)
            who.granted()

    def close_slow(self) -> None:
        """Called now and then."""
        since = time.monotonic() - PATIENCE_S
        for who in tuple(self._held):
            if self._waiting:
                who.give_up(since)
