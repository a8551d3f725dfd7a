"""The cleaner in a broker: a thread of its own, a loop that goes on, and a stop in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from onceflow.broker.node import Node
from onceflow.clock import ManualClock
from onceflow.config import BrokerConfig
from onceflow.log.compaction import Pace
from onceflow.log.files import RealFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.wire.batch import batches, read_header
from onceflow.wire.records import Record, build_batch, read_records

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def write_segment(log: PartitionLog, *keys: bytes) -> None:
    batch = bytearray(build_batch([Record(at, 1, key, b"v") for at, key in enumerate(keys)], base_offset=0))
    log.append(memoryview(batch), read_header(batch))
    flush = log.begin_flush()
    flush.run()
    log.complete_flush(flush)
    log.roll()
    checkpoint = log.begin_checkpoint()
    assert checkpoint is not None
    checkpoint.run()
    log.complete_checkpoint(checkpoint)


def offsets(log: PartitionLog) -> list[int]:
    found = []
    at = log.start_offset
    while data := log.read(at, 1 << 20):
        for header, batch in batches(data):
            found += [record.offset for record in read_records(batch)]
            at = header.last_offset + 1
    return found


def on_a_node(directory: Path, scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def run() -> None:
        node = Node(RealFileSystem(), directory, BrokerConfig(), ManualClock())
        try:
            await scenario(node)
        finally:
            node.close()

    asyncio.run(run())


class Held(Pace):
    """Stops at a batch until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        while not self.go_on.is_set() and not self._stopped:
            time.sleep(0.001)
        super().__call__()


async def until(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def test_what_is_due_is_compacted_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        compacted = [partition.log for partition in node.topics.create("state", 2, COMPACTED).partitions]
        plain = node.topics.create("events", 1, {}).partitions[0].log
        for log in (*compacted, plain):
            write_segment(log, b"a", b"b", b"a")
        await node.compact()
        assert [offsets(log) for log in compacted] == [[1, 2], [1, 2]]
        assert offsets(plain) == [0, 1, 2]

    on_a_node(tmp_path, scenario)


def test_the_loop_reads_and_writes_while_the_cleaner_works(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        log = node.topics.create("state", 1, COMPACTED).partitions[0].log
        write_segment(log, b"a", b"a")
        node.cleaner.pace = held = Held()
        compacting = asyncio.ensure_future(node.compact())
        await until(held.reached)
        assert offsets(log) == [0, 1]
        write_segment(log, b"a")
        held.go_on.set()
        await compacting
        assert offsets(log) == [1, 2]

    on_a_node(tmp_path, scenario)


def test_a_topic_deleted_meanwhile_is_given_up_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        topic = node.topics.create("state", 1, COMPACTED)
        write_segment(topic.partitions[0].log, b"a", b"a")
        node.cleaner.pace = held = Held()
        compacting = asyncio.ensure_future(node.compact())
        await until(held.reached)
        node.topics.delete(topic)
        again = node.topics.create("state", 1, COMPACTED).partitions[0].log
        write_segment(again, b"x", b"x", b"x")
        held.go_on.set()
        await compacting
        assert offsets(again) == [0, 1, 2]
        await node.compact()
        assert offsets(again) == [2]

    on_a_node(tmp_path, scenario)
    assert not caplog.records


def test_a_stop_does_not_wait_for_the_cleaner_to_finish_nor_leave_it_with_closed_files(tmp_path: Path) -> None:
    async def stopped(node: Node) -> None:
        log = node.topics.create("state", 1, COMPACTED).partitions[0].log
        write_segment(log, b"a", b"a")
        node.cleaner.pace = held = Held()
        compacting = asyncio.ensure_future(node.compact())
        await until(held.reached)
        compacting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await compacting
        assert compacting.cancelled()
        assert not held.go_on.is_set()
        assert offsets(log) == [0, 1]

    async def again(node: Node) -> None:
        topic = node.topics.get("state")
        assert topic is not None
        await node.compact()
        assert offsets(topic.partitions[0].log) == [1]

    on_a_node(tmp_path, stopped)
    on_a_node(tmp_path, again)
