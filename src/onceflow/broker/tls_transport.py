"""TLS between a socket's transport and a `Connection`, which sees a transport as any other.

Not the loop's own TLS: that one hangs up on a client whose certificate it does not like without the alert that says so,
and the client, instead of giving up with a reason, tries for ever.

- Nothing of ours leaves unencrypted. The connection, with its buffer, is made when the handshake is through.
- What is not decrypted yet is bounded by what the socket's transport hands over at a time: while the connection does
  not want to be read from, neither is the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

__all__ = ["READ_SIZE", "TlsTransport"]

READ_SIZE: Final = 64 * 1024
WRITE_SIZE: Final = 256 * 1024
"""Encrypted at a time: a large answer need not exist twice as a whole."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """A protocol to the socket's transport, a transport to the connection."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_inner: Callable[[], asyncio.BufferedProtocol],
        timeout_s: float,
        refused: Callable[[OSError], None],
        buffer: memoryview,
    ) -> None:
        """`buffer` is where the socket's bytes arrive, on their way to be decrypted. All of a loop can share one."""
        super().__init__()
        self._make_inner = make_inner
        self._timeout_s = timeout_s
        self._refused = refused
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = buffer
        self._socket: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_closing = False
        self._is_paused = False
        self._has_ended = False
        """The client has said that nothing more comes."""

    # The socket's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport  # type: ignore[assignment]  # uvloop's is one in all but name
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._took_too_long)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        self._incoming.write(self._buffer[:count])
        if not self._is_open:
            self._shake_hands()
        if self._is_open:
            self._decrypt()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._is_open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_open:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._socket = None
        if self._is_open:
            self._is_open = False
            self._inner.connection_lost(error)
        elif not self._is_closing:
            self._fail(ConnectionResetError("The client went away."))

    # The handshake

    def _shake_hands(self) -> None:
        if self._is_closing:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except OSError as error:
            self._flush()  # the alert that tells the client why
            self._fail(error)
            return
        self._flush()
        self._stop_timer()
        self._inner = self._make_inner()
        self._is_open = True
        self._inner.connection_made(self)

    def _took_too_long(self) -> None:
        self._fail(TimeoutError("The handshake took too long."))

    def _fail(self, error: OSError) -> None:
        self._is_closing = True
        self._stop_timer()
        if self._socket is not None:
            self._socket.close()
        self._refused(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # What comes

    def _decrypt(self) -> None:
        try:
            while self._is_open and not self._is_paused and not self._is_closing:
                count = self._tls.read(READ_SIZE, self._inner.get_buffer(READ_SIZE))
                if not count:
                    self._has_ended = True
                    self.close()
                    return
                self._inner.buffer_updated(count)  # type: ignore[arg-type]
        except ssl.SSLWantReadError:
            self._flush()
        except OSError:
            # Bits were changed on the way, or it ended without saying so.
            self._flush()
            self.abort()

    def _go_on(self) -> None:
        if self._is_open:
            self._decrypt()

    # The connection's side

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._socket is None or self._is_closing:
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), WRITE_SIZE):
                self._tls.write(view[start : start + WRITE_SIZE])
                self._flush()
        except OSError:
            self.abort()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            self.write(part)

    def _flush(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def close(self) -> None:
        if self._is_closing or self._socket is None:
            return
        self._is_closing = True
        with contextlib.suppress(OSError):  # we say goodbye; whether the client does as well is not waited for
            self._tls.unwrap()
        self._flush()
        self._socket.close()

    def abort(self) -> None:
        self._is_closing = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._socket is not None and not self._socket.is_closing():
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._socket is not None and not self._socket.is_closing():
            self._socket.resume_reading()
            # What was received before the pause; later, since the connection may be in the middle of a request.
            asyncio.get_running_loop().call_soon(self._go_on)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return default if self._socket is None else self._socket.get_extra_info(name, default)
