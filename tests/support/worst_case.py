"""What one frame costs a broker: the longest turn of its event loop, its memory, and how long everything took.

The broker runs under `measured_broker`. A frame is sent on a connection of its own, with a request behind it whose
answer tells that the frame was done with, even if there is no answer to it.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.wire.messages.api_versions import ApiVersionsRequest
from tests.support.broker_process import BrokerProcess
from tests.support.measured_broker import TURNS_FILE, longest_turn_s, reset_turns
from tests.support.raw_client import RawClient

__all__ = ["MEMORY_MAX", "TURN_MAX_S", "Cost", "MeasuredBroker"]

TURN_MAX_S: Final = 0.15
"""CPU time for which nobody else is served."""
MEMORY_MAX: Final = 400 << 20
PATIENCE_S: Final = 120.0


class Cost(NamedTuple):
    turn_s: float
    """CPU time of the longest turn of the event loop."""
    peak_bytes: int
    """The most memory that the process had."""
    took_s: float
    answer_bytes: int
    """0 if the connection was closed without an answer."""

    def __str__(self) -> str:
        return (
            f"turn {self.turn_s * 1000:.0f} ms, peak {self.peak_bytes >> 20} MB, took {self.took_s:.2f} s, "
            f"answer {self.answer_bytes} bytes"
        )


class MeasuredBroker(BrokerProcess):
    def __init__(self, data: Path, settings: dict[str, object] | None = None, *, options: Sequence[str] = ()) -> None:
        self._turns = data.with_name("turns")
        super().__init__(
            data,
            durability="os",
            settings=settings,
            environment={TURNS_FILE: str(self._turns)},
            module="tests.support.measured_broker",
            options=options,
        )

    def cost_of(self, frame: bytes, *, then: Callable[[], None] | None = None) -> Cost:
        """Of a frame without its length."""
        return self.cost_of_all([frame], then=then)

    def cost_of_all(self, frames: Sequence[bytes], *, then: Callable[[], None] | None = None) -> Cost:
        """Of frames without their lengths, at the same time, each on a connection of its own; and of what is done
        then."""
        with self.client() as after:
            after.ask(ApiVersionsRequest())
            reset_turns(self._turns)
            self.forget_memory_peak()
            began = time.monotonic()
            with ThreadPoolExecutor(len(frames)) as threads:
                answer_bytes = sum(threads.map(partial(_sent, self.port), frames))
            took_s = time.monotonic() - began
            if then is not None:
                then()
            self._await_turns(after)
        return Cost(longest_turn_s(self._turns), self.memory_peak_bytes, took_s, answer_bytes)

    def _await_turns(self, client: RawClient) -> None:
        """Until the turn that answered has been measured: that happens in the one after it."""
        for _ in range(3):
            client.ask(ApiVersionsRequest())


def _sent(port: int, frame: bytes) -> int:
    """How many bytes came back, before the answer to the request that follows."""
    received = b""
    size = 0
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        try:
            connection.sendall(_with_length(frame) + FOLLOWING)
            while more := connection.recv(1 << 18):
                size += len(more)
                received = (received + more)[-FOLLOWING_ANSWER_MAX:]
                if FOLLOWING_ID in received:
                    return size - len(received) + received.index(FOLLOWING_ID) - 4
        except ConnectionError:
            pass
    return 0


def _with_length(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


FOLLOWING_ID: Final = b"\x5e\xed\x0a\x17"
FOLLOWING: Final = _with_length(struct.pack(">hh4sh", ApiVersionsRequest.API_KEY, 0, FOLLOWING_ID, -1))
FOLLOWING_ANSWER_MAX: Final = 4096
