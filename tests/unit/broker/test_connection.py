"""A connection and the memory for its large requests, without a socket."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from onceflow.broker import request_memory
from onceflow.broker.connection import Connection
from onceflow.broker.doors import Door
from onceflow.broker.request_memory import RequestMemory
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
        count = at = 0
        while at < len(self._taken):
            at += 4 + struct.unpack_from(">i", self._taken, at)[0]
            count += 1
        assert at == len(self._taken), "the last answer has not been written to its end"
        return count

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
