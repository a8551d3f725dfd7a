"""A disk that refuses, in the log: when it begins, and when it is over."""

from __future__ import annotations

import logging

import pytest

from onceflow.broker.disk_trouble import FORGOTTEN_AFTER_LOOKS, NAMED_MAX, DiskTrouble
from onceflow.broker.partition import Partition
from onceflow.errors import ErrorCode, StorageError, UntoldFailure
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_transactions import create_topic
from tests.support.raw import batch, produce_request

FULL = StorageError("Could not write /data/t-0/0.log: No space left on device.")


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker()
    create_topic(broker, "t", NAMED_MAX + 5)
    return broker


@pytest.fixture
def partitions(broker: MemoryBroker) -> list[Partition]:
    topic = broker.node.topics.get("t")
    assert topic is not None
    return topic.partitions


def write(broker: MemoryBroker, partition: int = 0) -> None:
    records = batch("v", timestamps=[broker.clock.now_ms()])
    answer = broker.ask(produce_request("t", records, partition=partition), 12)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def test_one_line_when_it_begins_and_one_when_it_is_over(
    broker: MemoryBroker, partitions: list[Partition], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trouble = DiskTrouble()
    for _ in range(3):
        trouble.refused(partitions[0], FULL)
        trouble.look_again()
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["Could not write /data/t-0/0.log"]
    assert "Writes to t-0 are refused" in caplog.text
    write(broker)
    trouble.look_again()
    assert caplog.messages[1:] == ["t-0 takes writes again; 3 were refused."]
    trouble.refused(partitions[0], FULL)
    assert caplog.text.count("Writes to t-0 are refused") == 2, "it has begun anew"


def test_what_takes_some_writes_and_refuses_others_is_not_over(
    broker: MemoryBroker, partitions: list[Partition], caplog: pytest.LogCaptureFixture
) -> None:
    trouble = DiskTrouble()
    for _ in range(5):
        write(broker)  # a small one
        trouble.refused(partitions[0], FULL)
        write(broker)
        trouble.look_again()
    assert len(caplog.records) == 1


def test_a_partition_that_nobody_writes_to_is_forgotten(
    partitions: list[Partition], caplog: pytest.LogCaptureFixture
) -> None:
    trouble = DiskTrouble()
    trouble.refused(partitions[0], FULL)
    for _ in range(FORGOTTEN_AFTER_LOOKS + 1):
        trouble.look_again()
    assert len(caplog.records) == 1, "nobody knows whether it takes writes"
    trouble.refused(partitions[0], FULL)
    assert len(caplog.records) == 2


def test_many_partitions_of_one_disk_are_a_few_lines(
    broker: MemoryBroker, partitions: list[Partition], caplog: pytest.LogCaptureFixture
) -> None:
    trouble = DiskTrouble()
    for partition in partitions:
        trouble.refused(partition, FULL)
    assert len(caplog.records) == NAMED_MAX + 1
    for partition in partitions:
        write(broker, partition.index)
    caplog.clear()
    for _ in range(2):
        trouble.look_again()
    assert len(caplog.records) == NAMED_MAX + 1
    assert caplog.messages[-1] == "5 further partitions take writes again."


def test_a_topic_that_is_deleted_is_no_trouble_any_more(
    broker: MemoryBroker, partitions: list[Partition], caplog: pytest.LogCaptureFixture
) -> None:
    trouble = DiskTrouble()
    trouble.refused(partitions[0], FULL)
    topic = broker.node.topics.get("t")
    assert topic is not None
    broker.node.topics.delete(topic)
    trouble.look_again()
    assert trouble._episodes == {}
    assert len(caplog.records) == 1


def test_what_fails_without_an_answer_says_where_and_why(broker: MemoryBroker) -> None:
    with pytest.raises(UntoldFailure, match=r"cannot be told: t-99: UNKNOWN_TOPIC_OR_PARTITION \(This server"):
        broker.send(produce_request("t", batch("v"), partition=99, acks=0), 12)
