"""The coordinators' own topics: clients may make, read and describe them, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.memory_broker import MemoryBroker
from tests.support.memory_transactions import MemoryProducer, committed_offset, create_topic
from tests.support.raw import batch, produce_request

INTERNAL = ("__consumer_offsets", "__transaction_state")


@pytest.fixture
def broker() -> MemoryBroker:
    """One on which both topics are in use."""
    broker = MemoryBroker()
    create_topic(broker, "t")
    producer = MemoryProducer(broker, "app").init()
    producer.send_offset("group", "t", 0, 5)
    broker.settle()
    producer.send_end(commit=True)
    broker.settle()
    return broker


@pytest.mark.parametrize("name", INTERNAL)
def test_what_would_take_state_away_is_refused(broker: MemoryBroker, name: str) -> None:
    [deleted] = broker.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000), 6).responses
    grow = CreatePartitionsTopic(name=name, count=7)
    [grown] = broker.ask(CreatePartitionsRequest(topics=[grow], timeout_ms=1000), 3).results
    cut = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=-1)])
    [[emptied]] = [each.partitions for each in broker.ask(DeleteRecordsRequest(topics=[cut], timeout_ms=9), 2).topics]
    assert [each.error_code for each in (deleted, grown, emptied)] == [ErrorCode.POLICY_VIOLATION] * 3
    assert committed_offset(broker, "group", "t", 0) == 5


@pytest.mark.parametrize("name", INTERNAL)
def test_clients_do_not_write_to_them(broker: MemoryBroker, name: str) -> None:
    request = produce_request(name, batch("v", timestamps=[broker.clock.now_ms()], key=b"k"))
    [[answer]] = [each.partition_responses for each in broker.ask(request, 9).responses]
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def create(broker: MemoryBroker, name: str, partitions: int, *, validate_only: bool = False, **given: str) -> Any:
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in given.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=validate_only)
    [result] = broker.ask(request, 7).topics
    return result


def test_clients_may_make_them_and_the_coordinators_use_what_they_made() -> None:
    broker = MemoryBroker()
    for name, partitions in zip(INTERNAL, (5, 3), strict=True):
        result = create(broker, name, partitions, segment_bytes="100000")
        assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, partitions)
        told = {config.name: config.value for config in result.configs}
        assert (told["cleanup.policy"], told["segment.bytes"]) == ("compact", "100000")
    create_topic(broker, "t")
    names = [f"group-{number}" for number in range(8)]
    for name in names:
        producer = MemoryProducer(broker, name).init()
        producer.send_offset(name, "t", 0, 5)
        broker.settle()
        producer.send_end(commit=True)
        broker.settle()
    used = {partition.index for partition in broker.node.groups.log.partitions if partition.log.end_offset}
    assert len(used) > 1
    for after in (broker, broker.killed()):
        assert [committed_offset(after, name, "t", 0) for name in names] == [5] * 8


@pytest.mark.parametrize("name", INTERNAL)
def test_a_state_topic_that_would_lose_state_is_not_made(name: str) -> None:
    broker = MemoryBroker()
    assert create(broker, name, 3, cleanup_policy="delete").error_code == ErrorCode.INVALID_CONFIG
    assert create(broker, name, 3, cleanup_policy="compact,delete").error_code == ErrorCode.INVALID_CONFIG
    assert broker.node.topics.get(name) is None


@pytest.mark.parametrize("name", INTERNAL)
def test_checking_does_not_make_them(name: str) -> None:
    broker = MemoryBroker()
    assert create(broker, name, 3, validate_only=True).error_code == ErrorCode.NONE
    assert broker.node.topics.get(name) is None
    assert create(broker, name, 3).error_code == ErrorCode.NONE


def test_asking_for_them_makes_them_as_they_should_be() -> None:
    broker = MemoryBroker(settings={"offsets.topic.num.partitions": "3"})
    asked = [MetadataRequestTopic(name=name) for name in INTERNAL]
    answer = broker.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 9)
    assert {topic.name: len(topic.partitions) for topic in answer.topics} == dict(zip(INTERNAL, (3, 1), strict=True))
    assert all(topic.is_internal for topic in answer.topics)
    create_topic(broker, "t")
    producer = MemoryProducer(broker, "app").init()
    producer.send_offset("group", "t", 0, 5)
    broker.settle()
    producer.send_end(commit=True)
    broker.settle()
    assert committed_offset(broker, "group", "t", 0) == 5
    assert committed_offset(broker.killed(), "group", "t", 0) == 5
