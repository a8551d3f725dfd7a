"""`consume_into` in processes that are killed, stopped and brought back, alone and several in one group."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.consuming import Consumer, Landed, Topic, wait_for_rows
from tests.support.brokers import RunningBroker, run_against_both
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import eventually

PARTITIONS = 4
NewConsumer = Callable[..., Consumer]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.faults)])
def landed(request: pytest.FixtureRequest, tmp_path: Path) -> Landed:
    if request.param == "sqlite":
        return Landed(f"sqlite:///{tmp_path}/landed.db")
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return Landed(server.new_database())


@pytest.fixture
def topic(broker: RunningBroker, new_name: Callable[[], str]) -> Topic:
    return Topic(broker.bootstrap, new_name(), partitions=PARTITIONS)


@pytest.fixture
def new_consumer(topic: Topic, landed: Landed, tmp_path: Path) -> Iterator[NewConsumer]:
    """Starts processes, which end with the test."""
    with ExitStack() as stack:
        count = 0

        def start(**options: Any) -> Consumer:
            nonlocal count
            count += 1
            return stack.enter_context(Consumer(topic, landed.url, tmp_path / f"consumer-{count}", **options))

        yield start


def epochs(landed: Landed) -> dict[int, int]:
    return {partition: epoch for partition, (_, epoch) in landed.positions().items()}


@pytest.mark.parametrize("where", ["before the transaction", "in the function", "after the commit"])
def test_a_process_that_is_killed_loses_and_doubles_nothing(
    topic: Topic, landed: Landed, new_consumer: NewConsumer, where: str
) -> None:
    topic.write(200)
    killed = new_consumer(pause=where, after=40)
    killed.wait_for(f"paused {where}")
    seen = landed.count()
    assert seen >= 40
    killed.kill()
    assert landed.count() == seen, "what was open is rolled back"
    last = new_consumer(until_now=True)
    assert last.wait(60) == 0, last.log
    landed.check(topic)
    assert f"records={200 - seen}" in last.log, "it begins behind what was committed"


def test_ctrl_c_ends_it_after_the_transaction_that_is_running(
    topic: Topic, landed: Landed, new_consumer: NewConsumer
) -> None:
    topic.write(200)
    interrupted = new_consumer(pause="in the function", after=40)
    interrupted.wait_for("paused in the function")
    seen = landed.count()
    os.kill(interrupted.pid, signal.SIGINT)
    interrupted.go_on()
    assert interrupted.wait(60) == 0, interrupted.log
    assert "interrupted=True" in interrupted.log
    assert seen < landed.count() < 200, "the transaction was committed, and no other begun"
    assert new_consumer(until_now=True).wait(60) == 0
    landed.check(topic)


def test_members_share_the_partitions_and_take_over_from_one_that_is_killed(
    topic: Topic, landed: Landed, new_consumer: NewConsumer
) -> None:
    topic.write(200)
    first = new_consumer(pause="in the function", after=200)
    wait_for_rows(landed, topic)
    second = new_consumer()
    eventually(lambda: 2 in epochs(landed).values(), "a partition was given to the second one", timeout_s=60)
    assert 1 in epochs(landed).values(), "and not all of them: those that stay are not interrupted"
    topic.write(200)
    first.wait_for("paused in the function")
    with topic.transaction(100):
        pass
    first.kill()
    wait_for_rows(landed, topic)
    third = new_consumer()
    eventually(lambda: third.log.count("assigned: {(") > 0, "the third one has partitions", timeout_s=60)
    topic.write(200)
    wait_for_rows(landed, topic)
    second.end()
    third.end()
    landed.check(topic)


def test_a_zombie_changes_nothing(topic: Topic, landed: Landed, new_consumer: NewConsumer) -> None:
    """It has read records, and is stopped until the group has given its partitions to somebody else."""
    topic.write(200)
    zombie = new_consumer(pause="before the transaction", after=40)
    zombie.wait_for("paused before the transaction")
    os.kill(zombie.pid, signal.SIGSTOP)
    heir = new_consumer()
    wait_for_rows(landed, topic)
    landed.check(topic)
    zombie.go_on()
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.wait_for("joining the group again")
    landed.check(topic)
    # It is a good member again, and takes its part of what follows.
    zombie.wait_for("assigned: {(")
    topic.write(200)
    wait_for_rows(landed, topic)
    heir.end()
    zombie.end()
    landed.check(topic)


@pytest.mark.faults
def test_a_zombie_in_its_transaction_is_ended_by_the_database(
    topic: Topic, postgresql: PostgreSQL, tmp_path: Path
) -> None:
    """Its locks are waited for; PostgreSQL ends a transaction that is idle. Nobody does that for SQLite."""
    landed = Landed(postgresql.new_database())
    topic.write(200)
    options = {"pause": "in the function", "after": 40, "idle_s": 4}
    with (
        Consumer(topic, landed.url, tmp_path / "zombie", **options) as zombie,
        ExitStack() as stack,
    ):
        zombie.wait_for("paused in the function")
        os.kill(zombie.pid, signal.SIGSTOP)
        heir = stack.enter_context(Consumer(topic, landed.url, tmp_path / "heir", lock_timeout_s=1))
        wait_for_rows(landed, topic)
        landed.check(topic)
        zombie.go_on()
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.wait_for("joining the group again")
        zombie.end()
        heir.end()
        landed.check(topic)


@pytest.mark.faults
def test_all_at_once(topic: Topic, landed: Landed, new_consumer: NewConsumer) -> None:
    """Two at a time, each killed somewhere in the middle, and always somebody new."""
    members = [new_consumer(), new_consumer()]
    for _ in range(4):
        with topic.transaction(60):
            pass
        with topic.transaction(60, aborted=True):
            pass
        members.append(new_consumer())
        topic.write(60)
        members.pop(0).kill()
    wait_for_rows(landed, topic)
    for member in members:
        member.end()
    landed.check(topic)


def test_several_can_start_at_the_same_time_in_an_empty_database(
    topic: Topic, landed: Landed, new_consumer: NewConsumer
) -> None:
    topic.write(40)
    members = [new_consumer(until_now=True) for _ in range(3)]
    assert [member.wait(90) for member in members] == [0, 0, 0], [member.log[-2000:] for member in members]
    landed.check(topic)
