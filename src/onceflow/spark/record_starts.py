"""Where the records of batches begin: the one step of reading that cannot be done for all records at once.

A record begins with its length, so each is found from the one before. Many batches are walked abreast, in numpy: one
record of each per step. What few batches have beyond that is walked in a loop, which passes over a run of records of
the same length in one go: if the length at the next place is the same, so is the distance to the one after it.

The result is right or `MalformedMessage` is raised: every walk must make the number of steps that its batch says and
end exactly where its batch ends.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from onceflow.errors import MalformedMessage

__all__ = ["SIZES", "VALUES", "Bytes", "find_starts"]

Integers = npt.NDArray[np.int64]

ABREAST_MIN: Final = 24
"""From so many batches on a step of numpy costs less than a turn of the loop for each."""
TURNS_BEFORE_RUN: Final = 32
RUN_STEP: Final = 512
"""Records that are compared at once to find out how long a run is."""


class Bytes:
    """A buffer, also as an array of its bytes, and of the pairs of bytes that begin at each place."""

    def __init__(self, whole: bytes) -> None:
        self.whole = whole
        self.numbers = np.frombuffer(whole, dtype=np.uint8)
        self.pairs: npt.NDArray[Any] = np.ndarray((len(whole) - 1,), dtype="<u2", buffer=whole, strides=(1,))


def _tables() -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int8], npt.NDArray[np.int16]]:
    """For each pair of bytes: the zigzag varint that it begins with, its size (0: more than these two bytes), and how
    far the next record is if this is a record's length (0: not known, or the length is negative).
    """
    pairs = np.arange(2**16, dtype=np.int32)
    first, second = pairs & 0xFF, pairs >> 8
    sizes = np.where(first < 0x80, 1, np.where(second < 0x80, 2, 0))
    raw = np.where(sizes == 1, first, first & 0x7F | (second & 0x7F) << 7)
    values = (raw >> 1) ^ -(raw & 1)
    steps = np.where((sizes > 0) & (values >= 0), values + sizes, 0)
    return values.astype(np.int16), sizes.astype(np.int8), steps.astype(np.int16)


VALUES, SIZES, _STEPS = _tables()
_STEPS_OF: Final = _STEPS.reshape(256, 256).T.tolist()
"""The same by first and second byte, for the loop."""


def find_starts(buffer: Bytes, first: Integers, last: Integers, counts: Integers) -> Integers:
    """Where each record begins, batch by batch. `first` and `last` bound the records of each batch in the buffer."""
    starts = np.empty(int(counts.sum()), dtype=np.int64)
    rows = np.cumsum(counts) - counts
    positions = first.copy()
    try:
        steps = _walk_abreast(buffer, positions, rows, counts, starts)
        for batch in np.flatnonzero((positions != last) | (counts > steps)).tolist():
            row, count, at = int(rows[batch]), int(counts[batch]), int(positions[batch])
            done = steps if steps < count and _STEPS[buffer.pairs[at]] else 0
            at = at if done else int(first[batch])
            starts[row + done : row + count] = _walk(buffer.whole, at, int(last[batch]), count - done)
    except IndexError:
        raise MalformedMessage("The records of a batch go beyond its end.") from None
    return starts


def _walk_abreast(buffer: Bytes, positions: Integers, rows: Integers, counts: Integers, starts: Integers) -> int:
    """Walks all batches as long as there are enough of them. Returns after how many steps there are not.

    Moves `positions`. One that meets a length of three bytes stays where it is, and so not where its batch ends.
    """
    by_count = np.argsort(-counts, kind="stable")
    sorted_counts = counts[by_count]
    steps = 0
    while (abreast := int(np.searchsorted(-sorted_counts, -steps))) >= ABREAST_MIN:
        batches = by_count[:abreast]
        here, row = positions[batches], rows[batches] + steps
        until = int(sorted_counts[abreast - 1])
        for _ in range(until - steps):
            starts[row] = here
            here += _STEPS.take(buffer.pairs[here])
            row += 1
        positions[batches] = here
        steps = until
    return steps


def _walk(buffer: bytes, at: int, end: int, count: int) -> list[int]:
    """The starts of `count` records, which must end at `end`. `IndexError` where they go far beyond."""
    starts: list[int] = []
    append = starts.append
    steps_of = _STEPS_OF
    while (left := count - len(starts)) > 0:
        for _ in range(min(left, TURNS_BEFORE_RUN)):
            append(at)
            at += steps_of[buffer[at]][buffer[at + 1]] or _long_step(buffer, at)
        if left > TURNS_BEFORE_RUN and at - starts[-1] == starts[-1] - starts[-2]:
            run = _run(buffer, starts[-1], at, end, left - TURNS_BEFORE_RUN)
            starts += run
            at = run.stop
    if at != end:
        raise MalformedMessage(f"The {count} records of a batch end {end - at} bytes before the batch does.")
    return starts


def _run(buffer: bytes, previous: int, at: int, end: int, most: int) -> range:
    """The starts of the records from `at` on, at most so many, that have the same length as the previous one."""
    step = at - previous
    begin = at
    length = buffer[previous], buffer[previous + 1]
    is_known = step == _STEPS_OF[length[0]][length[1]]  # otherwise two bytes do not say it all
    limit = min(end, begin + most * step)
    while is_known and at < limit:
        until = min(limit, at + RUN_STEP * step)
        same = min(_leading(buffer[at + place : until + place : step], length[place]) for place in (0, 1))
        at += same * step
        is_known = at == until
    return range(begin, at, step)


def _leading(data: bytes, byte: int) -> int:
    """With how many of this byte the data begin."""
    return len(data) - len(data.lstrip(bytes((byte,))))


def _long_step(buffer: bytes, at: int) -> int:
    """How far the next record is from one whose length has three bytes or more."""
    raw = 0
    for size in range(1, 6):
        byte = buffer[at + size - 1]
        raw |= (byte & 0x7F) << 7 * (size - 1)
        if byte < 0x80:
            if raw & 1 or raw >> 32:
                break
            return (raw >> 1) + size
    raise MalformedMessage("A record with a length that cannot be.")
