"""`python -m benchmarks.instructions.cases CASE...`: what is counted, to be run under callgrind.

Each case is done twice: once to warm up, then inside of `sqlite3_step`, where callgrind counts. A query that calls us
is the shortest way into a C function with a name that nothing else here uses.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import uvloop
from tests.support.raw import batch, fetch_request, produce_request

from onceflow.broker import connection
from onceflow.broker.connection import Connection
from onceflow.broker.node import Node
from onceflow.clock import ManualClock, SystemClock
from onceflow.config import BrokerConfig
from onceflow.log.files import RealFileSystem
from onceflow.wire import codec
from onceflow.wire.messages import response_class
from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.schema import Message

try:
    from onceflow.broker import large_requests
except ImportError:  # an older commit to compare with
    large_requests = None  # type: ignore[assignment]
else:
    # Under callgrind everything takes fifty times as long, and nothing here is long enough to be divided.
    large_requests.STEP_S = connection.TURN_S = float("inf")  # type: ignore[misc]

COUNTED_INSIDE: Final = "sqlite3_step"
COUNT: Final = 300
"""Requests of each kind (of `commit`: transactions of three)."""
TOPIC: Final = "measured"
PARTITIONS: Final = 16
LENGTH: Final = struct.Struct(">i")


class _Socket:
    """Takes everything that is written to it past the transport."""

    def __init__(self) -> None:
        self._fd = os.open(os.devnull, os.O_WRONLY)

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, *_: int) -> None: ...


class _Transport(asyncio.Transport):
    """Takes everything, at once, as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.socket: _Socket | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.sent += parts


class Broker:
    """One connection to a broker without sockets, whose disk is the kernel's business (`--durability os`)."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(SystemClock().now_ms())
        node = Node(RealFileSystem(), directory, BrokerConfig(given={}, fsync=False), self.clock)
        node.attach(asyncio.get_running_loop())
        if large_requests is not None:
            node.large_requests = large_requests.LargeRequests(asyncio.get_running_loop())
        self.node = node
        self._connect(None)

    def _connect(self, socket: _Socket | None) -> None:
        self._transport = _Transport()
        self._transport.socket = socket
        self._connection = Connection(self.node, set())
        self._connection.connection_made(self._transport)

    def connect_without_answers(self) -> None:
        """From now on answers may go past the transport, and nobody sees them: requests are only to be posted."""
        self._connect(_Socket())

    def frame(self, request: Message, version: int) -> bytes:
        head = codec.request_header(type(request), version, 1, "measured")
        body = codec.encode(request, version)
        return LENGTH.pack(len(head) + len(body)) + head + body

    async def send(self, frame: bytes) -> list[bytes]:
        """Have a request answered; the answer in pieces, as they were sent."""
        self.post(frame)
        while not self._transport.sent:
            await asyncio.sleep(0)
        answer, self._transport.sent = self._transport.sent, []
        return answer

    def post(self, frame: bytes) -> None:
        """As if it had come from a socket."""
        room = self._connection.get_buffer(-1)
        while len(room) < len(frame):
            room[:] = frame[: len(room)]
            frame = frame[len(room) :]
            self._connection.buffer_updated(len(room))
            room = self._connection.get_buffer(-1)
        room[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))

    async def ask(self, request: Message, version: int) -> Any:
        answer = b"".join(await self.send(self.frame(request, version)))
        cls = response_class(type(request).API_KEY or 0)
        head = len(codec.response_header(type(request).API_KEY or 0, version, 1))
        return codec.decode(cls, version, answer[LENGTH.size + head :])


Work = Callable[[int], Coroutine[Any, Any, None]]
"""Does so many requests."""


async def _produce(broker: Broker, records: int) -> Work:
    frames = [
        broker.frame(produce_request(TOPIC, batch(*[b"x" * 100] * records), partition=partition), 11)
        for partition in range(PARTITIONS)
    ]

    await _produced(broker, batch(*[b"x" * 100] * records), 0)

    async def work(count: int) -> None:
        for at in range(count):
            await broker.send(frames[at % PARTITIONS])

    return work


async def _produced(broker: Broker, records: bytes, partition: int, transactional_id: str | None = None) -> None:
    request = produce_request(TOPIC, records, partition=partition, transactional_id=transactional_id)
    answer = await broker.ask(request, 11)
    _check(answer.responses[0].partition_responses[0])


def _check(answered: Any) -> None:
    if answered.error_code:
        raise SystemExit(f"What is to be counted was refused: {answered}")


async def _fetch(broker: Broker, max_bytes: int, *, is_encrypted: bool = False) -> Work:
    """`is_encrypted`: as under TLS, where answers go through the transport; but nothing is encrypted here."""
    for _ in range(100):
        for partition in range(PARTITIONS):
            await _produced(broker, batch(*[b"x" * 100] * 100), partition)
    requests = [
        fetch_request(
            TOPIC, at * 100, partition=partition, partition_max_bytes=max_bytes, max_wait_ms=0, isolation_level=1
        )
        for at in range(50)
        for partition in range(PARTITIONS)
    ]
    fetched = (await broker.ask(requests[0], 12)).responses[0].partitions[0]
    _check(fetched)
    if len(fetched.records) < max_bytes // 2:
        raise SystemExit(f"Only {len(fetched.records)} bytes were fetched.")
    frames = [broker.frame(request, 12) for request in requests]
    if is_encrypted:

        async def work_encrypted(count: int) -> None:
            for at in range(count):
                await broker.send(frames[at % len(frames)])

        return work_encrypted
    broker.connect_without_answers()

    async def work(count: int) -> None:
        for at in range(count):
            broker.post(frames[at % len(frames)])

    return work


async def _commit(broker: Broker) -> Work:
    init = InitProducerIdRequest(transactional_id="measured", transaction_timeout_ms=60_000)
    producer = await broker.ask(init, 5)
    identity = (producer.producer_id, producer.producer_epoch)
    sequence = 0

    async def work(count: int) -> None:
        nonlocal sequence
        add = broker.frame(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="measured",
                v3_and_below_producer_id=identity[0],
                v3_and_below_producer_epoch=identity[1],
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
            ),
            3,
        )
        end = broker.frame(
            EndTxnRequest(
                transactional_id="measured", producer_id=identity[0], producer_epoch=identity[1], committed=True
            ),
            3,
        )
        for _ in range(count):
            while not _is_fine(await broker.send(add)):
                await asyncio.sleep(0)
            records = batch(b"x" * 100, producer=identity, sequence=sequence, transactional=True)
            sequence += 1
            await _produced(broker, records, 0, "measured")
            await broker.send(end)

    return work


def _is_fine(answer: list[bytes]) -> bool:
    """Whether an AddPartitionsToTxn of one partition was answered with no error: its last bytes are code and tags."""
    added = answer[-1]
    return added[-4:-2] == b"\0\0" or added[-2:] == b"\0\0"


async def _offsets(broker: Broker) -> Work:
    partitions = [OffsetCommitRequestPartition(partition_index=at, committed_offset=1) for at in range(PARTITIONS)]
    request = OffsetCommitRequest(
        group_id="measured",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
    )
    frame = broker.frame(request, 8)
    for committed in (await broker.ask(request, 8)).topics[0].partitions:
        _check(committed)

    async def work(count: int) -> None:
        for _ in range(count):
            await broker.send(frame)

    return work


async def _metadata(broker: Broker) -> Work:
    frame = broker.frame(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 12)

    async def work(count: int) -> None:
        for _ in range(count):
            await broker.send(frame)

    return work


CASES: Final[dict[str, Callable[[Broker], Coroutine[Any, Any, Work]]]] = {
    "produce 1": lambda broker: _produce(broker, 1),
    "produce 100": lambda broker: _produce(broker, 100),
    "fetch 10 KB": lambda broker: _fetch(broker, 10_000),
    "fetch 1 MB": lambda broker: _fetch(broker, 1 << 20),
    "fetch 1 MB, TLS": lambda broker: _fetch(broker, 1 << 20, is_encrypted=True),
    "commit": _commit,
    "offset commit": _offsets,
    "metadata": _metadata,
}


async def _prepared(name: str, directory: Path) -> Work:
    broker = Broker(directory)
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    await broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    return await CASES[name](broker)


def _counted(run: Callable[[], None]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("run", 0, run)
        connection.execute("select run()").fetchall()


def main(names: list[str]) -> None:
    for name in names:
        with tempfile.TemporaryDirectory(prefix="onceflow-instructions-") as folder:
            loop = uvloop.new_event_loop()
            work = loop.run_until_complete(_prepared(name, Path(folder)))
            loop.run_until_complete(work(COUNT))
            _counted(lambda loop=loop, work=work: loop.run_until_complete(work(COUNT)))  # type: ignore[misc]
            loop.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
