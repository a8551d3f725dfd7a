"""The read-only HTTP side: the page, what it shows, and the metrics."""

from __future__ import annotations

import asyncio
import socket

from onceflow.monitor.watcher import Watcher

__all__ = ["serve"]


async def serve(listener: socket.socket, watcher: Watcher) -> asyncio.Server:
    """Serve on a socket that listens already, in the running loop; never blocks it."""
    raise NotImplementedError
