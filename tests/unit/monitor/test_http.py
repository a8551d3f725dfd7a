"""The HTTP side, byte by byte: what it answers, what it refuses, and that nobody can make it wait or grow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from onceflow.monitor import http
from onceflow.monitor.snapshot import Snapshot
from onceflow.monitor.watcher import Watcher

HOST = b"Host: 127.0.0.1:9644\r\n"


def snapshot() -> Snapshot:
    return Snapshot(at_ms=1_000, cluster_id="a-cluster", software="onceflow")


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers["content-length"])) if has_body else b""
        return int(head[0].split()[1]), headers, body

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def ask(self, path: str, *headers: bytes, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        self.send(f"{method} {path} HTTP/1.1\r\n".encode(), *(headers or (HOST,)), b"\r\n")
        return await self.answer(has_body=method != "HEAD")


@asynccontextmanager
async def served(take: Callable[[], Snapshot] = snapshot) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    listener = listening()
    writers = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writers.append(writer)
        return Client(reader, writer)

    async with http.serving(listener, Watcher(take), names=["broker.example"]):
        yield connect
    for writer in writers:
        writer.close()


def run(conversation: Callable[[Callable[[], Awaitable[Client]]], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with served(**settings) as connect:
            await asyncio.wait_for(conversation(connect), 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as in the broker
        runner.run(main())


def test_one_connection_gets_the_page_the_state_the_alerts_and_the_metrics() -> None:
    async def conversation(connect: Any) -> None:
        client = await connect()
        status, headers, body = await client.ask("/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b'<script type="module" src="main.js">' in body
        for path, kind in (("/main.js", "text/javascript"), ("/page.css", "text/css"), ("/favicon.ico", "image/svg")):
            status, headers, body = await client.ask(path)
            assert status == 200, path
            assert headers["content-type"].startswith(kind)
        status, headers, body = await client.ask("/state.json?whatever")
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["cluster"]["id"] == "a-cluster"
        assert json.loads((await client.ask("/alerts.json"))[2])["now_ms"] == 1_000
        status, headers, body = await client.ask("/metrics")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b"onceflow_build_info" in body

    run(conversation)


def test_every_answer_keeps_other_sites_out() -> None:
    async def conversation(connect: Any) -> None:
        client = await connect()
        for path in ("/", "/state.json", "/nothing"):
            _, headers, _ = await client.ask(path)
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; ")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert not any(name.startswith("access-control") for name in headers)

    run(conversation)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1", 200),
        (b"localhost:9644", 200),
        (b"[::1]:9644", 200),
        (b"192.168.1.5:80", 200),
        (b"Broker.Example:9644", 200),
        (socket.gethostname().encode(), 200),
        (b"evil.example", 403),
        (b"127.0.0.1.evil.example:9644", 403),
        (b"localhost.evil.example", 403),
        (b"", 403),
    ],
)
def test_another_sites_name_that_points_here_is_refused(host: bytes, status: int) -> None:
    async def conversation(connect: Any) -> None:
        answered, _, body = await (await connect()).ask("/state.json", b"Host: " + host + b"\r\n")
        assert answered == status
        assert (b"a-cluster" in body) == (status == 200)

    run(conversation)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
def test_whatever_is_not_reading_is_405(method: str) -> None:
    async def conversation(connect: Any) -> None:
        status, headers, _ = await (await connect()).ask("/", method=method)
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    run(conversation)


def test_head_is_get_without_the_body() -> None:
    async def conversation(connect: Any) -> None:
        client = await connect()
        _, headers, body = await client.ask("/")
        status, same, nothing = await client.ask("/", method="HEAD")
        assert (status, same, nothing) == (200, headers, b"")
        assert int(headers["content-length"]) == len(body)
        assert (await client.ask("/"))[2] == body  # nothing was left on the way

    run(conversation)


@pytest.mark.parametrize("path", ["/nothing", "/../watcher.py", "/%2e%2e/watcher.py", "/page/main.js", "//main.js"])
def test_there_is_nothing_beside_the_page(path: str) -> None:
    async def conversation(connect: Any) -> None:
        assert (await (await connect()).ask(path))[0] == 404

    run(conversation)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nCookie: " + b"x" * 9000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_ends(sent: bytes, status: int) -> None:
    async def conversation(connect: Any) -> None:
        client = await connect()
        client.send(sent)
        answered, headers, _ = await client.answer()
        assert (answered, headers["connection"]) == (status, "close")
        assert await client.is_closed()

    run(conversation)


def test_requests_that_are_sent_ahead_are_answered_in_order() -> None:
    async def conversation(connect: Any) -> None:
        client = await connect()
        for path in (b"/metrics", b"/nothing"):
            client.send(b"GET ", path, b" HTTP/1.1\r\n", HOST, b"\r\n")
        client.send(b"GET / HTTP/1.1\r\n")
        assert [(await client.answer())[0] for _ in range(2)] == [200, 404]
        client.send(HOST, b"Connection: close\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert await client.is_closed()

    run(conversation)


def test_who_sends_a_request_too_slowly_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)

    async def conversation(connect: Any) -> None:
        silent, slow = await connect(), await connect()
        slow.send(b"GET / HTTP/1.1\r\n")
        assert await silent.is_closed()
        assert await slow.is_closed()

    run(conversation)


def test_who_does_not_read_the_answer_is_dropped_and_holds_one_answer_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "ANSWER_S", 0.3)
    size = 20_000_000
    held: list[int] = []
    plain = http.Connection.end

    def remembered(self: http.Connection) -> None:
        held.append(self._transport.get_write_buffer_size())
        plain(self)

    monkeypatch.setattr(http.Connection, "end", remembered)

    async def conversation(connect: Any) -> None:
        client = await connect()
        client.writer.transport.pause_reading()
        client.send(*[b"GET /state.json HTTP/1.1\r\n" + HOST + b"\r\n"] * 50)
        other = await connect()
        while not held:
            assert (await other.ask("/nothing"))[0] == 404  # and nobody else waits
        assert size / 2 < held[0] < size + 10_000

    run(conversation, take=lambda: Snapshot(at_ms=1, cluster_id="x" * size, software=""))


def test_the_51st_connection_takes_the_place_of_an_idle_one_and_is_refused_if_there_is_none() -> None:
    async def conversation(connect: Any) -> None:
        clients = [await connect() for _ in range(http.CONNECTIONS_MAX)]
        for each in clients:
            each.send(b"GET / HTTP/1.1\r\n")
        await clients[-1].writer.drain()
        refused = await connect()
        assert (await refused.answer())[0] == 503
        for each in (clients[3], clients[5]):
            each.send(HOST, b"\r\n")
            assert (await each.answer())[0] == 200
        assert (await (await connect()).ask("/"))[0] == 200
        assert await clients[3].is_closed()  # the one that was idle for longest
        clients[0].send(HOST, b"\r\n")
        assert (await clients[0].answer())[0] == 200

    run(conversation)


def test_a_snapshot_that_cannot_be_made_is_a_500_and_the_page_stays(caplog: pytest.LogCaptureFixture) -> None:
    def take() -> Snapshot:
        raise ZeroDivisionError("a defect")

    async def conversation(connect: Any) -> None:
        client = await connect()
        status, _, body = await client.ask("/state.json")
        assert (status, b"a defect" in body) == (500, False)
        assert (await client.ask("/"))[0] == 200

    run(conversation, take=take)
    assert "a defect" in caplog.text
