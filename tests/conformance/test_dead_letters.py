"""Rows that a topic cannot take, on both brokers: refused with a sentence, or in the dead-letter topic, in the same
transaction. The driver's side and a task are real; Spark is not there."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from onceflow.client import producing as producing_module
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.client.topic_limits import TopicLimits, topic_limits
from onceflow.spark import batch_writer
from onceflow.spark import task as task_module
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.problems import BatchFailed
from onceflow.spark.sequencer import Run, TaskReport
from onceflow.spark.task import WritePlan
from onceflow.spark.writing import WriteSettings
from tests.conformance.conftest import RunningBroker
from tests.support.readers import Seen, committed
from tests.support.waiting import eventually

NewName = Callable[[], str]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


class Frame:
    """A DataFrame of one task, which runs here."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))  # noqa: N815 - the names are Spark's
    _attempts = itertools.count(1)

    def __init__(self, **columns: Any) -> None:
        self._rows = pa.RecordBatch.from_pydict(columns)

    def mapInArrow(self, plan: WritePlan, _: str) -> Frame:  # noqa: N802
        self._plan = plan
        return self

    def collect(self) -> list[Any]:
        try:
            report: TaskReport = task_module._in_transaction(self._plan, 0, next(self._attempts), [self._rows])
        except Exception:
            eventually(lambda: _runs[-1].failure, "the driver has heard of it, which takes Spark longer than this")
            raise
        return [SimpleNamespace(task=0, rows=report.rows)]


_runs: list[Run] = []


class KnownRun(Run):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _runs.append(self)


@pytest.fixture(autouse=True)
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    clusters: list[Cluster] = []

    def connected(settings: ClientSettings, _: float) -> Cluster:
        clusters.append(Cluster(settings))
        return clusters[-1]

    monkeypatch.setattr(batch_writer, "task_writer", lambda plan: plan)
    monkeypatch.setattr(batch_writer, "Run", KnownRun)
    monkeypatch.setattr(task_module, "connected", connected)
    yield
    for each in clusters:
        each.close()


def headers_of(target: Target, seen: Seen) -> dict[str, bytes | None]:
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "nobody", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(target.letters_topic, seen.partition, seen.offset)])
        message = eventually(lambda: consumer.poll(0.5), "the record is read")
        return dict(message.headers() or [])
    finally:
        consumer.close()


class Target:
    """A topic with settings of its own, a dead-letter topic, and a writer to both."""

    def __init__(self, bootstrap: str, name: str, **settings: str) -> None:
        self.bootstrap = bootstrap
        self.topic, self.letters_topic = f"{name}-out", f"{name}-letters"
        self.client = ClientSettings(bootstrap=bootstrap)
        admin = Admin(self.client)
        configs = {name.replace("_", "."): value for name, value in settings.items()}
        admin.create(self.topic, partitions=1, configs=configs)
        admin.create(self.letters_topic, partitions=1)
        self._name = name
        self._writers: list[BatchWriter] = []

    def write(self, frame: Frame, **settings: Any) -> Any:
        given = WriteSettings(bootstrap_servers=self.bootstrap, topic=self.topic, **settings)
        writer = BatchWriter(given, self._name)
        self._writers.append(writer)
        writer.fence(0)
        return writer.write(frame, 0, "query", Recorded())

    def read(self, topic: str) -> list[Seen]:
        return committed(self.bootstrap, topic)

    def close(self) -> None:
        for each in self._writers:
            each.close()


@pytest.fixture
def new_target(broker: RunningBroker, new_name: NewName) -> Iterator[Callable[..., Target]]:
    targets: list[Target] = []

    def make(**settings: str) -> Target:
        targets.append(Target(broker.bootstrap, new_name(), **settings))
        return targets[-1]

    yield make
    for each in targets:
        each.close()


def test_the_limits_of_a_topic_are_what_its_settings_say(new_target: Callable[..., Target]) -> None:
    target = new_target(max_message_bytes="10000", cleanup_policy="compact,delete")
    with Cluster(target.client) as cluster:
        assert topic_limits(cluster, [target.topic, target.letters_topic, "there-is-none"]) == {
            target.topic: TopicLimits(10_000, needs_keys=True),
            target.letters_topic: TopicLimits(1_048_588),
            "there-is-none": TopicLimits(),
        }


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_row_that_is_too_large_is_in_the_dead_letter_topic_when_the_others_are_in_theirs(
    new_target: Callable[..., Target], compression: str
) -> None:
    target = new_target(max_message_bytes="10000")
    values = [b"small", noise(50_000), *(noise(3_000 + number) for number in range(50))]
    frame = Frame(key=[str(number) for number in range(len(values))], value=values)
    result = target.write(frame, dead_letter_topic=target.letters_topic, compression=compression)
    assert (result.rows, result.dead_letters, result.attempts) == (52, 1, 1)
    assert [each.value for each in target.read(target.topic)] == [values[0], *values[2:]]
    [letter] = target.read(target.letters_topic)
    assert (letter.key, letter.value) == (b"1", values[1])
    told = headers_of(target, letter)
    assert (told["onceflow.error.reason"], told["onceflow.error.topic"]) == (b"too_large", target.topic.encode())
    assert (told["onceflow.error.partition"], told["onceflow.error.limit"]) == (b"0", b"10000")


def test_a_limit_that_may_not_be_asked_for_is_learned_from_the_refusal(
    new_target: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing_module, "topic_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    target = new_target(max_message_bytes="10000")
    frame = Frame(key=["a", "b", "c"], value=[b"small", noise(50_000), b"last"])
    result = target.write(frame, dead_letter_topic=target.letters_topic, batch_bytes=9_000)
    assert (result.rows, result.dead_letters, result.attempts) == (3, 1, 2)
    assert [each.value for each in target.read(target.topic)] == [b"small", b"last"]
    assert [each.key for each in target.read(target.letters_topic)] == [b"b"]


def test_limits_are_learned_from_as_many_refusals_as_it_takes(
    new_target: Callable[..., Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one tells a lower limit than the one before, so that is no failure that repeats itself."""
    monkeypatch.setattr(producing_module, "topic_limits", lambda _, topics: dict.fromkeys(topics, TopicLimits()))
    target = new_target(max_message_bytes="10000")
    sizes = [60_000, 50_000, 40_000, 30_000]
    frame = Frame(key=[str(size) for size in (*sizes, 5)], value=[noise(size) for size in (*sizes, 5)])
    result = target.write(frame, dead_letter_topic=target.letters_topic, batch_bytes=9_000, retries=1)
    assert (result.rows, result.dead_letters) == (5, 4)
    assert [each.value for each in target.read(target.topic)] == [noise(5)]
    assert sorted(int(each.key or b"") for each in target.read(target.letters_topic)) == sorted(sizes)


def test_without_a_dead_letter_topic_the_error_names_the_record_and_what_helps(
    new_target: Callable[..., Target],
) -> None:
    target = new_target(max_message_bytes="10000")
    with pytest.raises(
        BatchFailed,
        match=r"has 50,\d\d\d bytes, more than the 10,000 that the topic takes \(max.message.bytes\): the record with "
        r"key 'the large one', .*dead_letter_topic",
    ):
        target.write(Frame(key=["a", "the large one"], value=[b"small", noise(50_000)]), batch_bytes=9_000)
    assert target.read(target.topic) == []


def test_a_row_without_a_key_for_a_compacted_topic(new_target: Callable[..., Target]) -> None:
    target = new_target(cleanup_policy="compact")
    frame = Frame(key=["k", None], value=[b"a", b"b"])
    with pytest.raises(BatchFailed, match=r"has no key, and the topic is compacted \(the record with no key, a value"):
        target.write(frame)
    assert target.write(frame, dead_letter_topic=target.letters_topic).dead_letters == 1
    assert [each.value for each in target.read(target.topic)] == [b"a"]
    assert [each.value for each in target.read(target.letters_topic)] == [b"b"]


def test_a_timestamp_that_the_topic_does_not_take_is_named(new_target: Callable[..., Target]) -> None:
    target = new_target(message_timestamp_before_max_ms="3600000")
    moments = pa.array([time.time_ns() // 1000, 1_000_000], pa.timestamp("us"))
    with pytest.raises(BatchFailed, match=r"has a timestamp that the topic does not take .*key 'old'.*timestamp 1000"):
        target.write(Frame(key=["new", "old"], value=[b"a", b"b"], timestamp=moments))
    assert target.read(target.topic) == []
