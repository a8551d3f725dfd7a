"""Running a broker: the directory, the socket, the signals, and what is done now and then.

Start: lock the directory, recover the logs, listen, say so. Stop (SIGTERM, SIGINT): stop listening, let what is
being answered be answered, bring every log to a checkpoint, unlock. A stop that takes too long can be forced by a
second signal; that is a crash like any other, and recovery knows what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from onceflow.broker.connection import Connection
from onceflow.broker.node import Node
from onceflow.clock import SystemClock
from onceflow.config import BrokerConfig
from onceflow.errors import BrokerStartError, ConfigError
from onceflow.log.files import DirectoryLock, FileSystem, RealFileSystem

__all__ = ["run", "serve"]

logger = logging.getLogger(__name__)

BACKLOG: Final = 512
PRODUCER_EXPIRY_CHECK_S: Final = 600.0
ROLL_CHECK_S: Final = 0.5
DRAIN_S: Final = 5.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def advertised(config: BrokerConfig, host: str, port: int) -> tuple[str, int]:
    """The address that clients are told."""
    text = config["advertised.listeners"]
    if not text:
        return host, port
    parts = urlsplit(text if "://" in text else f"PLAINTEXT://{text}")
    try:
        told = (parts.hostname, parts.port)
    except ValueError:
        told = (None, None)
    if told[0] is None or told[1] is None:
        raise ConfigError(f"advertised.listeners must look like PLAINTEXT://HOST:PORT, not {text!r}.")
    return told[0], told[1]


def lock_directory(directory: Path) -> DirectoryLock:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return DirectoryLock(directory)
    except BlockingIOError:
        raise BrokerStartError(
            f"Data directory {directory} is in use by another broker; stop that one or choose another directory."
        ) from None
    except OSError as error:
        raise BrokerStartError(f"Data directory {directory} cannot be used: {error.strerror}.") from error


def bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family[0], socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(family[4])
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        raise BrokerStartError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
    return listener


async def serve(
    host: str,
    port: int,
    directory: Path,
    config: BrokerConfig,
    ready: Callable[[str, int, str | None], None],
    *,
    stop_with_stdin: bool = False,
    files: FileSystem | None = None,
    http: tuple[str, int] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT. `ready` is called with the address once it accepts connections,
    and with the URL of the page.

    `http` is where the page and the metrics are served, if they are.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _begin_stop, loop, stop)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _parent_is_gone, loop, stop)
    # The address before the directory: a mistake there leaves no directory behind.
    with bind(host, port) as listener, contextlib.ExitStack() as opened:
        port = listener.getsockname()[1]
        page = opened.enter_context(bind(*http)) if http else None
        told = advertised(config, host, port)
        lock = lock_directory(directory)
        try:
            node = Node(files or RealFileSystem(), directory, config, SystemClock())
            node.attach(loop)
            node.host, node.port = told
            try:
                await _accept_until(stop, loop, listener, page, node, lambda: ready(host, port, _url(page)))
            finally:
                node.close()
        finally:
            lock.release()


def _parent_is_gone(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Nothing is ever written to our standard input: readable means closed, and stays readable."""
    loop.remove_reader(sys.stdin.fileno())
    stop.set()


def _begin_stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    stop.set()
    for number in STOP_SIGNALS:
        # A second signal ends the process there and then, also where a hanging disk has it waiting.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


async def _accept_until(
    stop: asyncio.Event,
    loop: asyncio.AbstractEventLoop,
    listener: socket.socket,
    page: socket.socket | None,
    node: Node,
    ready: Callable[[], None],
) -> None:
    connections: set[Connection] = set()
    server = await loop.create_server(lambda: Connection(node, connections), sock=listener)
    chores: list[asyncio.Future[None]] = [asyncio.ensure_future(chore) for chore in _chores(node, connections)]
    if page is not None:
        from onceflow.broker import watching  # only where somebody watches

        chores += await watching.start(node, connections, page)
    gc.collect()
    gc.freeze()  # what start-up made stays; the collector need not look at it again and again
    ready()
    try:
        await stop.wait()
    finally:
        server.close()
        for chore in chores:
            chore.cancel()
        await _drain(connections)
        for connection in tuple(connections):
            connection.close()
        await asyncio.sleep(0)


async def _drain(connections: set[Connection]) -> None:
    """Let answers that wait for the disk get out; long polls are not worth waiting for."""
    deadline = asyncio.get_running_loop().time() + DRAIN_S
    for connection in connections:
        connection.stop_serving()
    while any(not c.is_idle for c in connections) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)


def _chores(node: Node, connections: set[Connection]) -> list[Awaitable[None]]:
    config = node.config
    idle_ms: int = config["connections.max.idle.ms"]
    chores: list[Awaitable[None]] = [
        _every(config["log.retention.check.interval.ms"] / 1000, node.apply_retention),
        _every(PRODUCER_EXPIRY_CHECK_S, node.expire_producers),
        _every(
            config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000,
            node.transactions.abort_timed_out,
        ),
        _every(
            config["transaction.remove.expired.transaction.cleanup.interval.ms"] / 1000, node.transactions.expire
        ),
        _every(config["offsets.retention.check.interval.ms"] / 1000, node.groups.expire_offsets),
        _every_async(config["log.flush.offset.checkpoint.interval.ms"] / 1000, lambda: _checkpoint(node, False)),
        _every_async(ROLL_CHECK_S, lambda: _checkpoint(node, True)),
    ]
    if config["log.cleaner.enable"]:
        chores.append(_every_async(max(0.05, config["log.cleaner.backoff.ms"] / 1000), node.compact))
    if idle_ms > 0:
        chores.append(_every(max(0.5, idle_ms / 4000), lambda: _close_idle(connections, idle_ms / 1000)))
    return chores


async def _checkpoint(node: Node, only_wanted: bool) -> None:
    """Checkpoints of all logs; or only of those that want one soon, because a segment was sealed."""
    assert node.group_commit is not None
    for partition in list(node.topics.partitions()):
        if not partition.log.closed and (partition.log.wants_checkpoint or not only_wanted):
            await node.group_commit.checkpoint(partition)


def _close_idle(connections: set[Connection], seconds: float) -> None:
    now = time.monotonic()
    for connection in tuple(connections):
        if connection.is_idle and now - connection.last_active > seconds:
            connection.close()


async def _every(seconds: float, chore: Callable[[], None]) -> None:
    async def run_chore() -> None:
        chore()

    await _every_async(seconds, run_chore)


async def _every_async(seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await chore()
        except Exception:  # one failed round of housekeeping must not end housekeeping
            logger.exception("Housekeeping failed; it is tried again in %s s.", seconds)


def run(
    host: str,
    port: int,
    directory: Path,
    config: BrokerConfig,
    *,
    stop_with_stdin: bool = False,
    files: FileSystem | None = None,
    http: tuple[str, int] | None = None,
) -> None:
    """The whole life of a broker process, in the foreground.

    `stop_with_stdin` is for a parent that holds the other end of a pipe: when it is gone, however that came, so are we.
    `files` is the disk; by default the real one. `http` is where the page and the metrics are served, if they are.
    """
    _allow_many_files()
    _run_loop(serve(host, port, directory, config, _announce, stop_with_stdin=stop_with_stdin, files=files, http=http))


def _allow_many_files() -> None:
    """Every partition and every connection holds a file; the soft limit is often 1024, the hard one much higher."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(host: str, port: int, page: str | None) -> None:
    print(f"onceflow broker ready on {f'[{host}]' if ':' in host else host}:{port}", flush=True)
    if page is not None:
        print(f"onceflow broker page on {page}", flush=True)


def _url(page: socket.socket | None) -> str | None:
    if page is None:
        return None
    host, port = page.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _run_loop(main: Awaitable[None]) -> None:
    async def wrapped() -> None:
        await main

    try:
        import uvloop
    except ImportError:
        asyncio.run(wrapped())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(wrapped())
