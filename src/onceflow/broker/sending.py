"""Answers that have parts of files in them: past our memory where that can be, else through the transport.

Under TLS it cannot: the bytes have to be encrypted first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import groupby
from typing import cast

from onceflow.errors import StorageError
from onceflow.log.files import FileSlice
from onceflow.wire.schema import Buffer

__all__ = ["send_with_files"]

logger = logging.getLogger(__name__)


def send_with_files(transport: asyncio.Transport, fd: int, parts: list[Buffer]) -> None:
    """Send as much as the socket `fd` takes now, the rest through the transport; all of it, if `fd` is negative."""
    joined = _joined(parts)
    at = sent = 0
    try:
        if fd >= 0 and transport.get_write_buffer_size() == 0:
            at, sent = _send_now(fd, joined)
        rest = [
            part.read(sent if i == 0 else 0) if isinstance(part, FileSlice) else part[sent if i == 0 else 0 :]
            for i, part in enumerate(joined[at:])
        ]
    except (StorageError, OSError) as error:  # the segment was removed meanwhile, or the client is gone
        logger.info("A connection was closed in the middle of an answer: %s", error)
        transport.abort()
        return
    if rest:
        transport.writelines(rest)


def _send_now(fd: int, parts: list[bytes | FileSlice]) -> tuple[int, int]:
    """Returns how far it got: the first part that is not sent entirely, and how much of it is."""
    for at, part in enumerate(parts):
        sent = 0
        while sent < len(part):
            try:
                count = part.send(fd, sent) if isinstance(part, FileSlice) else os.write(fd, part[sent:])
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
