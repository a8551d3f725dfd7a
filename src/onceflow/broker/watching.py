"""Our broker as a snapshot, from within; and the page and the metrics on their socket."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker.connection import Connection
    from onceflow.broker.node import Node

__all__ = ["start"]


async def start(node: Node, connections: set[Connection], page: socket.socket) -> list[asyncio.Future[None]]:
    """Serve the page on a socket that listens; what is returned is cancelled when the broker stops."""
    raise NotImplementedError
