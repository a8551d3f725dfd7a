"""A partition as the broker's shell sees it: its log, and who waits for it.

Two kinds wait: a produce, until its records are on disk (`when_durable`), and a fetch, until there is more to read
(`fetchers`). Both are woken when the high watermark moves, when a flush fails and when the topic goes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from onceflow.errors import ErrorCode
from onceflow.log.partition import PartitionLog

__all__ = ["Fetcher", "Partition"]


logger = logging.getLogger(__name__)


class Fetcher(Protocol):
    """A parked fetch."""

    def look_again(self) -> None: ...


class Partition:
    __slots__ = ("_durable_waiters", "fetchers", "index", "log", "on_taken_back", "topic")

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.fetchers: dict[Fetcher, None] = {}
        self._durable_waiters: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()
        self.on_taken_back: Callable[[], None] | None = None
        """Called when a flush has failed and the log has gone back to its high watermark, before waiters are told."""

    def when_durable(self, offset: int, done: Callable[[ErrorCode], None]) -> None:
        """Call `done` when the high watermark is at or above `offset`, or when that will not happen."""
        self._durable_waiters.append((offset, done))

    def wake(self) -> None:
        """The high watermark has moved, or the log was closed."""
        waiters = self._durable_waiters
        if self.log.closed:
            self.refuse_waiters(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        # Repeats may wait for less than those before them; they are woken a little late, which is harmless.
        while waiters and waiters[0][0] <= self.log.high_watermark:
            _tell(waiters.popleft()[1], ErrorCode.NONE)
        if self.fetchers:
            for fetcher in tuple(self.fetchers):
                fetcher.look_again()

    def refuse_waiters(self, error: ErrorCode) -> None:
        """What they wait for did not get to disk."""
        waiters, self._durable_waiters = self._durable_waiters, deque()
        for _, done in waiters:
            _tell(done, error)


def _tell(done: Callable[[ErrorCode], None], error: ErrorCode) -> None:
    """What goes wrong with one who waits must not keep the others waiting for ever."""
    try:
        done(error)
    except Exception:
        logger.exception("What waited for the disk failed in an unexpected way.")
