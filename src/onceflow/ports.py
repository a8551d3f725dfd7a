"""TCP ports that a server gets back after it was away.

A port that the kernel has chosen is anybody's once its server has ended: another server may get it, or an outgoing
connection, even one that is made to this very port. So whoever starts a server that is to come back holds a socket that
is bound to the port and never listens:

- the kernel gives the port to nobody who asks for any (`bind` to port 0, `connect`);
- connections are refused as long as no server listens;
- a server that asks for this port, with SO_REUSEADDR as servers do, gets it.

That is Linux. Other kernels (BSD, macOS) would keep out the server as well, which is tried each time. There the port is
one from below those that kernels choose from, and free when it was chosen.
"""

from __future__ import annotations

import contextlib
import random
import socket
import weakref
from typing import Any, Final

__all__ = ["ReservedPort"]

LOOPBACK: Final = "127.0.0.1"
SERVER_PORTS: Final = range(20_000, 32_000)
"""Below what Linux (32768), BSD, macOS and Windows (49152) choose from."""
TRIES: Final = 200


class ReservedPort:
    """A port at an address of this machine, for as long as this object is there."""

    def __init__(self, host: str = LOOPBACK) -> None:
        """Raises OSError, or UnicodeError for a host that cannot be a name, if nothing can be bound there."""
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        holder = _bound(family, address, 0)
        self.number: int = holder.getsockname()[1]
        self._release = weakref.finalize(self, holder.close)
        if not _lets_a_server_in(family, address, self.number):
            self._release()
            self.number = _below_those_of_the_kernel(family, address)

    def close(self) -> None:
        self._release()


def _lets_a_server_in(family: int, address: tuple[Any, ...], port: int) -> bool:
    try:
        with _bound(family, address, port) as server:
            server.listen()
    except OSError:
        return False
    return True


def _below_those_of_the_kernel(family: int, address: tuple[Any, ...]) -> int:
    for port in random.sample(SERVER_PORTS, TRIES):
        with contextlib.suppress(OSError), _bound(family, address, port):
            return port
    raise OSError(f"There is no free port between {SERVER_PORTS.start} and {SERVER_PORTS.stop}")


def _bound(family: int, address: tuple[Any, ...], port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address[0], port, *address[2:]))
    except BaseException:
        bound.close()
        raise
    return bound
