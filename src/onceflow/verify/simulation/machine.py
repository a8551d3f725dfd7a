"""The machine with the broker on it: a disk that stays, and processes that come and go.

Everything from the bytes of a connection to the bytes on disk is the broker's own code (`Node` and `Connection`), on
the simulated loop, clock and disk. It ends by `kill -9` (what was written stays), by loss of power (what was not synced
may be lost, torn or zeroed), in the middle of a write, or orderly; and after a while a new process starts on what is
left. An exception that the broker does not expect is a problem of the run.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from onceflow.broker.connection import Connection
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.config import BrokerConfig
from onceflow.errors import StorageError
from onceflow.log.compaction import Cleaner
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash
from onceflow.verify.simulation.loop import SimulatedLoop
from onceflow.verify.simulation.world import World
from onceflow.wire import codec
from onceflow.wire.messages import response_class
from onceflow.wire.schema import Message

__all__ = ["DIRECTORY", "Machine", "Socket"]

DIRECTORY: Final = Path("/data")
CHORES_S: Final = (0.05, 0.4)
START_AGAIN_S: Final = (0.05, 0.5)
COMPACTED_ONE_TIME_IN: Final = 8

_LENGTH: Final = struct.Struct(">i")


class Socket:
    """The broker's end of a connection, as its `Connection` sees it."""

    def __init__(self, take: Callable[[bytes], None], closed: Callable[[], None]) -> None:
        self._take = take
        self._closed = closed
        self._is_closing = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 1  # so nothing is sent past us

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self._take(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._closed()

    abort = close


def feed(connection: Connection, frame: bytes) -> None:
    """Give a connection the bytes of one request."""
    data = memoryview(_LENGTH.pack(len(frame)) + frame)
    while data:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        connection.buffer_updated(count)


class Machine:
    def __init__(self, world: World, files: MemoryFileSystem, config: BrokerConfig) -> None:
        self._world = world
        self._config = config
        self.files = files
        self.node: Node | None = None
        """None while no broker runs."""
        self._loop = SimulatedLoop(world, self.guard)
        self._connections: set[Connection] = set()
        self.lives = 0
        self.on_end: list[Callable[[], None]] = []
        """Called when a process has ended, however that came."""
        self.start()

    # Beginning and end

    def start(self) -> None:
        if self.node is not None:
            return
        self.lives += 1
        self._loop = loop = SimulatedLoop(self._world, self.guard)
        self._connections = set()
        self.guard(self._start)
        if self.node is None:
            self._world.after(self._world.between(*START_AGAIN_S), self.start)
        elif not loop.is_over:
            self._world.say(f"broker: life {self.lives} begins")
            loop.call_later(self._world.between(*CHORES_S), self._chores)

    def _start(self) -> None:
        try:
            node = Node(self.files, DIRECTORY, self._config, self._world)
        except StorageError as error:
            self._world.say(f"broker: cannot start: {error}")
            self.files = self.files.kill()
            return
        node.cleaner = Cleaner(self.files)
        self.node = node
        node.attach(cast(asyncio.AbstractEventLoop, self._loop))

    def kill(self) -> None:
        self._end(self.files.kill(), "killed")

    def lose_power(self) -> None:
        self._end(self.files.crash(self._world.chance), "lost power")

    def stop(self) -> None:
        """Orderly, with a checkpoint of everything that the disk takes."""
        self.guard(self._close)
        if self.node is not None:
            self._end(self.files.kill(), "stopped")

    def _close(self) -> None:
        assert self.node is not None
        for partition in self.node.topics.partitions():
            Node._close(partition.log)

    def _end(self, files: MemoryFileSystem, how: str) -> None:
        """The process is gone, whatever it was about to do."""
        self._world.say(f"broker: {how}")
        self._loop.is_over = True
        self.files = files
        self.node = None
        for tell in self.on_end:
            tell()

    def guard(self, run: Callable[[], None]) -> None:
        loop = self._loop
        try:
            run()
        except SimulatedCrash:
            if loop is self._loop and not loop.is_over:
                self._died()
        except Exception:
            self._world.problem_with("an exception in the broker")

    def _died(self) -> None:
        """In the middle of what it did to the disk."""
        if self._world.chance.random() < 0.5:
            self._end(self.files.kill(), "died over a write")
        else:
            self._end(self.files.crash(self._world.chance), "lost power over a write")
        self._world.after(self._world.between(*START_AGAIN_S), self.start)

    # Connections

    def connect(self, take: Callable[[bytes], None], closed: Callable[[], None]) -> Connection | None:
        if self.node is None:
            return None
        connection = Connection(self.node, self._connections)
        connection.connection_made(cast(asyncio.BaseTransport, Socket(take, closed)))
        return connection

    def deliver(self, connection: Connection, frame: bytes) -> None:
        self.guard(lambda: feed(connection, frame))

    def deliver_orphan(self, frame: bytes) -> None:
        """A request whose client is not there any more."""
        connection = self.connect(lambda data: None, lambda: None)
        if connection is not None:
            self.deliver(connection, frame)

    def ask(self, request: Message, version: int) -> Any:
        """For what is answered at once: past the network and all its troubles. None: the broker gave no answer."""
        answers: list[bytes] = []
        connection = self.connect(answers.append, lambda: None)
        assert connection is not None
        assert request.API_KEY is not None
        self.deliver(connection, codec.request_header(type(request), version, 1, None) + codec.encode(request, version))
        if not answers:
            return None
        head = codec.response_header(request.API_KEY, version, 1)
        body = memoryview(answers[0])[_LENGTH.size + len(head) :]
        return codec.decode(response_class(request.API_KEY), version, body)

    # Housekeeping, at random times rather than by the settings

    def _chores(self) -> None:
        node, loop, world = self.node, self._loop, self._world
        assert node is not None
        loop.call_later(world.between(*CHORES_S), self._chores)
        node.transactions.abort_timed_out()
        self.check()
        partitions = list(node.topics.partitions())
        wanted = [each for each in partitions if each.log.wants_checkpoint or world.chance.random() < 0.1]
        loop.start(self._checkpoint(wanted))
        if world.chance.randrange(COMPACTED_ONE_TIME_IN) == 0:
            self._compact()

    async def _checkpoint(self, partitions: list[Partition]) -> None:
        assert self.node is not None
        assert self.node.group_commit is not None
        for partition in partitions:
            await self.node.group_commit.checkpoint(partition)

    def _compact(self) -> None:
        node = self.node
        assert node is not None
        logs = [partition.log for partition in node.topics.partitions()]
        try:
            for log in node.cleaner.due(logs, self._world.now_ms()):
                for step in node.cleaner.clean(log, self._world.now_ms()):
                    step()
        except StorageError as error:
            self._world.say(f"broker: no compaction: {error}")

    def check(self) -> None:
        """What must hold at any time."""
        if self.node is None:
            return
        for partition in self.node.topics.partitions():
            log = partition.log
            at = (log.start_offset, log.last_stable_offset, log.high_watermark, log.end_offset)
            if list(at) != sorted(at):
                self._world.problem(
                    f"{partition.topic}-{partition.index}: start, last stable, high watermark and end are {at}"
                )
