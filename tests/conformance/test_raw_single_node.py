"""What is asked of a cluster about its replicas, directories and controllers, where there is one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from onceflow.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from onceflow.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from onceflow.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RequestPartitionData,
    RequestTopicData,
)
from onceflow.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from onceflow.wire.messages.list_config_resources import ListConfigResourcesRequest
from onceflow.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from onceflow.wire.messages.metadata import MetadataRequest
from tests.support.raw import Wire

NONE, UNKNOWN, NOT_NEEDED = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.ELECTION_NOT_NEEDED
INVALID, NO_SUCH_DIRECTORY = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.LOG_DIR_NOT_FOUND
PREFERRED, UNCLEAN = 0, 1
METADATA = "__cluster_metadata"
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
NOWHERE = "/no/such/directory"


def node_id(wire: Wire) -> int:
    [node] = wire.ask(MetadataRequest(topics=[])).brokers
    return int(node.node_id)


# --- elections


def elect(wire: Wire, asked: Sequence[tuple[str, list[int]]] | None, **options: Any) -> ElectLeadersResponse:
    version = options.pop("version", None)
    topics = None if asked is None else [TopicPartitions(topic=name, partitions=each) for name, each in asked]
    answer: ElectLeadersResponse = wire.ask(ElectLeadersRequest(topic_partitions=topics, **options), version)
    return answer


def outcomes(answer: ElectLeadersResponse) -> list[tuple[str, int, int]]:
    return [
        (topic.topic, each.partition_id, each.error_code)
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]


@pytest.mark.parametrize("version", range(3))
def test_who_leads_needs_no_election(wire: Wire, new_name: Callable[[], str], version: int) -> None:
    topic = new_name()
    wire.create_topic(topic, 2)
    answer = elect(wire, [(topic, [0, 1])], version=version)
    assert answer.error_code == NONE
    assert outcomes(answer) == [(topic, 0, NOT_NEEDED), (topic, 1, NOT_NEEDED)]


@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN], ids=["preferred", "unclean"])
def test_what_is_not_there_is_led_by_nobody(wire: Wire, topic: str, new_name: Callable[[], str], kind: int) -> None:
    missing = new_name()
    answer = elect(wire, [(topic, [0, 7, -1]), (missing, [0]), ("not a name", [0])], election_type=kind)
    assert answer.error_code == NONE
    assert outcomes(answer) == [
        (topic, 0, NOT_NEEDED),
        (topic, 7, UNKNOWN),
        (topic, -1, UNKNOWN),
        (missing, 0, UNKNOWN),
        ("not a name", 0, UNKNOWN),
    ]


def test_a_partition_named_twice_is_answered_twice(wire: Wire, topic: str) -> None:
    answer = elect(wire, [(topic, [0, 0]), (topic, [0])])
    assert outcomes(answer) == [(topic, 0, NOT_NEEDED)] * 3


def test_of_all_partitions_only_topics_are_named(wire: Wire, topic: str) -> None:
    answer = elect(wire, None)
    assert (answer.error_code, outcomes(answer)) == (NONE, [])
    assert topic in {each.topic for each in answer.replica_election_results}


def test_there_are_two_kinds_of_elections(wire: Wire, topic: str) -> None:
    named, every = elect(wire, [(topic, [0])], election_type=9), elect(wire, None, election_type=9)
    assert (named.error_code, outcomes(named)) == (ErrorCode.INVALID_REQUEST, [(topic, 0, ErrorCode.INVALID_REQUEST)])
    assert (every.error_code, every.replica_election_results) == (ErrorCode.INVALID_REQUEST, [])


# --- replicas


def reassign(
    wire: Wire, *asked: tuple[str, int, list[int] | None], version: int | None = None
) -> list[tuple[str, int, int]]:
    topics = [
        ReassignableTopic(name=name, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
        for name, index, replicas in asked
    ]
    answer = wire.ask(AlterPartitionReassignmentsRequest(topics=topics), version)
    assert answer.error_code == NONE
    return [
        (topic.name, each.partition_index, each.error_code) for topic in answer.responses for each in topic.partitions
    ]


@pytest.mark.parametrize("version", range(2))
def test_a_partition_may_stay_where_it_is(wire: Wire, topic: str, version: int) -> None:
    here = [node_id(wire)]
    assert reassign(wire, (topic, 0, here), (topic, 0, here), version=version) == [(topic, 0, NONE)] * 2


@pytest.mark.parametrize("replicas", [[77], [], [1, 1], [1, 77], [-1]])
def test_a_partition_goes_nowhere_else(wire: Wire, topic: str, replicas: list[int]) -> None:
    assert node_id(wire) == 1
    assert reassign(wire, (topic, 0, replicas)) == [(topic, 0, INVALID)]


def test_what_was_not_begun_cannot_be_cancelled(wire: Wire, topic: str) -> None:
    assert reassign(wire, (topic, 0, None)) == [(topic, 0, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]


def test_what_is_not_there_goes_nowhere(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    missing, here = new_name(), [node_id(wire)]
    asked = [(topic, 9, here), (topic, 9, None), (missing, 0, here), ("not a name", 0, None)]
    assert reassign(wire, *asked) == [(name, index, UNKNOWN) for name, index, _ in asked]


def test_nothing_is_ever_on_its_way(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    for topics in (
        None,
        [],
        [ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 9])],
        [ListPartitionReassignmentsTopics(name=new_name(), partition_indexes=[0])],
    ):
        answer = wire.ask(ListPartitionReassignmentsRequest(topics=topics))
        assert (answer.error_code, answer.topics) == (NONE, [])


# --- directories


def the_directory(wire: Wire) -> str:
    [directory] = wire.ask(DescribeLogDirsRequest(topics=[])).results
    return str(directory.log_dir)


def move(
    wire: Wire, *asked: tuple[str, str, list[int]], version: int | None = None
) -> list[tuple[str, list[tuple[int, int]]]]:
    """(directory, topic, partitions) to (topic, [(partition, code)])."""
    directories = [
        AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=partitions)])
        for path, name, partitions in asked
    ]
    answer = wire.ask(AlterReplicaLogDirsRequest(dirs=directories), version)
    return [
        (topic.topic_name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in answer.results
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_is_in_the_directory_already(wire: Wire, topic: str, version: int) -> None:
    assert move(wire, (the_directory(wire), topic, [0]), version=version) == [(topic, [(0, NONE)])]


@pytest.mark.parametrize("path", [NOWHERE, "relative", "", "the one/"])
def test_there_is_no_other_directory(wire: Wire, topic: str, path: str) -> None:
    path = path.replace("the one", the_directory(wire))
    assert move(wire, (path, topic, [0])) == [(topic, [(0, NO_SUCH_DIRECTORY)])]
    assert move(wire, (path, topic, [7])) == [(topic, [(7, NO_SUCH_DIRECTORY)])]


def test_a_partition_that_is_not_there_does_not_move(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    directory = the_directory(wire)
    for name, index in ((topic, 7), (topic, -1), (new_name(), 0), ("not a name", 0)):
        assert move(wire, (directory, name, [index])) == [(name, [(index, UNKNOWN)])]


def test_the_last_word_about_a_partition_counts(wire: Wire, topic: str) -> None:
    directory = the_directory(wire)
    assert move(wire, (directory, topic, [0, 0]), (NOWHERE, topic, [0])) == [(topic, [(0, NO_SUCH_DIRECTORY)])]
    assert move(wire, (NOWHERE, topic, [0]), (directory, topic, [0])) == [(topic, [(0, NONE)])]


# --- controllers


def quorum(wire: Wire, *asked: tuple[str, list[int]], version: int | None = None) -> DescribeQuorumResponse:
    topics = [
        RequestTopicData(
            topic_name=name, partitions=[RequestPartitionData(partition_index=index) for index in partitions]
        )
        for name, partitions in asked
    ]
    answer: DescribeQuorumResponse = wire.ask(DescribeQuorumRequest(topics=topics), version)
    assert answer.error_code == NONE
    return answer


@pytest.mark.parametrize("version", range(3))
def test_a_single_node_is_the_quorum(wire: Wire, version: int) -> None:
    this = node_id(wire)
    answer = quorum(wire, (METADATA, [0]), version=version)
    [described] = answer.topics
    [partition] = described.partitions
    [voter] = partition.current_voters
    assert (described.topic_name, partition.partition_index, partition.error_code) == (METADATA, 0, NONE)
    assert (partition.leader_id, voter.replica_id, partition.observers) == (this, this, [])
    assert partition.high_watermark >= 0
    assert voter.log_end_offset >= partition.high_watermark
    assert (voter.last_caught_up_timestamp > 0) == (version >= 1)
    assert [(each.node_id, [one.name for one in each.listeners]) for each in answer.nodes] == (
        [(this, ["CONTROLLER"])] if version >= 2 else []
    )


def test_the_metadata_move_on(wire: Wire, new_name: Callable[[], str]) -> None:
    def end() -> int:
        return quorum(wire, (METADATA, [0])).topics[0].partitions[0].high_watermark

    before = end()
    wire.create_topic(new_name())
    assert end() > before


@pytest.mark.parametrize(
    "asked",
    [[("other", [0])], [(METADATA, [1])], [(METADATA, [0, 0])], [(METADATA, [0]), ("other", [0])], [(METADATA, [])]],
    ids=["topic", "partition", "twice", "besides", "nothing"],
)
def test_there_is_one_quorum(wire: Wire, asked: list[tuple[str, list[int]]]) -> None:
    answer = quorum(wire, *asked)
    assert [
        (topic.topic_name, [(each.partition_index, each.error_code) for each in topic.partitions])
        for topic in answer.topics
    ] == [(name, [(index, UNKNOWN) for index in partitions]) for name, partitions in asked]


# --- what has settings


def listed(wire: Wire, *kinds: int, version: int = 1) -> set[tuple[int, str]]:
    answer = wire.ask(ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert answer.error_code == NONE
    assert len(answer.config_resources) == len({(e.resource_type, e.resource_name) for e in answer.config_resources})
    return {(each.resource_type, each.resource_name) for each in answer.config_resources}


def test_brokers_and_topics_have_settings(wire: Wire, topic: str) -> None:
    this = str(node_id(wire))
    assert listed(wire, BROKER) == {(BROKER, this)}
    assert listed(wire, BROKER_LOGGER) == {(BROKER_LOGGER, this)}
    assert (TOPIC, topic) in listed(wire, TOPIC)
    assert {kind for kind, _ in listed(wire, TOPIC)} == {TOPIC}
    assert listed(wire) >= {(TOPIC, topic), (BROKER, this), (BROKER_LOGGER, this)}
    assert listed(wire, TOPIC, BROKER, TOPIC) >= {(TOPIC, topic), (BROKER, this)}


def test_groups_and_metrics_of_clients_have_none(wire: Wire) -> None:
    assert listed(wire, GROUP) == listed(wire, CLIENT_METRICS) == listed(wire, version=0) == set()


@pytest.mark.parametrize("kinds", [[0], [1], [64], [TOPIC, 64]])
def test_a_kind_that_does_not_exist_is_not_listed(wire: Wire, kinds: list[int]) -> None:
    answer = wire.ask(ListConfigResourcesRequest(resource_types=kinds), 1)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
