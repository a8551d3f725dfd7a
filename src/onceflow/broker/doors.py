"""Letting connections in: limits first, then TLS, then `Connection`.

We accept sockets ourselves, and not the loop for us: limits must hold before the handshake, which costs a stranger
nothing and us a buffer and a signature.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onceflow.accepting import Accepting
from onceflow.broker.admission import PasswordChecks
from onceflow.broker.answer_memory import AnswerMemory
from onceflow.broker.complaints import complain
from onceflow.broker.connection import Connection
from onceflow.broker.connection_limits import ConnectionLimits
from onceflow.broker.request_memory import RequestMemory
from onceflow.broker.tls_transport import READ_SIZE, TlsTransport

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["Door", "Doorkeeper"]

CERTIFICATE_REASONS: Final = ("CERTIFICATE", "CERT", "UNKNOWN_CA")


@dataclass(frozen=True, kw_only=True)
class Door:
    """What the connections of one listener share."""

    address: tuple[str, int] | None = None
    """What its clients are told to connect to; None for the address that they came to."""
    tls: ssl.SSLContext | None = None
    checks: PasswordChecks | None = None
    """Where passwords are checked; None if the listener asks for no login."""
    memory: RequestMemory | None = None
    strangers_memory: RequestMemory | None = None
    """For who has not logged in: what strangers hold must not be missing to the others."""
    answer_memory: AnswerMemory | None = None
    setup_timeout_s: float = 30.0


class Doorkeeper:
    """Accepts for all listeners, and counts who is inside."""

    def __init__(self, node: Node, connections: set[Connection]) -> None:
        self._node = node
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._config = node.config
        self._limits = ConnectionLimits.of(node.config)
        self._encrypted = memoryview(bytearray(READ_SIZE))
        self._inside = 0
        self._inside_by_address: Counter[str] = Counter()
        self._listening: list[Accepting] = []
        self._entering: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket, door: Door) -> None:
        self._listening.append(Accepting(listener, lambda accepted, host: self._let_in(accepted, host, door)))

    def close(self) -> None:
        """Nobody else comes in: who tries is refused, and not left waiting before the door."""
        for each in self._listening:
            each.close()
        self._listening.clear()
        for task in self._entering:
            task.cancel()

    def _let_in(self, accepted: socket.socket, host: str, door: Door) -> None:
        self._node.meters.connections += 1
        if full := self._full(host):
            self._node.meters.connections_refused[full] += 1
            complain(full, "A connection from %s was refused: %s are open.", host, full)
            accepted.close()
            return
        self._inside += 1
        self._inside_by_address[host] += 1
        task = self._loop.create_task(self._enter(accepted, host, door))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    def _full(self, host: str) -> str | None:
        if self._node.config is not self._config:  # another one after every change
            self._config = self._node.config
            self._limits = ConnectionLimits.of(self._config)
        if self._inside >= self._limits.most:
            return "max.connections"
        if self._inside_by_address[host] >= self._limits.from_address(host):
            return "max.connections.per.ip"
        return None

    def _left(self, host: str) -> None:
        self._inside -= 1
        self._inside_by_address[host] -= 1
        if not self._inside_by_address[host]:
            del self._inside_by_address[host]

    async def _enter(self, accepted: socket.socket, host: str, door: Door) -> None:
        came_at = time.monotonic()

        def connection() -> Connection:
            return Connection(self._node, self._connections, door, came_at, lambda: self._left(host), host)

        def protocol() -> asyncio.BufferedProtocol:
            if door.tls is None:
                return connection()
            return TlsTransport(
                door.tls,
                connection,
                door.setup_timeout_s,
                lambda error: self._not_shaken_hands(host, error),
                self._encrypted,
            )

        try:
            await self._loop.connect_accepted_socket(protocol, accepted)
        except OSError:
            # Gone between being accepted and being let in, in which case nobody else says so.
            accepted.close()
            self._left(host)

    def _not_shaken_hands(self, host: str, error: OSError) -> None:
        self._left(host)
        if isinstance(error, ConnectionError):
            return  # gone before it said anything: somebody looked whether we are here
        reason = getattr(error, "reason", None) or type(error).__name__
        if isinstance(error, ssl.SSLError) and any(word in reason for word in CERTIFICATE_REASONS):
            self._node.meters.failed_authentications["SSL"] += 1
        else:
            self._node.meters.connections_refused["tls"] += 1
        words = str(reason).replace("_", " ").lower()
        complain(f"tls: {words}", "TLS with %s was not agreed on: %s.", host, words)
