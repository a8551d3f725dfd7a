"""Fetches that wait for a partition: who is looked at when it grows, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.broker.partition import DEAD_MAX, TURN_COST_MAX, Partition
from onceflow.clock import ManualClock
from onceflow.config import TopicConfig
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.wire.batch import read_header
from tests.support.raw import batch

VALUE = bytes(100)
SIZE = len(batch(VALUE))


class Fetch:
    """Waits for one partition, and again each time that it is told to."""

    def __init__(self, partition: Partition, size: int, again: int = 0, *, committed: bool = False) -> None:
        self.seen: list[int | None] = []
        self._size = size
        self._again = again
        self._committed = committed
        partition.await_growth(self, size, committed=committed)

    def look_again(self, partition: Partition, position: int | None) -> int:
        self.seen.append(position)
        if self._again and position is not None:
            self._again -= 1
            partition.await_growth(self, self._size, committed=self._committed)
        else:
            partition.forget(self)
        return 1


def new_partition(**config: int) -> Partition:
    log = PartitionLog(MemoryFileSystem(), Path("/t-0"), TopicConfig(**config), ManualClock(), fsync=False)  # type: ignore[arg-type]
    return Partition("t", 0, log)


def write(partition: Partition, *, producer: tuple[int, int] | None = None) -> None:
    data = memoryview(bytearray(batch(VALUE, producer=producer, transactional=producer is not None)))
    partition.log.append(data, read_header(data))
    partition.wake()


def in_loop(scenario: Callable[[], None]) -> None:
    async def run() -> None:
        scenario()

    asyncio.run(run())


def test_a_fetch_is_looked_at_when_there_is_as_much_as_it_waits_for_and_not_before() -> None:
    def scenario() -> None:
        partition = new_partition()
        one, three = Fetch(partition, 1), Fetch(partition, 3 * SIZE)
        write(partition)
        assert (one.seen, three.seen) == ([SIZE], [])
        write(partition)
        assert (one.seen, three.seen) == ([SIZE], [])
        write(partition)
        assert (one.seen, three.seen) == ([SIZE], [3 * SIZE])
        assert not partition.fetchers

    in_loop(scenario)


def test_a_fetch_that_waits_again_is_looked_at_again() -> None:
    def scenario() -> None:
        partition = new_partition()
        fetch = Fetch(partition, SIZE + 1, again=2)
        for _ in range(8):
            write(partition)
        assert fetch.seen == [2 * SIZE, 4 * SIZE, 6 * SIZE]

    in_loop(scenario)


def test_a_committed_fetch_waits_for_the_last_stable_offset() -> None:
    def scenario() -> None:
        partition = new_partition()
        committed, other = Fetch(partition, 1, committed=True), Fetch(partition, 1)
        write(partition, producer=(7, 0))
        assert (committed.seen, other.seen) == ([], [SIZE])
        write(partition)
        assert committed.seen == []

    in_loop(scenario)


def test_who_waits_is_looked_at_when_the_log_goes_on_in_another_segment() -> None:
    async def run() -> None:
        partition = new_partition(segment_bytes=3 * SIZE)
        fetch = Fetch(partition, 1 << 40)
        for _ in range(3):
            write(partition)
        assert fetch.seen == []
        write(partition)
        await asyncio.sleep(0)
        assert fetch.seen == [None]
        assert not partition.fetchers

    asyncio.run(run())


def test_who_begins_to_wait_in_the_next_segment_leaves_nobody_behind_in_the_last_one() -> None:
    async def run() -> None:
        partition = new_partition(segment_bytes=3 * SIZE)
        before = Fetch(partition, 1 << 40)
        for _ in range(4):
            data = memoryview(bytearray(batch(VALUE)))
            partition.log.append(data, read_header(data))  # and nobody is woken
        after = Fetch(partition, 1)
        await asyncio.sleep(0)
        assert (before.seen, after.seen) == ([None], [])
        write(partition)
        assert after.seen == [2 * SIZE]

    asyncio.run(run())


def test_who_waits_is_looked_at_when_the_topic_goes() -> None:
    async def run() -> None:
        partition = new_partition()
        fetches = [Fetch(partition, 1), Fetch(partition, 1 << 40), Fetch(partition, 1, committed=True)]
        partition.log.abandon()
        partition.wake()
        await asyncio.sleep(0)
        assert [fetch.seen for fetch in fetches] == [[None]] * 3

    asyncio.run(run())


def test_of_thousands_that_wait_for_more_none_is_touched() -> None:
    def scenario() -> None:
        partition = new_partition()
        many = [Fetch(partition, 1 << 40) for _ in range(5000)]
        few = Fetch(partition, 1, again=9)
        for _ in range(10):
            write(partition)
        assert len(few.seen) == 10
        assert not any(fetch.seen for fetch in many)

    in_loop(scenario)


def test_of_many_that_are_ready_at_the_same_time_some_are_looked_at_in_a_turn() -> None:
    async def run() -> None:
        partition = new_partition()
        many = [Fetch(partition, 1) for _ in range(3 * TURN_COST_MAX)]
        write(partition)
        for turn in range(1, 4):
            assert sum(len(fetch.seen) for fetch in many) == turn * TURN_COST_MAX
            write(partition)  # which does not begin another turn
            await asyncio.sleep(0)
        assert [len(fetch.seen) for fetch in many] == [1] * len(many)

    asyncio.run(run())


@pytest.mark.parametrize("others", [0, 5])
def test_those_that_gave_up_leave_nothing_behind(others: int) -> None:
    def scenario() -> None:
        partition = new_partition()
        waiting = [Fetch(partition, 1 << 40) for _ in range(others)]
        for _ in range(1000):
            partition.forget(Fetch(partition, 1 << 41))
        [heap] = partition._heaps.values()
        assert len(heap.entries) <= 2 * others + DEAD_MAX + 1
        assert len(partition.fetchers) == len(waiting)

    in_loop(scenario)
