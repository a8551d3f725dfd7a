"""What the broker counts while it works. On the hot path: plain attributes, one thread, no locks, no labels, and no
record is opened for it.

`broker/watching.py` turns all of it into a snapshot when somebody asks. Durations are by `time.perf_counter`, never by
the node's clock, and nothing is decided by them.

- A **request** takes from when its frame is there to when its answer is ready; waiting for the disk is in it, the long
  poll of a fetch is not (that is `fetch_wait`).
- **fsync** is one observation per round of group commit, with all files of the round: what an answer waits for. The
  disk thread is the only one that writes to it.
- **Records read** are known by how far a consumer's next fetch has moved on (`Reader`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from onceflow.monitor.snapshot import EndedTransaction, Fencing, Timing, TopicTraffic

if TYPE_CHECKING:
    from onceflow.log.files import FileSlice
    from onceflow.log.partition import PartitionLog

__all__ = ["Meters", "Reader", "Stopwatch", "Traffic"]

BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
LAST_EVENTS: Final = 200
POSITIONS_MAX: Final = 10_000
"""Partitions of which one connection's position is remembered."""
POSITIONS_AT_FIRST: Final = 64


class Stopwatch:
    """A histogram of durations."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def timing(self) -> Timing:
        return Timing(bounds=BOUNDS_S, counts=tuple(self.counts), total_s=self.total_s)


class Traffic:
    """What clients wrote to a topic and read from it. The broker's own records in its internal topics are not in it."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.records_out = self.bytes_out = 0

    def totals(self) -> TopicTraffic:
        return TopicTraffic(
            records_in=self.records_in,
            bytes_in=self.bytes_in,
            records_out=self.records_out,
            bytes_out=self.bytes_out,
        )


class Reader:
    """One connection as a consumer: when it last fetched, how, and where it stands.

    What was sent counts as read when the next fetch on the connection asks for what follows. It counts as many offsets
    as the position moved, so markers, and records that a reader skips because they were aborted, are in it. A seek
    counts as nothing: back, or ahead beyond what was sent.
    """

    __slots__ = ("_positions", "_room", "active_until", "fetch_session", "read_committed")

    def __init__(self) -> None:
        self._positions: dict[PartitionLog, tuple[int, FileSlice | None]] = {}
        """The offset that it asked for last, and what it was sent."""
        self._room = POSITIONS_AT_FIRST
        """With so many, it is time to see which of them are still there."""
        self.active_until = -1.0
        """By `time.monotonic`: when it last fetched; for a long poll, when that ends."""
        self.read_committed = False
        self.fetch_session = 0
        """The one that it has begun, if any (KIP-227)."""

    def reads(self, log: PartitionLog, offset: int, found: FileSlice | None, traffic: Traffic) -> None:
        """It asked for `offset` and is sent `found`."""
        positions = self._positions
        before = positions.get(log)
        if before is None:
            if len(positions) >= self._room:
                self._make_room()
        else:
            start, sent = before
            if start < offset and sent is not None and log.has_read(start, sent, offset, found):
                traffic.records_out += offset - start
            elif start == offset and found is None:
                return  # no room for it in this answer: what was sent before still counts when it moves on
        positions[log] = (offset, found)

    def _make_room(self) -> None:
        """Partitions that were deleted go, which this alone would keep in memory; if that is not enough, the oldest.
        There is room for twice as many as are left, so this is seldom."""
        positions = self._positions
        for log in [log for log in positions if log.closed]:
            del positions[log]
        if len(positions) >= POSITIONS_MAX:
            del positions[next(iter(positions))]
        self._room = min(POSITIONS_MAX, max(POSITIONS_AT_FIRST, 2 * len(positions)))


class Meters:
    def __init__(self) -> None:
        self.commits = self.aborts = self.timeouts = self.fenced_aborts = 0
        """Transactions that had written something, when their outcome is on disk. `aborts` are all of them; of these,
        `timeouts` and `fenced_aborts` were not the client's own."""
        self.fencings = self.duplicates = self.out_of_order = 0
        self.connections = 0
        self.connections_refused: Counter[str] = Counter()
        self.failed_authentications: Counter[str] = Counter()
        self.successful_authentications: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.produce_errors: Counter[str] = Counter()
        self.fsync = Stopwatch()
        self.fetch_wait = Stopwatch()
        self.requests: dict[int, Stopwatch] = {}
        """By api key."""
        self.last_ended: deque[EndedTransaction] = deque(maxlen=LAST_EVENTS)
        self.last_fencings: deque[Fencing] = deque(maxlen=LAST_EVENTS)

    def request(self, api_key: int, seconds: float) -> None:
        """A request's answer is ready."""
        stopwatch = self.requests.get(api_key)
        if stopwatch is None:
            stopwatch = self.requests[api_key] = Stopwatch()
        stopwatch.counts[bisect_left(BOUNDS_S, seconds)] += 1  # as `observe` does, without calling it
        stopwatch.total_s += seconds

    def ended(self, transaction: EndedTransaction) -> None:
        self.last_ended.append(transaction)
        if transaction.committed:
            self.commits += 1
            return
        self.aborts += 1
        if transaction.reason == "timeout":
            self.timeouts += 1
        elif transaction.reason == "fenced":
            self.fenced_aborts += 1

    def fenced(self, fencing: Fencing) -> None:
        self.fencings += 1
        self.last_fencings.append(fencing)
