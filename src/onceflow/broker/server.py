"""Running a broker: the directory, the socket, the signals, and what is done now and then.

Start: read certificates, bind, lock the directory, recover the logs, let clients in, say so. Stop (SIGTERM, SIGINT):
let nobody in any more, let what is being answered be answered, bring every log to a checkpoint, unlock. A stop that
takes too long can be forced by a second signal; that is a crash like any other, and recovery knows what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.broker import handlers
from onceflow.broker.admission import PasswordChecks
from onceflow.broker.answer_memory import AnswerMemory
from onceflow.broker.chores import every, unless_it_fails
from onceflow.broker.connection import Connection
from onceflow.broker.connection_limits import ConnectionLimits
from onceflow.broker.disk_trouble import LOOK_S
from onceflow.broker.doors import Door, Doorkeeper
from onceflow.broker.hang_ups import LOOK_S as HANG_UPS_LOOK_S
from onceflow.broker.hang_ups import look_for_hang_ups
from onceflow.broker.large_requests import LargeRequests
from onceflow.broker.listeners import Listener, advertised, bind
from onceflow.broker.node import Node
from onceflow.broker.request_memory import RequestMemory
from onceflow.clock import SystemClock
from onceflow.config import BrokerConfig
from onceflow.errors import BrokerStartError, ConfigError
from onceflow.log.files import DirectoryLock, FileSystem, RealFileSystem, make_data_directory

__all__ = ["run", "serve"]

ROLL_CHECK_S: Final = 0.5
SLOW_CHECK_S: Final = 5.0
DRAIN_S: Final = 5.0
STRANGERS_MEMORY: Final = 16 * 1024 * 1024
"""For large requests of all who have not logged in yet. There is no reason for any."""
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def lock_directory(directory: Path) -> DirectoryLock:
    try:
        make_data_directory(directory)
        return DirectoryLock(directory)
    except BlockingIOError:
        raise BrokerStartError(
            f"Data directory {directory} is in use by another broker; stop that one or choose another directory."
        ) from None
    except OSError as error:
        raise BrokerStartError(f"Data directory {directory} cannot be used: {error.strerror}.") from error


async def serve(
    listeners: Sequence[Listener],
    directory: Path,
    config: BrokerConfig,
    ready: Callable[[Sequence[Listener], str | None], None],
    *,
    stop_with_stdin: bool = False,
    files: FileSystem | None = None,
    http: tuple[str, int] | None = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT. `ready` is called with the listeners, ports and all, once it accepts
    connections, and with the URL of the page.

    `http` is where the page and the metrics are served, if they are.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    # The addresses before the directory: a mistake there leaves no directory behind.
    with contextlib.ExitStack() as opened:
        opened.enter_context(_stopped_by_signals(loop, stop))
        if stop_with_stdin:
            loop.add_reader(sys.stdin.fileno(), _parent_is_gone, loop, stop)
        doors = _doors(listeners, config, opened)
        page = _Page(opened.enter_context(bind(*http)), http[0]) if http else None
        lock = lock_directory(directory)
        try:
            node = Node(files or RealFileSystem(), directory, config, SystemClock())
            node.attach(loop)
            node.large_requests = LargeRequests(loop)
            first = doors[0]
            node.host, node.port = first.door.address or (first.listener.host, first.listener.port)
            try:
                await _accept_until(
                    stop, doors, page, node, lambda: ready([each.listener for each in doors], _url(page))
                )
            finally:
                node.close()
        finally:
            lock.release()


@contextlib.contextmanager
def _stopped_by_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """Handlers as they were before, in the end: uvloop leaves its own behind, which do nothing once it is closed."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _begin_stop, loop, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


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


class _Page(NamedTuple):
    socket: socket.socket
    host: str
    """What it was told to listen on; the socket knows only an address."""


class _Open(NamedTuple):
    """A listener with its real port, its socket, and what its connections share."""

    listener: Listener
    socket: socket.socket
    door: Door


def _doors(listeners: Sequence[Listener], config: BrokerConfig, opened: contextlib.ExitStack) -> list[_Open]:
    """Bind all, and read what they need. What is opened is closed with `opened`."""
    memory = RequestMemory(_memory_max(config))
    ConnectionLimits.of(config)
    tls = None
    if any(each.uses_tls for each in listeners):
        from onceflow.broker.tls import server_context

        tls = server_context(config)
    sockets = [opened.enter_context(bind(each.host, each.port)) for each in listeners]
    bound = [replace(each, port=sock.getsockname()[1]) for each, sock in zip(listeners, sockets, strict=True)]
    checks = PasswordChecks()
    opened.callback(checks.close)
    shared = Door(
        memory=memory,
        strangers_memory=RequestMemory(max(STRANGERS_MEMORY, config["sasl.server.max.receive.size"])),
        answer_memory=AnswerMemory(),
        setup_timeout_s=config["socket.connection.setup.timeout.ms"] / 1000,
    )
    return [
        _Open(
            each,
            sock,
            replace(
                shared,
                address=address,
                tls=tls if each.uses_tls else None,
                checks=checks if each.uses_sasl else None,
            ),
        )
        for each, sock, address in zip(bound, sockets, advertised(config, bound), strict=True)
    ]


def _memory_max(config: BrokerConfig) -> int:
    most, largest = int(config["queued.max.request.bytes"]), int(config["socket.request.max.bytes"])
    if most >= largest:
        return most
    if "queued.max.request.bytes" in config.given:
        raise ConfigError(
            f"queued.max.request.bytes is {most}, and a request may have {largest} (socket.request.max.bytes): "
            f"it would never fit."
        )
    return largest


async def _accept_until(
    stop: asyncio.Event,
    doors: Sequence[_Open],
    page: _Page | None,
    node: Node,
    ready: Callable[[], None],
) -> None:
    connections: set[Connection] = set()
    keeper = Doorkeeper(node, connections)
    chores: list[asyncio.Future[None]] = [asyncio.ensure_future(chore) for chore in _chores(node, connections)]
    watching = contextlib.AsyncExitStack()
    if page is not None:
        from onceflow.broker.watching import watched  # only where somebody watches

        await watching.enter_async_context(watched(node, connections, *page))
    memory = doors[0].door.memory
    if memory is not None:
        chores.append(asyncio.ensure_future(every(SLOW_CHECK_S, "Closing slow connections", memory.close_slow)))
    handlers.load_all()
    for each in doors:
        keeper.open(each.socket, each.door)
    gc.collect()
    gc.freeze()  # what start-up made stays; the collector need not look at it again and again
    ready()
    try:
        await stop.wait()
    finally:
        keeper.close()
        await watching.aclose()
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
        every(config["log.retention.check.interval.ms"] / 1000, "Retention", node.apply_retention),
        every(
            config["producer.id.expiration.check.interval.ms"] / 1000,
            "Forgetting idle producers",
            node.expire_producers,
        ),
        every(
            config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000,
            "Aborting transactions that are over their time",
            node.transactions.abort_timed_out,
        ),
        every(
            config["transaction.remove.expired.transaction.cleanup.interval.ms"] / 1000,
            "Forgetting idle transactional ids",
            node.transactions.expire,
        ),
        every(config["offsets.retention.check.interval.ms"] / 1000, "Expiring offsets", node.groups.expire_offsets),
        every(
            config["log.flush.offset.checkpoint.interval.ms"] / 1000,
            "Writing checkpoints",
            lambda: _checkpoint(node, False),
        ),
        every(LOOK_S, "Looking after the disk", node.disk_trouble.look_again),
        every(HANG_UPS_LOOK_S, "Looking for connections that were closed", lambda: look_for_hang_ups(connections)),
        every(ROLL_CHECK_S, "Writing checkpoints of sealed segments", lambda: _checkpoint(node, True)),
    ]
    if config["log.cleaner.enable"]:
        chores.append(
            every(lambda: max(0.05, node.config["log.cleaner.backoff.ms"] / 1000), "Compaction", node.compact)
        )
    if idle_ms > 0:
        chores.append(
            every(
                max(0.5, idle_ms / 4000), "Closing idle connections", lambda: _close_idle(connections, idle_ms / 1000)
            )
        )
    return chores


async def _checkpoint(node: Node, only_wanted: bool) -> None:
    """Checkpoints of all logs; or only of those that want one soon, because a segment was sealed."""
    assert node.group_commit is not None
    for partition in list(node.topics.partitions()):
        if not partition.log.closed and (partition.log.wants_checkpoint or not only_wanted):
            with unless_it_fails("A checkpoint", partition.log.directory):
                await node.group_commit.checkpoint(partition)


def _close_idle(connections: set[Connection], seconds: float) -> None:
    now = time.monotonic()
    for connection in tuple(connections):
        if connection.takes_nothing_since(now - seconds):
            connection.abort()
        elif connection.is_idle and now - connection.last_active > seconds:
            connection.close()


def run(
    listeners: Sequence[Listener],
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
    _run_loop(serve(listeners, directory, config, _announce, stop_with_stdin=stop_with_stdin, files=files, http=http))


def _allow_many_files() -> None:
    """Every partition and every connection holds a file; the soft limit is often 1024, the hard one much higher."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _announce(listeners: Sequence[Listener], page: str | None) -> None:
    for listener in listeners:
        print(f"onceflow broker ready on {listener}", flush=True)
    if page is not None:
        print(f"onceflow broker page on {page}", flush=True)


def _url(page: _Page | None) -> str | None:
    if page is None:
        return None
    host, port = page.socket.getsockname()[:2]
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
