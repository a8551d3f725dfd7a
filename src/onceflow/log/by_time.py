"""Finding records by their time, in steps (`onceflow.steps`).

As in Kafka, markers are records here too, and a limit (the last stable offset) does not change what is searched: what
is found at or above it counts as nothing found, even if there would be another one below.

Which batch it is, indexes and headers tell; only that one is opened. So no more than `OPENED_MAX` are opened, which is
enough unless headers claim larger timestamps than their records have. Between two steps the log may change: a segment
that is gone by then is a `StorageError`, and whoever asks again finds what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, NamedTuple

from onceflow.errors import MalformedMessage
from onceflow.log.segment import Segment
from onceflow.steps import Work, in_thread
from onceflow.wire.batch import BatchHeader
from onceflow.wire.thinning import spans, unpacked, unpacked_if_small

__all__ = ["NOTHING_FOUND", "Steps", "TimestampedOffset", "first_offset_at", "offset_of_newest"]

OPENED_MAX: Final = 16
HEADERS_MAX: Final = 200
"""Headers that are read in one step."""


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int


NOTHING_FOUND: Final = TimestampedOffset(-1, -1)

Readable = Iterator[tuple[Segment, int]]
"""Segments, each with the position up to which it may be read."""
Steps = Generator[int | Work, None, TimestampedOffset]
"""Yields 0 where there may be a pause, and what is to be run in another thread."""
Look = Callable[[BatchHeader, bytes, int], TimestampedOffset]


def first_offset_at(readable: Readable, timestamp: int, start_offset: int, limit: int | None) -> Steps:
    """The first record with at least this timestamp, if it is below the limit."""
    opened = 0
    for segment, end in tuple(readable):
        if segment.newest[0] < timestamp:
            continue
        start = segment.offset_index.position_for(segment.time_index.offset_before(timestamp))
        for at, (position, header) in enumerate(segment.headers(start, end, peek=True), 1):
            if limit is not None and header.base_offset >= limit:
                return NOTHING_FOUND
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset and header.count:
                opened += 1
                if opened > OPENED_MAX:
                    raise MalformedMessage(
                        f"{segment.log.path}: {OPENED_MAX} batches before position {position} have no record of the "
                        "timestamp that they say they have."
                    )
                found = yield from _opened(segment, position, header, partial(_first_since, timestamp), start_offset)
                if found != NOTHING_FOUND:
                    return _below(limit, found)
            elif at % HEADERS_MAX == 0:
                yield 0
    return NOTHING_FOUND


def offset_of_newest(readable: Readable, start_offset: int, limit: int | None) -> Steps:
    """The record with the largest timestamp, the first of them if there are several; if it is below the limit."""
    best = NOTHING_FOUND
    for segment, end in tuple(readable):
        timestamp, offset = segment.newest
        if timestamp <= best.timestamp:
            continue
        newest = segment.locate(offset, end)
        if newest is None or newest[1].base_offset < start_offset or not newest[1].count:
            # It is not there any more, or not readable yet: the headers tell which one it is then. Of the batch in
            # which the log starts they do not.
            newest = None
            headers = segment.headers(segment.offset_index.position_for(start_offset), end, peek=True)
            largest = best.timestamp
            for at, (position, header) in enumerate(headers, 1):
                if header.base_offset < start_offset <= header.last_offset:
                    best = max(best, (yield from _opened(segment, position, header, _newest, start_offset)), key=_time)
                    largest = best.timestamp
                elif header.base_offset >= start_offset and header.count and header.max_timestamp > largest:
                    newest = position, header
                    largest = header.max_timestamp
                if at % HEADERS_MAX == 0:
                    yield 0
        if newest is not None and newest[1].max_timestamp > best.timestamp:
            best = max(best, (yield from _opened(segment, *newest, _newest, start_offset)), key=_time)
    return _below(limit, best)


def _time(found: TimestampedOffset) -> int:
    return found.timestamp


def _below(limit: int | None, found: TimestampedOffset) -> TimestampedOffset:
    return found if limit is None or found.offset < limit else NOTHING_FOUND


def _opened(segment: Segment, position: int, header: BatchHeader, look: Look, start_offset: int) -> Steps:
    """What there is to see in a batch, from the log start on."""
    batch = segment.read(position, header.size)
    data = unpacked_if_small(header, batch)
    if data is not None:
        return look(header, data, start_offset)
    return (yield from in_thread(lambda: look(header, unpacked(header, batch), start_offset)))


def _first_since(since: int, header: BatchHeader, data: bytes, start_offset: int) -> TimestampedOffset:
    for _, _, offset, timestamp, _, _, _, _ in spans(header, data):
        if timestamp >= since and offset >= start_offset:
            return TimestampedOffset(timestamp, offset)
    return NOTHING_FOUND


def _newest(header: BatchHeader, data: bytes, start_offset: int) -> TimestampedOffset:
    best, where = NOTHING_FOUND
    for _, _, offset, timestamp, _, _, _, _ in spans(header, data):
        if timestamp > best and offset >= start_offset:
            best, where = timestamp, offset
    return TimestampedOffset(best, where)
