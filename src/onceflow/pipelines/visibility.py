"""What could be seen of a pipeline's outputs while it ran, compared with what is there in the end.

Visibility(written).look(ends)        all partitions at one moment: the same micro-batches everywhere
Shown(written).check(reader, ...)     what one reader was shown: all of it, and nothing else
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from onceflow.pipelines.judging import NO_BATCH, Differences, Offsets, Place, Written, name_of

__all__ = ["Shown", "Visibility", "checksum"]


class _Partition:
    """In which order the micro-batches became visible."""

    def __init__(self, written: Sequence[Written]) -> None:
        inside = sorted((each.offset, each.batch) for each in written if each.batch is not None)
        self._offsets = [offset for offset, _ in inside]
        numbers = [number for _, number in inside]
        self._newest = [NO_BATCH, *accumulate(numbers, max)]
        self._oldest = [*reversed([*accumulate(reversed(numbers), min)]), None]

    def at(self, end: int) -> tuple[int, int | None]:
        """The newest micro-batch below an offset (-1: none is), and the oldest one that is not (None: all are)."""
        before = bisect_left(self._offsets, end)
        return self._newest[before], self._oldest[before]


class Visibility:
    """Judges looks at all output partitions at once: at no moment may they show different sets of micro-batches.

    A transaction is committed everywhere at once, but each partition shows it when its own marker has arrived
    (docs/spark.md). So the newest micro-batch may be visible in some and not yet in others, and nothing else may
    differ; and of no micro-batch is a part visible in a partition.
    """

    def __init__(self, written: Iterable[Written]) -> None:
        by_place: defaultdict[Place, list[Written]] = defaultdict(list)
        for each in written:
            by_place[each.topic, each.partition].append(each)
        self._partitions = {place: _Partition(found) for place, found in by_place.items()}
        self.equal = 0
        self.between = 0
        self.newest: set[int] = set()
        """The newest micro-batch of each look: looks that all came too early, or too late, prove nothing."""
        self.differences = Differences()

    def look(self, ends: Offsets, when: str) -> None:
        """`ends`: up to where each partition could be read at that moment."""
        seen = {place: each.at(ends[place]) for place, each in self._partitions.items() if place in ends}
        if not seen:
            return
        for place, (newest, oldest) in seen.items():
            if oldest is not None and newest >= oldest:
                self._torn(place, newest, oldest, when)
                return
        ahead = max(seen, key=lambda place: seen[place][0])
        behind = min(seen, key=lambda place: _or_last(seen[place][1]))
        newest, oldest = seen[ahead][0], seen[behind][1]
        self.newest.add(newest)
        if oldest is None or newest < oldest:
            self.equal += 1
        elif newest == oldest:
            self.between += 1
        else:
            self.differences.add(
                "not atomic",
                f"{when}, readers of {name_of(ahead)} could see micro-batch {newest}, while in {name_of(behind)} "
                f"micro-batch {oldest} was not yet visible.",
            )

    def _torn(self, place: Place, newest: int, oldest: int, when: str) -> None:
        if newest == oldest:
            what = f"a part of micro-batch {newest}"
        else:
            what = f"micro-batch {newest} before all of micro-batch {oldest}"
        self.differences.add("not atomic", f"{when}, readers of {name_of(place)} could see {what}.")


def checksum(records: Iterable[Written]) -> int:
    """Of records of one topic with their places, in any order."""
    return sum(zlib.crc32(repr(each[1:]).encode()) for each in records)


class Shown:
    """Judges what readers were shown while the pipeline ran: the same as is there in the end, all of it and no more."""

    def __init__(self, written: Iterable[Written]) -> None:
        self._records: defaultdict[Place, list[Written]] = defaultdict(list)
        for each in sorted(written, key=lambda each: each.offset):
            self._records[each.topic, each.partition].append(each)
        self.reads = 0
        self.differences = Differences()

    def check(self, who: str, place: Place, start: int, end: int, shown: Mapping[int | None, tuple[int, int]]) -> None:
        """A reader went from one offset to another. `shown`: how many records of each micro-batch, and their
        `checksum`."""
        self.reads += 1
        records = self._records[place]
        passed = records[_index(records, start) : _index(records, end)]
        by_batch: defaultdict[int | None, list[Written]] = defaultdict(list)
        for each in passed:
            by_batch[each.batch].append(each)
        there = {batch: (len(each), checksum(each)) for batch, each in by_batch.items()}
        for batch in dict.fromkeys((*shown, *there)):
            if (saw := shown.get(batch, (0, 0))) != (now := there.get(batch, (0, 0))):
                self.differences.add(
                    "reader",
                    f"{who} was shown {saw[0]:,} records of micro-batch {batch} in {name_of(place)} between {start} "
                    f"and {end}; in the end there are {now[0]:,}{', others' if saw[0] == now[0] else ''}.",
                )


def _index(records: list[Written], offset: int) -> int:
    return bisect_left(records, offset, key=lambda each: each.offset)


def _or_last(batch: int | None) -> float:
    return float("inf") if batch is None else batch
