"""A connection and the memory for its large requests, without a socket."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from onceflow.broker import request_memory
from onceflow.broker.answer_memory import AnswerMemory
from onceflow.broker.connection import HUNG_UP_PATIENCE_S, Connection
from onceflow.broker.doors import Door
from onceflow.broker.request_memory import RequestMemory
from onceflow.broker.sending import TLS_PIECE as PIECE_MAX
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.support.memory_broker import MemoryBroker
from tests.support.raw_client import frame_of

MB = 1_000_000


class Wire(asyncio.Transport):
    """The other side sends with `receive`, and takes every answer."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.is_paused = False
        self.is_cut = False
        self._taken = bytearray()
        connection.connection_made(self)

    def receive(self, data: bytes) -> bytes:
        """Returns what is left because the connection does not want to be read from."""
        while data and not self.is_paused and not self.is_cut:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self.connection.buffer_updated(count)
        return data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: Any) -> None:
        self._taken += data

    @property
    def answers(self) -> int:
        count, rest = self._whole_answers()
        assert rest == 0, "the last answer has not been written to its end"
        return count

    @property
    def answers_taken(self) -> int:
        return self._whole_answers()[0]

    def _whole_answers(self) -> tuple[int, int]:
        """How many there are, and how many bytes of the next one."""
        count = at = 0
        while at + 4 <= len(self._taken):
            end = at + 4 + struct.unpack_from(">i", self._taken, at)[0]
            if end > len(self._taken):
                break
            at = end
            count += 1
        return count, len(self._taken) - at

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_cut

    def abort(self) -> None:
        self.is_cut = True


def large_request(size: int) -> bytes:
    return frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=["x" * 10_000] * (size // 10_000)), 4)


async def two_that_hold_and_want_more(memory: RequestMemory) -> tuple[Wire, Wire, bytes]:
    node, door = MemoryBroker().node, Door(address=("127.0.0.1", 9092), memory=memory)
    one, two = (Wire(Connection(node, set(), door)) for _ in range(2))
    before, after = large_request(3 * MB // 2), large_request(3 * MB)
    for wire in (one, two):
        assert wire.receive(before + after[: MB // 2]) == b"", "that fits into what is kept from the request before"
        assert wire.answers == 1
    left = [wire.receive(after[MB // 2 :]) for wire in (one, two)]
    assert all(left), "no memory for the whole of it"
    return one, two, left[1]


def test_those_that_hold_memory_and_wait_for_more_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        memory = RequestMemory(4 * MB)
        one, two, left = await two_that_hold_and_want_more(memory)
        memory.close_slow()
        assert not one.is_cut
        monkeypatch.setattr(request_memory, "PATIENCE_S", -1.0)
        memory.close_slow()
        assert (one.is_cut, two.is_cut) == (True, False), "no more of them have to go than is needed"
        await asyncio.sleep(0)
        assert two.receive(left) == b""
        assert two.answers == 2

    asyncio.run(scenario())


def test_a_request_that_is_just_as_large_as_the_memory_fits() -> None:
    async def scenario() -> None:
        request = large_request(MB)
        (length,) = struct.unpack_from(">i", request)
        wire = Wire(Connection(MemoryBroker().node, set(), Door(address=("h", 1), memory=RequestMemory(length))))
        assert wire.receive(request) == b""
        assert wire.answers == 1

    asyncio.run(scenario())


class Stuck(Wire):
    """The other side takes nothing, until `take`."""

    def __init__(self, connection: Connection) -> None:
        self._high = 0
        self.left = bytearray()
        super().__init__(connection)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self.left)

    def write(self, data: Any) -> None:
        self.left += data
        if len(self.left) > self._high:
            self.connection.pause_writing()

    def take(self) -> None:
        self._taken += self.left
        self.left.clear()
        self.connection.resume_writing()


def waiting_fetch() -> bytes:
    at = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1000)
    topics = [FetchTopic(topic="t", partitions=[at])]
    return frame_of(FetchRequest(max_wait_ms=2**31 - 1, min_bytes=1, topics=topics), 12)


def test_of_a_large_answer_that_is_not_taken_the_transport_has_a_piece() -> None:
    async def scenario() -> None:
        wire = Stuck(Connection(MemoryBroker().node, set(), Door(address=("h", 1), answer_memory=AnswerMemory())))
        request = large_request(3 * MB)
        unread = wire.receive(request + request)
        assert unread, "what comes next has to wait"
        pieces = 0
        while wire.answers_taken < 2:
            assert 0 < len(wire.left) <= PIECE_MAX
            wire.take()
            pieces += 1
            await asyncio.sleep(0)
            unread = wire.receive(unread)
        assert pieces > 2 * 3 * MB // (PIECE_MAX)
        assert wire.connection.is_idle

    asyncio.run(scenario())


def test_large_answers_of_all_connections_are_bounded() -> None:
    async def scenario() -> None:
        memory = AnswerMemory(5 * MB)
        node, door = MemoryBroker().node, Door(address=("h", 1), answer_memory=memory)
        first, second, third = (Stuck(Connection(node, set(), door)) for _ in range(3))
        for wire in (first, second):
            wire.receive(large_request(2 * MB))
        first.take()
        assert (first.is_cut, second.is_cut) == (False, False)
        third.receive(large_request(2 * MB))
        assert (first.is_cut, second.is_cut, third.is_cut) == (False, True, False)
        second.connection.connection_lost(None)
        while first.left or third.left:
            first.take()
            third.take()
        assert memory.total == 0
        assert (first.answers, third.answers) == (1, 1)

    asyncio.run(scenario())


def test_answers_behind_a_fetch_that_waits_are_bounded_and_come_after_it() -> None:
    async def scenario() -> None:
        broker = MemoryBroker(fsync=False)
        topic = broker.node.topics.create("t", 1, {})
        wire = Wire(Connection(broker.node, set(), Door(address=("h", 1), answer_memory=AnswerMemory())))
        request = large_request(MB // 10)
        left = wire.receive(waiting_fetch() + request * 10)
        assert wire.is_paused
        assert wire.answers == 0
        [fetch] = topic.partitions[0].fetchers
        fetch.answer()  # type: ignore[attr-defined]
        while wire.answers < 11:
            await asyncio.sleep(0)
            left = wire.receive(left)

    asyncio.run(scenario())


def test_so_many_fetches_wait_and_the_next_request_waits_for_them() -> None:
    async def scenario() -> None:
        broker = MemoryBroker(fsync=False)
        topic = broker.node.topics.create("t", 1, {})
        wire = Wire(Connection(broker.node, set()))
        wire.receive(waiting_fetch() * 20 + large_request(10_000))
        fetchers = topic.partitions[0].fetchers
        assert len(fetchers) == 16
        assert wire.is_paused
        for fetch in tuple(fetchers):
            fetch.answer()  # type: ignore[attr-defined]
        while wire.answers < 16 or len(fetchers) < 4:
            await asyncio.sleep(0)
        for fetch in tuple(fetchers):
            fetch.answer()  # type: ignore[attr-defined]
        while wire.answers < 21:
            await asyncio.sleep(0)
        assert not wire.is_paused

    asyncio.run(scenario())


def test_who_has_hung_up_waits_for_nothing_any_more() -> None:
    async def scenario() -> None:
        broker = MemoryBroker(fsync=False)
        broker.node.topics.create("t", 1, {})
        wire = Wire(Connection(broker.node, set()))
        wire.receive(waiting_fetch() * 40)
        assert wire.answers == 0
        wire.connection.has_hung_up(1.0)
        while wire.answers < 40:
            await asyncio.sleep(0)
        assert not wire.is_paused, "its end is read like everything else"

    asyncio.run(scenario())


def test_who_has_hung_up_and_whose_answers_do_not_come_is_closed_in_the_end() -> None:
    async def scenario() -> None:
        wire = Wire(Connection(MemoryBroker(fsync=False).node, set()))
        wire.connection.has_hung_up(1.0)
        wire.connection.has_hung_up(1.0 + HUNG_UP_PATIENCE_S)
        assert not wire.is_cut
        wire.connection.has_hung_up(1.1 + HUNG_UP_PATIENCE_S)
        assert wire.is_cut

    asyncio.run(scenario())


def test_a_connection_has_one_fetch_session_which_ends_with_it() -> None:
    async def scenario() -> None:
        broker = MemoryBroker(fsync=False)
        broker.node.topics.create("t", 1, {})
        wire = Wire(Connection(broker.node, set()))
        at = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1000)
        asking = FetchRequest(session_epoch=0, topics=[FetchTopic(topic="t", partitions=[at])])
        for _ in range(3):
            wire.receive(frame_of(asking, 12))
        assert wire.answers == 3
        assert len(broker.node.fetch_sessions) == 1
        wire.connection.connection_lost(None)
        assert len(broker.node.fetch_sessions) == 0

    asyncio.run(scenario())
