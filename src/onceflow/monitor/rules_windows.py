"""What the rules remember: little, and of bounded size, however often and for however long somebody looks.

Time here is steady. It is made of the differences between snapshots, and a difference that cannot be (backwards, or
more than a minute where looks are seconds apart) counts as the one before it: a clock that was set makes nothing old.
"""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Growth", "SteadyTime", "Trend", "in_words"]

LEAP_MS: Final = 60_000
LEAP_STEPS: Final = 5
LEAPS_KEPT: Final = 8
STEPS: Final = 20
"""Into which a window is divided: it moves on by a twentieth."""


class SteadyTime:
    def __init__(self) -> None:
        self.now_ms = 0
        """Steady: since the first look."""
        self.at_ms = 0
        """By the clock of the snapshots."""
        self.looks = 0
        self._step_ms = 0
        self._leaps: deque[tuple[int, int]] = deque(maxlen=LEAPS_KEPT)
        """Where the clock was put forward, and by how much. Nothing that it says lies in between, so what is before the
        middle is by the clock as it was."""

    def see(self, at_ms: int) -> None:
        if self.looks:
            self._pass(at_ms - self.at_ms)
        self.at_ms = at_ms
        self.looks += 1

    def _pass(self, passed_ms: int) -> None:
        is_first = self.looks == 1 and passed_ms > 0  # how often somebody looks is not known yet
        if is_first or 0 <= passed_ms <= max(LEAP_MS, LEAP_STEPS * self._step_ms):
            self._step_ms = passed_ms
        elif passed_ms > 0:
            self._leaps.append((self.at_ms + passed_ms // 2, passed_ms - self._step_ms))
        self.now_ms += self._step_ms

    def age_ms(self, since_ms: int) -> int:
        """How long ago a time by the clock of the snapshots is. After a clock was put back it may be told too young,
        never too old."""
        leapt_ms = sum(by_ms for middle_ms, by_ms in self._leaps if since_ms <= middle_ms)
        return max(0, self.at_ms - since_ms - leapt_ms)


class Growth:
    """By how much totals grew within the last while. One that went down was begun anew, and has grown by what it is."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._last: tuple[int, ...] | None = None
        self._grown: tuple[int, ...] = ()
        self._points: deque[tuple[int, tuple[int, ...]]] = deque()

    def see(self, now_ms: int, totals: tuple[int, ...]) -> None:
        if self._last is None or len(self._last) != len(totals):
            self._points.clear()
            self._grown = (0,) * len(totals)
        elif any(map(int.__lt__, totals, self._last)):
            self._grown = tuple(map(int.__add__, self._grown, totals))
        elif totals != self._last:
            self._grown = tuple(g + now - last for g, now, last in zip(self._grown, totals, self._last, strict=True))
        self._last = totals
        self._remember(now_ms)

    def _remember(self, now_ms: int) -> None:
        points = self._points
        if not points or now_ms - points[-1][0] >= self._window_ms // STEPS:
            points.append((now_ms, self._grown))
        while len(points) > 1 and points[1][0] <= now_ms - self._window_ms:
            points.popleft()

    @property
    def increase(self) -> tuple[int, ...]:
        return tuple(map(int.__sub__, self._grown, self._points[0][1]))


class Trend:
    """Whether a level that goes up and down all the time is nevertheless growing, over a whole window.

    Readers commit in steps, so the lag of the healthiest group is a saw. What counts are its lower tips: they are
    higher in the middle fifth of the window than in the first, and higher again in the last; and there even the lowest
    is above all of the first. A heap that came at once and is being worked off does not grow.
    """

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque(maxlen=STEPS)
        """Number, lowest, highest."""

    def see(self, bucket: int, level: int) -> None:
        """`bucket` counts twentieths of a window."""
        buckets = self._buckets
        if not buckets or buckets[-1][0] != bucket:
            buckets.append([bucket, level, level])
        else:
            last = buckets[-1]
            last[1], last[2] = min(last[1], level), max(last[2], level)

    def grows(self) -> bool:
        if self._buckets[-1][1] <= self._buckets[0][2]:
            return False  # almost always; the rest is for the few
        first, middle, last = (self._fifth(steps_ago) for steps_ago in (16, 8, 0))
        if not (first and middle and last):
            return False
        lowest, between, latest = (min(each[1] for each in fifth) for fifth in (first, middle, last))
        return latest > between > lowest and latest > max(each[2] for each in first)

    def grown_from(self) -> int:
        return self._buckets[0][1]

    def _fifth(self, steps_ago: int) -> list[list[int]]:
        end = self._buckets[-1][0] - steps_ago
        return [each for each in self._buckets if end - STEPS // 5 < each[0] <= end]


def in_words(ms: float) -> str:
    """`250 ms`, `48 s`, `4 min 12 s`, `2 h 5 min`."""
    if ms < 1000:
        return f"{round(ms)} ms"
    seconds = round(ms / 1000)
    if seconds < 60:
        return f"{seconds} s"
    size, unit, small_size, small = (60, "min", 1, "s") if seconds < 3600 else (3600, "h", 60, "min")
    whole, rest = divmod(seconds, size)
    return f"{whole} {unit} {rest // small_size} {small}" if rest // small_size else f"{whole} {unit}"
