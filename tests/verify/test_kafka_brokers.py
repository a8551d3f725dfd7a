"""What the nemesis does to brokers, done to a real Apache Kafka of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.connection import Connection, NoAnswer
from onceflow.client.settings import ClientSettings
from onceflow.errors import ErrorCode
from onceflow.verify.brokers import Brokers, answers
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import started
from tests.support.raw import Wire, batch
from tests.support.verified_kafka import KafkaBrokers
from tests.support.waiting import eventually

pytestmark = pytest.mark.faults  # a JVM that is started three times


@pytest.fixture(scope="module")
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        kafka = started(lambda: stack.enter_context(ApacheKafka(jvm_options=QUICK_JVM_OPTIONS)))
        yield stack.enter_context(KafkaBrokers(kafka))


@pytest.fixture(scope="module")
def topic(brokers: Brokers) -> str:
    with Wire(brokers.bootstrap) as wire:
        wire.create_topic("orders")
        assert wire.produce("orders", batch("a record")).error_code == ErrorCode.NONE
    return "orders"


def end(brokers: Brokers, topic: str) -> int:
    with Wire(brokers.bootstrap) as wire:
        return eventually(lambda: wire.end(topic), "the topic is there")


def test_a_killed_node_is_started_again_on_its_data_at_its_port(brokers: Brokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.kill()
    assert not node.is_running
    with pytest.raises(ConnectionRefusedError):
        Wire(brokers.bootstrap)
    node.start()
    assert not node.is_running  # a JVM does not answer at once
    eventually(lambda: node.is_running, "it answers", timeout_s=120)
    assert end(brokers, topic) == 1


def test_a_paused_node_is_silent_and_answers_when_it_is_resumed(brokers: Brokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.pause()
    assert not node.is_running
    [address] = parse_bootstrap(brokers.bootstrap)
    with Connection(address, timeout_s=0.3) as connection, pytest.raises(NoAnswer, match="did not answer within"):
        connection.versions()
    node.resume()
    assert node.is_running
    assert end(brokers, topic) == 1


def test_a_stopped_node_ends_cleanly_and_healing_waits_until_it_is_back(brokers: Brokers, topic: str) -> None:
    [node] = brokers.nodes()
    node.stop()
    assert not node.is_running
    brokers.heal()
    assert answers(ClientSettings(bootstrap=brokers.bootstrap), 1)
    assert node.is_running
    assert end(brokers, topic) == 1
    assert brokers.problems() == []
