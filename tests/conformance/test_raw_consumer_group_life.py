"""Consumer groups (KIP-848) beside their heartbeats: time, offsets, tools, and what is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from onceflow.errors import ErrorCode
from onceflow.group.consumer_records import decode_record
from onceflow.wire.batch import batches
from onceflow.wire.messages.consumer_group_describe import Member
from onceflow.wire.messages.describe_groups import DescribeGroupsRequest
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from onceflow.wire.records import read_records
from tests.support.raw import Wire
from tests.support.raw_consumer_members import (
    RawMember,
    create_topic_for,
    delete_group,
    describe_group,
    refusal,
    settle,
)
from tests.support.raw_transactions import GROUP, TransactionalProducer, find_coordinator
from tests.support.waiting import eventually

OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    name = new_name()
    find_coordinator(wire, name, GROUP)
    return name


NewTopic = Callable[[int], tuple[str, UUID]]


@pytest.fixture
def new_topic(wire: Wire, group: str, new_name: Callable[[], str]) -> NewTopic:
    """Makes topics with some partitions; returns name and id."""

    def create(partitions: int) -> tuple[str, UUID]:
        name = new_name()
        return name, create_topic_for(wire, group, name, partitions)

    return create


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    return new_topic(1)[0]


# Time


def test_a_silent_member_is_gone_after_its_session(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    silent, other = RawMember(wire, group).join(name), RawMember(wire, group).join(name)
    settle(silent, other)
    other.beat_until_it_has({id: [0, 1]})
    assert refusal(silent.send()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_give_back_in_time_is_gone(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    greedy, other = RawMember(wire, group).join(name, rebalance_timeout_ms=500), RawMember(wire, group).join(name)

    def is_gone() -> bool:
        other.beat()
        return greedy.send().error_code == ErrorCode.UNKNOWN_MEMBER_ID

    eventually(is_gone, "the member that keeps everything is removed", every_s=0.1)
    other.beat_until_it_has({id: [0, 1]})


def test_a_static_member_that_does_not_come_back_is_gone_after_its_session(wire: Wire, group: str, topic: str) -> None:
    static = RawMember(wire, group, instance="one").join(topic)
    static.leave(-2)
    assert [member.member_epoch for member in describe_group(wire, group).members] == [-2]
    eventually(lambda: describe_group(wire, group).group_state == "Empty", "it is removed", every_s=0.1)


# Describing


def described_parts(assignment: Any) -> dict[tuple[str, UUID], list[int]]:
    return {(each.topic_name, each.topic_id): sorted(each.partitions) for each in assignment.topic_partitions}


def test_a_group_is_described_with_its_members(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    member = RawMember(wire, group, instance="one").join(name, rack_id="rack")
    described = describe_group(wire, group)
    assert (described.error_code, described.group_id, described.group_state) == (ErrorCode.NONE, group, "Stable")
    assert (described.group_epoch, described.assignment_epoch) == (member.epoch, member.epoch)
    assert (described.assignor_name, described.authorized_operations) == ("uniform", -(2**31))
    [shown] = described.members
    assert described_parts(shown.assignment) == described_parts(shown.target_assignment) == {(name, id): [0, 1]}
    del shown.assignment.topic_partitions[:], shown.target_assignment.topic_partitions[:]
    assert shown == Member(
        member_id=member.id,
        instance_id="one",
        rack_id="rack",
        member_epoch=member.epoch,
        client_id="raw",
        client_host="/127.0.0.1",
        subscribed_topic_names=[name],
        subscribed_topic_regex="",
        member_type=1,
    )


def test_what_is_being_given_back_is_still_shown(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    first, second = RawMember(wire, group).join(name), RawMember(wire, group).join(name)

    def is_to_give_back() -> bool:
        second.beat()
        return first.take(first.send()).assignment is not None

    eventually(is_to_give_back, "the first member is told to give one back", every_s=0.1)
    shown = {member.member_id: member for member in describe_group(wire, group).members}
    assert described_parts(shown[first.id].assignment) == {(name, id): [0, 1]}
    assert described_parts(shown[first.id].target_assignment) == {(name, id): first.owned[id]}
    assert described_parts(shown[second.id].assignment) == {}


def test_what_everybody_may_do(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group).join(topic)
    described = describe_group(wire, group, include_authorized_operations=True)
    # Read, delete, describe, describe configs, alter configs.
    assert described.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def test_the_other_kind_of_group_is_not_found(wire: Wire, group: str, topic: str) -> None:
    commit(wire, group, topic)
    assert describe_group(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_describing_a_consumer_group_as_a_classic_one(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group).join(topic)
    [described] = wire.ask(DescribeGroupsRequest(groups=[group])).groups
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_no_group_at_all(wire: Wire) -> None:
    assert describe_group(wire, "").error_code == ErrorCode.INVALID_GROUP_ID


def listed(wire: Wire, group: str, **filters: list[str]) -> list[ListedGroup]:
    return [each for each in wire.ask(ListGroupsRequest(**filters)).groups if each.group_id == group]


def test_consumer_groups_are_listed(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    stable = ListedGroup(group_id=group, protocol_type="consumer", group_state="Stable", group_type="consumer")
    assert listed(wire, group) == listed(wire, group, types_filter=["CONSUMER"], states_filter=["stable"]) == [stable]
    assert listed(wire, group, types_filter=["classic"]) == []
    member.leave()
    assert [each.group_state for each in listed(wire, group)] == ["Empty"]


# Ending


def test_a_group_is_deleted_when_nobody_is_in_it(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    assert delete_group(wire, group) == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert delete_group(wire, group) == ErrorCode.NONE
    assert describe_group(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert listed(wire, group) == []


@pytest.mark.parametrize("by", ["member id", "instance id"])
def test_an_administrator_removes_members(wire: Wire, group: str, topic: str, by: str) -> None:
    member = RawMember(wire, group, instance="one" if by == "instance id" else None).join(topic)
    named = MemberIdentity(member_id=member.id) if by == "member id" else MemberIdentity(group_instance_id="one")
    unknown = MemberIdentity(member_id="nobody")
    answer = wire.ask(LeaveGroupRequest(group_id=group, members=[named, unknown]))
    assert answer.error_code == ErrorCode.NONE
    assert [each.error_code for each in answer.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert refusal(member.send()) == ErrorCode.UNKNOWN_MEMBER_ID


# Offsets


def commit(wire: Wire, group: str, topic: str, *, partition: int = 0, version: int = 9, **who: Any) -> ErrorCode:
    at = OffsetCommitRequestPartition(partition_index=partition, committed_offset=7, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[at])]
    answer = wire.ask(OffsetCommitRequest(group_id=group, topics=topics, **who), version)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def fetch(wire: Wire, group: str, topic: str, **who: Any) -> tuple[ErrorCode, int | None]:
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, topics=wanted, **who)
    [answer] = wire.ask(OffsetFetchRequest(groups=[asked]), version=9).groups
    return ErrorCode(answer.error_code), answer.topics[0].partitions[0].committed_offset if answer.topics else None


def test_members_commit_and_fetch_with_their_epoch(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    who = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
    assert commit(wire, group, topic, **who) == ErrorCode.NONE
    assert fetch(wire, group, topic, member_id=member.id, member_epoch=member.epoch) == (ErrorCode.NONE, 7)
    assert fetch(wire, group, topic) == (ErrorCode.NONE, 7)


def test_an_epoch_that_the_member_does_not_have_neither_commits_nor_fetches(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    for epoch in (member.epoch - 1, member.epoch + 1):
        who = {"member_id": member.id, "generation_id_or_member_epoch": epoch}
        assert commit(wire, group, topic, **who) == ErrorCode.STALE_MEMBER_EPOCH
        answer, _ = fetch(wire, group, topic, member_id=member.id, member_epoch=epoch)
        assert answer == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(wire, group, topic) == (ErrorCode.NONE, -1)


def test_an_older_epoch_commits_what_the_member_had_in_it(wire: Wire, group: str, new_topic: NewTopic) -> None:
    """As long as it has it: a commit that was on its way when the epoch changed is not lost (KIP-1251)."""
    name, id = new_topic(2)
    member = RawMember(wire, group).join(name)
    before = member.epoch
    other = RawMember(wire, group).join(name)
    settle(member, other)
    assert member.epoch > before
    who = {"member_id": member.id, "generation_id_or_member_epoch": before}
    [kept], [given] = member.owned[id], other.owned[id]
    assert commit(wire, group, name, partition=kept, **who) == ErrorCode.NONE
    assert commit(wire, group, name, partition=given, **who) == ErrorCode.STALE_MEMBER_EPOCH


def test_who_is_not_a_member_neither_commits_nor_fetches(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group).join(topic)
    assert commit(wire, group, topic) == ErrorCode.UNKNOWN_MEMBER_ID
    stranger = {"member_id": "nobody", "generation_id_or_member_epoch": 1}
    assert commit(wire, group, topic, **stranger) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(wire, group, topic, member_id="nobody", member_epoch=1) == (ErrorCode.UNKNOWN_MEMBER_ID, None)


def test_a_group_without_members_takes_commits_from_anybody(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group).join(topic).leave()
    assert commit(wire, group, topic) == ErrorCode.NONE
    assert fetch(wire, group, topic) == (ErrorCode.NONE, 7)


def test_older_commits_have_no_word_for_a_stale_epoch(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    who = {"member_id": member.id, "generation_id_or_member_epoch": member.epoch}
    assert commit(wire, group, topic, version=8, **who) == ErrorCode.UNSUPPORTED_VERSION


def test_offsets_of_topics_in_use_are_not_deleted(wire: Wire, group: str, new_topic: NewTopic) -> None:
    (used, _), (unused, _) = new_topic(1), new_topic(1)
    for topic in (used, unused):
        commit(wire, group, topic)
    RawMember(wire, group).join(used)
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition()]) for name in (used, unused)
    ]
    answer = wire.ask(OffsetDeleteRequest(group_id=group, topics=topics))
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {used: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, unused: ErrorCode.NONE}
    assert [fetch(wire, group, topic)[1] for topic in (used, unused)] == [7, -1]


def test_a_transaction_commits_with_the_epoch_of_a_member(
    wire: Wire, group: str, topic: str, producer: TransactionalProducer
) -> None:
    member = RawMember(wire, group).join(topic)
    producer.commit_offset(group, topic, 7, member=(member.id, member.epoch))
    for epoch in (member.epoch - 1, member.epoch + 1):
        code = producer.commit_offset_once(group, topic, 9, member=(member.id, epoch))
        assert code == ErrorCode.ILLEGAL_GENERATION
    code = producer.commit_offset_once(group, topic, 9, member=("nobody", member.epoch))
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    assert producer.commit_offset_once(group, topic, 8) == ErrorCode.NONE, "who names no member is believed"
    producer.commit()
    eventually(lambda: fetch(wire, group, topic) == (ErrorCode.NONE, 8), "the offset is committed")


# From one kind of group to the other


def join_classic(wire: Wire, group: str, member_id: str = "") -> Any:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = wire.ask(request)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED and not member_id:
        return join_classic(wire, group, answer.member_id)
    return answer


def test_a_group_that_only_has_offsets_becomes_a_consumer_group_and_keeps_them(
    wire: Wire, group: str, topic: str
) -> None:
    commit(wire, group, topic)
    assert [each.group_type for each in listed(wire, group)] == ["classic"]
    RawMember(wire, group).join(topic)
    assert [each.group_type for each in listed(wire, group)] == ["consumer"]
    assert fetch(wire, group, topic) == (ErrorCode.NONE, 7)


def test_an_empty_classic_group_becomes_a_consumer_group(wire: Wire, group: str, topic: str) -> None:
    joined = join_classic(wire, group)
    assert joined.error_code == ErrorCode.NONE
    wire.ask(LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=joined.member_id)]))
    RawMember(wire, group).join(topic)
    assert [each.group_type for each in listed(wire, group)] == ["consumer"]


def test_an_empty_consumer_group_becomes_a_classic_group_and_keeps_its_offsets(
    wire: Wire, group: str, topic: str
) -> None:
    member = RawMember(wire, group).join(topic)
    commit(wire, group, topic, member_id=member.id, generation_id_or_member_epoch=member.epoch)
    member.leave()
    assert join_classic(wire, group).error_code == ErrorCode.NONE
    # The answer to a join of the classic protocol does not wait for the records of the group.
    eventually(lambda: [each.group_type for each in listed(wire, group)] == ["classic"], "it is a classic group")
    assert fetch(wire, group, topic) == (ErrorCode.NONE, 7)
    assert refusal(member.send()) == ErrorCode.GROUP_ID_NOT_FOUND


# What is written down


def records_of(wire: Wire, group: str) -> list[tuple[str, bool]]:
    """The kinds of the group's records, in order, and whether they say something or delete."""
    found = []
    for partition in range(50):
        answer = wire.fetch(OFFSETS_TOPIC, 0, partition=partition, max_wait_ms=0)
        for _, batch in batches(answer.records or b""):
            for record in read_records(batch):
                if record.key is None or group.encode() not in record.key:
                    continue  # of others, there may be some in forms that we never write
                decoded = decode_record(record.key, record.value)
                if decoded is not None and decoded[0].group_id == group:
                    found.append((type(decoded[0]).__name__.removesuffix("Key"), decoded[1] is not None))
    return found


def test_a_group_writes_what_apache_kafka_writes(wire: Wire, group: str, topic: str) -> None:
    written = len(records_of(wire, group))
    RawMember(wire, group).join(topic).leave()
    delete_group(wire, group)
    assert records_of(wire, group)[written:] == [
        ("Member", True),
        ("Group", True),
        ("TargetMember", True),
        ("TargetMetadata", True),
        ("CurrentAssignment", True),
        # it leaves
        ("CurrentAssignment", False),
        ("TargetMember", False),
        ("Member", False),
        ("Group", True),
        # the group is deleted
        ("TargetMetadata", False),
        ("PartitionMetadata", False),
        ("Group", False),
    ]


def test_a_static_member_that_comes_back_is_written_anew(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group, instance="one").join(topic).leave(-2)
    written = len(records_of(wire, group))
    RawMember(wire, group, instance="one").join(topic)
    assert records_of(wire, group)[written:] == [
        ("CurrentAssignment", False),
        ("TargetMember", False),
        ("Member", False),
        ("Member", True),
        ("TargetMember", True),
        ("CurrentAssignment", True),
        ("CurrentAssignment", True),
    ]
