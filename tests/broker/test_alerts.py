"""The alerts on our broker, end to end: in memory, where minutes pass at once, and through the page of a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.broker.watching import Snapshots
from onceflow.cli import main
from onceflow.errors import ErrorCode
from onceflow.monitor.watcher import Watcher
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_transactions import MemoryProducer, create_topic
from tests.support.waiting import eventually

STEP_MS = 5_000


class Watched:
    """A broker in memory, and who watches it."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.watcher = Watcher(Snapshots(self.broker.node, ()).take, is_quick=False)
        create_topic(self.broker, "orders")
        self.watcher.look()

    def producer(self, transactional_id: str = "app", timeout_ms: int = 900_000) -> MemoryProducer:
        return MemoryProducer(self.broker, transactional_id, timeout_ms=timeout_ms).init()

    def write(self, producer: MemoryProducer, *values: str) -> int:
        reply = producer.send("orders", 0, *values)
        self.broker.settle()
        return int(reply.message.responses[0].partition_responses[0].error_code)

    def end(self, producer: MemoryProducer, *, commit: bool) -> None:
        reply = producer.send_end(commit=commit)
        self.broker.settle()
        assert producer.took_end(reply)

    def transaction(self, producer: MemoryProducer, *, commit: bool) -> None:
        assert self.write(producer, "one") == ErrorCode.NONE
        self.end(producer, commit=commit)

    def later(self, seconds: int) -> set[tuple[str, str]]:
        """Look every five seconds; what fires then, and about whom."""
        for _ in range(seconds * 1000 // STEP_MS):
            self.broker.pass_time(STEP_MS)
            self.broker.settle()
            self.watcher.look()
        return self.firing()

    def firing(self) -> set[tuple[str, str]]:
        return {(each.rule, each.subject) for each in self.watcher.alerts if each.firing}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_transaction_left_open_fires_one_alert_after_the_other_and_its_abort_clears_them(watched: Watched) -> None:
    app = watched.producer()
    assert watched.write(app, "one", "two") == ErrorCode.NONE
    assert watched.later(50) == set()
    assert watched.later(20) == {("LsoStuck", "orders-0")}
    (stuck,) = watched.watcher.alerts
    assert "held by the transaction of app (producer" in stuck.summary
    assert watched.later(240) == {("LsoStuck", "orders-0"), ("StaleProducerEpoch", "app")}
    assert watched.later(300) == {("LsoStuck", "orders-0"), ("StaleProducerEpoch", "app"), ("LongTransaction", "app")}
    watched.end(app, commit=False)
    assert watched.later(5) == set()


def test_who_goes_on_writing_in_a_long_transaction_is_not_stale(watched: Watched) -> None:
    app = watched.producer()
    for _ in range(40):
        assert watched.write(app, "more") == ErrorCode.NONE
        fired = watched.later(10)
    assert fired == {("LsoStuck", "orders-0")}


def test_a_transaction_near_its_timeout_fires_and_the_brokers_own_abort_clears_it(watched: Watched) -> None:
    watched.write(watched.producer(timeout_ms=60_000), "one")
    assert watched.later(45) == set()
    assert watched.later(10) == {("LongTransaction", "app")}
    assert watched.later(30) == set()


def test_many_aborts_fire_and_clear(watched: Watched) -> None:
    app = watched.producer()
    for number in range(40):
        watched.transaction(app, commit=number % 4 != 0)
    assert watched.later(5) == set(), "pending, for a minute"
    assert {each.rule for each in watched.watcher.alerts} == {"HighAbortRate"}
    assert watched.later(60) == {("HighAbortRate", "")}
    assert "lately most of them by app, reason: client" in watched.watcher.alerts[0].summary
    assert watched.later(300) == set()


def test_a_zombie_fires_while_it_keeps_coming(watched: Watched) -> None:
    zombie = watched.producer()
    watched.producer()
    fired = []
    for _ in range(12):
        assert watched.write(zombie, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
        fired.append(watched.later(30))
    assert fired == [set()] * 11 + [{("ZombieProducer", "app")}], "five minutes after it came again"
    assert watched.later(150) == set()


def test_a_group_that_reads_nothing_while_others_write_falls_behind(watched: Watched) -> None:
    reader, writer = watched.producer("reader"), watched.producer("writer")
    watched.transaction(writer, commit=True)
    reader.send_add_offsets("billing")
    reader.send_offset("billing", "orders", 0, 1)
    watched.broker.settle()
    watched.end(reader, commit=True)
    for _ in range(36):
        watched.write(writer, *(["x"] * 100))
        watched.end(writer, commit=True)
        watched.later(10)
    assert watched.firing() == {("LagGrowing", "billing")}
    assert watched.later(200) == set(), "nothing more is written: it does not grow"


def test_a_busy_broker_that_is_well_fires_nothing_and_every_rule_is_checked(watched: Watched) -> None:
    app = watched.producer()
    for number in range(150):
        watched.transaction(app, commit=number % 50 != 0)
        assert watched.later(5) == set()
    assert watched.watcher._alerts.unknown == ()


# A real one


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    # Transactions that are past their timeout stay open: a slow machine is to see them, too.
    never = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 600_000}
    with onceflow.Broker(http="127.0.0.1:0", settings=never) as broker:
        yield broker


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, set[str]]:
    """The exit code, and what fires."""
    code = main(["alerts", "--json", *arguments])
    out, _ = capsys.readouterr()
    return code, {each["rule"] for each in json.loads(out)["alerts"] if each["firing"]}


def test_the_command_sees_an_alert_on_the_page_and_from_outside_until_it_clears(
    broker: onceflow.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ("--http", broker.http_url or "")
    outside = ("--bootstrap", broker.bootstrap, "--for", "0s")
    assert asked(capsys, *page) == (0, set())
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "slow", "transaction.timeout.ms": 1000}
    slow = Producer(settings)
    slow.init_transactions(10)
    slow.begin_transaction()
    slow.produce("orders", b"one")
    slow.flush(10)
    for place in (page, outside):
        eventually(lambda place=place: asked(capsys, *place) == (1, {"LongTransaction"}), "it fires", every_s=0.2)  # type: ignore[misc]
    slow.abort_transaction(10)
    for place in (page, outside):
        eventually(lambda place=place: asked(capsys, *place) == (0, set()), "it clears", every_s=0.2)  # type: ignore[misc]
