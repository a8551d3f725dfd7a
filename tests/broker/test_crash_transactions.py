"""Transactions and `kill -9`: at every write and every sync of a commit and of an abort, and at random under load.

The matrix in memory (`tests/unit/broker/test_transactions_crash.py`) has more corners; here are the real files, the
real process and its real death. Each death is followed by a restart on the same data, and the next comes on top of it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from onceflow.errors import ErrorCode
from onceflow.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.support.broker_process import BrokerProcess, FaultyDisk
from tests.support.effort import effort
from tests.support.raw import ConnectionClosed, Wire
from tests.support.raw_transactions import V1, V2, TransactionalProducer, TransactionProtocol, committed
from tests.support.waiting import eventually

STEPS_MAX = 100
TIMEOUT_MS = 1000
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
PARTITIONS = 3

PLANS = [(V2, True), (V2, False), (V1, True), (V1, False)]
"""Of `make soak`; tests/unit/broker/test_transactions_crash.py is its twin of each day, in memory."""


def committed_offset(wire: Wire, group: str, topic: str) -> int:
    asked = OffsetFetchRequestGroup(
        group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    )
    [answer] = wire.ask(OffsetFetchRequest(groups=[asked], require_stable=True), 8).groups
    [[found]] = [each.partitions for each in answer.topics]
    assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code)
    return int(found.committed_offset)


class Story:
    """One application with a committed transaction, and a second one in which the broker dies."""

    def __init__(self, broker: BrokerProcess, name: str, protocol: TransactionProtocol) -> None:
        self._broker = broker
        self.name = name
        self._protocol = protocol
        self.is_answered = False
        with Wire(broker.bootstrap) as wire:
            wire.create_topic(name, PARTITIONS)
            self.producer = TransactionalProducer(wire, name, protocol, timeout_ms=TIMEOUT_MS).init()
            self._write("before", 1)
            self.producer.commit()

    def _write(self, value: str, offset: int) -> None:
        for partition in range(PARTITIONS):
            self.producer.write(self.name, value, partition=partition)
        self.producer.commit_offset(self.name, self.name, offset)

    def go(self, commit: bool, arm: Callable[[], None]) -> None:
        """`arm` comes before the first write of the transaction."""
        with Wire(self._broker.bootstrap) as wire:
            self.producer.wire = wire
            arm()
            self._write("during", 2)
            answer = self.producer.end_once(commit)
            self.is_answered = answer.error_code == ErrorCode.NONE
            self.producer.settle()

    def outcome(self) -> str:
        with Wire(self._broker.bootstrap) as wire:
            for partition in range(PARTITIONS):
                eventually(
                    lambda partition=partition: wire.stable_end(self.name, partition) == wire.end(self.name, partition),
                    "nothing holds the partition back",
                )
            values = [committed(wire, self.name, partition=partition) for partition in range(PARTITIONS)]
            offset = committed_offset(wire, self.name, self.name)
        known = {"committed": ([["before", "during"]] * PARTITIONS, 2), "aborted": ([["before"]] * PARTITIONS, 1)}
        found = [name for name, state in known.items() if state == (values, offset)]
        assert found, (values, offset)
        return found[0]

    def goes_on(self) -> None:
        """A new instance takes over and commits."""
        with Wire(self._broker.bootstrap) as wire:
            new = TransactionalProducer(wire, self.name, self._protocol, timeout_ms=TIMEOUT_MS).init()
            new.write(self.name, "after")
            new.commit()
            assert committed(wire, self.name)[-1] == "after"


@pytest.mark.faults
@pytest.mark.parametrize(("protocol", "commit"), PLANS, ids=lambda value: getattr(value, "name", value))
def test_dying_at_every_write_and_sync(tmp_path: Path, protocol: TransactionProtocol, commit: bool) -> None:
    disk = FaultyDisk(tmp_path / "faults")
    outcomes = set()
    with BrokerProcess(tmp_path / "data", settings=SETTINGS, environment=disk.environment) as broker:
        for step in range(STEPS_MAX):
            story = Story(broker, f"step-{step}", protocol)

            def arm(step: int = step) -> None:
                disk.die_after(step)

            try:
                story.go(commit, arm)
            except ConnectionClosed:
                pass
            else:
                break
            assert broker.process.wait(15) == -9
            broker.kill()
            disk.heal()
            broker.start()
            outcome = story.outcome()
            assert outcome == ("committed" if commit else "aborted") or not (commit and story.is_answered)
            story.goes_on()
            outcomes.add(outcome)
        else:
            raise AssertionError("the transaction has no end")
        assert step > 8, "it has at least a decision, four markers and a completion to write"
    assert outcomes == ({"committed", "aborted"} if commit else {"aborted"})


class Application(threading.Thread):
    """Counts: every transaction writes the next number to each partition, and the number as its offset.

    It commits two of three, and starts a new producer when the old one is of no use any more, as applications do.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._address = bootstrap
        self._topic = topic
        self.stopped = threading.Event()
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.unknown: list[int] = []
        self.producers = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            number = 0
            while not self.stopped.is_set():
                producer = self._new_producer()
                if producer is None:
                    continue
                try:
                    while not self.stopped.is_set():
                        number += 1
                        self._transact(producer, number)
                except KafkaException:
                    pass  # broken by the death of the broker; the next one takes over
        except BaseException as error:
            self.failure = error

    def _new_producer(self) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": self._topic,
                "transaction.timeout.ms": 10_000,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(20)
        except KafkaException:
            return None
        self.producers += 1
        return producer

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, str(number), partition=partition)
        if number % 3 == 0:
            self.aborted.append(number)
            producer.abort_transaction(20)
            return
        self.unknown.append(number)
        producer.commit_transaction(20)
        self.unknown.remove(number)
        self.committed.append(number)


def read_committed(bootstrap: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed"})
    try:
        where = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(where, timeout=15)
        consumer.assign([where])
        numbers = []
        while consumer.position([where])[0].offset < end:
            message = consumer.poll(15)
            assert message is not None, "the partition is held back"
            assert message.error() is None
            numbers.append(int(message.value()))
            if message.offset() >= end - 2:  # behind the last record there are markers only
                break
        return numbers
    finally:
        consumer.close()


def test_kills_at_random_under_load(tmp_path: Path) -> None:
    dice = random.Random(7)
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create_topic("count", PARTITIONS)
        application = Application(broker.bootstrap, "count")
        application.start()
        for _ in range(effort(5, soak=40)):
            before = len(application.committed)
            eventually(lambda before=before: len(application.committed) > before + 3, "it commits")
            time.sleep(dice.random() * 0.2)
            broker.kill()
            broker.start()
        before = len(application.committed)
        eventually(lambda: len(application.committed) > before, "it commits after the last kill")
        application.stopped.set()
        application.join(60)
        assert application.failure is None
        with Wire(broker.bootstrap) as wire:
            last = TransactionalProducer(wire, "count", V2).init()  # ends what the application left
            last.write("count", "0", partition=0)
            last.write("count", "0", partition=1)
            last.write("count", "0", partition=2)
            last.commit()
        found = [read_committed(broker.bootstrap, "count", partition) for partition in range(PARTITIONS)]
    assert found[0] == found[1] == found[2]
    numbers = found[0][:-1]
    assert numbers == sorted(set(numbers))
    assert set(application.committed) <= set(numbers) <= set(application.committed) | set(application.unknown)
    assert application.aborted
