"""Counting: what a consumer has read, and how durations fall into buckets."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.clock import ManualClock
from onceflow.config import BrokerConfig
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.monitor import meters
from onceflow.monitor.meters import BOUNDS_S, POSITIONS_AT_FIRST, Reader, Stopwatch, Traffic
from onceflow.wire.batch import read_header
from tests.support.raw import batch


class Consumer:
    """One connection that reads from logs in memory, each record in a batch of its own."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.traffic = Traffic()
        self._reader = Reader()

    def fetch(self, offset: int, max_bytes: int = 1 << 20, log: PartitionLog | None = None) -> int:
        """How many records count as read by now."""
        log = log or self.log
        self._reader.reads(log, offset, log.slice(offset, max_bytes), self.traffic)
        return self.traffic.records_out


def log_of(count: int, name: str = "t-0", **config: int) -> PartitionLog:
    """Batches of about 1,100 bytes, with an entry in the index for each."""
    settings = replace(BrokerConfig().topic({}), index_interval_bytes=1, **config)
    log = PartitionLog(MemoryFileSystem(), Path(f"/{name}"), settings, ManualClock(), fsync=False)
    for _ in range(count):
        append(log)
    return log


def append(log: PartitionLog) -> None:
    records = batch("x" * 1000)
    log.append(memoryview(bytearray(records)), read_header(records))


def test_what_was_sent_counts_as_read_when_the_next_fetch_asks_for_what_follows() -> None:
    consumer = Consumer(log_of(100))
    assert consumer.fetch(0, max_bytes=70_000) == 0
    assert consumer.fetch(60) == 60
    assert consumer.fetch(100) == 100  # there is nothing more
    assert consumer.fetch(100) == 100  # an idle consumer asks again
    append(consumer.log)
    assert consumer.fetch(100) == 100
    assert consumer.fetch(101) == 101


def test_reading_goes_on_over_the_end_of_a_segment() -> None:
    consumer = Consumer(log_of(100, segment_bytes=10_000))
    assert len(consumer.log.segments) > 5
    at = 0
    while at < 100:
        assert consumer.fetch(at) == at
        at = next(base for base in [*(s.base_offset for s in consumer.log.segments), 100] if base > at)
    assert consumer.fetch(100) == 100


@pytest.mark.parametrize("offset", [0, 20, 75, 99, 100])
def test_a_seek_back_or_beyond_what_was_sent_counts_as_nothing(offset: int) -> None:
    consumer = Consumer(log_of(100))
    consumer.fetch(50, max_bytes=10_000)
    assert consumer.fetch(offset) == 0
    assert consumer.fetch(min(offset + 1, 100)) == (1 if offset < 100 else 0)


def test_a_seek_into_another_segment_counts_as_nothing() -> None:
    consumer = Consumer(log_of(100, segment_bytes=10_000))
    consumer.fetch(0)
    assert consumer.fetch(90) == 0


def test_what_retention_has_removed_meanwhile_counts_as_nothing_and_does_no_harm() -> None:
    consumer = Consumer(log_of(100, segment_bytes=10_000))
    consumer.fetch(0)
    close_and_free(consumer.log, 95)
    assert consumer.fetch(95) == 0


def close_and_free(log: PartitionLog, offset: int) -> None:
    checkpoint = log.begin_checkpoint()
    assert checkpoint is not None
    checkpoint.run()
    log.complete_checkpoint(checkpoint)
    before = len(log.segments)
    log.delete_before(offset)
    assert len(log.segments) < before


def test_an_answer_without_room_for_a_partition_forgets_nothing() -> None:
    log, traffic, reader = log_of(10), Traffic(), Reader()
    reader.reads(log, 0, log.slice(0, 1 << 20), traffic)
    reader.reads(log, 0, None, traffic)
    reader.reads(log, 10, None, traffic)
    assert traffic.records_out == 10


def test_partitions_and_connections_are_counted_apart() -> None:
    one = Consumer(log_of(20))
    one.fetch(0)
    assert one.fetch(10, log=log_of(20, "t-1")) == 0
    assert Consumer(one.log).fetch(10) == 0


def test_positions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "POSITIONS_AT_FIRST", 1)
    monkeypatch.setattr(meters, "POSITIONS_MAX", 2)
    logs = [log_of(10, f"t-{number}") for number in range(3)]
    consumer = Consumer(logs[0])
    for log in logs:
        consumer.fetch(0, log=log)
    assert consumer.fetch(10, log=logs[0]) == 0  # forgotten
    assert consumer.fetch(10, log=logs[2]) == 10


def test_partitions_that_were_deleted_are_let_go_however_long_a_connection_lasts() -> None:
    consumer = Consumer(log_of(10))
    consumer.fetch(0)
    seen = []
    for number in range(2 * POSITIONS_AT_FIRST):
        log = log_of(10, f"gone-{number}")
        consumer.fetch(0, log=log)
        log.close()
        seen.append(weakref.ref(log))
    del log
    gc.collect()
    assert sum(each() is not None for each in seen) <= POSITIONS_AT_FIRST
    assert consumer.fetch(10) == 10  # and what is still there is known as before


def test_a_duration_falls_into_the_first_bucket_that_is_not_below_it() -> None:
    stopwatch = Stopwatch()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1], 1000.0):
        stopwatch.observe(seconds)
    timing = stopwatch.timing()
    assert (timing.counts[0], timing.counts[1], timing.counts[-2], timing.counts[-1]) == (2, 1, 1, 1)
    assert timing.count == 5
