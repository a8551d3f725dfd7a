"""Connections between clients and the broker, and what can happen to a request on its way.

Requests of one connection arrive in their order, and so do answers; each hop takes a moment. A connection that breaks
takes with it what is on its way, and the client never learns what became of its requests. The worst of that is the
*late* request: it arrives after all, when its client has long gone on with another connection. Not every request may
be late: see `Exchange.may_be_late`.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from onceflow.broker.connection import Connection
from onceflow.verify.simulation.machine import Machine
from onceflow.verify.simulation.world import Timer, World
from onceflow.wire import codec
from onceflow.wire.messages import response_class
from onceflow.wire.schema import Message

__all__ = ["Exchange", "Line", "Network", "Trouble"]

SETTLED_S: Final = 1.0
HOP_S: Final = (0.0001, 0.003)
NOTICED_S: Final = (0.0001, 0.02)
LATE_S: Final = (0.02, 3.0)
REQUEST_TIMEOUT_S: Final = 0.5
LENGTH_SIZE: Final = struct.calcsize(">i")


class Trouble(StrEnum):
    """What can happen to the next request of some kind."""

    LOST = "a request is lost, and its connection"
    UNANSWERED = "an answer is lost, and its connection"
    LATE = "a connection is lost, and a request of it comes late"
    SLOW = "a request takes longer than its client waits"


@dataclass(eq=False)
class Exchange:
    """One request and what came back."""

    request: Message
    version: int
    may_be_late: bool = True
    """Transactions V1 have a hole here, by their protocol: nothing in an EndTxn or in offsets says which of several
    transactions of one epoch they belong to. Late, they would end or change the next one."""
    answer: Any = None
    frame: bytes = b""
    is_delivered: bool = False
    is_over: bool = False
    trouble: Trouble | None = None


@dataclass(eq=False)
class _Wait:
    """A client that waits for answers."""

    exchanges: Sequence[Exchange]
    resume: Callable[[None], None]
    timer: Timer | None = None
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.exchanges)


class Line:
    """A client's connection."""

    def __init__(self, network: Network, client: str) -> None:
        self._network = network
        self._world = network.world
        self._client = client
        self._far_end: Connection | None = None
        self._waiting: deque[Exchange] = deque()
        self._wait: _Wait | None = None
        self._correlation_ids = itertools.count(1)
        self._arrives_at = 0.0
        self._answered_at = 0.0
        self._wanted: Exchange | None = None
        self.is_open = True

    # The client's side

    def ask(self, exchanges: Sequence[Exchange], resume: Callable[[None], None]) -> None:
        """Send requests, one right after the other; `resume` when each has its answer, or never will have one."""
        self._wait = _Wait(exchanges, resume)
        self._wait.timer = self._world.after(REQUEST_TIMEOUT_S, self._give_up)
        for exchange in exchanges:
            self._send(exchange)

    def _send(self, exchange: Exchange) -> None:
        cls = type(exchange.request)
        header = codec.request_header(cls, exchange.version, next(self._correlation_ids), self._client)
        exchange.frame = header + codec.encode(exchange.request, exchange.version)
        exchange.trouble = self._network.trouble_for(cls.__name__)
        self._waiting.append(exchange)
        delay = self._world.between(*HOP_S)
        if exchange.trouble is Trouble.SLOW:
            delay += REQUEST_TIMEOUT_S + self._world.between(*LATE_S)
        self._arrives_at = max(self._arrives_at, self._world.now + delay)
        self._world.after(self._arrives_at - self._world.now, lambda: self._deliver(exchange))

    def _give_up(self) -> None:
        self._world.say(f"{self._client}: no answer in time")
        self.cut(late=True)

    def cut(self, *, late: bool) -> None:
        """The connection is no more. What was not delivered is lost, or comes late."""
        if not self.is_open:
            return
        self.is_open = False
        self._network.forget(self)
        if late:
            delay = self._world.between(*LATE_S)
            for exchange in self._waiting:
                if not exchange.is_delivered and exchange.may_be_late:
                    delay += 0.0001
                    self._network.deliver_late(exchange, self._client, delay)
        self._waiting.clear()
        if self._far_end is not None:
            self._network.hang_up(self._far_end)
        if self._wait is not None:
            self._world.after(self._world.between(*NOTICED_S), self._finish)

    def _finish(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            if wait.timer is not None:
                wait.timer.cancel()
            wait.resume(None)

    # The broker's side

    def _deliver(self, exchange: Exchange) -> None:
        if not self.is_open:
            return
        if exchange.trouble in (Trouble.LOST, Trouble.LATE):
            self._world.say(f"{self._client}: {exchange.trouble}: {type(exchange.request).__name__}")
            self.cut(late=exchange.trouble is Trouble.LATE)
            return
        machine = self._network.machine
        if self._far_end is None:
            self._far_end = machine.connect(self._answered, self._closed)
        if self._far_end is None:
            self.cut(late=False)
            return
        exchange.is_delivered = True
        self._network.arriving(type(exchange.request).__name__)
        machine.deliver(self._far_end, exchange.frame)

    def _answered(self, data: bytes) -> None:
        """The broker has written an answer."""
        self._answered_at = max(self._answered_at, self._world.now + self._world.between(*HOP_S))
        self._world.after(self._answered_at - self._world.now, lambda: self._receive(data))

    def _receive(self, data: bytes) -> None:
        if not self.is_open:
            return
        exchange = self._waiting.popleft()
        if exchange.trouble is Trouble.UNANSWERED:
            self._world.say(f"{self._client}: {exchange.trouble}: {type(exchange.request).__name__}")
            self.cut(late=False)
            return
        assert exchange.request.API_KEY is not None
        head = codec.response_header(exchange.request.API_KEY, exchange.version, 0)
        body = memoryview(data)[LENGTH_SIZE + len(head) :]
        exchange.answer = codec.decode(response_class(exchange.request.API_KEY), exchange.version, body)
        if self._wait is not None:
            self._wait.left -= 1
            if not self._wait.left:
                self._finish()

    def _closed(self) -> None:
        """The broker has closed the connection, in the middle of whatever it does."""
        self._world.after(0.0, lambda: self.cut(late=False))


class Network:
    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self._lines: dict[Line, None] = {}
        self._troubles: dict[str, deque[Trouble]] = {}
        self._traps: dict[str, Callable[[], None]] = {}
        self.late_on_their_way = 0
        machine.on_end.append(self._broker_ended)

    def connect(self, client: str) -> Line:
        line = Line(self, client)
        self._lines[line] = None
        return line

    def forget(self, line: Line) -> None:
        self._lines.pop(line, None)

    def hang_up(self, far_end: Connection) -> None:
        node = self.machine.node
        if node is not None and far_end._node is node:
            self.machine.guard(lambda: far_end.connection_lost(None))

    def deliver_late(self, exchange: Exchange, client: str, seconds: float) -> None:
        def deliver() -> None:
            self.world.say(f"{client}: late: {type(exchange.request).__name__}")
            self.machine.deliver_orphan(exchange.frame)
            self.world.after(SETTLED_S, settle)  # what it wrote is visible only when it is on disk

        def settle() -> None:
            self.late_on_their_way -= 1

        self.late_on_their_way += 1
        self.world.after(seconds, deliver)

    def _broker_ended(self) -> None:
        for line in list(self._lines):
            line.cut(late=False)

    # Trouble

    def expect(self, request: str, trouble: Trouble) -> None:
        """The next request of this class gets into trouble."""
        self._troubles.setdefault(request, deque()).append(trouble)

    def trouble_for(self, request: str) -> Trouble | None:
        waiting = self._troubles.get(request)
        return waiting.popleft() if waiting else None

    def when_arriving(self, request: str, strike: Callable[[], None]) -> None:
        """Strike when the next request of this class gets to the broker."""
        self._traps[request] = strike

    def arriving(self, request: str) -> None:
        strike = self._traps.pop(request, None)
        if strike is not None:
            strike()

    def cut_all(self) -> None:
        for line in list(self._lines):
            line.cut(late=self.world.chance.random() < 0.5)

    def heal(self) -> None:
        self._troubles.clear()
        self._traps.clear()
