"""Answers on their way to a client, as far as it has not taken them.

- A part of a file stays one until the socket takes it: it goes from the file to the socket inside the kernel, as much
  as the socket takes. When that is nothing, and under TLS always, a piece is read and goes through the transport, which
  knows when it has left. So of an answer that nobody reads only a piece is in memory.
- Of what is in memory already, too, only a piece is handed to the transport at a time, which would copy all of it.
- A file that is closed meanwhile (its segment was retained, compacted or deleted) ends the connection, in the middle of
  the answer: its length was announced, and there is nothing else to send. Bytes of another file are never sent, as a
  closed one has no descriptor.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import Final, cast

from onceflow.errors import StorageError
from onceflow.log.files import FileSlice
from onceflow.wire.schema import Buffer

__all__ = ["SENT_AT_ONCE_MAX", "Unsent", "memory_of"]

SENT_AT_ONCE_MAX: Final = 256 * 1024
"""An answer in memory up to this size is handed to the transport as a whole."""
PIECE: Final = 64 * 1024
TLS_PIECE: Final = 256 * 1024
TURN_BYTES: Final = 8 * 1024 * 1024
"""Sent to one client before others have their turn: a few milliseconds, if it takes them as fast."""


def memory_of(parts: Iterable[Buffer]) -> int:
    """How many bytes of them are in memory."""
    return sum(len(part) for part in parts if not isinstance(part, FileSlice))


class Unsent:
    """What one connection has to send, and its socket has not taken."""

    __slots__ = ("_fd", "_parts", "_sent", "_transport", "is_paused", "memory")

    def __init__(self, transport: asyncio.Transport, fd: int) -> None:
        """`fd` is the socket where it can be written to past the transport, else negative."""
        self._transport = transport
        self._fd = fd
        self._parts: deque[bytes | FileSlice] = deque()
        self._sent = 0
        """How much of the first part."""
        self.is_paused = False
        """The transport has something that the socket does not take."""
        self.memory = 0
        """Bytes of the parts that are not in files."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: list[Buffer]) -> None:
        for part in _joined(parts):
            if len(part):
                self._parts.append(part)
                self.memory += 0 if isinstance(part, FileSlice) else len(part)

    def goes_at_once(self) -> bool:
        """Send what the socket takes now, if that is possible past the transport; whether that was all."""
        try:
            if self._fd >= 0 and not self.is_paused and self._transport.get_write_buffer_size() == 0:
                self._send_now(TURN_BYTES)
        except (StorageError, OSError):  # it is met again, and told, by who goes on
            return False
        return not self._parts

    def go_on(self) -> bool:
        """Send what the socket takes now, which may be nothing. False if its turn is over, but it would take more.

        Raises `OSError` if the client is gone, `StorageError` or `OSError` if a file is.
        """
        left = TURN_BYTES
        while self._parts and not self.is_paused:
            if left <= 0:
                return False
            if self._fd >= 0 and self._transport.get_write_buffer_size() == 0:
                left -= self._send_now(left)
            if self._parts and left > 0:
                left -= self._write_piece()
        return True

    def drop(self) -> None:
        self._parts.clear()
        self.memory = 0

    def _send_now(self, most: int) -> int:
        """Past the transport, which has nothing to send before it. Returns how much that was."""
        total = 0
        while self._parts and total < most:
            part = self._parts[0]
            try:
                if isinstance(part, FileSlice):
                    count = part.send(self._fd, self._sent)
                else:
                    count = os.write(self._fd, memoryview(part)[self._sent :])
            except BlockingIOError:
                break
            if count == 0:
                break
            total += count
            self._has_left(part, self._sent + count)
        return total

    def _write_piece(self) -> int:
        """Hand a piece to the transport. Returns its size."""
        left = size = PIECE if self._fd >= 0 else TLS_PIECE
        pieces = []
        while self._parts and left:
            part = self._parts[0]
            end = min(len(part), self._sent + left)
            if isinstance(part, FileSlice):
                piece = part.read(self._sent, end - self._sent)
            else:
                piece = part[self._sent : end]
            pieces.append(piece)
            left -= len(piece)
            self._has_left(part, end)
        self._transport.writelines(pieces)
        return size - left

    def _has_left(self, part: bytes | FileSlice, end: int) -> None:
        if end < len(part):
            self._sent = end
            return
        self._sent = 0
        self._parts.popleft()
        if not isinstance(part, FileSlice):
            self.memory -= len(part)


def _joined(parts: list[Buffer]) -> list[bytes | FileSlice]:
    """The same bytes in fewer parts: all between two slices of files as one."""
    joined: list[bytes | FileSlice] = []
    for is_file, group in groupby(parts, lambda part: isinstance(part, FileSlice)):
        if is_file:
            joined += cast(list[FileSlice], list(group))
        else:
            joined.append(b"".join(group))
    return joined
