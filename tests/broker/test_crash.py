"""kill -9 at random moments: what was acknowledged is there once and in order, and a retry is never a second record.

Two kinds of writers know exactly what they were told. `Retrying` is an idempotent producer with five batches under way
that sends again, in order and with the same sequences, whatever was not acknowledged. `Forgetful` never sends anything
twice: of its unanswered batches nobody may ever see half, or one twice. They share their partitions, and librdkafka
writes beside them.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer

from onceflow.clock import SystemClock
from onceflow.config import TopicConfig
from onceflow.log.files import RealFileSystem
from onceflow.log.partition import PartitionLog
from tests.support.broker_process import BrokerProcess, FaultyDisk
from tests.support.effort import effort
from tests.support.raw import batch, now_ms, produce_request
from tests.support.raw_client import GONE, RawClient
from tests.support.waiting import eventually

PARTITIONS = 2
UNDER_WAY_MAX = 5
BUSY = {
    # Everything that recovery has to cope with, within seconds: rolls, checkpoints, index entries.
    "log.segment.bytes": 30_000,
    "log.index.interval.bytes": 200,
    "log.flush.offset.checkpoint.interval.ms": 70,
}


@dataclass
class Batch:
    partition: int
    sequence: int
    values: list[bytes]

    def encode(self, producer: tuple[int, int] | None) -> bytes:
        return batch(*self.values, producer=producer, sequence=self.sequence)


class Writer:
    """Writes in a thread of its own until it is stopped, over any number of broker lives."""

    def __init__(self, name: str, broker: BrokerProcess, seed: int) -> None:
        self.name = name
        self.acknowledged: list[tuple[int, Batch]] = []
        """(base offset, batch), as the broker answered."""
        self.problem: BaseException | None = None
        self._broker = broker
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._finish = False
        self._count = 0
        self._sequences = [0] * PARTITIONS
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Make no new batches, and end when nothing is left to be sent."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} waits for an answer that never comes."
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        try:
            while not self.is_done:
                try:
                    with RawClient(self._broker.bootstrap, timeout_s=20) as client:
                        self.write(client)
                except TimeoutError:
                    raise
                except GONE:
                    self.lost_connection()
                    time.sleep(0.01)
        except BaseException as problem:
            self.problem = problem

    def new_batch(self) -> Batch:
        partition = self._random.randrange(PARTITIONS)
        size = self._random.randrange(1, 5)
        values = [f"{self.name} {partition} {self._count + at:06d}".encode() for at in range(size)]
        values[0] += b"x" * self._random.randrange(0, 600)
        made = Batch(partition, self._sequences[partition], values)
        self._count += size
        self._sequences[partition] += size
        return made

    @property
    def is_done(self) -> bool:
        return self._stop.is_set()

    def write(self, client: RawClient) -> None:
        raise NotImplementedError

    def lost_connection(self) -> None: ...


class Retrying(Writer):
    producer: tuple[int, int] | None = None

    def __init__(self, name: str, broker: BrokerProcess, seed: int) -> None:
        super().__init__(name, broker, seed)
        self._unanswered: deque[Batch] = deque()

    @property
    def is_done(self) -> bool:
        return self._stop.is_set() and not self._unanswered

    def write(self, client: RawClient) -> None:
        if self.producer is None:
            self.producer = client.new_producer()
        under_way = 0
        while not self.is_done:
            while len(self._unanswered) < UNDER_WAY_MAX and not self._stop.is_set():
                self._unanswered.append(self.new_batch())
            fresh = list(self._unanswered)[under_way:]
            client.send_all([produce_request("crash", b.encode(self.producer), partition=b.partition) for b in fresh])
            under_way = len(self._unanswered)
            for _ in range(self._random.randrange(1, under_way + 1)):
                answer = client.receive_produced()
                assert answer.error_code == 0, f"{self.name}: {answer.error_code} {answer.error_message}"
                self.acknowledged.append((answer.base_offset, self._unanswered.popleft()))
                under_way -= 1


class Forgetful(Writer):
    def __init__(self, name: str, broker: BrokerProcess, seed: int) -> None:
        super().__init__(name, broker, seed)
        self._under_way: deque[Batch] = deque()
        self.uncertain: list[Batch] = []
        """Sent, and never answered."""

    def write(self, client: RawClient) -> None:
        while not self.is_done:
            fresh = [self.new_batch() for _ in range(self._random.randrange(1, 4))]
            self._under_way.extend(fresh)
            client.send_all([produce_request("crash", b.encode(None), partition=b.partition) for b in fresh])
            while self._under_way:
                answer = client.receive_produced()
                assert answer.error_code == 0, f"{self.name}: {answer.error_code} {answer.error_message}"
                self.acknowledged.append((answer.base_offset, self._under_way.popleft()))

    def lost_connection(self) -> None:
        self.uncertain += self._under_way
        self._under_way.clear()


class Librdkafka:
    """confluent-kafka with idempotence, as a program uses it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.delivered: list[tuple[int, int, bytes]] = []
        """(partition, offset, value)"""
        self.problems: list[str] = []
        self._sent = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="librdkafka")

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            value = f"{self._sent:08d}".encode()
            self._producer.produce("rd", value, partition=self._sent % PARTITIONS, on_delivery=self._settled)
            self._sent += 1
            self._producer.poll(0.001)

    def _settled(self, error, message) -> None:  # type: ignore[no-untyped-def]
        if error is not None:
            self.problems.append(str(error))
        else:
            self.delivered.append((message.partition(), message.offset(), message.value()))

    def finish(self) -> int:
        """Returns how many were sent, all of which must have been delivered."""
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0, "librdkafka did not get everything delivered."
        assert self.problems == []
        return self._sent


@pytest.fixture(params=["fsync", pytest.param("os", marks=pytest.mark.faults)])
def durability(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read_all(broker: BrokerProcess, topic: str) -> list[list[bytes | None]]:
    with broker.client() as client:
        return [client.read(topic, partition=partition) for partition in range(PARTITIONS)]


def live_and_die(
    broker: BrokerProcess, seconds: float, dice: random.Random, is_enough: Callable[[int], bool] = lambda _: True
) -> int:
    """Let the broker live for random spans, kill it, start it again; returns how often.

    At least for so many seconds, and until that number is enough: on a busy machine a start can take seconds.
    """
    deadline = time.monotonic() + seconds
    deaths = 0
    while time.monotonic() < deadline or not is_enough(deaths):
        time.sleep(dice.uniform(0.0, 0.5))
        broker.kill()
        broker.start()
        deaths += 1
    return deaths


def test_acknowledged_records_survive_kills_once_and_in_order(tmp_path: Path, durability: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    broker = BrokerProcess(tmp_path / "data", durability=durability, settings=BUSY)
    with broker:
        with broker.client() as client:
            for topic in ("crash", "rd"):
                assert client.make_topic(topic, partitions=PARTITIONS) == 0
        retrying = [Retrying(f"retrying{at}", broker, dice.randrange(2**32)) for at in range(2)]
        forgetful = Forgetful("forgetful", broker, dice.randrange(2**32))
        librdkafka = Librdkafka(broker)
        everyone = [*retrying, forgetful, librdkafka]
        for writer in everyone:
            writer.start()

        def is_enough(deaths: int) -> bool:
            return deaths >= 3 and all(len(raw.acknowledged) > deaths for raw in (*retrying, forgetful))

        deaths = live_and_die(broker, effort(5, soak=100), dice, is_enough)
        sent_by_librdkafka = librdkafka.finish()
        for raw in (*retrying, forgetful):
            raw.finish()

        # Everyone was told the truth: each acknowledged batch stands where it was said to stand.
        stored = read_all(broker, "crash")
        for writer in (*retrying, forgetful):
            for offset, sent in writer.acknowledged:
                assert stored[sent.partition][offset : offset + len(sent.values)] == sent.values
        check_retrying(retrying, stored)
        check_forgetful(forgetful, stored)
        check_librdkafka(librdkafka, read_all(broker, "rd"), sent_by_librdkafka)
        counts = [len(writer.acknowledged) for writer in (*retrying, forgetful)]
        print(f"{deaths} deaths; batches {counts}; librdkafka {sent_by_librdkafka}")
        assert is_enough(deaths)

        # And the memory that makes a retry harmless has survived as well.
        broker.kill()
        broker.start()
        for writer in retrying:
            assert_repeats_are_recognised(broker, writer)
        assert read_all(broker, "crash") == stored
        assert_times_are_found(broker, dice)


def assert_times_are_found(broker: BrokerProcess, dice: random.Random) -> None:
    """ListOffsets goes through the time indexes, of which a crash leaves only a part."""
    with broker.client() as client:
        for partition in range(PARTITIONS):
            records = client.read_records("crash", partition=partition)
            for wanted in dice.sample(records, 40):
                first = next(record for record in records if record.timestamp >= wanted.timestamp)
                assert client.offset_for("crash", wanted.timestamp, partition) == first.offset
            assert client.offset_for("crash", max(r.timestamp for r in records) + 1, partition) == -1


def of_writer(writer: Writer, values: list[bytes | None]) -> list[bytes]:
    return [value for value in values if value is not None and value.startswith(writer.name.encode() + b" ")]


def check_retrying(writers: list[Retrying], stored: list[list[bytes | None]]) -> None:
    """Sent until acknowledged: in the log exactly once, in the order of sending."""
    for writer in writers:
        for partition, values in enumerate(stored):
            sent = [value for _, b in writer.acknowledged if b.partition == partition for value in b.values]
            assert of_writer(writer, values) == sent


def check_forgetful(writer: Forgetful, stored: list[list[bytes | None]]) -> None:
    """Sent once: in the log at most once, in order; whole batches; and all that was acknowledged."""
    uncertain = {b.values[0]: b for b in writer.uncertain}
    for partition, values in enumerate(stored):
        found = of_writer(writer, values)
        numbers = [int(value.split()[2][:6]) for value in found]
        assert numbers == sorted(set(numbers))
        certain = {value for _, b in writer.acknowledged if b.partition == partition for value in b.values}
        assert certain <= set(found)
        unexplained = [value for value in found if value not in certain]
        while unexplained:
            whole = uncertain[unexplained[0]].values
            assert unexplained[: len(whole)] == whole
            del unexplained[: len(whole)]


def check_librdkafka(librdkafka: Librdkafka, stored: list[list[bytes | None]], sent: int) -> None:
    for partition, values in enumerate(stored):
        assert values == [f"{at:08d}".encode() for at in range(sent) if at % PARTITIONS == partition]
    for partition, offset, value in librdkafka.delivered:
        assert stored[partition][offset] == value


def assert_repeats_are_recognised(broker: BrokerProcess, writer: Retrying) -> None:
    with broker.client() as client:
        for partition in range(PARTITIONS):
            own = [(offset, b) for offset, b in writer.acknowledged if b.partition == partition]
            for offset, b in own[-5:]:
                answer = client.produce("crash", b.encode(writer.producer), partition=partition)
                assert (answer.error_code, answer.base_offset) == (0, offset)
            last = own[-1][1]
            skipped = Batch(partition, last.sequence + len(last.values) + 1, [b"never"])
            refused = client.produce("crash", skipped.encode(writer.producer), partition=partition)
            assert refused.error_code == 45


# Topics


@dataclass
class TopicHistory:
    created: set[str]
    deleted: set[str]
    unknown: set[str]
    """Asked for, created or deleted, and never answered."""

    def is_long(self) -> bool:
        return len(self.created) + len(self.deleted) > 5


def create_and_delete(broker: BrokerProcess, history: TopicHistory, stop: threading.Event, dice: random.Random) -> None:
    count = 0
    while not stop.is_set():
        with contextlib.suppress(*GONE), RawClient(broker.bootstrap, timeout_s=20) as client:
            while not stop.is_set():
                name = f"topic-{count}"
                count += 1
                history.unknown.add(name)
                assert client.make_topic(name, partitions=3) == 0
                history.unknown.discard(name)
                history.created.add(name)
                if dice.random() < 0.7:
                    victim = dice.choice(sorted(history.created))
                    history.created.discard(victim)
                    history.unknown.add(victim)
                    assert client.delete_topic(victim) == 0
                    history.unknown.discard(victim)
                    history.deleted.add(victim)
        time.sleep(0.01)


def test_a_killed_broker_has_each_topic_whole_or_not_at_all(tmp_path: Path, durability: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    broker = BrokerProcess(tmp_path / "data", durability=durability)
    history = TopicHistory(set(), set(), set())
    stop = threading.Event()
    with broker:
        worker = threading.Thread(target=create_and_delete, args=(broker, history, stop, random.Random(seed + 1)))
        worker.start()
        try:
            live_and_die(broker, effort(3, soak=60), dice, lambda _: history.is_long())
        finally:
            stop.set()
            worker.join(30)
        broker.kill()
        broker.start()
        with broker.client() as client:
            topics = client.topics()
            assert history.created <= set(topics)
            assert set(topics) <= history.created | history.unknown
            for name, described in topics.items():
                assert [partition.partition_index for partition in described.partitions] == [0, 1, 2]
                for partition in range(3):
                    assert client.produce(name, batch(b"works"), partition=partition).error_code == 0
                    assert client.read(name, partition=partition) == [b"works"]
            # Nothing of a topic that is gone stays on disk, except empty folders of one that never came to be.
            for folder in broker.data.glob("topic-*-*"):
                name = folder.name.rpartition("-")[0]
                assert name in topics or name in history.unknown
                if name not in topics:
                    assert sum(path.stat().st_size for path in folder.glob("*.log")) == 0
            for name in sorted(history.deleted | history.unknown - set(topics))[:10]:
                assert client.make_topic(name, partitions=3) == 0
                assert client.read(name, partition=2) == []


# Recovery


def recovered(broker: BrokerProcess, folder: str, tmp_path: Path) -> Iterator[PartitionLog]:
    """The log as a start would find it, on a copy."""
    copy = tmp_path / f"copy-{time.monotonic_ns()}"
    shutil.copytree(broker.data / folder, copy)
    log = PartitionLog(RealFileSystem(), copy, TopicConfig(), SystemClock())
    yield log
    log.abandon()


def newest_snapshot(folder: Path) -> int:
    return max((int(path.stem) for path in folder.glob("*.snapshot")), default=0)


def newest_segment(folder: Path) -> int:
    return max(int(path.stem) for path in folder.glob("*.log"))


def test_recovery_reads_the_tail_since_the_last_checkpoint_and_not_the_log(tmp_path: Path) -> None:
    segment = 200_000
    broker = BrokerProcess(tmp_path / "data", settings={"log.segment.bytes": segment})
    folder = broker.data / "long-0"
    scanned: list[int] = []
    value = b"v" * 20_000
    with broker:
        with broker.client() as client:
            assert client.make_topic("long") == 0
        for megabytes in (1, 6):
            with broker.client() as client:
                client.send_all([produce_request("long", batch(value)) for _ in range(megabytes * 50)])
                assert all(client.receive_produced().error_code == 0 for _ in range(megabytes * 50))
                # A sealed segment wants a checkpoint soon; without any further writes it comes to all there is.
                eventually(lambda: newest_snapshot(folder) >= newest_segment(folder), "the last roll is checkpointed")
                assert client.produce("long", batch(value)).error_code == 0
                end = client.latest("long")
            broker.kill()
            for log in recovered(broker, "long-0", tmp_path):
                assert log.end_offset == end
                scanned.append(log.recovered.scanned_bytes)
            broker.start()
    print(f"scanned {scanned}")
    assert max(scanned) <= segment


def test_a_segment_that_is_sealed_while_its_checkpoint_is_written_keeps_its_newest_time(tmp_path: Path) -> None:
    """Or retention would take it for old, and a search by time would pass it by."""
    faults = FaultyDisk(tmp_path / "faults")
    settings = {"log.segment.bytes": 1000, "log.index.interval.bytes": 0, "log.flush.offset.checkpoint.interval.ms": 20}
    broker = BrokerProcess(tmp_path / "data", durability="os", environment=faults.environment, settings=settings)
    newest = now_ms()
    with broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            faults.hold_syncs("orders-0")
            assert client.produce("orders", batch(b"old", timestamps=[newest - 500_000])).base_offset == 0
            faults.wait_for_held_sync()
            assert client.produce("orders", batch(b"newest", timestamps=[newest])).base_offset == 1
            assert client.produce("orders", batch(b"next segment" * 80, timestamps=[newest - 400_000])).base_offset == 2
            faults.release()
            assert newest_segment(broker.data / "orders-0") == 2
            eventually(lambda: newest_snapshot(broker.data / "orders-0") == 3, "the next checkpoint is written")
        broker.restart()
        with broker.client() as client:
            assert client.offset_for("orders", newest) == 1


def unfinished_writes() -> dict[str, bytes]:
    whole = batch(b"never acknowledged" * 10)
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    return {
        "a batch cut short": whole[: len(whole) // 2],
        "a header cut short": whole[:30],
        "a batch that fails its checksum": bytes(flipped),
        "zeros": bytes(4096),
        "noise": random.Random(1).randbytes(5000),
    }


def test_an_unfinished_write_is_cut_off(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        with broker.client() as client:
            assert client.make_topic("orders") == 0
            producer = client.new_producer()
            assert client.produce("orders", batch(b"0", producer=producer, sequence=0)).base_offset == 0
        for at, (what, left) in enumerate(unfinished_writes().items()):
            stored = [b"%d" % value for value in range(at + 1)]
            broker.kill()
            [log] = (broker.data / "orders-0").glob("*.log")
            with log.open("ab") as file:
                file.write(left)
            broker.start()
            assert broker.reports.count("unfinished write") == at + 1, what
            with broker.client() as client:
                assert client.read("orders") == stored, what
                # The retry of the last batch is still one, and the next one follows it.
                assert client.produce("orders", batch(stored[-1], producer=producer, sequence=at)).base_offset == at
                after = batch(b"%d" % (at + 1), producer=producer, sequence=at + 1)
                assert client.produce("orders", after).base_offset == at + 1
                assert client.read("orders") == [*stored, b"%d" % (at + 1)]


def test_a_producer_id_is_never_given_out_twice(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    seen: list[int] = []
    with broker:
        for _ in range(2):
            with broker.client() as client:
                seen += [client.new_producer()[0] for _ in range(3)]
            broker.kill()
            broker.start()
        with broker.client() as client:
            seen.append(client.new_producer()[0])
    assert len(set(seen)) == len(seen)
