"""Thousands of frames that no honest client sends, and an honest client that must not notice."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.handlers import APIS
from onceflow.broker.topics import INTERNAL_TOPICS
from onceflow.errors import ErrorCode
from onceflow.wire.messages.api_versions import ApiVersionsRequest
from tests.support.broker_process import BrokerProcess
from tests.support.effort import SOAK, effort
from tests.support.honest_client import HonestClient
from tests.support.hostile import TOPICS, Mutator, api_of, corpus, liars, makes_many_partitions
from tests.support.raw import batch
from tests.support.raw_client import RawClient

FRAMES = effort(10_000, soak=1_000_000)
LIARS = effort(500, soak=20_000)
ATTACKERS = 3
VOLLEY = 16
PATIENCE_S = 10.0
METADATA = 3
ANSWER_MAX_S = 1.0
GROWTH_MAX = 60 << 20
MEMORY_MAX = 400 << 20
WAIT_MAX_S = 0.25


class Witness:
    """An honest client beside the attack, and a look at the broker's memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._client = broker.client()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness")
        self._problem: BaseException | None = None
        self.rounds = 0
        self.slowest_s = 0.0
        self.memory: list[int] = []

    def __enter__(self) -> Witness:
        assert self._client.make_topic("honest", config={"retention.bytes": 1 << 20}) == 0
        for _ in range(20):
            self._one_round()
        self.slowest_s, self.rounds = 0.0, 0
        self.memory.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(0.05):
                self._one_round()
        except BaseException as problem:
            self._problem = problem

    def _one_round(self) -> None:
        started = time.monotonic()
        produced = self._client.produce("honest", batch(b"value"))
        assert produced.error_code == 0
        fetched = self._client.fetch("honest", produced.base_offset, max_wait_ms=0)
        assert fetched.error_code == 0
        self._client.ask(ApiVersionsRequest(client_software_name="honest", client_software_version="1"))
        self.slowest_s = max(self.slowest_s, (time.monotonic() - started) / 3)
        self.memory.append(self._broker.memory_bytes)
        self.rounds += 1

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem
        assert self.slowest_s < ANSWER_MAX_S, f"An honest client waited {self.slowest_s:.2f} s."
        first = min(self.memory[:5])
        assert max(self.memory) - first < GROWTH_MAX, f"Memory: {self.memory_summary}"
        quarter = max(1, len(self.memory) // 4)
        second, last = self.memory[quarter : 2 * quarter], self.memory[-quarter:]
        grown = sum(last) / len(last) - sum(second) / len(second)
        assert grown < GROWTH_MAX / 4, f"Memory keeps growing: {self.memory_summary}"

    @property
    def memory_summary(self) -> str:
        return f"{self.memory[0] >> 20} MB at first, {max(self.memory) >> 20} at most, {self.memory[-1] >> 20} at last"


class Attacker(threading.Thread):
    """Sends volleys of frames; each is answered or costs the connection, and then the rest of its volley goes again."""

    def __init__(self, port: int, frames: list[bytes], count: int, seed: int) -> None:
        super().__init__(name=f"attacker {seed}")
        self._address = ("127.0.0.1", port)
        self._mutator = Mutator(frames, random.Random(seed))
        self._count = count
        self.answered = 0
        self.closed = 0
        self.problem: BaseException | None = None

    @property
    def made(self) -> Counter[tuple[int, int]]:
        return self._mutator.made

    def run(self) -> None:
        try:
            volley: list[bytes] = []
            correlation_id = 0
            while self._count > 0:
                while len(volley) < VOLLEY:
                    volley.append(self._mutator.next(correlation_id := correlation_id + 1))
                handled = self._fire(volley)
                self._count -= handled
                del volley[:handled]
        except BaseException as problem:
            self.problem = problem

    def _fire(self, volley: list[bytes]) -> int:
        """How many of the frames were handled: those up to the last answered one, and the one that ended it."""
        answers = talk(self._address, b"".join(volley))
        ids = {frame[8:12]: at for at, frame in enumerate(volley) if len(frame) >= 12}
        last = max((ids.get(answer, -1) for answer in correlation_ids(answers)), default=-1)
        self.answered += last + 1
        if last + 1 < len(volley):
            self.closed += 1
        return min(last + 2, len(volley))


def talk(address: tuple[str, int], data: bytes) -> bytes:
    """Send, say that this was all, and read until the broker has nothing more to say."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        received = []
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            with contextlib.suppress(OSError):  # "not connected": the broker has closed it already
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 18):
                received.append(more)
        return b"".join(received)


def correlation_ids(answers: bytes) -> Iterator[bytes]:
    at = 0
    while at + 8 <= len(answers):
        yield answers[at + 4 : at + 8]
        at += 4 + struct.unpack_from(">i", answers, at)[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "auto.create.topics.enable": "false",  # see test_names_that_nobody_meant
        "log.retention.check.interval.ms": 300,
        "log.flush.offset.checkpoint.interval.ms": 200,
        "log.cleaner.backoff.ms": 200,
    }
    with BrokerProcess(tmp_path / "data", durability="os", settings=settings) as running:
        with running.client() as client:
            for topic in TOPICS[:2]:
                assert client.make_topic(topic, partitions=2) == 0
                assert client.produce(topic, batch(b"one", b"two")).error_code == 0
        yield running


def assert_unharmed(broker: BrokerProcess) -> None:
    """No bug was hit, every topic works, and the data directory starts again."""
    assert broker.is_running
    assert "Traceback" not in broker.reports, broker.reports[broker.reports.index("Traceback") - 300 :][:4000]
    broker.restart()
    with broker.client() as client:
        for name, topic in client.topics().items():
            for partition in topic.partitions:
                at = partition.partition_index
                assert client.fetch(name, client.earliest(name, at), partition=at, max_wait_ms=0).error_code == 0
            assert client.delete_topic(name) == (ErrorCode.POLICY_VIOLATION if name in INTERNAL_TOPICS else 0)
        assert set(client.topics()) <= INTERNAL_TOPICS
        assert client.make_topic("after") == 0
        assert client.produce("after", batch(b"all")).base_offset == 0
    assert "Traceback" not in broker.reports


@pytest.mark.timeout(effort(1_200, soak=24_000))
def test_mutated_frames_are_answered_or_cost_their_connection_and_nothing_else(broker: BrokerProcess) -> None:
    seed = random.randrange(2**32)
    frames = corpus(random.Random(seed), per_version=30)
    attackers = [Attacker(broker.port, frames, FRAMES // ATTACKERS + 1, seed + at) for at in range(ATTACKERS)]
    broker.forget_memory_peak()
    with HonestClient(broker.bootstrap) as honest:
        began = time.monotonic()
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
        waits, seconds = honest.waits_s(began), time.monotonic() - began
        honest.await_rounds(30)
    print(
        f"seed {seed}: {sum(a.answered for a in attackers)} answered, {sum(a.closed for a in attackers)} closed, "
        f"{FRAMES / seconds:.0f} frames/s; honest client: {len(waits)} requests, p99 {p99(waits):.3f} s, "
        f"slowest {waits[-1]:.3f} s; memory {broker.memory_peak_bytes >> 20} MB at most; "
        f"{len(broker.reports)} bytes of reports"
    )
    for attacker in attackers:
        if attacker.problem is not None:
            raise attacker.problem
    assert broker.memory_peak_bytes < MEMORY_MAX
    if SOAK:
        assert p99(waits) < WAIT_MAX_S
    made = sum((attacker.made for attacker in attackers), Counter())
    assert set(made) == served(), "every version was among them"
    assert min(a.answered for a in attackers) > FRAMES / ATTACKERS / 10
    assert_unharmed(broker)


def p99(waits: list[float]) -> float:
    return waits[len(waits) * 99 // 100]


def served() -> set[tuple[int, int]]:
    return {(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)}


def test_every_api_and_version_answers_what_the_corpus_is_made_of(broker: BrokerProcess) -> None:
    """The corpus would be worthless if the broker refused it at the door."""
    answered: Counter[tuple[int, int]] = Counter()
    for frame in corpus(random.Random(1), per_version=4):
        answered[api_of(frame)] += bool(talk(("127.0.0.1", broker.port), frame))
    assert {api for api, count in answered.items() if count} == served()


def test_frames_that_lie_about_their_length_cost_their_connection(broker: BrokerProcess) -> None:
    dice = random.Random(random.randrange(2**32))
    frames = corpus(dice, per_version=3)
    with Witness(broker) as witness:
        for _ in range(LIARS):
            talk(("127.0.0.1", broker.port), liars(frames, dice))
    witness.check()
    assert_unharmed(broker)


def test_frames_that_never_end_take_no_more_memory_than_was_sent(broker: BrokerProcess) -> None:
    """Two hundred connections announce the largest request there is; half send a byte at a time, half are silent."""
    with Witness(broker) as witness, contextlib.ExitStack() as open_connections:
        sockets = [
            open_connections.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_S))
            for _ in range(200)
        ]
        for connection in sockets:
            connection.sendall(struct.pack(">i", 104_857_600))
        for _ in range(20):
            for connection in sockets[::2]:
                connection.sendall(b"\0")
        rounds = witness.rounds
        while witness.rounds < rounds + 10:
            time.sleep(0.01)
    witness.check()
    assert_unharmed(broker)


@pytest.mark.parametrize("length", [0, -1, -(2**31), 2**31 - 1, 104_857_601])
def test_a_length_that_cannot_be_closes_the_connection_at_once(broker: BrokerProcess, length: int) -> None:
    with broker.client() as client:
        client.send_bytes(struct.pack(">i", length))
        assert client.waits_for_end()
        assert str(length) in broker.reports


def test_an_absurd_count_costs_nothing(broker: BrokerProcess) -> None:
    """Every position of a request is tried with the largest numbers; nothing is allocated for what was not sent."""
    before = broker.memory_bytes
    frames = corpus(random.Random(2), per_version=1)
    for key, api in APIS.items():
        [newest] = [frame for frame in frames if api_of(frame) == (key, api.max_version)]
        for at in range(17, min(len(newest), 120)):
            for absurd in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"):
                body = (newest[:at] + absurd + newest[at + len(absurd) :])[4:]
                if not makes_many_partitions(body):
                    talk(("127.0.0.1", broker.port), struct.pack(">i", len(body)) + body)
    assert broker.memory_bytes - before < GROWTH_MAX / 2
    assert "Traceback" not in broker.reports


def test_names_that_nobody_meant(tmp_path: Path) -> None:
    """With topics created by mere mention, noise makes topics. They are topics like any other."""
    dice = random.Random(random.randrange(2**32))
    frames = [frame for frame in corpus(dice, per_version=10) if api_of(frame)[0] == METADATA]
    mutator = Mutator(frames, dice)
    with BrokerProcess(tmp_path / "data", durability="os") as broker:
        for at in range(400):
            talk(("127.0.0.1", broker.port), mutator.next(at))
        with RawClient(broker.bootstrap) as client:
            names = set(client.topics())
        assert len(names) > 5
        catalogue = {path.stem for path in (broker.data / "topics").iterdir()}
        assert catalogue == names
        assert {path.name for path in broker.data.iterdir() if path.is_dir()} == {"topics", *(f"{n}-0" for n in names)}
        assert_unharmed(broker)
