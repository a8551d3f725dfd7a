"""Committed offsets without a client: who may commit what, and what others are told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_groups import (
    GroupMember,
    commit,
    commit_once,
    committed,
    delete_group,
    delete_offsets,
    describe_group,
    fetch_once,
    joined_alone,
    list_group,
    ready,
    subscription,
)
from tests.support.raw_transactions import TransactionalProducer, TransactionProtocol
from tests.support.waiting import eventually

METADATA_MAX = 4096


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    return ready(wire, new_name())


@pytest.fixture
def member(broker: RunningBroker, group: str, topic: str) -> Iterator[GroupMember]:
    """The only member of a stable group, subscribed to the topic."""
    with joined_alone(broker.bootstrap, group, protocols={"range": subscription(topic)}) as member:
        yield member


# Committing


@pytest.mark.parametrize("version", range(2, 10))
def test_a_committed_offset_is_returned(wire: Wire, group: str, topic: str, version: int) -> None:
    commit(wire, group, topic, 7, metadata="where I was", leader_epoch=0, version=version)
    [found] = fetch_once(wire, group, {topic: [0]}).topics[0].partitions
    assert (found.committed_offset, found.metadata, found.error_code) == (7, "where I was", ErrorCode.NONE)
    assert found.committed_leader_epoch == (0 if version >= 6 else -1)


def test_offsets_can_be_committed_by_topic_id(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    topic = new_name()
    topic_id = wire.create_topic(topic)
    assert commit_once(wire, group, "", 3, topic_id=topic_id, version=10) == ErrorCode.NONE
    assert committed(wire, group, topic) == 3


def test_a_topic_id_that_nobody_has_is_refused(wire: Wire, group: str) -> None:
    assert commit_once(wire, group, "", 3, topic_id=uuid4(), version=10) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_later_commit_wins_even_if_it_goes_back(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 7)
    commit(wire, group, topic, 3)
    assert committed(wire, group, topic) == 3


def test_a_commit_without_metadata_reads_as_empty_metadata(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1, metadata=None)
    assert fetch_once(wire, group, {topic: [0]}).topics[0].partitions[0].metadata == ""


def test_metadata_may_be_as_long_as_the_limit(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1, metadata="m" * METADATA_MAX)
    assert fetch_once(wire, group, {topic: [0]}).topics[0].partitions[0].metadata == "m" * METADATA_MAX


def test_metadata_beyond_the_limit_is_refused(wire: Wire, group: str, topic: str) -> None:
    error = commit_once(wire, group, topic, 1, metadata="m" * (METADATA_MAX + 1))
    assert error == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert committed(wire, group, topic) == -1


@pytest.mark.parametrize("version", [2, 9])
def test_a_topic_that_does_not_exist_is_refused(
    wire: Wire, group: str, new_name: Callable[[], str], version: int
) -> None:
    assert commit_once(wire, group, new_name(), 1, version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_does_not_exist_is_refused(wire: Wire, group: str, topic: str) -> None:
    assert commit_once(wire, group, topic, 1, partition=1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_wrong_with_one_partition_does_not_concern_the_others(
    wire: Wire, group: str, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=2)
    partitions = [
        OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 5000),
        OffsetCommitRequestPartition(partition_index=1, committed_offset=2),
        OffsetCommitRequestPartition(partition_index=2, committed_offset=3),
    ]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)])
    [answer] = wire.ask(request, 9).topics
    assert {each.partition_index: each.error_code for each in answer.partitions} == {
        0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        1: ErrorCode.NONE,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [committed(wire, group, topic, at) for at in (0, 1)] == [-1, 2]


def test_a_commit_of_nothing_is_answered_with_nothing(wire: Wire, group: str) -> None:
    assert wire.ask(OffsetCommitRequest(group_id=group), 9).topics == []


@pytest.mark.parametrize(
    ("version", "expected"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_a_group_that_does_not_exist_is_refused(
    wire: Wire, group: str, topic: str, version: int, expected: ErrorCode
) -> None:
    assert commit_once(wire, group, topic, 1, generation=3, member_id="m", version=version) == expected


def test_a_group_that_only_commits_is_listed_as_empty(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1)
    listed = list_group(wire, group)
    assert listed is not None
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("", "Empty", "classic")
    described = describe_group(wire, group)
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "", [])


# Committing as a member


def test_a_member_commits_with_its_generation(wire: Wire, topic: str, member: GroupMember) -> None:
    assert member.commit(topic, 5) == ErrorCode.NONE
    assert committed(wire, member.group, topic) == 5


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_a_member_with_another_generation_is_refused(
    wire: Wire, topic: str, member: GroupMember, generation: int
) -> None:
    assert member.generation == 1
    assert member.commit(topic, 5, generation=generation) == ErrorCode.ILLEGAL_GENERATION
    assert committed(wire, member.group, topic) == -1


def test_somebody_else_is_refused_while_there_are_members(wire: Wire, topic: str, member: GroupMember) -> None:
    assert commit_once(wire, member.group, topic, 5) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_once(wire, member.group, topic, 5, generation=1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_is_refused_between_join_and_sync(broker: RunningBroker, group: str, topic: str) -> None:
    with GroupMember(broker.bootstrap, group) as member:
        member.join()
        assert member.commit(topic, 5) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_may_still_commit_while_others_are_waited_for(
    wire: Wire, broker: RunningBroker, topic: str, member: GroupMember
) -> None:
    with GroupMember(broker.bootstrap, member.group, protocols=member.protocols) as other:
        other.send_join()
        eventually(lambda: member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the rebalance has begun")
        assert member.commit(topic, 5) == ErrorCode.NONE
    assert committed(wire, member.group, topic) == 5


def test_offsets_outlive_the_members(wire: Wire, topic: str, member: GroupMember) -> None:
    member.commit(topic, 5)
    member.leave_once()
    assert committed(wire, member.group, topic) == 5
    assert commit_once(wire, member.group, topic, 6) == ErrorCode.NONE


# Reading


@pytest.mark.parametrize("version", range(1, 10))
def test_what_was_never_committed_is_minus_one(wire: Wire, group: str, topic: str, version: int) -> None:
    commit(wire, group, topic, 7)
    answer = fetch_once(wire, group, {topic: [0, 1], "no-such-topic": [0]}, version=version)
    assert answer.error_code == ErrorCode.NONE
    found = {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}
    assert {at: each.committed_offset for at, each in found.items()} == {
        (topic, 0): 7,
        (topic, 1): -1,
        ("no-such-topic", 0): -1,
    }
    assert {each.error_code for each in found.values()} == {ErrorCode.NONE}
    nothing = found[topic, 1]
    assert (nothing.committed_leader_epoch, nothing.metadata) == (-1, "")


@pytest.mark.parametrize("version", range(1, 10))
def test_a_group_that_does_not_exist_has_committed_nothing(wire: Wire, group: str, topic: str, version: int) -> None:
    assert committed(wire, group, topic, version=version) == -1
    assert list_group(wire, group) is None


@pytest.mark.parametrize("version", range(2, 10))
def test_all_offsets_of_a_group_are_returned(
    wire: Wire, group: str, topic: str, new_name: Callable[[], str], version: int
) -> None:
    other = new_name()
    wire.create_topic(other, partitions=2)
    commit(wire, group, topic, 1)
    commit(wire, group, other, 2, partition=1)
    answer = fetch_once(wire, group, None, version=version)
    found = {(each.name, at.partition_index): at.committed_offset for each in answer.topics for at in each.partitions}
    assert found == {(topic, 0): 1, (other, 1): 2}


@pytest.mark.parametrize("version", [2, 7, 9])
def test_a_group_that_does_not_exist_has_no_offsets_at_all(wire: Wire, group: str, version: int) -> None:
    answer = fetch_once(wire, group, None, version=version)
    assert (answer.error_code, answer.topics) == (ErrorCode.NONE, [])


def test_several_groups_can_be_asked_about_at_once(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    first, second, unknown = (ready(wire, new_name()) for _ in range(3))
    commit(wire, first, topic, 1)
    commit(wire, second, topic, 2)
    asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup(group_id=each, topics=asked) for each in (first, second, unknown)]
    answer = wire.ask(OffsetFetchRequest(groups=groups), 9)
    found = {each.group_id: each.topics[0].partitions[0].committed_offset for each in answer.groups}
    assert found == {first: 1, second: 2, unknown: -1}


def test_offsets_can_be_read_by_topic_id(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    topic = new_name()
    topic_id = wire.create_topic(topic)
    commit(wire, group, topic, 3)
    answer = fetch_once(wire, group, {topic: [0]}, ids={topic: topic_id}, version=10)
    [found] = answer.topics
    assert (found.topic_id, found.partitions[0].committed_offset) == (topic_id, 3)
    [of_all] = fetch_once(wire, group, None, version=10).topics
    assert (of_all.topic_id, of_all.partitions[0].committed_offset) == (topic_id, 3)


def test_reading_by_a_topic_id_that_nobody_has_is_refused(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 3)
    [found] = fetch_once(wire, group, {topic: [0]}, ids={topic: uuid4()}, version=10).topics
    assert found.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert found.partitions[0].committed_offset == -1


def test_offsets_of_a_deleted_topic_are_forgotten(
    wire: Wire, group: str, new_name: Callable[[], str], delete_topic: Callable[[str], None]
) -> None:
    topic = new_name()
    wire.create_topic(topic)
    commit(wire, group, topic, 3)
    delete_topic(topic)
    eventually(lambda: committed(wire, group, topic) == -1, "the offset is gone")


@pytest.fixture
def delete_topic(wire: Wire) -> Callable[[str], None]:
    from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    def delete(name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
        [deleted] = wire.ask(request, 6).responses
        assert deleted.error_code == ErrorCode.NONE

    return delete


# Deleting offsets


def test_deleted_offsets_are_forgotten(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=2)
    commit(wire, group, topic, 1)
    commit(wire, group, topic, 2, partition=1)
    answer = delete_offsets(wire, group, {topic: [0]})
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert [committed(wire, group, topic, at) for at in (0, 1)] == [-1, 2]


def test_an_offset_that_was_never_committed_is_deleted_with_success(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1)
    answer = delete_offsets(wire, group, {topic: [0, 5]})
    assert [each.error_code for each in answer.topics[0].partitions] in (
        [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE],
    )


def test_offsets_of_a_subscribed_topic_cannot_be_deleted(wire: Wire, topic: str, member: GroupMember) -> None:
    member.commit(topic, 1)
    answer = delete_offsets(wire, member.group, {topic: [0]})
    assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert committed(wire, member.group, topic) == 1


def test_offsets_of_another_topic_can_be_deleted_from_under_a_member(
    wire: Wire, member: GroupMember, new_name: Callable[[], str]
) -> None:
    other = new_name()
    wire.create_topic(other)
    member.commit(other, 1)
    assert delete_offsets(wire, member.group, {other: [0]}).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert committed(wire, member.group, other) == -1


def test_offsets_of_a_group_in_use_that_is_no_consumer_group_cannot_be_deleted(
    wire: Wire, broker: RunningBroker, group: str, topic: str
) -> None:
    with joined_alone(broker.bootstrap, group, protocol_type="connect", protocols={"sessioned": b"?"}) as member:
        member.commit(topic, 1)
        assert delete_offsets(wire, group, {topic: [0]}).error_code == ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted(wire: Wire, group: str, topic: str) -> None:
    assert delete_offsets(wire, group, {topic: [0]}).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_offsets_needs_a_group_id(wire: Wire, topic: str) -> None:
    assert delete_offsets(wire, "", {topic: [0]}).error_code == ErrorCode.INVALID_GROUP_ID


# Deleting groups


def test_a_deleted_group_takes_its_offsets_along(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1)
    assert delete_group(wire, group) == ErrorCode.NONE
    assert committed(wire, group, topic) == -1
    assert list_group(wire, group) is None
    assert delete_group(wire, group) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_members_cannot_be_deleted(wire: Wire, member: GroupMember) -> None:
    assert delete_group(wire, member.group) == ErrorCode.NON_EMPTY_GROUP
    member.leave_once()
    assert delete_group(wire, member.group) == ErrorCode.NONE


def test_a_group_can_be_made_again_after_it_was_deleted(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic, 1)
    delete_group(wire, group)
    commit(wire, group, topic, 2)
    assert committed(wire, group, topic) == 2


# Offsets in transactions


@pytest.fixture
def producer(wire: Wire, new_name: Callable[[], str], protocol: TransactionProtocol) -> TransactionalProducer:
    return TransactionalProducer(wire, new_name(), protocol).init()


def test_offsets_of_a_transaction_are_seen_when_it_commits(
    wire: Wire, group: str, topic: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    assert committed(wire, group, topic) == -1
    producer.commit()
    assert eventually(lambda: committed(wire, group, topic) == 5, "the offset is committed")


def test_offsets_of_an_aborted_transaction_are_never_seen(
    wire: Wire, group: str, topic: str, producer: TransactionalProducer
) -> None:
    commit(wire, group, topic, 1)
    producer.commit_offset(group, topic, 5)
    producer.abort()
    eventually(lambda: is_stable(wire, group, topic), "the transaction is over")
    assert committed(wire, group, topic, require_stable=True) == 1


def is_stable(wire: Wire, group: str, topic: str) -> bool:
    [found] = fetch_once(wire, group, {topic: [0]}, require_stable=True).topics[0].partitions
    return found.error_code == ErrorCode.NONE


def test_who_requires_stable_offsets_is_told_to_wait(
    wire: Wire, group: str, topic: str, producer: TransactionalProducer
) -> None:
    commit(wire, group, topic, 1)
    producer.commit_offset(group, topic, 5)
    [unstable] = fetch_once(wire, group, {topic: [0]}, require_stable=True).topics[0].partitions
    assert (unstable.error_code, unstable.committed_offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert committed(wire, group, topic, require_stable=False) == 1
    producer.commit()
    eventually(lambda: committed(wire, group, topic) == 5, "the transaction is over")


def test_a_later_commit_without_transaction_overtakes_one_inside(
    wire: Wire, group: str, topic: str, producer: TransactionalProducer
) -> None:
    producer.commit_offset(group, topic, 5)
    commit(wire, group, topic, 9)
    producer.commit()
    eventually(lambda: is_stable(wire, group, topic), "the transaction is over")
    assert committed(wire, group, topic) == 9


def test_a_transaction_cannot_commit_for_a_static_member_that_was_replaced(
    broker: RunningBroker, group: str, topic: str, producer: TransactionalProducer
) -> None:
    with (
        joined_alone(broker.bootstrap, group, instance_id="one") as zombie,
        GroupMember(broker.bootstrap, group, instance_id="one") as heir,
    ):
        heir.join()
        producer.commit_offset(group, topic, 1)
        assert commit_in_transaction(producer, zombie, topic) == ErrorCode.FENCED_INSTANCE_ID
        assert commit_in_transaction(producer, heir, topic) == ErrorCode.NONE


def commit_in_transaction(producer: TransactionalProducer, member: GroupMember, topic: str) -> ErrorCode:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=2)
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=member.group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        generation_id=member.generation,
        member_id=member.id,
        group_instance_id=member.instance_id,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )
    answer = producer.wire.ask(request, producer.protocol.offset_commit)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_a_topic_id_is_no_way_around_a_new_topic_of_an_old_name(
    wire: Wire, group: str, new_name: Callable[[], str], delete_topic: Callable[[str], None]
) -> None:
    topic = new_name()
    first: UUID = wire.create_topic(topic)
    assert commit_once(wire, group, "", 3, topic_id=first, version=10) == ErrorCode.NONE
    delete_topic(topic)
    second = eventually(lambda: _created_again(wire, topic), "the topic can be made again")
    answer = fetch_once(wire, group, {topic: [0]}, ids={topic: second}, version=10)
    assert answer.topics[0].partitions[0].committed_offset == -1


def _created_again(wire: Wire, topic: str) -> UUID | None:
    try:
        return wire.create_topic(topic)
    except AssertionError:
        return None
