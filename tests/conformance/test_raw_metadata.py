"""ListOffsets, OffsetForLeaderEpoch, Metadata, DescribeTopicPartitions: where things are, how topics come and go."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.compression import Codec
from onceflow.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.describe_cluster import DescribeClusterRequest
from onceflow.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from onceflow.wire.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from onceflow.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.raw import Wire, batch, now_ms
from tests.support.waiting import eventually

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, NO_SUCH_SPEC = -1, -2, -3, -4, -5, -7
NOT_FOUND = (ErrorCode.NONE, -1, -1)
CONTROLLERS = 2


def found(wire: Wire, topic: str, timestamp: int, version: int | None = None) -> tuple[int, int, int]:
    answer = wire.list_offset(topic, timestamp, version=version)
    return answer.error_code, answer.timestamp, answer.offset


# --- ListOffsets


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_finds_both_ends(wire: Wire, topic: str, version: int) -> None:
    assert found(wire, topic, 1000, version) == NOT_FOUND
    wire.produce(topic, batch("a", "b", "c"))
    assert found(wire, topic, EARLIEST, version) == (ErrorCode.NONE, -1, 0)
    assert found(wire, topic, LATEST, version) == (ErrorCode.NONE, -1, 3)
    epoch = wire.list_offset(topic, LATEST, version=version).leader_epoch
    assert epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_times_are_found_inside_batches(wire: Wire, topic: str, compression: Codec) -> None:
    base = now_ms() - 100_000
    times = [base, base + 50, base + 20]
    wire.produce(topic, batch("a", "b", "c", timestamps=times, compression=compression))
    wire.produce(topic, batch("d", "e", timestamps=[base + 10, base + 60], compression=compression))
    assert found(wire, topic, 0) == (ErrorCode.NONE, base, 0)
    assert found(wire, topic, base + 1) == (ErrorCode.NONE, base + 50, 1)
    assert found(wire, topic, base + 50) == (ErrorCode.NONE, base + 50, 1)
    assert found(wire, topic, base + 51) == (ErrorCode.NONE, base + 60, 4)
    assert found(wire, topic, base + 61) == NOT_FOUND


@pytest.mark.parametrize("compression", [Codec.NONE, Codec.GZIP])
def test_of_several_greatest_timestamps_the_first_counts(wire: Wire, topic: str, compression: Codec) -> None:
    assert found(wire, topic, MAX_TIMESTAMP) == NOT_FOUND
    base = now_ms() - 100_000
    wire.produce(topic, batch("a", "b", "c", timestamps=[base, base + 50, base + 20], compression=compression))
    wire.produce(topic, batch("d", timestamps=[base + 50], compression=compression))
    assert found(wire, topic, MAX_TIMESTAMP) == (ErrorCode.NONE, base + 50, 1)


def test_with_log_append_time_the_greatest_timestamp_is_the_first_of_its_batch(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    wire.create_topic(topic, message_timestamp_type="LogAppendTime")
    appended = wire.produce(topic, batch("a", "b", "c")).log_append_time_ms
    assert found(wire, topic, MAX_TIMESTAMP) == (ErrorCode.NONE, appended, 0)


def test_nothing_is_stored_elsewhere(wire: Wire, topic: str) -> None:
    wire.produce(topic, batch("a"))
    assert found(wire, topic, EARLIEST_LOCAL) == (ErrorCode.NONE, -1, 0)
    assert found(wire, topic, LATEST_TIERED) == NOT_FOUND


@pytest.mark.parametrize(("spec", "version"), [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8)])
def test_older_versions_do_not_know_newer_questions(wire: Wire, topic: str, spec: int, version: int) -> None:
    assert found(wire, topic, spec, version)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_a_question_nobody_knows_is_refused(wire: Wire, topic: str) -> None:
    assert found(wire, topic, NO_SUCH_SPEC)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_a_partition_that_is_asked_for_twice_is_told_in_neither_place(wire: Wire, topic: str) -> None:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST) for _ in range(2)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=asked)], timeout_ms=5000)
    answered = wire.ask(request, 7).topics[0].partitions
    assert {each.error_code for each in answered} == {ErrorCode.INVALID_REQUEST}


def test_offsets_of_the_unknown_are_refused(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert wire.list_offset(new_name(), LATEST).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.list_offset(topic, LATEST, partition=4).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.list_offset(topic, LATEST, leader_epoch=9).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- OffsetForLeaderEpoch


def end_of_epoch(wire: Wire, topic: str, epoch: int, *, current: int = -1, version: int = 4) -> EpochEndOffset:
    at = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[at])]
    answer = wire.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_with_the_log(wire: Wire, topic: str, version: int) -> None:
    wire.produce(topic, batch("a", "b"))
    answer = end_of_epoch(wire, topic, 0, version=version)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, 0, 2)


@pytest.mark.parametrize("epoch", [5, -1])
def test_an_epoch_that_never_was_has_no_end(wire: Wire, topic: str, epoch: int) -> None:
    answer = end_of_epoch(wire, topic, epoch)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, -1, -1)


def test_an_epoch_of_the_unknown_is_refused(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert end_of_epoch(wire, new_name(), 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end_of_epoch(wire, topic, 0, current=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- Metadata


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_a_topic(wire: Wire, topic: str, version: int) -> None:
    answer = wire.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), version)
    [node] = answer.brokers
    [described] = answer.topics
    [partition] = described.partitions
    assert (described.error_code, described.name, described.is_internal) == (ErrorCode.NONE, topic, False)
    assert partition.leader_id == node.node_id
    assert partition.replica_nodes == partition.isr_nodes == [node.node_id]
    assert partition.leader_epoch == (0 if version >= 7 else -1)
    assert (described.topic_id is not None) == (version >= 10)


def test_a_topic_is_found_by_its_id(wire: Wire, topic: str) -> None:
    topic_id = wire.metadata(name=topic).topic_id
    assert wire.metadata(topic_id=topic_id).name == topic
    assert wire.metadata(topic_id=uuid4()).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_unknown_name_is_told_apart_from_a_bad_one(wire: Wire, new_name: Callable[[], str]) -> None:
    assert wire.metadata(name=new_name()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.metadata(name="not a name").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_no_topics_and_all_topics_are_different_questions(wire: Wire, topic: str) -> None:
    assert wire.ask(MetadataRequest(topics=[])).topics == []
    assert topic in {each.name for each in wire.ask(MetadataRequest(topics=None)).topics}


def test_metadata_creates_a_topic_only_if_it_may(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    question = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    assert wire.ask(question).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert name not in {each.name for each in wire.ask(MetadataRequest(topics=None)).topics}
    question.allow_auto_topic_creation = True
    # Kafka creates it after having answered that it does not exist.
    eventually(lambda: wire.ask(question).topics[0].error_code == ErrorCode.NONE, "the topic was created")


def test_permitted_operations_are_told_on_request(wire: Wire, topic: str) -> None:
    question = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    assert wire.ask(question).topics[0].topic_authorized_operations == -(2**31)
    question.include_topic_authorized_operations = True
    # Bits of the operations on a topic: read, write, create, delete, alter, describe and both kinds of configs.
    assert wire.ask(question).topics[0].topic_authorized_operations == 0b1101_1111_1000


# --- DescribeTopicPartitions


@pytest.fixture
def two_topics(wire: Wire, new_name: Callable[[], str]) -> tuple[str, str]:
    """Three partitions each, in the order of their names."""
    first, second = sorted([new_name(), new_name()])
    wire.create_topic(first, partitions=3)
    wire.create_topic(second, partitions=3)
    return first, second


def pages(wire: Wire, topics: tuple[str, ...], limit: int, cursor: Cursor | None = None):
    """What one page holds, as (topic, partitions), and where the next one begins."""
    asked = [TopicRequest(name=name) for name in reversed(topics)]
    answer = wire.ask(DescribeTopicPartitionsRequest(topics=asked, response_partition_limit=limit, cursor=cursor))
    held = [(each.name, [at.partition_index for at in each.partitions]) for each in answer.topics]
    following = answer.next_cursor
    return held, None if following is None else (following.topic_name, following.partition_index)


def test_topics_are_described_in_the_order_of_their_names(wire: Wire, two_topics: tuple[str, str]) -> None:
    first, second = two_topics
    assert pages(wire, two_topics, limit=2000) == ([(first, [0, 1, 2]), (second, [0, 1, 2])], None)
    assert pages(wire, two_topics, limit=6) == ([(first, [0, 1, 2]), (second, [0, 1, 2])], None)


def test_a_page_ends_where_the_limit_is(wire: Wire, two_topics: tuple[str, str]) -> None:
    first, second = two_topics
    assert pages(wire, two_topics, limit=2) == ([(first, [0, 1])], (first, 2))
    assert pages(wire, two_topics, limit=3) == ([(first, [0, 1, 2])], (second, 0))
    assert pages(wire, two_topics, limit=4) == ([(first, [0, 1, 2]), (second, [0])], (second, 1))


def test_the_next_page_begins_at_the_cursor(wire: Wire, two_topics: tuple[str, str]) -> None:
    first, second = two_topics
    cursor = Cursor(topic_name=first, partition_index=2)
    assert pages(wire, two_topics, 2, cursor) == ([(first, [2]), (second, [0])], (second, 1))


def test_an_unknown_topic_is_described_as_such(wire: Wire, new_name: Callable[[], str]) -> None:
    answer = wire.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name=new_name())]))
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- topics, in the ways that no client offers


def create(wire: Wire, name: str, **fields: object) -> ErrorCode:
    wanted = {"num_partitions": -1, "replication_factor": -1, **fields}
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name, **wanted)], timeout_ms=5000)
    return ErrorCode(wire.ask(request).topics[0].error_code)


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates_a_topic(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    topic = CreatableTopic(name=new_name(), num_partitions=2, replication_factor=1)
    [answer] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5000), version).topics
    assert (answer.name, answer.error_code) == (topic.name, ErrorCode.NONE)
    assert (answer.topic_id is not None) == (version >= 7)
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (2, 1)
        assert {each.name: each.value for each in answer.configs}["cleanup.policy"] == "delete"


def test_a_topic_may_be_laid_out_by_hand(wire: Wire, new_name: Callable[[], str]) -> None:
    [node] = wire.ask(MetadataRequest(topics=[])).brokers
    layout = [CreatableReplicaAssignment(partition_index=at, broker_ids=[node.node_id]) for at in (0, 1)]
    name = new_name()
    assert create(wire, name, assignments=layout) == ErrorCode.NONE
    eventually(lambda: len(wire.metadata(name=name).partitions) == 2, "there are two partitions")
    assert create(wire, new_name(), num_partitions=2, assignments=layout) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(("partition", "node"), [(0, 77), (1, None)], ids=["unknown-node", "gap"])
def test_a_layout_must_be_possible(wire: Wire, new_name: Callable[[], str], partition: int, node: int | None) -> None:
    [known] = wire.ask(MetadataRequest(topics=[])).brokers
    layout = [CreatableReplicaAssignment(partition_index=partition, broker_ids=[node or known.node_id])]
    assert create(wire, new_name(), assignments=layout) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_names_that_differ_only_in_dots_and_underscores_collide(wire: Wire, new_name: Callable[[], str]) -> None:
    # They would be the same metric name.
    name = new_name() + ".a"
    assert create(wire, name) == ErrorCode.NONE
    assert create(wire, name.replace(".", "_")) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_one_request_cannot_create_a_topic_twice(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = CreatableTopic(name=new_name(), num_partitions=1, replication_factor=1)
    [answer] = wire.ask(CreateTopicsRequest(topics=[topic, topic], timeout_ms=5000)).topics
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_can_be_deleted_by_its_id(wire: Wire, topic: str) -> None:
    topic_id = wire.metadata(name=topic).topic_id
    [answer] = wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=5000)).responses
    assert (answer.error_code, answer.name) == (ErrorCode.NONE, topic)
    eventually(lambda: wire.metadata(topic_id=topic_id).error_code == ErrorCode.UNKNOWN_TOPIC_ID, "the topic is gone")
    [answer] = wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=5000)).responses
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_one_request_cannot_delete_a_topic_twice(wire: Wire, topic: str) -> None:
    by_name, by_id = DeleteTopicState(name=topic), DeleteTopicState(topic_id=wire.metadata(name=topic).topic_id)
    for twice in (by_name, by_id):
        [answer] = wire.ask(DeleteTopicsRequest(topics=[twice, twice], timeout_ms=5000)).responses
        assert (answer.error_code, answer.name) == (ErrorCode.INVALID_REQUEST, twice.name)
    assert wire.metadata(name=topic).error_code == ErrorCode.NONE


def test_a_topic_to_delete_is_named_in_one_way(wire: Wire, topic: str) -> None:
    topic_id = wire.metadata(name=topic).topic_id
    for state in (DeleteTopicState(name=topic, topic_id=topic_id), DeleteTopicState()):
        [answer] = wire.ask(DeleteTopicsRequest(topics=[state], timeout_ms=5000)).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert wire.metadata(name=topic).error_code == ErrorCode.NONE


def test_log_folders_tell_the_size_of_a_partition(wire: Wire, topic: str) -> None:
    records = batch("a", "b")
    wire.produce(topic, records)
    asked = [DescribableLogDirTopic(topic=topic, partitions=[0])]
    [folder] = wire.ask(DescribeLogDirsRequest(topics=asked)).results
    assert folder.error_code == ErrorCode.NONE
    [partition] = folder.topics[0].partitions
    assert (partition.partition_size, partition.offset_lag, partition.is_future_key) == (len(records), 0, False)
    assert folder.total_bytes > folder.usable_bytes > 0


def test_brokers_are_not_asked_about_controllers(wire: Wire) -> None:
    assert wire.ask(DescribeClusterRequest(endpoint_type=CONTROLLERS)).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
