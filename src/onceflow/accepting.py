"""Accepting connections in a running loop, on a socket that listens.

The loop's own servers are busy without end where the system has no other socket for us (too many open files): the one
that waits is reported again and again, and cannot be had. Here they are left alone for a moment then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Accepting"]

logger = logging.getLogger(__name__)

ACCEPTED_PER_TURN: Final = 64
REST_S: Final = 0.5
"""Until the next try."""
QUIET_S: Final = 60.0
"""One line a minute says so."""


class Accepting:
    """Hands over who comes, with the address, until it is closed; the listening socket is closed with it."""

    def __init__(self, listener: socket.socket, enter: Callable[[socket.socket, str], None]) -> None:
        self._listener = listener
        self._enter = enter
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_until_s = 0.0
        listener.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Nobody else comes in: who tries is refused, and not left waiting before the door."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _begin(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many open files, mostly
                self._rest(error)
                return
            accepted.setblocking(False)
            self._enter(accepted, str(address[0]))

    def _rest(self, error: OSError) -> None:
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + QUIET_S
            logger.warning("No more connections can be accepted for now: %s.", error.strerror)
        self._loop.remove_reader(self._listener.fileno())
        self._timer = self._loop.call_later(REST_S, self._begin)
