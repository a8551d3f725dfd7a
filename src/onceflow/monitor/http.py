"""The read-only HTTP side: the page, what it shows, and the metrics.

It lives in the loop of a broker, so it is small, never waits (a scrape is made in a thread) and has a limit on
everything: the size of a request, the time that one may take to arrive, the time that an answer may take to leave, and
the number of connections. A connection has at most one answer in memory; the next request is looked at when that has
left. Nothing can be changed through it, and a request with a body is refused.

There is no login. What keeps other web sites from reading along with a visitor's browser: no CORS headers, nobody may
frame or embed it, and a request for a host name that is not ours is refused (a name that its owner has pointed at
127.0.0.1: DNS rebinding). Names of ours are IP addresses, localhost, this machine's name, and what `serving` is told.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple, cast

from onceflow.accepting import Accepting
from onceflow.monitor.watcher import Watcher

__all__ = ["serving"]

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 50
HEAD_BYTES_MAX: Final = 8192
REQUEST_S: Final = 5.0
IDLE_S: Final = 30.0
ANSWER_S: Final = 10.0
LEAVE_S: Final = 1.0
"""How long we listen to who was told to go: closed at once, what they still send would take our last words with it."""

PAGE: Final = Path(__file__).parent / "page"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS: Final = (
    f"Content-Security-Policy: {POLICY}\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
)


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    keep: bool
    """The connection goes on afterwards."""


class Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    kind: str = TEXT
    more: str = ""
    """Further header lines."""


class Refused(Exception):
    """The request is not one; the connection ends with this answer."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        self.answer = Answer(status, why.encode() + b"\n")


def parse(head: bytes) -> Request:
    """The request line and the headers, without the empty line."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/"):
        raise Refused(HTTPStatus.BAD_REQUEST, "This is not an HTTP request.")
    if words[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here.")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or (name.lower() == "host" and "host" in headers):
            raise Refused(HTTPStatus.BAD_REQUEST, "A header of this request cannot be read.")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "A request here has no body.")
    keep = words[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return Request(words[0], words[1].partition("?")[0], headers, keep)


def host_of(header: str) -> str:
    """Without the port: `[::1]:9644` is ::1."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Site:
    """What there is to be had, and who is connected."""

    def __init__(self, watcher: Watcher, names: Iterable[str]) -> None:
        self._watcher = watcher
        self._names = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
        files = {f"/{each.name}": each for each in PAGE.iterdir() if each.suffix in KINDS}
        self._files = {path: (file.read_bytes(), KINDS[file.suffix]) for path, file in files.items()}
        self._files["/"] = self._files["/index.html"]
        self._files["/favicon.ico"] = self._files["/icon.svg"]
        self._made = {
            "/state.json": watcher.state_json,
            "/alerts.json": watcher.alerts_json,
        }
        self._thread = ThreadPoolExecutor(1, "onceflow-metrics")
        self._entering: set[asyncio.Task[None]] = set()
        self.connections: dict[Connection, None] = {}
        """In the order in which they last began to wait for a request."""

    async def answer(self, request: Request) -> Answer:
        host = host_of(request.headers.get("host", ""))
        if host not in self._names and not is_address(host):
            why = "This page is not served under that name. Use its IP address, localhost, or this machine's name.\n"
            return Answer(HTTPStatus.FORBIDDEN, why.encode())
        if request.method not in ("GET", "HEAD"):
            why = "This page is only to be read.\n"
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, why.encode(), TEXT, "Allow: GET, HEAD\r\n")
        if request.path in self._files:
            return Answer(HTTPStatus.OK, *self._files[request.path])
        if request.path not in self._made and request.path != "/metrics":
            return Answer(HTTPStatus.NOT_FOUND, b"There is nothing here; the page is at /, the metrics at /metrics.\n")
        try:
            return await self._news(request)
        except Exception:  # the broker goes on, whatever is wrong with its page
            logger.exception("%s could not be made.", request.path)
            return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"It could not be made; the log says why.\n")

    async def _news(self, request: Request) -> Answer:
        self._watcher.refresh()
        if request.path in self._made:
            return Answer(HTTPStatus.OK, self._made[request.path](), JSON)
        scrape = self._watcher.scrape(request.headers.get("accept", ""))
        return Answer(HTTPStatus.OK, *await asyncio.get_running_loop().run_in_executor(self._thread, scrape))

    def let_in(self, accepted: socket.socket, host: str) -> None:
        task = asyncio.get_running_loop().create_task(self._enter(accepted))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(self), accepted)
        except OSError:  # gone in between
            accepted.close()

    def close(self) -> None:
        for task in self._entering:
            task.cancel()
        for each in tuple(self.connections):
            each.end()
        self._thread.shutdown(wait=False)

    def admit(self, newcomer: Connection) -> bool:
        """One more, if need be in the place of who has waited longest between two requests."""
        if len(self.connections) >= CONNECTIONS_MAX:
            waiting = next((each for each in self.connections if each.is_idle), None)
            if waiting is None:
                return False
            waiting.end()
        self.connections[newcomer] = None
        return True


class Connection(asyncio.Protocol):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._unread = b""
        self._is_full = False
        self._has_asked = self._is_leaving = False
        self._work: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return self._has_asked and not self._unread and not self._is_full and self._work is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but name.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # any byte that has not left counts
        if self._site.admit(self):
            self._allow(REQUEST_S)
        else:
            busy = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"There are too many connections; try again.\n")
            self._send(busy, is_head=False, keep=False)
            self._transport.close()

    def connection_lost(self, problem: Exception | None) -> None:
        self._site.connections.pop(self, None)
        for each in (self._timer, self._work):
            if each is not None:
                each.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_leaving or self._transport.is_closing():
            return
        if not self._unread and self._has_asked:
            self._allow(REQUEST_S)
        self._unread += data
        self._go_on()

    def pause_writing(self) -> None:
        self._is_full = True
        self._transport.pause_reading()
        self._allow(ANSWER_S)

    def resume_writing(self) -> None:
        self._is_full = False
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._is_leaving:
            self._allow(LEAVE_S)
        else:
            self._wait_for_request()
            self._go_on()

    def end(self) -> None:
        """At once; what has not left by now is lost."""
        self._site.connections.pop(self, None)
        self._transport.abort()

    def _go_on(self) -> None:
        """One request at a time; what was sent ahead waits in `_unread`, and the sender with it."""
        if self._is_full or self._is_leaving or self._work is not None or self._transport.is_closing():
            return
        if (head := self._next_head()) is not None:
            self._transport.pause_reading()
            self._work = self._loop.create_task(self._answer(head))

    async def _answer(self, head: bytes) -> None:
        self._allow(ANSWER_S)
        is_head, keep = False, False
        try:
            request = parse(head)
            is_head, keep = request.method == "HEAD", request.keep
            answer = await self._site.answer(request)
        except Refused as refused:
            answer = refused.answer
        self._work = None
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._send(answer, is_head=is_head, keep=keep)
            self._go_on()

    def _next_head(self) -> bytes | None:
        head, end, rest = self._unread.partition(b"\r\n\r\n")
        if len(head) > HEAD_BYTES_MAX:
            why = f"A request is at most {HEAD_BYTES_MAX} bytes.\n"
            self._send(Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, why.encode()), is_head=False, keep=False)
            return None
        if not end:
            return None
        self._unread = rest
        return head

    def _send(self, answer: Answer, *, is_head: bool, keep: bool) -> None:
        head = (
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
            f"Content-Type: {answer.kind}\r\n"
            f"Content-Length: {len(answer.body)}\r\n"
            f"{ALWAYS}{answer.more}"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        )
        self._has_asked = True
        self._wait_for_request()
        self._transport.write(head.encode("latin-1") + (b"" if is_head else answer.body))
        if not keep:
            self._unread = b""
            self._is_leaving = True
            self._allow(ANSWER_S if self._is_full else LEAVE_S)
            self._transport.write_eof()

    def _wait_for_request(self) -> None:
        if self in self._site.connections:
            self._site.connections[self] = self._site.connections.pop(self)
        self._allow(REQUEST_S if self._unread else IDLE_S)

    def _allow(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.end)


@asynccontextmanager
async def serving(listener: socket.socket, watcher: Watcher, names: Iterable[str] = ()) -> AsyncIterator[None]:
    """For as long as a `with` lasts, on a socket that listens already, in the running loop, which is never blocked.
    `names` are host names under which it may be asked for. Then connections end as well, idle or not: a server of
    Python 3.12 and newer would wait for them."""
    site = Site(watcher, names)
    door = Accepting(listener, site.let_in)
    try:
        yield
    finally:
        door.close()
        site.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop
