"""One client connection: bytes to requests, answers to bytes.

Invariants:

- Frames are parsed where they were received: one buffer per connection that grows with a large frame. A
  request's records are views into it, valid only until its handler returns, so whoever waits must not keep one.
- **Answers leave in the order of the requests.** A handler that has to wait returns a `Deferred`; later answers
  queue behind it.
- **Everything is bounded**: the frame by `socket.request.max.bytes`, answers in waiting by `PENDING_MAX`, bytes not
  yet taken by the client by the transport's high-water mark; beyond that the connection is not read until there is
  room again.
- A peer that breaks the protocol loses its connection, nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import time
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, Final, cast

from onceflow.broker import handlers
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Peer
from onceflow.errors import MalformedMessage, StorageError
from onceflow.log.files import FileSlice
from onceflow.wire.codec import RequestHeader, encode_parts, read_request_header, response_header
from onceflow.wire.schema import Buffer

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["Connection"]

logger = logging.getLogger(__name__)

BUFFER_SIZE: Final = 128 * 1024
BUFFER_KEPT: Final = 2 * 1024 * 1024
"""A buffer that grew beyond this for one large request is given back after it."""
WRITE_BUFFER_HIGH: Final = 1 << 20
"""Bytes that a client has not taken yet, from which on its next requests have to wait."""
PENDING_MAX: Final = 256
"""Answers in waiting per connection; clients keep a handful of requests in flight."""


_LENGTH: Final = struct.Struct(">i")


class Connection(asyncio.BufferedProtocol):
    def __init__(self, node: Node, open_connections: set[Connection]) -> None:
        self._node = node
        self._open = open_connections
        self._frame_max: int = node.config["socket.request.max.bytes"]
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._filled = 0
        self._waiting: deque[_Slot] = deque()
        self._write_paused = False
        self._reading_paused = False
        self._stopping = False
        self._fd = -1
        self._peer = Peer()
        self._transport: asyncio.Transport | None = None
        self.last_active = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.last_active = time.monotonic()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            self._fd = sock.fileno()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        self._peer = Peer(peer[0] if peer else "127.0.0.1")
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._open.add(self)
        if len(self._open) > self._node.config["max.connections"]:
            logger.warning("A connection was refused: max.connections are open.")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        for slot in self._waiting:
            slot.cancel()
        self._waiting.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        self.last_active = time.monotonic()
        self._serve()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._send_settled()
        self._serve()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def stop_serving(self) -> None:
        """The broker is stopping: answer what waits, take nothing new."""
        self._stopping = True
        self._pause_reading()
        for slot in tuple(self._waiting):
            slot.hurry()

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    # Frames

    def _serve(self) -> None:
        """Handle every whole frame in the buffer, as long as there is room for the answers."""
        while self._transport is not None and not self._transport.is_closing():
            if self._write_paused or self._stopping or len(self._waiting) >= PENDING_MAX:
                self._pause_reading()
                return
            frame = self._next_frame()
            if frame is None:
                break
            self._handle(frame)
        else:
            return
        self._make_room()
        self._resume_reading()

    def _next_frame(self) -> memoryview | None:
        start = self._start
        available = self._filled - start
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not 0 < length <= self._frame_max:
            logger.warning("Closed a connection that announced a request of %d bytes.", length)
            self.close()
            return None
        if available < length + _LENGTH.size:
            return None
        self._start = start + _LENGTH.size + length
        return self._view[start + _LENGTH.size : self._start]

    def _make_room(self) -> None:
        """Make sure that what is arriving fits, without giving a peer more memory than it has sent bytes for."""
        left = self._filled - self._start
        capacity = len(self._buffer)
        if left == 0 and capacity <= BUFFER_KEPT:
            self._start = self._filled = 0
            return
        frame = BUFFER_SIZE
        if left >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            frame = length + _LENGTH.size
        needed = max(BUFFER_SIZE, min(frame, 2 * left))
        if needed > capacity or (capacity > BUFFER_KEPT and left == 0):
            fitting = bytearray(needed)
            fitting[:left] = self._view[self._start : self._filled]
            self._buffer, self._view = fitting, memoryview(fitting)
        elif self._start > capacity // 2 or self._filled == capacity:
            self._buffer[:left] = self._view[self._start : self._filled]
        else:
            return
        self._start, self._filled = 0, left

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    # Requests and answers

    def _handle(self, frame: memoryview) -> None:
        try:
            header = read_request_header(frame)
            answer = handlers.answer(self._node, header, frame, self._peer)
        except MalformedMessage as error:
            logger.warning("Closed a connection that does not speak Kafka's protocol: %s", error)
            self.close()
            return
        except Exception:
            logger.exception("A request failed in an unexpected way; its connection is closed.")
            self.close()
            return
        if answer is None:
            return
        if not isinstance(answer, Deferred):
            if self._waiting:
                self._waiting.append(_Slot(header, answer))
            else:
                self._send(header, answer)
            return
        slot = _Slot(header, answer)
        self._waiting.append(slot)
        answer.when_done(self._send_settled)

    def _send_settled(self) -> None:
        """Send the answers that are there and whose turn it is, as long as the client takes them.

        Called when a waiting answer has come, which may be in the middle of another connection's request. So nothing is
        served from here: that would begin a second request before the first one is through.
        """
        sent = False
        while self._waiting and not self._write_paused:
            first = self._waiting[0]
            if isinstance(first.answer, Deferred):
                if not first.answer.is_done:
                    break
                answer = first.answer.result
            else:
                answer = first.answer
            self._waiting.popleft()
            if answer is not None:
                self._send(first.header, answer)
            sent = True
        if sent and self._reading_paused:
            asyncio.get_running_loop().call_soon(self._serve)

    def _send(self, header: RequestHeader, answer: Answer) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        version = answer.version if answer.version is not None else header.api_version
        head = response_header(header.api_key, version, header.correlation_id)
        message = answer.message
        if isinstance(message, bytes):
            self._transport.write(_LENGTH.pack(len(head) + len(message)) + head + message)
            return
        try:
            parts = encode_parts(message, version)
        except ValueError:
            logger.exception("An answer could not be encoded; its connection is closed.")
            self.close()
            return
        parts = [_LENGTH.pack(len(head) + sum(map(len, parts))), head, *parts]
        if any(isinstance(part, FileSlice) for part in parts):
            self._send_files(_joined(parts))
        else:
            self._transport.write(b"".join(parts))

    def _send_files(self, parts: list[bytes | FileSlice]) -> None:
        """Send parts of files past our memory, as far as the socket takes them now; the rest through the transport."""
        assert self._transport is not None
        at = sent = 0
        try:
            if self._transport.get_write_buffer_size() == 0:
                at, sent = self._send_now(parts)
            rest = [
                part.read(sent if i == 0 else 0) if isinstance(part, FileSlice) else part[sent if i == 0 else 0 :]
                for i, part in enumerate(parts[at:])
            ]
        except (StorageError, OSError) as error:  # the segment was removed meanwhile, or the client is gone
            logger.info("A connection was closed in the middle of an answer: %s", error)
            self._transport.abort()
            return
        if rest:
            self._transport.writelines(rest)

    def _send_now(self, parts: list[bytes | FileSlice]) -> tuple[int, int]:
        """Returns how far it got: the first part that is not sent entirely, and how much of it is."""
        for at, part in enumerate(parts):
            sent = 0
            while sent < len(part):
                try:
                    count = (
                        part.send(self._fd, sent) if isinstance(part, FileSlice) else os.write(self._fd, part[sent:])
                    )
                except BlockingIOError:
                    count = 0
                if count == 0:
                    return at, sent
                sent += count
        return len(parts), 0


def _joined(parts: list[Buffer]) -> list[bytes | FileSlice]:
    """The same bytes in fewer parts: all between two slices of files as one."""
    joined: list[bytes | FileSlice] = []
    for is_file, group in groupby(parts, lambda part: isinstance(part, FileSlice)):
        if is_file:
            joined += cast(list[FileSlice], list(group))
        else:
            joined.append(b"".join(group))
    return joined


class _Slot:
    """The place of an answer in the order of answers."""

    __slots__ = ("answer", "header")

    def __init__(self, header: RequestHeader, answer: Answer | Deferred) -> None:
        self.header = header
        self.answer = answer

    def cancel(self) -> None:
        if isinstance(self.answer, Deferred):
            self.answer.cancel()

    def hurry(self) -> None:
        if isinstance(self.answer, Deferred) and self.answer.on_hurry is not None:
            self.answer.on_hurry()
