"""A partition as the broker's shell sees it: its log, and who waits for it.

Two kinds wait: a produce, until its records are on disk (`when_durable`), and a fetch, until there is more to read
(`await_growth`). Both are woken when the high watermark moves, when a flush fails and when the topic goes.

**Waking costs what is ready, not what waits.** A fetch says how much the log has to grow before it is looked at again.
Those sizes are in a heap, one for each isolation level, so that of a thousand fetches that wait for more none is
touched. Many that are ready at the same time are answered in turns (`TURN_COST_MAX`), and others are served between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Protocol

from onceflow.broker.complaints import complain
from onceflow.errors import CorruptLog, ErrorCode, StorageError
from onceflow.log.partition import PartitionLog
from onceflow.log.segment import Segment

__all__ = ["Fetcher", "Partition"]


logger = logging.getLogger(__name__)

TURN_COST_MAX: Final = 512
"""What it may cost to look at waiting fetches, in partitions that are read, before others have their turn: a few
milliseconds."""
DEAD_MAX: Final = 16
"""Entries in a heap whose fetch does not wait any more, beyond as many as there are live ones."""

_numbers: Final = count(1)


class Fetcher(Protocol):
    """A waiting fetch."""

    def look_again(self, partition: Partition, position: int | None) -> int:
        """The partition has grown by as much as was asked for, up to `position`. None: it has ended, or goes on in
        another segment, and what there is has to be looked at anew. Returns what that cost, see `TURN_COST_MAX`."""
        ...


class _Heap:
    """What the fetches of one isolation level wait for, as positions in the segment in which the readable log ends."""

    __slots__ = ("committed", "entries", "segment")

    def __init__(self, committed: bool) -> None:
        self.committed = committed
        self.segment: Segment | None = None
        self.entries: list[tuple[int, int, Fetcher]] = []
        """(position, number of the entry, who waits); dead where `Partition.fetchers` has another number."""


class Partition:
    __slots__ = (
        "_durable_waiters",
        "_heaps",
        "_is_due",
        "_reached",
        "fetchers",
        "index",
        "log",
        "on_taken_back",
        "topic",
    )

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.fetchers: dict[Fetcher, int] = {}
        """Who waits, with the number of its entry in a heap, or of the one that it had before it was reached."""
        self._heaps: dict[bool, _Heap] = {}
        self._reached: deque[tuple[Fetcher, int, int | None]] = deque()
        """Who is to be looked at: (fetch, number of its entry, position)."""
        self._is_due = False
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
            for heap in self._heaps.values():
                if heap.entries:
                    self._gather(heap)
            if self._reached and not self._is_due:
                self._look()

    def report_damage(self, what: str, error: CorruptLog) -> None:
        """Tell the log what a client asked for and cannot have."""
        name = f"{self.topic}-{self.index}"
        complain(f"reading {name}", "%s of %s cannot be read. %s", what, name, error)

    def refuse_waiters(self, error: ErrorCode) -> None:
        """What they wait for did not get to disk."""
        waiters, self._durable_waiters = self._durable_waiters, deque()
        for _, done in waiters:
            _tell(done, error)

    # Waiting fetches

    def await_growth(self, fetcher: Fetcher, size: int, *, committed: bool) -> tuple[Segment, int]:
        """Have the fetch look again, once, when there are so many more bytes to read. Returns where the log ends now.

        Raises `StorageError` or `CorruptLog` where that cannot be found.
        """
        segment, position = self.log.readable_end(committed=committed)
        heap = self._heaps.get(committed)
        if heap is None:
            heap = self._heaps[committed] = _Heap(committed)
        if heap.segment is not segment:
            self._leave_segment(heap, segment)
        number = next(_numbers)
        self.fetchers[fetcher] = number
        heappush(heap.entries, (position + size, number, fetcher))
        return segment, position

    def forget(self, fetcher: Fetcher) -> None:
        """The fetch does not wait any more."""
        fetchers = self.fetchers
        if fetchers.pop(fetcher, None) is None:
            return
        for heap in self._heaps.values():
            if not fetchers:
                heap.entries.clear()
            elif len(heap.entries) > 2 * len(fetchers) + DEAD_MAX:
                heap.entries = [entry for entry in heap.entries if fetchers.get(entry[2]) == entry[1]]
                heapify(heap.entries)

    def _gather(self, heap: _Heap) -> None:
        """Have those looked at that have been reached."""
        segment: Segment | None = None
        position = 0
        if not self.log.closed:
            try:
                segment, position = self.log.readable_end(committed=heap.committed)
            except (StorageError, CorruptLog) as error:
                logger.warning("Fetches do not wait for %s-%d: %s", self.topic, self.index, error)
        if segment is None or segment is not heap.segment:
            self._leave_segment(heap, segment)
            return
        entries = heap.entries
        while entries and entries[0][0] <= position:
            _, number, fetcher = heappop(entries)
            self._reached.append((fetcher, number, position))

    def _leave_segment(self, heap: _Heap, segment: Segment | None) -> None:
        """Positions mean nothing any more. As in Kafka, who waits is answered when a segment is full."""
        self._reached.extend((fetcher, number, None) for _, number, fetcher in heap.entries)
        heap.entries.clear()
        heap.segment = segment
        if self._reached and not self._is_due:
            self._look_soon()

    def _look(self) -> None:
        self._is_due = False
        reached = self._reached
        left = TURN_COST_MAX
        while reached and left > 0:
            fetcher, number, position = reached.popleft()
            if self.fetchers.get(fetcher) == number:
                left -= fetcher.look_again(self, position)
        if reached:
            self._look_soon()

    def _look_soon(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._look)


def _tell(done: Callable[[ErrorCode], None], error: ErrorCode) -> None:
    """What goes wrong with one who waits must not keep the others waiting for ever."""
    try:
        done(error)
    except Exception:
        logger.exception("What waited for the disk failed in an unexpected way.")
