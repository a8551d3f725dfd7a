"""A broker without sockets, threads and a real disk: requests go in as bytes, and a test decides when the disk is done.

Everything from the bytes of a request to the bytes on disk is the broker's own code. Three things are ours: the disk
(`MemoryFileSystem`), which can forget, fail and die at any step; the clock; and group commit, whose rounds run when a
test says so, of all partitions or of some: between two of them a crash finds any mixture of what was synced.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from onceflow.broker import handlers
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.handlers import Peer
from onceflow.broker.node import Node
from onceflow.broker.partition import Partition
from onceflow.clock import ManualClock
from onceflow.config import BrokerConfig
from onceflow.errors import ErrorCode, StorageError
from onceflow.log.files import FileSlice
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.wire import codec
from onceflow.wire.codec import read_request_header
from onceflow.wire.messages import response_class
from onceflow.wire.schema import Message

__all__ = ["MemoryBroker", "Reply"]

DIRECTORY = Path("/data")
ROUNDS_MAX = 1000


class Reply:
    """What came, or will come, of a request."""

    def __init__(self, cls: type[Message], version: int, outcome: Answer | Deferred | None) -> None:
        self._cls = cls
        self._version = version
        self._outcome = outcome

    @property
    def is_there(self) -> bool:
        return not isinstance(self._outcome, Deferred) or self._outcome.is_done

    @property
    def message(self) -> Any:
        """The answer, as a client would decode it."""
        assert self.is_there, "the answer is not there yet"
        answer = self._outcome.result if isinstance(self._outcome, Deferred) else self._outcome
        assert answer is not None
        if isinstance(answer.message, bytes):
            return codec.decode(self._cls, self._version, answer.message)
        parts = codec.encode_parts(answer.message, self._version)
        data = b"".join(part.read() if isinstance(part, FileSlice) else part for part in parts)
        return codec.decode(self._cls, self._version, data)


class _ManualCommit:
    """Group commit in steps."""

    def __init__(self) -> None:
        self.dirty: dict[Partition, None] = {}

    def wrote(self, partition: Partition) -> None:
        self.dirty[partition] = None

    def flush(self, partition: Partition) -> None:
        """What the real one does with a partition in a round."""
        del self.dirty[partition]
        job = partition.log.begin_flush()
        try:
            job.run()
        except StorageError:
            self.dirty.pop(partition, None)
            partition.log.fail_flush()
            if partition.on_taken_back is not None:
                partition.on_taken_back()
            partition.refuse_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            partition.log.complete_flush(job)
            partition.wake()


class MemoryBroker:
    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        *,
        clock: ManualClock | None = None,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.files = files or MemoryFileSystem()
        self.clock = clock or ManualClock()
        self._fsync = fsync
        self._settings = {"group.initial.rebalance.delay.ms": "0", **(settings or {})}
        self._correlation_ids = itertools.count(1)
        self.peer = Peer()
        """Who sends the requests."""
        self._timers: list[tuple[int, Callable[[], None]]] = []
        self._commit = _ManualCommit()
        config = BrokerConfig(given=self._settings, fsync=fsync)
        self.node = Node(self.files, DIRECTORY, config, self.clock)
        self.node.group_commit = self._commit  # type: ignore[assignment]
        self.node.call_later = self._call_later
        self.node.transactions.resume()

    def _call_later(self, seconds: float, run: Callable[[], None]) -> None:
        self._timers.append((self.clock.now_ms() + round(seconds * 1000), run))

    # Requests

    def send(self, request: Message, version: int) -> Reply:
        """Have a request handled; its answer may have to wait for the disk."""
        cls = type(request)
        assert cls.API_KEY is not None
        frame = codec.request_header(cls, version, next(self._correlation_ids), "memory")
        frame += codec.encode(request, version)
        view = memoryview(bytearray(frame))
        outcome = handlers.answer(self.node, read_request_header(view), view, self.peer)
        # A connection's buffer is used again at once, but for a request that holds it.
        if isinstance(outcome, Deferred) and outcome.holds:
            outcome.on_release = lambda: view.__setitem__(slice(None), bytes(len(view)))
        else:
            view[:] = bytes(len(view))
        return Reply(response_class(cls.API_KEY), version, outcome)

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and let the disk work until its answer is there."""
        reply = self.send(request, version)
        self.settle()
        return reply.message

    # The disk and the clock

    @property
    def unsynced(self) -> list[Partition]:
        return list(self._commit.dirty)

    def flush(self, partitions: Iterable[Partition] | None = None) -> None:
        """One round of group commit, of all that was written or of some."""
        for partition in self.unsynced if partitions is None else partitions:
            if partition in self._commit.dirty:
                self._commit.flush(partition)

    def settle(self) -> None:
        """Rounds until nothing waits any more."""
        for _ in range(ROUNDS_MAX):
            if not self._commit.dirty:
                return
            self.flush()
        raise AssertionError("the broker does not come to rest")

    def pass_time(self, ms: int) -> None:
        """Let time go by, and do what is due: timers, and the chores about transactions and groups."""
        self.clock.advance(ms)
        due = [run for at, run in self._timers if at <= self.clock.now_ms()]
        self._timers = [(at, run) for at, run in self._timers if at > self.clock.now_ms()]
        for run in due:
            run()
        self.node.transactions.abort_timed_out()
        self.node.groups.on_time()

    def checkpoint(self) -> None:
        for partition in self.node.topics.partitions():
            job = partition.log.begin_checkpoint()
            if job is not None:
                job.run()
                partition.log.complete_checkpoint(job)

    # The end, and a new beginning on what it left

    def killed(self) -> MemoryBroker:
        """A new process after `kill -9`."""
        return self._again(self.files.kill())

    def crashed(self, chance: random.Random) -> MemoryBroker:
        """A new process after loss of power."""
        return self._again(self.files.crash(chance))

    def _again(self, files: MemoryFileSystem) -> MemoryBroker:
        return MemoryBroker(files, clock=self.clock, fsync=self._fsync, settings=self._settings)
