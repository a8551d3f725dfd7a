"""One client connection: bytes to requests, answers to bytes.

Invariants:

- Frames are parsed where they were received: one buffer per connection that grows with a large frame. A
  request's records are views into it, valid only until its handler returns, so whoever waits must not keep one.
- **Answers leave in the order of the requests.** A handler that has to wait returns a `Deferred`; later answers
  queue behind it.
- **Everything is bounded**: the frame by `socket.request.max.bytes`, memory for large frames of all connections by
  `queued.max.request.bytes`, answers in waiting by `PENDING_MAX`, fetches that wait by `WEIGHT_MAX`, bytes not yet
  taken by the client by `WRITE_BUFFER_HIGH`; beyond that the connection is not read until there is room again. That it
  was closed meanwhile is found by `hang_ups`. Large answers of all connections are bounded by `answer_memory`.
- What is large or in files is `Unsent` until the socket takes it. While there is any, nothing else is sent, no request
  is handled, and the connection is closed only after it, or at once if need be.
- **Nobody waits for who sends much**: after `TURN_MAX` requests, or `TURN_S`, it is the others' turn. While a large
  request is worked on (`large_requests`), nothing else of its connection is served, and its frame stays as it is.
- Where the listener asks for a login, `admission` has every request first. Until then nothing reaches a handler but
  ApiVersions.
- Under TLS everything goes through the transport. Only a plain socket is written to past it.
- A peer that breaks the protocol loses its connection, nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from onceflow.broker import handlers
from onceflow.broker.admission import SASL_AUTHENTICATE, Admission, NotLoggedIn, Token, certified_principal
from onceflow.broker.complaints import complain
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Peer
from onceflow.broker.hang_ups import keep_alive
from onceflow.broker.sending import SENT_AT_ONCE_MAX, Unsent, memory_of
from onceflow.errors import MalformedMessage, StorageError, UntoldFailure
from onceflow.log.files import FileSlice
from onceflow.monitor.meters import Reader
from onceflow.wire.codec import RequestHeader, encode_parts, read_request_header, response_header
from onceflow.wire.schema import Buffer, Message

if TYPE_CHECKING:
    from onceflow.broker.doors import Door
    from onceflow.broker.node import Node

__all__ = ["Connection"]

logger = logging.getLogger(__name__)

BUFFER_SIZE: Final = 128 * 1024
STRANGERS_BUFFER_SIZE: Final = 4 * 1024
"""Until the login is done: many may come who never log in."""
BUFFER_KEPT: Final = 2 * 1024 * 1024
"""A buffer that grew beyond this for one large request is given back after it."""
WRITE_BUFFER_HIGH: Final = 256 * 1024
"""Bytes that a client has not taken yet, from which on its next requests have to wait."""
PENDING_MAX: Final = 256
"""Answers in waiting per connection; clients keep a handful of requests in flight."""
WEIGHT_MAX: Final = 1024
"""Of fetches in waiting per connection, which is sixteen of them, or one of many partitions. Clients have one."""
HUNG_UP_PATIENCE_S: Final = 30.0
"""How long a client that sends nothing more is given until what it waits for has come."""
TURN_MAX: Final = 64
"""Requests of one connection that are handled before others have their turn: a few milliseconds."""
TURN_S: Final = 0.005
"""So long at most, if they take longer."""
TLS_RECORD: Final = 0x1603
"""How a TLS connection begins, where a frame has its length."""


_LENGTH: Final = struct.Struct(">i")


class Connection(asyncio.BufferedProtocol):
    __slots__ = (  # more than a dict that is shared by all connections would hold
        "_admission",
        "_answer_memory",
        "_began_at",
        "_buffer",
        "_came_at",
        "_closes",
        "_door",
        "_fd",
        "_filled",
        "_frame_began_at",
        "_frame_max",
        "_held_by",
        "_holds_memory",
        "_hung_up_at",
        "_is_due",
        "_memory",
        "_node",
        "_on_lost",
        "_open",
        "_peer",
        "_queued",
        "_reading_paused",
        "_setup_timer",
        "_socket",
        "_start",
        "_starved",
        "_stopping",
        "_transport",
        "_turn_s",
        "_unsent",
        "_usual_size",
        "_view",
        "_waiting",
        "_weight",
        "_write_paused",
        "_write_paused_at",
        "last_active",
        "reader",
    )

    def __init__(
        self,
        node: Node,
        open_connections: set[Connection],
        door: Door | None = None,
        came_at: float = 0.0,
        on_lost: Callable[[], None] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """`host` is where it was accepted from, and not what the socket says later: once a client has reset its
        connection, the socket knows no address any more, but still has what was sent."""
        self._node = node
        self._open = open_connections
        self._frame_max: int = node.config["socket.request.max.bytes"]
        is_stranger = door is not None and door.checks is not None
        self._usual_size = STRANGERS_BUFFER_SIZE if is_stranger else BUFFER_SIZE
        self._buffer = bytearray(self._usual_size)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._filled = 0
        self._waiting: deque[_Slot] = deque()
        self._write_paused = False
        self._reading_paused = False
        self._write_paused_at = 0.0
        """When the client has last taken something of what made us wait."""
        self._unsent: Unsent | None = None
        self._closes = False
        """To be closed when all is sent."""
        self._queued = 0
        """Bytes of answers that are there and have to wait for one that is not."""
        self._holds_memory = False
        self._came_at = came_at
        self._stopping = False
        self._is_due = False
        self._starved = False
        self._held_by: Deferred | None = None
        self._began_at = 0.0
        self._weight = 0
        """Of the fetches in waiting."""
        self._hung_up_at = 0.0
        # Where requests are not divided, as in a simulation, the clock on the wall decides nothing.
        self._turn_s = TURN_S if node.large_requests is not None else float("inf")
        self._frame_began_at = 0.0
        self._fd = -1
        """The socket, where it may be written to past the transport."""
        self._socket: socket.socket | None = None
        self._door = door
        self._answer_memory = None if door is None else door.answer_memory
        self._memory = None if door is None else door.strangers_memory if is_stranger else door.memory
        self._admission: Admission | None = None
        self._setup_timer: asyncio.TimerHandle | None = None
        self._on_lost = on_lost
        self._peer = Peer(host)
        self.reader = Reader()
        self._transport: asyncio.Transport | None = None
        self.last_active = 0.0

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.last_active = time.monotonic()
        sock = transport.get_extra_info("socket")
        if sock is not None:
            if transport.get_extra_info("sslcontext") is None:
                self._fd = sock.fileno()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
            self._socket = sock
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._unsent = Unsent(transport, self._fd)
        self._open.add(self)
        if self._door is not None:
            self._ask_who_comes(self._door, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        if self._on_lost is not None:
            self._on_lost()
        if self._setup_timer is not None:
            self._setup_timer.cancel()
        if self._memory is not None:
            self._memory.release(self)
        if self._answer_memory is not None:
            self._answer_memory.release(self)
        if self._unsent is not None:
            self._unsent.drop()
        if self.reader.fetch_session:
            self._node.fetch_sessions.end(self.reader.fetch_session)
        for slot in self._waiting:
            slot.cancel()
        self._waiting.clear()
        # Now, and not when the garbage collector comes: who is still at work on a frame has a view of it.
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        self.last_active = time.monotonic()
        self._serve()

    def pause_writing(self) -> None:
        if self._unsent is not None:
            self._unsent.is_paused = True
        self._write_paused = True
        self._write_paused_at = time.monotonic()

    def resume_writing(self) -> None:
        self._write_paused_at = time.monotonic()
        if self._unsent is not None:
            self._unsent.is_paused = False
            if self._unsent:
                self._send_more()
        if not self._unsent:
            self._has_sent()

    def close(self) -> None:
        """When what is left for it has been taken."""
        if self._unsent:
            self._closes = True
        elif self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting for the client to take what is left for it."""
        if self._transport is not None:
            self._transport.abort()

    def stop_serving(self) -> None:
        """The broker is stopping: answer what waits, take nothing new."""
        self._stopping = True
        self._pause_reading()
        for slot in tuple(self._waiting):
            slot.hurry()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._unsent

    def takes_nothing_since(self, moment: float) -> bool:
        """Whether answers have been waiting for the client since then, or the goodbye has, and it takes neither."""
        if self._transport is not None and self._transport.is_closing():
            return self.last_active < moment
        return self._write_paused and self._write_paused_at < moment

    # Closes that are not read, see `hang_ups`

    @property
    def unread_fd(self) -> int:
        is_unread = self._reading_paused and self._waiting and not (self._write_paused or self._stopping)
        if not is_unread or self._is_held or self._socket is None:
            return -1
        return -1 if self._transport is None or self._transport.is_closing() else self._socket.fileno()

    def has_hung_up(self, now: float) -> None:
        if not self._hung_up_at:
            self._hung_up_at = now
            for slot in tuple(self._waiting):
                slot.hurry()
        elif now - self._hung_up_at > HUNG_UP_PATIENCE_S:
            self.abort()

    # Who it is

    def _ask_who_comes(self, door: Door, transport: asyncio.Transport) -> None:
        address = door.address or transport.get_extra_info("sockname")[:2]
        self._peer = self._peer._replace(address=address)
        if door.checks is not None:
            self._admission = Admission(self._node, door.checks, self, self._peer.host)
            self._frame_max = self._admission.frame_max
            left_s = door.setup_timeout_s - (time.monotonic() - self._came_at)
            self._setup_timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._took_too_long)
            return
        try:
            principal = certified_principal(self._node, transport)
        except MalformedMessage as error:
            complain("certificate", "Closed a connection from %s: %s", self._peer.host, error)
            self.abort()
        else:
            self._peer = self._peer._replace(principal=principal)

    def has_logged_in(self, principal: str) -> None:
        self._peer = self._peer._replace(principal=principal)
        self._frame_max = self._node.config["socket.request.max.bytes"]
        self._is_no_stranger()
        if self._setup_timer is not None:
            self._setup_timer.cancel()

    def _is_no_stranger(self) -> None:
        if self._usual_size < BUFFER_SIZE and self._door is not None and self._memory is not None:
            self._usual_size = BUFFER_SIZE
            self._memory.release(self)
            self._memory = self._door.memory

    def _took_too_long(self) -> None:
        self._node.meters.connections_refused["setup timeout"] += 1
        complain("setup", "Closed a connection from %s that did not log in in time.", self._peer.host)
        self.abort()

    # Frames

    def _serve(self) -> None:
        """Handle the whole frames in the buffer, as long as there is room for the answers and nobody else's turn."""
        self._is_due = False
        left_of_turn = TURN_MAX
        turn_ends_at = 0.0
        while self._transport is not None and not self._transport.is_closing():
            if self._write_paused or self._stopping or self._is_held or (self._waiting and self._is_full):
                self._pause_reading()
                return
            if self._filled == self._start:
                break  # which is usual: one request at a time
            if turn_ends_at and (left_of_turn == 0 or perf_counter() > turn_ends_at):
                self._pause_reading()
                self._serve_soon()
                return
            frame = self._next_frame()
            if frame is None:
                break
            left_of_turn -= 1
            self._handle(frame)
            if not turn_ends_at:
                turn_ends_at = self._began_at + self._turn_s
        else:
            return
        self._make_room()
        if self._starved:
            self._pause_reading()
        else:
            self._resume_reading()

    def _serve_soon(self) -> None:
        """Once, however often it is asked for: two would be two turns."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    @property
    def _is_full(self) -> bool:
        """Whether enough waits already: requests, what is kept for them, and answers behind them."""
        return self._weight >= WEIGHT_MAX or self._queued > WRITE_BUFFER_HIGH or len(self._waiting) >= PENDING_MAX

    @property
    def _is_held(self) -> bool:
        return self._held_by is not None or (self._admission is not None and self._admission.is_busy)

    def _next_frame(self) -> memoryview | None:
        start = self._start
        available = self._filled - start
        if available < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        if not 0 < length <= self._frame_max:
            if length >> 16 == TLS_RECORD:
                complain("tls", "Closed a connection from %s that speaks TLS, at a port without.", self._peer.host)
            else:
                complain("length", "Closed a connection that announced a request of %d bytes.", length)
            self.close()
            return None
        if available < length + _LENGTH.size:
            return None
        self._start = start + _LENGTH.size + length
        self._frame_began_at = 0.0
        return self._view[start + _LENGTH.size : self._start]

    def _make_room(self) -> None:
        """Make sure that what is arriving fits, without giving a peer more memory than it has sent bytes for."""
        left = self._filled - self._start
        capacity = len(self._buffer)
        if left == 0 and capacity > BUFFER_SIZE and self._memory is not None and self._memory.is_wanted:
            self.give_back()
            return
        if left == 0 and self._usual_size <= capacity <= BUFFER_KEPT:
            self._start = self._filled = 0
            return
        frame = self._usual_size
        if left >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, self._start)
            frame = length + _LENGTH.size
            self._frame_began_at = self._frame_began_at or self.last_active
        needed = max(self._usual_size, min(frame, 2 * left))
        grows_large = needed > max(capacity, BUFFER_SIZE)
        self._starved = grows_large and self._memory is not None and not self._memory.claim(self, frame - _LENGTH.size)
        if self._starved:
            return
        if capacity > BUFFER_KEPT and left == 0 and self._memory is not None:
            self._memory.release(self)
        if needed > capacity or (capacity > BUFFER_KEPT and left == 0):
            fitting = bytearray(needed)
            fitting[:left] = self._view[self._start : self._filled]
            self._buffer, self._view = fitting, memoryview(fitting)
        elif self._start > capacity // 2 or self._filled == capacity:
            self._buffer[:left] = self._view[self._start : self._filled]
        else:
            return
        self._start, self._filled = 0, left

    # Memory for large frames, see `request_memory`

    def granted(self) -> None:
        self._starved = False
        self._serve_soon()

    def give_back(self) -> None:
        """Called in the middle of other connections' requests, never of ours."""
        if self._filled == self._start and self._memory is not None and self._held_by is None:
            self._buffer = bytearray(self._usual_size)
            self._view = memoryview(self._buffer)
            self._start = self._filled = 0
            self._memory.release(self)

    def give_up(self, since: float) -> None:
        if self._filled == self._start:
            self.give_back()
        elif 0.0 < self._frame_began_at < since:
            # Also where we made it wait: several that hold a little and wait for more would wait for each other.
            complain("slow", "Closed a connection from %s: its request took too long to arrive.", self._peer.host)
            self._node.meters.connections_refused["slow request"] += 1
            if self._memory is not None:
                self._memory.release(self)  # at once: it may be all that the next one waits for
            self.abort()

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
        began = self._began_at = perf_counter()
        try:
            if self._admission is not None and self._admission.expects_token:
                header = UNNAMED
                answer: Answer | Deferred | None = self._admission.take_token(frame)
            else:
                header = read_request_header(frame)
                if self._admission is not None and self._admission.is_for_us(header.api_key):
                    answer = self._admission.answer(header, frame)
                else:
                    answer = handlers.answer(self._node, header, frame, self._peer, self.reader)
        except NotLoggedIn as error:
            complain("login", "Closed a connection from %s: %s", self._peer.host, error)
            self.close()
            return
        except MalformedMessage as error:
            self._refuse(error)
            return
        except Exception:
            logger.exception("A request failed in an unexpected way; its connection is closed.")
            self.close()
            return
        if not isinstance(answer, Deferred):
            self._node.meters.request(header.api_key, perf_counter() - began)
            if answer is None:
                return
            if self._waiting:
                self._queue(header, answer)
            else:
                self._send(header, answer)
            return
        if answer.holds:
            self._held_by = answer
            answer.on_release = self._released
        self._weight += answer.weight
        slot = _Slot(header, answer)
        self._waiting.append(slot)
        answer.when_done(partial(self._settled, header.api_key, began, answer, slot if answer.holds else None))
        if self._hung_up_at:
            slot.hurry()

    def _settled(self, api_key: int, began: float, answer: Deferred, large: _Slot | None) -> None:
        self._node.meters.request(api_key, perf_counter() - began - answer.parked_s)
        self._weight -= answer.weight
        if answer is self._held_by:
            self._held_by = None
        if answer.error is not None:
            self._refuse(answer.error)
            return
        if large is not None and answer.result is not None and not isinstance(answer.result.message, Message):
            self._has_size(large, answer.result.message)
        self._send_settled()

    def _released(self) -> None:
        if self._held_by is not None:
            self._weight += self._held_by.weight
        self._held_by = None
        self._serve_soon()

    def _refuse(self, error: MalformedMessage) -> None:
        if isinstance(error, UntoldFailure):
            complain("acks=0", "Closed a connection from %s: %s", self._peer.host, error)
        else:
            complain("protocol", "Closed a connection that does not speak Kafka's protocol: %s", error)
        self.close()

    def _send_settled(self) -> None:
        """Send the answers that are there and whose turn it is, as long as the client takes them.

        Called when a waiting answer has come, which may be in the middle of another connection's request. So nothing is
        served from here: that would begin a second request before the first one is through.
        """
        sent = False
        while self._waiting and not self._write_paused and not self._closes:
            first = self._waiting[0]
            if isinstance(first.answer, Deferred):
                if not first.answer.is_done:
                    break
                answer = self._made(first.answer)
            else:
                answer = first.answer
            self._waiting.popleft()
            if first.size:
                self._queued -= first.size
                self._note_memory()
            if answer is not None:
                self._send(first.header, answer)
            sent = True
        if sent and self._reading_paused:
            self._serve_soon()

    def _made(self, deferred: Deferred) -> Answer | None:
        try:
            return deferred.answer()
        except Exception:
            logger.exception("An answer could not be made; its connection is closed.")
            self.close()
            return None

    def _send(self, header: RequestHeader, answer: Answer) -> None:
        if self._transport is None or self._transport.is_closing() or self._closes:
            return
        message = answer.message
        version = answer.version if answer.version is not None else header.api_version
        head = b"" if type(message) is Token else response_header(header.api_key, version, header.correlation_id)
        if isinstance(message, bytes):
            if len(message) > SENT_AT_ONCE_MAX:
                self._send_large([_LENGTH.pack(len(head) + len(message)) + head, message])
            else:
                self._transport.write(_LENGTH.pack(len(head) + len(message)) + head + message)
            return
        try:
            parts = message if isinstance(message, list) else encode_parts(message, version)
        except ValueError:
            self._could_not_encode()
            return
        size = sum(map(len, parts))
        parts = [_LENGTH.pack(len(head) + size), head, *parts]
        if size > SENT_AT_ONCE_MAX or FileSlice in map(type, parts):
            self._send_large(parts)
        else:
            self._transport.write(b"".join(parts))

    def _could_not_encode(self) -> None:
        logger.exception("An answer could not be encoded; its connection is closed.")
        self.close()

    # What is not small, see `sending` and `answer_memory`

    def _send_large(self, parts: list[Buffer]) -> None:
        assert self._unsent is not None
        assert self._transport is not None
        self._unsent.add(parts)
        if self._unsent.goes_at_once():
            return
        # Whatever the transport holds means that the socket is full; that it is not any more is what we wait for.
        self._transport.set_write_buffer_limits(high=0)
        self._send_more()
        if self._unsent:
            self._pause_reading()  # a client that sends nothing more, and waits for its answers, is not gone
        elif not self._unsent.is_paused:
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)

    def _send_more(self) -> None:
        unsent = self._unsent
        assert unsent is not None
        try:
            is_turn_over = not unsent.go_on()
        except (StorageError, OSError) as error:  # the segment was removed meanwhile, or the client is gone
            logger.info("A connection was closed in the middle of an answer: %s", error)
            self.abort()
            return
        if unsent:
            self._write_paused = True
            self._write_paused_at = time.monotonic()
            if is_turn_over:
                asyncio.get_running_loop().call_soon(self._send_on)
        self._note_memory()

    def _send_on(self) -> None:
        """After the turn of others."""
        if self._unsent and not self._unsent.is_paused:
            self._send_more()
            if not self._unsent and not self._unsent.is_paused:
                self._has_sent()

    def _has_sent(self) -> None:
        """There is room for the next answers."""
        self._write_paused = False
        if self._transport is None:
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if self._closes:
            self._transport.close()
            return
        self._send_settled()
        self._serve()

    def _queue(self, header: RequestHeader, answer: Answer) -> None:
        """Keep an answer for its turn, encoded: how large it is counts."""
        message = answer.message
        if not isinstance(message, bytes | list):
            version = answer.version if answer.version is not None else header.api_version
            try:
                message = encode_parts(message, version)
            except ValueError:
                self._could_not_encode()
                return
            answer = Answer(message, version)
        slot = _Slot(header, answer)
        self._waiting.append(slot)
        self._has_size(slot, message)

    def _has_size(self, slot: _Slot, message: bytes | list[Buffer]) -> None:
        slot.size = len(message) if isinstance(message, bytes) else memory_of(message)
        self._queued += slot.size
        self._note_memory()

    def _note_memory(self) -> None:
        size = self._queued + (self._unsent.memory if self._unsent is not None else 0)
        if self._answer_memory is None or self._transport is None:
            return
        if size > WRITE_BUFFER_HIGH:
            self._holds_memory = True
            self._answer_memory.hold(self, size)
        elif self._holds_memory:
            self._holds_memory = False
            self._answer_memory.release(self)

    @property
    def took_at(self) -> float:
        return self._write_paused_at

    def give_up_answers(self) -> None:
        complain("answers", "Closed a connection from %s that does not take its answers.", self._peer.host)
        self._node.meters.connections_refused["answers not taken"] += 1
        self._holds_memory = False
        self.abort()


UNNAMED: Final = RequestHeader(SASL_AUTHENTICATE, 0, 0, None, 0)
"""For a token that came without a header, to be counted under what it is."""


class _Slot:
    """The place of an answer in the order of answers."""

    __slots__ = ("answer", "header", "size")

    def __init__(self, header: RequestHeader, answer: Answer | Deferred) -> None:
        self.header = header
        self.answer = answer
        self.size = 0
        """Of an answer that is there and waits for its turn, in bytes of memory."""

    def cancel(self) -> None:
        if isinstance(self.answer, Deferred):
            self.answer.cancel()

    def hurry(self) -> None:
        if isinstance(self.answer, Deferred) and self.answer.on_hurry is not None:
            self.answer.on_hurry()
