"""Consumer groups (KIP-848): heartbeats, epochs, and who is given which partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.consumer_group_heartbeat import TopicPartitions
from onceflow.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.conformance.conftest import SETTINGS
from tests.support.raw import Wire
from tests.support.raw_consumer_members import (
    RawMember,
    create_topic_for,
    describe_group,
    parts,
    refusal,
    settle,
)
from tests.support.raw_transactions import GROUP, find_coordinator
from tests.support.waiting import eventually

FIRST_EPOCH = 2
"""A group begins with epoch 1, and the wishes of its first member are a change already."""


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


# Joining


def test_the_first_member_is_given_everything_at_once(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(3)
    member = RawMember(wire, group).join(name)
    assert (member.epoch, member.owned) == (FIRST_EPOCH, {id: [0, 1, 2]})


def test_members_are_told_how_often_to_report(wire: Wire, group: str, topic: str) -> None:
    answer = RawMember(wire, group).try_join(topic)
    assert answer.heartbeat_interval_ms == SETTINGS["group.consumer.heartbeat.interval.ms"]


def test_version_0_hands_out_member_ids(wire: Wire, group: str, topic: str) -> None:
    first = RawMember(wire, group, member_id="").join(topic, version=0)
    second = RawMember(wire, group, member_id="").join(topic, version=0)
    assert first.id != second.id


def test_version_0_also_takes_an_id_from_the_client(wire: Wire, group: str, topic: str) -> None:
    answer = RawMember(wire, group, member_id="mine").try_join(topic, version=0)
    assert (answer.error_code, answer.member_id) == (ErrorCode.NONE, "mine")


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": ""},
        {"member_id": " "},
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": " "},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [TopicPartitions(topic_id=UUID(int=7), partitions=[0])]},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -3},
    ],
    ids=str,
)
def test_what_no_member_may_say(wire: Wire, group: str, topic: str, fields: dict[str, Any]) -> None:
    assert refusal(RawMember(wire, group).try_join(topic, **fields)) == ErrorCode.INVALID_REQUEST
    assert describe_group(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_later_heartbeat_needs_a_member_id_in_version_0_too(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    assert refusal(member.send(member_id="", version=0)) == ErrorCode.INVALID_REQUEST


def test_an_assignor_that_the_broker_does_not_have(wire: Wire, group: str, topic: str) -> None:
    answer = RawMember(wire, group).try_join(topic, server_assignor="sticky")
    assert refusal(answer) == ErrorCode.UNSUPPORTED_ASSIGNOR


def test_a_member_may_want_topics_that_do_not_exist_yet(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    name = new_name()
    member = RawMember(wire, group).join(name)
    assert member.owned == {}
    id = wire.create_topic(name, 2)
    before = member.epoch
    member.beat_until_it_has({id: [0, 1]})
    assert member.epoch > before


# Epochs


def test_a_heartbeat_with_nothing_new_is_answered_with_nothing_new(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    answer = member.send()
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (ErrorCode.NONE, member.epoch, None)


def test_a_full_heartbeat_is_answered_with_the_assignment(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    member = RawMember(wire, group).join(name)
    answer = member.beat(rebalance_timeout_ms=60_000, subscribed_topic_names=[name])
    assert parts(answer.assignment) == {id: [0, 1]}


def test_a_member_that_joins_again_is_told_what_it_has(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    member = RawMember(wire, group).join(name)
    again = member.try_join(name)
    assert (again.member_epoch, parts(again.assignment)) == (member.epoch, {id: [0, 1]})


@pytest.mark.parametrize("difference", [1, -1])
def test_an_epoch_that_the_member_does_not_have_is_fenced(wire: Wire, group: str, topic: str, difference: int) -> None:
    member = RawMember(wire, group).join(topic)
    answer = member.send(member_epoch=member.epoch + difference, topic_partitions=None)
    assert refusal(answer) == ErrorCode.FENCED_MEMBER_EPOCH


def test_the_last_heartbeat_may_be_repeated_with_the_epoch_before(wire: Wire, group: str, new_topic: NewTopic) -> None:
    (first, first_id), (second, second_id) = new_topic(1), new_topic(1)
    member = RawMember(wire, group).join(first)
    before, owned = member.epoch, dict(member.owned)
    full = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [first, second]}

    def has_both() -> bool:
        member.beat(**full)
        return member.owned == {first_id: [0], second_id: [0]}

    eventually(has_both, "the member has both topics", every_s=0.1)
    assert member.epoch > before
    lost = RawMember(wire, group, member_id=member.id)
    lost.epoch, lost.owned = before, owned
    answer = lost.beat(**full)
    assert (answer.member_epoch, parts(answer.assignment)) == (member.epoch, {first_id: [0], second_id: [0]})


def test_the_epoch_before_with_partitions_that_were_never_given_is_fenced(
    wire: Wire, group: str, new_topic: NewTopic
) -> None:
    name, id = new_topic(1)
    member = RawMember(wire, group).join(name)
    answer = member.send(
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[name],
        topic_partitions=[TopicPartitions(topic_id=id, partitions=[7])],
    )
    assert refusal(answer) == ErrorCode.INVALID_REQUEST  # 0 is a join, and who joins has nothing
    settle(member, RawMember(wire, group).join(name))
    assert member.epoch > FIRST_EPOCH
    answer = member.send(member_epoch=member.epoch - 1, topic_partitions=[TopicPartitions(topic_id=id, partitions=[7])])
    assert refusal(answer) == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_group_or_a_member_that_nobody_knows(wire: Wire, group: str, topic: str) -> None:
    stranger = RawMember(wire, group)
    assert refusal(stranger.send(member_epoch=1)) == ErrorCode.GROUP_ID_NOT_FOUND
    assert refusal(stranger.send(member_epoch=-1)) == ErrorCode.GROUP_ID_NOT_FOUND
    RawMember(wire, group).join(topic)
    assert refusal(stranger.send(member_epoch=1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(stranger.send(member_epoch=-1)) == ErrorCode.UNKNOWN_MEMBER_ID


# Sharing


def test_a_partition_is_given_only_when_its_owner_has_let_go(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(2)
    first, second = RawMember(wire, group).join(name), RawMember(wire, group).join(name)
    assert second.owned == {}

    def is_to_give_back() -> bool:
        second.beat()
        return first.take(first.send()).assignment is not None

    eventually(is_to_give_back, "the first member is told to give one back", every_s=0.1)
    kept, epoch_before = dict(first.owned), first.epoch
    assert [len(given) for given in kept.values()] == [1]
    for _ in range(3):
        second.beat()
        assert second.owned == {}, "it was not given back yet"
        first.take(first.send())  # says nothing of what it has: nothing has changed
    assert (first.epoch, describe_group(wire, group).group_state) == (epoch_before, "Reconciling")
    first.beat()
    assert first.epoch > epoch_before
    second.beat()
    assert (second.owned, second.epoch) == ({id: [1 - kept[id][0]]}, first.epoch)
    assert describe_group(wire, group).group_state == "Stable"


def test_who_stays_gets_what_who_leaves_had(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(4)
    first, second = RawMember(wire, group).join(name), RawMember(wire, group).join(name)
    settle(first, second)
    assert sorted(first.owned[id] + second.owned[id]) == [0, 1, 2, 3]
    second.leave()
    first.beat_until_it_has({id: [0, 1, 2, 3]})
    assert refusal(second.send()) == ErrorCode.UNKNOWN_MEMBER_ID


def test_uniform_evens_out_over_all_topics(wire: Wire, group: str, new_topic: NewTopic) -> None:
    topics = dict(new_topic(1) for _ in range(4))
    members = [RawMember(wire, group).join(*topics, server_assignor="uniform") for _ in range(2)]
    settle(*members)
    assert [sum(map(len, member.owned.values())) for member in members] == [2, 2]


def test_range_begins_anew_with_every_topic(wire: Wire, group: str, new_topic: NewTopic) -> None:
    topics = dict(new_topic(3) for _ in range(2))
    members = [RawMember(wire, group).join(*topics, server_assignor="range") for _ in range(2)]
    settle(*members)
    low, high = sorted(members, key=lambda member: member.id)
    assert low.owned == {id: [0, 1] for id in topics.values()}
    assert high.owned == {id: [2] for id in topics.values()}


def test_the_assignor_that_most_members_want(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group).join(topic, server_assignor="uniform")
    for _ in range(2):
        RawMember(wire, group).join(topic, server_assignor="range")
    assert describe_group(wire, group).assignor_name == "range"


def test_members_that_want_different_topics(wire: Wire, group: str, new_topic: NewTopic) -> None:
    (shared, shared_id), (own, own_id) = new_topic(4), new_topic(2)
    both, one = RawMember(wire, group).join(shared, own), RawMember(wire, group).join(shared)
    settle(both, one)
    assert both.owned[own_id] == [0, 1]
    assert (len(both.owned[shared_id]), len(one.owned[shared_id])) == (1, 3)


def test_a_topic_that_is_no_longer_wanted_is_given_back(wire: Wire, group: str, new_topic: NewTopic) -> None:
    (first, first_id), (second, second_id) = new_topic(1), new_topic(1)
    member = RawMember(wire, group).join(first, second)
    assert member.owned == {first_id: [0], second_id: [0]}
    answer = member.send(subscribed_topic_names=[second])
    assert parts(answer.assignment) == {second_id: [0]}
    member.take(answer)
    member.beat_until_it_has({second_id: [0]})
    settle(member)


def test_a_topic_that_grows(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(1)
    member = RawMember(wire, group).join(name)
    more = CreatePartitionsTopic(name=name, count=3, assignments=None)
    [answer] = wire.ask(CreatePartitionsRequest(topics=[more], timeout_ms=10_000)).results
    assert answer.error_code == ErrorCode.NONE
    member.beat_until_it_has({id: [0, 1, 2]})


def test_a_topic_that_is_deleted(wire: Wire, group: str, new_topic: NewTopic) -> None:
    (first, _), (second, second_id) = new_topic(1), new_topic(1)
    member = RawMember(wire, group).join(first, second)
    wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=first)], timeout_ms=10_000))
    member.beat_until_it_has({second_id: [0]})


# Static members


def test_a_static_member_comes_back_to_what_it_had(wire: Wire, group: str, new_topic: NewTopic) -> None:
    name, id = new_topic(4)
    static, other = RawMember(wire, group, instance="one").join(name), RawMember(wire, group).join(name)
    settle(static, other)
    epoch = describe_group(wire, group).group_epoch
    static.leave(-2)
    other.beat()
    back = RawMember(wire, group, instance="one").join(name)
    assert (back.owned, back.epoch) == (static.owned, static.epoch)
    assert other.owned == {id: [at for at in range(4) if at not in back.owned[id]]}
    assert describe_group(wire, group).group_epoch == epoch, "nobody was disturbed"
    assert refusal(static.send()) == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_id_is_not_taken_from_a_member_that_is_there(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group, instance="one").join(topic)
    answer = RawMember(wire, group, instance="one").try_join(topic)
    assert refusal(answer) == ErrorCode.UNRELEASED_INSTANCE_ID


def test_an_instance_id_that_nobody_knows(wire: Wire, group: str, topic: str) -> None:
    member = RawMember(wire, group).join(topic)
    assert refusal(member.send(instance_id="one")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(member.send(instance_id="one", member_epoch=-2)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_can_leave_for_good(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group, instance="one").join(topic).leave(-1)
    described = describe_group(wire, group)
    assert (described.group_state, described.members) == ("Empty", [])


def test_only_the_member_itself_can_leave_for_its_instance(wire: Wire, group: str, topic: str) -> None:
    RawMember(wire, group, instance="one").join(topic)
    stranger = RawMember(wire, group, instance="one")
    assert refusal(stranger.send(member_epoch=-1)) == ErrorCode.FENCED_INSTANCE_ID


# Expressions


def test_a_regular_expression_matches_whole_names(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    prefix = new_name()
    ids = {suffix: wire.create_topic(f"{prefix}{suffix}") for suffix in ("-1", "-22", "-x", "-1-more")}
    member = RawMember(wire, group).join(regex=f"{prefix}-[0-9]{{1,2}}", subscribed_topic_names=None)
    member.beat_until_it_has({ids["-1"]: [0], ids["-22"]: [0]})
    [described] = describe_group(wire, group).members
    assert (described.subscribed_topic_names, described.subscribed_topic_regex) == ([], f"{prefix}-[0-9]{{1,2}}")


def test_topics_by_name_and_by_expression(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    prefix = new_name()
    ids = [wire.create_topic(f"{prefix}-{at}") for at in range(3)]
    member = RawMember(wire, group).join(f"{prefix}-0", regex=f"{prefix}-[12]")
    member.beat_until_it_has({id: [0] for id in ids})


@pytest.mark.parametrize("regex", ["(", "[a", "a**", r"(a)\1", "(?=a)a", "a{1001}", "*"])
def test_an_expression_that_is_none(wire: Wire, group: str, regex: str) -> None:
    answer = RawMember(wire, group).try_join(regex=regex)
    assert refusal(answer) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert describe_group(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_expression_is_given_up_for_names(wire: Wire, group: str, new_name: Callable[[], str]) -> None:
    prefix = new_name()
    ids = [wire.create_topic(f"{prefix}-{at}") for at in range(2)]
    member = RawMember(wire, group).join(regex=f"{prefix}-.*")
    member.beat_until_it_has({id: [0] for id in ids})
    member.beat(subscribed_topic_names=[f"{prefix}-0"], subscribed_topic_regex="")
    member.beat_until_it_has({ids[0]: [0]})


def test_an_expression_that_matches_nothing_leaves_the_epoch_as_it_is(
    wire: Wire, group: str, topic: str, new_name: Callable[[], str]
) -> None:
    """It is not a change of the group when the topics are looked through, but when they are found."""
    prefix = new_name()
    first = RawMember(wire, group).join(topic)
    settle(first)
    before = describe_group(wire, group).group_epoch
    second = RawMember(wire, group).join(regex=f"{prefix}-.*")
    joined = describe_group(wire, group).group_epoch
    for _ in range(5):
        second.beat()
        first.beat()
    assert (joined - before, describe_group(wire, group).group_epoch) == (0, joined)


def test_a_group_whose_only_expression_matches_nothing_stays_at_its_first_epoch(
    wire: Wire, group: str, new_name: Callable[[], str]
) -> None:
    member = RawMember(wire, group).join(regex=f"{new_name()}-.*")
    for _ in range(3):
        member.beat()
    described = describe_group(wire, group)
    assert (described.group_epoch, described.group_state, member.epoch) == (FIRST_EPOCH - 1, "Stable", FIRST_EPOCH - 1)


def test_expressions_match_internal_topics_too(wire: Wire, group: str) -> None:
    member = RawMember(wire, group).join(regex="__consumer_offset.")

    def names() -> set[str]:
        member.beat()
        [shown] = describe_group(wire, group).members
        return {topic.topic_name for topic in shown.assignment.topic_partitions}

    assert eventually(names, "it is assigned something", every_s=0.1) == {"__consumer_offsets"}
