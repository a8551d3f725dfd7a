"""Stands between a client and PostgreSQL, and loses what a test wants lost.

    with DatabaseProxy(server.port) as proxy:
        connection = psycopg.connect(proxy.url(database))
        lost = proxy.lose_next_commit_answer()

The hard case of every database client is a connection that breaks during COMMIT: the client cannot know what became of
the transaction. The proxy makes both halves of it certain: `lose_next_commit_answer` breaks the connection when the
server has committed and said so, `lose_next_commit` before the server has heard of it. Both find a COMMIT however it is
sent: as text ("simple query"), or parsed, bound and executed, under a name or without ("extended query").

Everything else passes as it is. Encryption is declined in the server's name, as the proxy has to read along. If the
server is down, a client is disconnected instead of refused.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

__all__ = ["DatabaseProxy"]

HOST: Final = "127.0.0.1"
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
"""What the first number of a connection can be, instead of a version of the protocol."""


class DatabaseProxy:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._lose_commit: threading.Event | None = None
        self._lose_answer: threading.Event | None = None
        self._flowing = threading.Event()
        self._flowing.set()
        self._accepting = threading.Thread(target=self._accept, name="database proxy", daemon=True)
        self._closed = False

    def url(self, url: str) -> str:
        """The address of the same database, through the proxy."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@{HOST}:{self.port}"))

    def lose_next_commit_answer(self) -> threading.Event:
        """The next COMMIT is done, and its client disconnected instead of told. The event is set when that happened."""
        with self._lock:
            self._lose_answer = threading.Event()
            return self._lose_answer

    def lose_next_commit(self) -> threading.Event:
        """Instead of the next COMMIT, the server sees its client disconnect. The event is set when that happened."""
        with self._lock:
            self._lose_commit = threading.Event()
            return self._lose_commit

    def cut(self) -> None:
        """Disconnect everybody now; who comes back is let through."""
        for connection in self._all_connections():
            connection.break_off()

    def hold(self) -> None:
        """Connections stay, and nothing passes in either direction, until `go_on`."""
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def __enter__(self) -> DatabaseProxy:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            pass  # not every system wakes who accepts when the socket is shut down
        self._accepting.join()
        self._listener.close()
        connections = self._all_connections()
        self.cut()
        self.go_on()
        for connection in connections:
            connection.join()

    def _all_connections(self) -> list[_Connection]:
        with self._lock:
            return list(self._connections)

    # What connections ask

    def wait_until_flowing(self) -> None:
        self._flowing.wait()

    def fate_of_commit(self) -> tuple[threading.Event | None, threading.Event | None]:
        """What to set when the COMMIT that came by just now is lost, and when its answer is; each wish counts once."""
        with self._lock:
            if self._lose_commit is not None:
                commit, self._lose_commit = self._lose_commit, None
                return commit, None
            answer, self._lose_answer = self._lose_answer, None
            return None, answer

    def forget(self, connection: _Connection) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._closed:
                client.close()
                return
            try:
                server = socket.create_connection((HOST, self._server_port))
            except OSError:
                client.close()
                continue
            connection = _Connection(self, client, server)
            with self._lock:
                self._connections.add(connection)
            connection.start()


class _Connection:
    """One client's way to the server, and back: a thread for each direction."""

    def __init__(self, proxy: DatabaseProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._server = client, server
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._commits = _Commits()
        self._answer_lost: threading.Event | None = None
        """Set: a COMMIT is on its way, and its answer is to be lost."""
        self._there = threading.Thread(target=self._carry, args=(self._requests,), daemon=True)
        self._back = threading.Thread(target=self._carry, args=(self._answers,), daemon=True)
        self._ended = threading.Barrier(2, action=self._close)

    def start(self) -> None:
        self._there.start()
        self._back.start()

    def join(self) -> None:
        self._there.join()
        self._back.join()

    def break_off(self) -> None:
        """Both sides see the end of the connection, and our threads too."""
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _carry(self, direction: Callable[[], None]) -> None:
        try:
            direction()
        except OSError:
            pass  # one of both is gone, and so the other shall be
        finally:
            self.break_off()
            self._ended.wait()

    def _close(self) -> None:
        self._client.close()
        self._server.close()
        self._proxy.forget(self)

    def _requests(self) -> None:
        if not self._pass_startup():
            return
        for messages in _chunks(self._client):
            for message in messages:
                if self._commits.is_commit(message) and not self._may_pass():
                    return
                self._send(self._server, message)

    def _pass_startup(self) -> bool:
        """Until the client has named the protocol it speaks; all that is said before has no type and comes alone."""
        while True:
            header = _exactly(self._client, 8)
            length, code = int.from_bytes(header[:4]), int.from_bytes(header[4:])
            if code in (SSL_REQUEST, GSS_REQUEST):
                self._client.sendall(b"N")
                continue
            self._send(self._server, header + _exactly(self._client, length - 8))
            return code != CANCEL_REQUEST

    def _may_pass(self) -> bool:
        lost, self._answer_lost = self._proxy.fate_of_commit()
        if lost is not None:
            self.break_off()
            lost.set()
        return lost is None

    def _answers(self) -> None:
        decided = False
        for messages in _chunks(self._server):
            if self._answer_lost is None:
                self._send(self._client, b"".join(messages))
                continue
            for message in messages:
                decided = decided or _decides_commit(message)
                if decided and message[:1] == b"Z":  # ready for the next query: all of the answer is here
                    self.break_off()
                    self._answer_lost.set()
                    return

    def _send(self, to: socket.socket, data: bytes) -> None:
        self._proxy.wait_until_flowing()
        to.sendall(data)


class _Commits:
    """Knows a COMMIT when it comes by. Statements and portals have names, and the empty one is as good as any."""

    def __init__(self) -> None:
        self._statements: set[bytes] = set()
        self._portals: set[bytes] = set()

    def is_commit(self, message: bytes) -> bool:
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return _says_commit(body)
        if kind == b"P":
            name, query, *_ = body.split(b"\0", 2)
            _note(self._statements, name, _says_commit(query))
        elif kind == b"B":
            portal, statement, *_ = body.split(b"\0", 2)
            _note(self._portals, portal, statement in self._statements)
        elif kind == b"E":
            return body.partition(b"\0")[0] in self._portals
        return False


def _note(names: set[bytes], name: bytes, is_commit: bool) -> None:
    if is_commit:
        names.add(name)
    else:
        names.discard(name)


def _says_commit(query: bytes) -> bool:
    words = query.strip(b"\0 \t\r\n;").upper().split()
    return words[:1] in ([b"COMMIT"], [b"END"]) and b"PREPARED" not in words


def _decides_commit(message: bytes) -> bool:
    """The transaction was committed, or rolled back instead, or there was an error."""
    return message[:1] == b"E" or (message[:1] == b"C" and message[5:-1] in (b"COMMIT", b"ROLLBACK"))


def _chunks(source: socket.socket) -> Iterator[list[bytes]]:
    """Whole messages, as many as have arrived: a type of one byte, then the length of the rest, itself included."""
    buffer = bytearray()
    while received := source.recv(65536):
        buffer += received
        messages, start = [], 0
        while len(buffer) >= start + 5:
            end = start + 1 + int.from_bytes(buffer[start + 1 : start + 5])
            if len(buffer) < end:
                break
            messages.append(bytes(buffer[start:end]))
            start = end
        del buffer[:start]
        if messages:
            yield messages


def _exactly(source: socket.socket, size: int) -> bytes:
    data = source.recv(size, socket.MSG_WAITALL)
    if len(data) < size:
        raise ConnectionError("The client is gone.")
    return data
