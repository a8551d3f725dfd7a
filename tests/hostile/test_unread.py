"""Answers that nobody reads, or only slowly: they cost the others nothing, and whoever reads gets every byte.

A client may ask for fifty megabytes and take none of it. What it has not taken stays in files, or is counted.
"""

from __future__ import annotations

import random
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import onceflow
from onceflow.broker.answer_memory import ANSWERS_MAX
from onceflow.wire import codec
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.support.effort import SOAK, effort
from tests.support.honest_client import HonestClient
from tests.support.raw import batch, produce_request
from tests.support.raw_client import RawClient, frame_of, values_of
from tests.support.secured_kafka import Certificates
from tests.support.waiting import eventually
from tests.support.worst_case import MEMORY_MAX

MB: Final = 1 << 20
CONNECTIONS: Final = effort(80, soak=400)
ANSWER: Final = 50 * MB
VALUES: Final = 64
VALUE: Final = 900_000
PARTITIONS: Final = 300
SMALL_VALUE: Final = 20_000
"""Less than what goes from the file to the socket by itself."""
SLOW_READERS: Final = effort(4, soak=20)
LENGTH: Final = struct.Struct(">i")
FETCH: Final = 1

LISTENERS: Final = ("PLAINTEXT", "SSL")


class Served:
    """A broker with data, and connections to its listeners."""

    def __init__(self, broker: onceflow.Broker, certificates: Certificates) -> None:
        self.broker = broker
        self._addresses = dict(zip(LISTENERS, broker.bootstraps, strict=True))
        self._context = ssl.create_default_context(cafile=str(certificates.ca))

    def connect(self, listener: str) -> socket.socket:
        host, port = self._addresses[listener].rsplit(":", 1)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.settimeout(120)
        connection.connect((host, int(port)))
        return self._context.wrap_socket(connection, server_hostname=host) if listener == "SSL" else connection

    def client(self) -> RawClient:
        return RawClient(self._addresses["PLAINTEXT"], timeout_s=60.0)

    @property
    def memory_peak(self) -> int:
        status = Path(f"/proc/{self.broker.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def forget_memory_peak(self) -> None:
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("unread")
    certificates = Certificates(folder)
    with onceflow.Broker(
        folder / "data",
        listeners=[f"{each}://127.0.0.1:0" for each in LISTENERS],
        durability="os",
        settings={"ssl.keystore.location": str(certificates.server), "log.retention.check.interval.ms": 100},
    ) as broker:
        served = Served(broker, certificates)
        with served.client() as client:
            client.make_topic("large")
            for at in range(VALUES):
                assert client.produce("large", batch(value_of(at))).error_code == 0
            client.make_topic("many", PARTITIONS)
            client.send_all(
                [produce_request("many", batch(value_of(at, SMALL_VALUE)), partition=at) for at in range(PARTITIONS)]
            )
            assert all(client.receive_produced().error_code == 0 for _ in range(PARTITIONS))
        yield served
        reports = broker.log_file.read_text()
        assert "Traceback" not in reports, reports[-4000:]


def value_of(at: int, size: int = VALUE) -> bytes:
    return random.Random(at).randbytes(size)


def fetch(topic: str, partitions: int = 1) -> FetchRequest:
    asked = [
        FetchPartition(partition=at, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=ANSWER)
        for at in range(partitions)
    ]
    return FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=ANSWER, topics=[FetchTopic(topic=topic, partitions=asked)]
    )


LARGE: Final = frame_of(fetch("large"), 12)
MANY: Final = frame_of(fetch("many", PARTITIONS), 12)


def next_answer(connection: socket.socket, pause: Callable[[], None] = lambda: None) -> FetchResponse:
    """Read to its end, in pieces of all sizes."""
    dice = random.Random()
    (size,) = LENGTH.unpack(taken(connection, LENGTH.size, lambda: LENGTH.size))
    sizes = (1, 100, 4096, 65_536, MB)

    def some() -> int:
        pause()
        return dice.choice(sizes)

    frame = taken(connection, size, some)
    head = codec.response_header(FETCH, 12, 0)
    return codec.decode(FetchResponse, 12, frame, len(head))


def taken(connection: socket.socket, size: int, some: Callable[[], int]) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(some(), size - len(data)))
        assert more, f"closed after {len(data)} of {size} bytes"
        data += more
    return bytes(data)


def check_large(answer: FetchResponse) -> None:
    [topic] = answer.responses
    [part] = topic.partitions
    values = values_of(part.records)
    assert len(part.records or b"") == ANSWER
    assert values == [value_of(at) for at in range(len(values))]
    assert len(values) == ANSWER // (VALUE + 80)


def check_many(answer: FetchResponse) -> None:
    [topic] = answer.responses
    assert [values_of(part.records) for part in topic.partitions] == [
        [value_of(at, SMALL_VALUE)] for at in range(PARTITIONS)
    ]


@pytest.mark.timeout(1800 if SOAK else 300)
@pytest.mark.parametrize("listener", LISTENERS)
def test_answers_that_nobody_reads_cost_no_memory_and_nobody_else_anything(listener: str, served: Served) -> None:
    served.forget_memory_peak()
    connections = [served.connect(listener) for _ in range(CONNECTIONS)]
    with HonestClient(served.broker.bootstraps[0]) as honest:
        for each in connections:
            each.sendall((LARGE + MANY) * 4)
        honest.await_rounds(100)
        assert served.memory_peak < MEMORY_MAX
        # It would have been too early to look, if the answers were not on their way.
        for each in connections[:3]:
            for check in (check_large, check_many, check_large):
                check(next_answer(each))
        honest.await_rounds(10)
        assert served.memory_peak < MEMORY_MAX
        for each in connections:
            each.close()
        honest.await_rounds(10)


@pytest.mark.timeout(1800 if SOAK else 300)
@pytest.mark.parametrize("listener", LISTENERS)
def test_a_slow_reader_gets_every_byte(listener: str, served: Served) -> None:
    def read() -> None:
        pauses = 0

        def pause() -> None:
            nonlocal pauses
            pauses += 1
            if pauses % 50 == 0:
                time.sleep(0.01)  # it is slow, and that is what is tested

        with served.connect(listener) as connection:
            connection.sendall(MANY + LARGE + MANY)
            for check in (check_many, check_large, check_many):
                check(next_answer(connection, pause))

    with ThreadPoolExecutor(SLOW_READERS) as threads:
        for done in [threads.submit(read) for _ in range(SLOW_READERS)]:
            done.result()


def test_a_client_that_sends_nothing_more_gets_its_answers_all_the_same(served: Served) -> None:
    with served.connect("PLAINTEXT") as connection:
        connection.sendall(LARGE + MANY)
        connection.shutdown(socket.SHUT_WR)
        check_large(next_answer(connection))
        check_many(next_answer(connection))
        assert not connection.recv(1)


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_client_that_breaks_the_protocol_gets_the_answers_before_that(listener: str, served: Served) -> None:
    with served.connect(listener) as connection:
        connection.sendall(LARGE + b"\xff" * 100)
        check_large(next_answer(connection))
        assert not connection.recv(1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("listener", LISTENERS)
def test_an_answer_whose_segment_is_deleted_ends_or_is_right_and_is_never_wrong(listener: str, served: Served) -> None:
    with served.client() as client, served.connect(listener) as connection, served.connect(listener) as other:
        assert client.make_topic("doomed") == 0
        for at in range(VALUES):
            assert client.produce("doomed", batch(value_of(at))).error_code == 0
        other.sendall(frame_of(fetch("doomed"), 12))
        whole = taken(other, LENGTH.unpack(taken(other, LENGTH.size, lambda: LENGTH.size))[0], lambda: MB)
        connection.sendall(frame_of(fetch("doomed"), 12))
        assert LENGTH.unpack(taken(connection, LENGTH.size, lambda: LENGTH.size)) == (len(whole),)
        assert client.delete_topic("doomed") == 0
        # Files that are opened now have the numbers of those that were closed.
        reused = f"reused-{listener}"
        assert client.make_topic(reused, 50) == 0
        for at in range(50):
            assert client.produce(reused, batch(b"!" * 900_000), partition=at).error_code == 0
        data = bytearray()
        while more := received(connection):
            data += more
        assert len(data) < len(whole), "all of it was in the socket: the test has to ask for more"
        assert data == whole[: len(data)]


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(MB)
    except (ConnectionResetError, ssl.SSLError):
        return b""


@pytest.mark.timeout(1800 if SOAK else 300)
@pytest.mark.parametrize("listener", LISTENERS)
def test_large_answers_that_are_not_of_files_are_bounded_over_all_connections(listener: str, served: Served) -> None:
    keys = ["k" * 5_000] * 1_400  # which are in the answer again: more than a socket takes
    frame = frame_of(FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 4)
    count = ANSWERS_MAX // len(frame) + 20
    served.forget_memory_peak()
    with ExitStack() as stack, HonestClient(served.broker.bootstraps[0]) as honest:
        connections = [stack.enter_context(served.connect(listener)) for _ in range(count)]
        for each in connections:
            each.sendall(frame)
        eventually(lambda: any(map(is_closed, connections)), "some are closed")
        honest.await_rounds(100)
        assert "does not take its answers" in served.broker.log_file.read_text()
        assert served.memory_peak < MEMORY_MAX
        check_who_has_got_all(connections, len(frame))


def is_closed(connection: socket.socket) -> bool:
    """By the broker; whether everything was read or not."""
    events = select.poll()
    events.register(connection.fileno(), select.POLLRDHUP)
    return bool(events.poll(0))


def check_who_has_got_all(connections: list[socket.socket], size: int) -> None:
    whole = 0
    for each in connections:
        received_bytes = 0
        while more := len(received(each)):
            received_bytes += more
            if received_bytes > size:
                break
        whole += received_bytes > size
    assert 0 < whole < len(connections), "some are closed, and who is not gets all of its answer"
