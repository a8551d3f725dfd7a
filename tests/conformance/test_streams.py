"""A Kafka Streams application with exactly_once_v2 and a state store, killed while it counts.

The counts it publishes are a history: for each key 1, 2, 3 and so on to the number of records with that key. A record
that was counted twice or lost, or a state that does not fit to what was published, breaks it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

import onceflow
from tests.conformance.conftest import SETTINGS, RunningBroker, started
from tests.support.apache_kafka import ApacheKafka
from tests.support.clients import Received, Record
from tests.support.clients.coordinated.confluent import CoordinatedConfluentClient
from tests.support.clients.java import QUICK_START
from tests.support.java_programs import compiled
from tests.support.kafka_jars import java, streams_classpath
from tests.support.raw import Wire
from tests.support.waiting import eventually

PARTITIONS = 2
KEYS = [b"red", b"green", b"blue", b"black", b"white"]
ROUND = 60
"""Records of one round of feeding, all keys in turn."""


class Application:
    """The application in a process of its own, with a folder for its state that survives it."""

    def __init__(self, bootstrap: str, source: str, counts: str, folder: Path) -> None:
        name = f"counting-{uuid4().hex[:8]}"
        jars = streams_classpath()
        self._command = [java(), *QUICK_START, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        self._command += ["-cp", compiled("counts", jars), "CountingApplication"]
        self._command += [bootstrap, name, source, counts, str(folder / "state")]
        self.log = folder / "application.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Feed:
    """Writes numbered records, and knows how many of each key there are."""

    def __init__(self, client: CoordinatedConfluentClient, source: str) -> None:
        self._client = client
        self._source = source
        self.written = dict.fromkeys(KEYS, 0)

    def round(self) -> None:
        records = []
        for number in range(ROUND):
            at = number % len(KEYS)
            records.append(Record(key=KEYS[at], value=b"%d" % number, partition=at % PARTITIONS))
            self.written[KEYS[at]] += 1
        self._client.produce(self._source, records, idempotence=True)


class Counts:
    """What a reader with read_committed has seen in the counts topic so far."""

    def __init__(self, client: CoordinatedConfluentClient, topic: str, stack: ExitStack) -> None:
        self._readers = [stack.enter_context(client.committed_reader(topic, number)) for number in range(PARTITIONS)]
        self.history: dict[bytes, list[int]] = {key: [] for key in KEYS}

    def read(self, patience_s: float) -> int:
        """How many came within the time."""
        arrived = [each for reader in self._readers for each in reader.poll(patience_s)]
        for each in arrived:
            self.history[_key(each)].append(int(each.value or b""))
        return len(arrived)

    def wait_for(self, count: int, application: Application) -> None:
        """Until that many counts were published altogether."""

        def enough() -> bool:
            self.read(0.05)
            return sum(map(len, self.history.values())) >= count

        try:
            eventually(enough, f"{count} counts are published", timeout_s=40)
        except TimeoutError as error:
            raise AssertionError(f"{error} {self.history}\n{application.log_tail()}") from error


class Crashes:
    """A broker that a test may kill; the session's own is shared with other tests."""

    def __init__(self, running: ApacheKafka | onceflow.Broker) -> None:
        self._running = running
        self.bootstrap = running.bootstrap

    def crash(self) -> None:
        """Killed as `kill -9` does, and started again on the same data and port."""
        self._running.kill()
        self._running.start()


@pytest.fixture
def crashing(broker: RunningBroker, tmp_path: Path) -> Iterator[Crashes]:
    with ExitStack() as stack:
        if broker.name == "kafka":
            yield Crashes(started(lambda: stack.enter_context(ApacheKafka(SETTINGS))))
        else:
            yield Crashes(stack.enter_context(onceflow.Broker(tmp_path / "data", settings=SETTINGS)))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.tried("Kafka Streams", "exactly_once_v2 with a state store, while application and broker are killed")
@pytest.mark.faults
def test_counts_are_right_although_the_application_and_the_broker_are_killed(
    crashing: Crashes, tmp_path: Path, stack: ExitStack
) -> None:
    with Wire(crashing.bootstrap) as wire:
        wire.create_topic("words", PARTITIONS)
        wire.create_topic("counts", PARTITIONS)
    client = CoordinatedConfluentClient(crashing.bootstrap)
    stack.callback(client.close)
    application = started(lambda: Application(crashing.bootstrap, "words", "counts", tmp_path))
    stack.callback(application.kill)
    feed, counts = Feed(client, "words"), Counts(client, "counts", stack)

    feed.round()
    application.start()
    counts.wait_for(1, application)
    feed.round()
    application.kill()  # in the middle of the second round, or right before it
    feed.round()
    application.start()
    counts.wait_for(2 * ROUND + 1, application)
    crashing.crash()
    feed.round()
    counts.wait_for(3 * ROUND + 1, application)
    application.kill()
    feed.round()
    application.start()
    counts.wait_for(5 * ROUND, application)
    assert counts.history == {key: list(range(1, number + 1)) for key, number in feed.written.items()}
    assert counts.read(1.0) == 0


def _key(received: Received) -> bytes:
    assert received.record.key is not None
    return received.record.key
