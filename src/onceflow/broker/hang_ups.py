"""Closes that are not seen where they usually are: a connection that is not read from does not notice its end.

The kernel knows, and is asked now and then about those that wait for answers. That tells also that the client sends
nothing more though it might still take answers (a half-closed connection), so nothing is dropped here: those
connections wait for nothing any more, and go on being read to their end, as all others.

A peer that vanished without a word is found by TCP itself, which asks after `KEEPALIVE_IDLE_S` of silence.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable
from typing import Final, Protocol

__all__ = ["LOOK_S", "Waiting", "keep_alive", "look_for_hang_ups"]

LOOK_S: Final = 1.0
KEEPALIVE_IDLE_S: Final = 60
KEEPALIVE_INTERVAL_S: Final = 15
KEEPALIVE_COUNT: Final = 4

HANG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Nothing more comes, though there may be something to read yet. Linux has it; others say it when all is over."""


class Waiting(Protocol):
    @property
    def unread_fd(self) -> int:
        """The socket of one that is not read from because of what it waits for; else negative."""
        ...

    def has_hung_up(self, now: float) -> None: ...


def look_for_hang_ups(connections: Iterable[Waiting]) -> None:
    unread = {fd: each for each in connections if (fd := each.unread_fd) >= 0}
    if not unread:
        return
    poll = select.poll()
    for fd in unread:
        poll.register(fd, HANG_UP)
    now = time.monotonic()
    for fd, _ in poll.poll(0):
        unread[fd].has_hung_up(now)


def keep_alive(sock: socket.socket) -> None:
    """Have TCP ask a silent peer whether it is there. As Kafka, which leaves the times to the system (two hours)."""
    with contextlib.suppress(OSError):  # gone already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
