"""What is done to brokers, done to our real one: a process with a port, data, and a disk that fails."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.connection import Connection, NoAnswer
from onceflow.client.problems import ClientError
from onceflow.errors import ErrorCode
from onceflow.verify.brokers import Brokers, ControlFailed, ControlledBrokers, EmbeddedBrokers, GivenBrokers
from tests.support.raw import Wire, batch
from tests.support.waiting import eventually

NOT_RUNNING = "127.0.0.1:1"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBrokers]:
    with EmbeddedBrokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


@pytest.fixture
def brokers(running: EmbeddedBrokers) -> Iterator[EmbeddedBrokers]:
    """Running and healthy, before each test and after it."""
    yield running
    running.heal()


@pytest.fixture
def topic(brokers: EmbeddedBrokers) -> str:
    name = f"orders-{uuid4().hex[:8]}"
    with Wire(brokers.bootstrap) as wire:
        wire.create_topic(name)
    return name


def produce(brokers: Brokers, topic: str) -> int:
    """One record; the error code."""
    with Wire(brokers.bootstrap) as wire:
        code: int = wire.produce(topic, batch("a record")).error_code
        return code


def end(brokers: Brokers, topic: str) -> int:
    with Wire(brokers.bootstrap) as wire:
        return wire.end(topic)


def hits(brokers: EmbeddedBrokers, topic: str) -> list[str]:
    """What was spoiled on this topic: "write", "sync"."""
    return [hit.rpartition(" ")[0] for hit in brokers.disk.hits() if topic in hit]


def assert_silent(bootstrap: str) -> None:
    """The kernel accepts connections, and nobody answers."""
    [address] = parse_bootstrap(bootstrap)
    with Connection(address, timeout_s=0.3) as connection, pytest.raises(NoAnswer, match="did not answer within"):
        connection.versions()


def test_a_killed_broker_is_started_again_on_its_data_at_its_port(brokers: EmbeddedBrokers, topic: str) -> None:
    [node] = brokers.nodes()
    assert produce(brokers, topic) == ErrorCode.NONE
    node.kill()
    assert not node.is_running
    with pytest.raises(ConnectionRefusedError):
        Wire(brokers.bootstrap)

    node.start()
    assert node.is_running
    assert end(brokers, topic) == 1
    assert brokers.problems() == []


def test_a_stopped_broker_ends_cleanly_even_if_it_was_paused(brokers: EmbeddedBrokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.pause()
    began = time.monotonic()
    node.stop()
    assert not node.is_running
    assert time.monotonic() - began < 10  # it was not killed after a patience of fifteen seconds
    node.start()
    assert produce(brokers, topic) == ErrorCode.NONE
    assert brokers.problems() == []


def test_a_paused_broker_is_silent_and_answers_when_it_is_resumed(brokers: EmbeddedBrokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.pause()
    assert not node.is_running
    assert_silent(brokers.bootstrap)
    node.resume()
    assert node.is_running
    assert end(brokers, topic) == 0


def test_a_full_disk_is_told_to_producers_and_forgotten_when_there_is_room(
    brokers: EmbeddedBrokers, topic: str
) -> None:
    brokers.disk.fill()
    assert produce(brokers, topic) == ErrorCode.KAFKA_STORAGE_ERROR
    assert "write" in hits(brokers, topic)
    brokers.disk.heal()
    assert produce(brokers, topic) == ErrorCode.NONE
    assert end(brokers, topic) == 1


def test_a_failed_sync_is_told_to_producers_and_the_next_write_is_taken(brokers: EmbeddedBrokers, topic: str) -> None:
    brokers.disk.fail_syncs(topic)
    assert produce(brokers, topic) == ErrorCode.KAFKA_STORAGE_ERROR
    assert hits(brokers, topic) == ["sync"]
    assert produce(brokers, topic) == ErrorCode.NONE


def test_a_slow_disk_makes_producers_wait(brokers: EmbeddedBrokers, topic: str) -> None:
    brokers.disk.slow_down(0.3)
    began = time.monotonic()
    assert produce(brokers, topic) == ErrorCode.NONE
    assert time.monotonic() - began >= 0.3


def test_a_broker_that_cannot_be_started_on_a_full_disk_is_started_when_there_is_room(
    brokers: EmbeddedBrokers, topic: str
) -> None:
    [node] = brokers.nodes()
    produce(brokers, topic)
    node.kill()
    brokers.disk.fill()
    node.start()
    brokers.disk.heal()
    assert node.is_running
    assert end(brokers, topic) == 1
    assert brokers.problems() == []


def test_a_broker_is_started_although_a_sync_fails_meanwhile(brokers: EmbeddedBrokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.kill()
    before = len(brokers.disk.hits())
    brokers.disk.fail_syncs()
    node.start()
    assert node.is_running
    assert len(brokers.disk.hits()) == before + 1
    assert end(brokers, topic) == 0


def test_a_stopped_broker_stays_so_when_its_disk_is_healed(brokers: EmbeddedBrokers) -> None:
    [node] = brokers.nodes()
    node.stop()
    brokers.disk.heal()
    assert not node.is_running


@pytest.mark.parametrize("done", ["kill", "stop", "pause"])
def test_healing_brings_back_whatever_was_done(brokers: EmbeddedBrokers, topic: str, done: str) -> None:
    [node] = brokers.nodes()
    brokers.disk.fill()
    getattr(node, done)()
    brokers.heal()
    assert node.is_running
    assert produce(brokers, topic) == ErrorCode.NONE


def test_a_broker_that_ends_by_itself_is_a_problem_that_healing_does_not_hide(tmp_path: Path) -> None:
    with EmbeddedBrokers(tmp_path) as brokers:
        [node] = brokers.nodes()
        os.kill(node.pid, signal.SIGABRT)
        eventually(lambda: not node.is_running, "it ends")
        brokers.heal()
        assert node.is_running
        [problem] = brokers.problems()
        assert "SIGABRT" in problem


def test_a_given_kafka_is_left_alone(brokers: EmbeddedBrokers) -> None:
    with GivenBrokers(brokers.bootstrap) as given:
        given.heal()
        assert (given.nodes(), given.faults, given.disk) == ([], frozenset(), None)
        assert given.description == f"Kafka at {brokers.bootstrap}"


def test_a_kafka_that_does_not_answer_is_an_error_at_once() -> None:
    with pytest.raises(ClientError), GivenBrokers(NOT_RUNNING):
        pass
    with pytest.raises(ClientError), ControlledBrokers(NOT_RUNNING, "true"):
        pass


@pytest.fixture
def control(tmp_path: Path, brokers: EmbeddedBrokers) -> Path:
    """A user's command, for our broker: it can only do some of what it is asked for."""
    [node] = brokers.nodes()
    script = tmp_path / "control.sh"
    script.write_text(
        f"""#!/bin/sh
echo "$1 $2" >> {tmp_path}/calls
case $1 in
  pause) kill -STOP {node.pid} ;;
  resume) kill -CONT {node.pid} ;;
  *) echo "nobody knows how to $1 a broker" >&2; exit 3 ;;
esac
"""
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_the_command_of_a_user_is_called_with_what_to_do_and_the_node(
    brokers: EmbeddedBrokers, control: Path, tmp_path: Path
) -> None:
    with ControlledBrokers(brokers.bootstrap, str(control)) as controlled:
        [node] = controlled.nodes()
        assert (node.role, node.name, node.is_running) == ("broker", "broker-1", True)
        node.pause()
        assert not node.is_running
        assert_silent(brokers.bootstrap)
        controlled.heal()
        assert node.is_running
    assert (tmp_path / "calls").read_text().splitlines() == ["pause 1", "resume 1"]


def test_a_node_that_is_started_by_command_runs_once_it_answers(
    brokers: EmbeddedBrokers, tmp_path: Path, control: Path
) -> None:
    [real] = brokers.nodes()
    control.write_text(control.read_text().replace("*)", "kill | start) ;;\n  *)"))  # we do it ourselves
    with ControlledBrokers(brokers.bootstrap, str(control)) as controlled:
        [node] = controlled.nodes()
        node.kill()
        real.kill()
        node.start()
        assert not node.is_running
        real.start()
        assert node.is_running
    assert (tmp_path / "calls").read_text().splitlines() == ["kill 1", "start 1"]


def test_a_command_that_fails_is_an_error_with_what_it_said(brokers: EmbeddedBrokers, control: Path) -> None:
    with ControlledBrokers(brokers.bootstrap, str(control)) as controlled:
        [node] = controlled.nodes()
        with pytest.raises(ControlFailed, match=r"stop 1 ended with exit code 3: nobody knows how to stop a broker"):
            node.stop()
        assert node.is_running


def test_a_command_that_is_not_there_is_an_error(brokers: EmbeddedBrokers) -> None:
    with ControlledBrokers(brokers.bootstrap, "./no-such-command --here") as controlled:
        [node] = controlled.nodes()
        with pytest.raises(ControlFailed, match=r"no-such-command --here kill 1 cannot be run: No such file"):
            node.kill()


def test_a_command_may_have_arguments_of_its_own(brokers: EmbeddedBrokers, tmp_path: Path) -> None:
    code = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))"
    command = shlex.join([sys.executable, "-c", code, str(tmp_path / "said in a file")])
    with ControlledBrokers(brokers.bootstrap, command) as controlled:
        controlled.nodes()[0].pause()
        assert (tmp_path / "said in a file").read_text() == "pause 1"
