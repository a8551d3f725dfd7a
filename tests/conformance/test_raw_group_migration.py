"""Groups that change their protocol while they have members (KIP-848): upgrade, both kinds of members in one group, and
downgrade."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_consumer_members import RawMember, create_topic_for, describe_group, settle
from tests.support.raw_groups import GroupMember, commit_once, committed, list_group, subscription
from tests.support.raw_groups import describe_group as describe_classic
from tests.support.raw_transactions import GROUP, find_coordinator
from tests.support.waiting import eventually

CLASSIC, CONSUMER = 0, 1
"""Types of members, as ConsumerGroupDescribe names them."""


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    name = new_name()
    find_coordinator(wire, name, GROUP)
    return name


@pytest.fixture
def topic(wire: Wire, group: str, new_name: Callable[[], str]) -> tuple[str, UUID]:
    name = new_name()
    return name, create_topic_for(wire, group, name, 4)


NewMember = Callable[..., GroupMember]


@pytest.fixture
def classic(broker: RunningBroker, group: str, topic: tuple[str, UUID]) -> Iterator[NewMember]:
    """Members of the classic protocol that subscribe to the topic."""
    with ExitStack() as stack:

        def create(owned: Mapping[str, Sequence[int]] | None = None, **settings: Any) -> GroupMember:
            said = subscription(topic[0]) if owned is None else owning(owned, topic[0])
            settings = {"protocols": {"range": said}} | settings
            return stack.enter_context(GroupMember(broker.bootstrap, group, **settings))

        yield create


def owning(owned: Mapping[str, Sequence[int]], *topics: str) -> bytes:
    """A subscription of version 1, which says what the member has."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + _by_topic(owned)


def assignment(partitions: Mapping[str, Sequence[int]], version: int = 0, user_data: bytes | None = None) -> bytes:
    data = struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return struct.pack(">h", version) + _by_topic(partitions) + data


def _by_topic(partitions: Mapping[str, Sequence[int]]) -> bytes:
    topics = b"".join(
        struct.pack(">h", len(topic)) + topic.encode() + struct.pack(f">i{len(at)}i", len(at), *at)
        for topic, at in partitions.items()
    )
    return struct.pack(">i", len(partitions)) + topics


def stable(member: GroupMember, partitions: Mapping[str, Sequence[int]]) -> GroupMember:
    """The only member of a classic group, with these partitions."""
    member.join()
    member.sync({member.id: assignment(partitions)})
    return member


def joins_again(member: GroupMember, modern: RawMember) -> bytes:
    """What the member is given in its next step, which the other's heartbeats make room for."""

    def is_told() -> bool:
        modern.beat()
        return member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

    eventually(is_told, "the member is told to join again", every_s=0.1)
    member.join()
    return member.sync()


def share_out(modern: RawMember) -> None:
    """Apache Kafka does so once in a second, when somebody asks."""

    def is_done() -> bool:
        modern.beat()
        described = describe_group(modern.wire, modern.group)
        return described.assignment_epoch == described.group_epoch

    eventually(is_done, "there is a new target", every_s=0.1)


def kinds(wire: Wire, group: str) -> dict[str, int]:
    return {member.member_id: member.member_type for member in describe_group(wire, group).members}


# Upgrade


def test_a_classic_group_becomes_a_consumer_group_with_its_members(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, _ = topic
    old = stable(classic(), {name: range(4)})
    assert old.commit(name, 7) == ErrorCode.NONE
    new = RawMember(wire, group).join(name)
    listed = list_group(wire, group)
    assert listed is not None
    assert (listed.group_type, listed.protocol_type) == ("consumer", "consumer")
    assert kinds(wire, group) == {old.id: CLASSIC, new.id: CONSUMER}
    described = describe_group(wire, group)
    assert described.group_epoch == old.generation + 1
    [shown] = [member for member in described.members if member.member_id == old.id]
    assert (shown.member_epoch, shown.subscribed_topic_names) == (old.generation, [name])
    assert [(each.topic_name, sorted(each.partitions)) for each in shown.assignment.topic_partitions] == [
        (name, [0, 1, 2, 3])
    ]
    assert new.owned == {}
    assert committed(wire, group, name) == 7


def test_members_of_both_protocols_share_the_partitions(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, _id = topic
    old = stable(classic(), {name: range(4)})
    new = RawMember(wire, group).join(name)
    kept = joins_again(old, new)
    assert old.generation == new.epoch
    settle(new)
    [theirs] = new.owned.values()
    mine = sorted(set(range(4)) - set(theirs))
    assert len(theirs) == len(mine) == 2
    assert kept == assignment({name: mine})
    assert old.heartbeat() == ErrorCode.NONE
    assert old.commit(name, 5, partition=mine[0]) == ErrorCode.NONE


def test_a_member_that_keeps_its_partitions_gives_them_back_in_two_steps(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, id = topic
    old = stable(classic(owned={}), {name: range(4)})
    new = RawMember(wire, group).join(name)
    old.protocols = {"range": owning({name: range(4)}, name)}
    kept = joins_again(old, new)
    generation = old.generation
    new.beat()
    assert new.owned == {}
    mine = list(struct.unpack(">2i", kept[-12:-4]))
    assert kept == assignment({name: mine}, version=1)
    old.protocols = {"range": owning({name: mine}, name)}
    assert joins_again(old, new) == kept
    assert old.generation == generation + 1
    new.beat_until_it_has({id: sorted(set(range(4)) - set(mine))})
    assert old.heartbeat() == ErrorCode.NONE


def test_who_waits_for_the_end_of_a_rebalance_is_told_to_join_again(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    stable(classic(), {topic[0]: range(4)})
    waiting = classic()
    waiting.send_join()
    eventually(lambda: describe_classic(wire, group).group_state == "PreparingRebalance", "the group rebalances")
    RawMember(wire, group).join(topic[0])
    assert waiting.refused() == ErrorCode.REBALANCE_IN_PROGRESS
    assert waiting.id in kinds(wire, group)
    waiting.join()
    waiting.sync()


def test_who_waits_for_the_assignment_is_told_to_join_again(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    leader, follower = stable(classic(), {topic[0]: range(4)}), classic()
    follower.send_join()
    eventually(lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "the leader is told")
    leader.join()
    follower.joined()
    follower.send_sync()
    RawMember(wire, group).join(topic[0])
    assert follower.synced().error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    "settings",
    [
        {"protocol_type": "connect", "protocols": {"default": b""}},
        {"protocols": {"range": b""}},
    ],
    ids=["another protocol", "no subscription"],
)
def test_a_group_whose_members_say_something_else_stays_classic(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember, settings: dict[str, Any]
) -> None:
    old = stable(classic(**settings), {})
    assert RawMember(wire, group).try_join(topic[0]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert describe_classic(wire, group).group_state == "Stable"
    assert old.heartbeat() == ErrorCode.NONE


@pytest.mark.parametrize("assigned", [b"all", assignment({}, user_data=b"mine")], ids=["no assignment", "user data"])
def test_a_group_with_an_assignor_of_its_own_stays_classic(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember, assigned: bytes
) -> None:
    old = classic()
    old.join()
    old.sync({old.id: assigned})
    assert RawMember(wire, group).try_join(topic[0]).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert old.heartbeat() == ErrorCode.NONE


def test_a_member_without_an_assignment_is_taken_over(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    old = classic()
    old.join()
    old.sync({})
    new = RawMember(wire, group).join(topic[0])
    assert kinds(wire, group) == {old.id: CLASSIC, new.id: CONSUMER}


# Classic members of a consumer group


def test_a_classic_member_joins_a_consumer_group(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, _id = topic
    new = RawMember(wire, group).join(name)
    old = classic()
    answer = old.join()
    assert (answer.protocol_type, answer.protocol_name, answer.leader, answer.members) == ("consumer", "range", "", [])
    assert old.sync() == assignment({})
    assert kinds(wire, group) == {old.id: CLASSIC, new.id: CONSUMER}
    share_out(new)
    new.beat()
    mine = joins_again(old, new)
    assert old.generation == new.epoch
    [theirs] = new.owned.values()
    assert mine == assignment({name: sorted(set(range(4)) - set(theirs))})


def test_a_classic_member_brings_no_id_before_version_4(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    RawMember(wire, group).join(topic[0])
    assert classic().join(version=3).member_id


def test_a_classic_member_may_bring_an_id_that_nobody_knows(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    RawMember(wire, group).join(topic[0])
    old = classic()
    old.id = "of-a-time-before"
    assert old.join().member_id == "of-a-time-before"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"sticky": b""}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"range": b""}}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"protocols": {"range": b"\0\1\0\0\0\1\0\5ab"}}, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_who_cannot_do_what_the_others_can_does_not_join(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember, settings: dict[str, Any], error: ErrorCode
) -> None:
    new = RawMember(wire, group).join(topic[0])
    old = classic()
    old.join()
    epoch = describe_group(wire, group).group_epoch
    stranger = classic(**settings)
    stranger.id = "stranger"
    assert stranger.join_once().error_code == error
    assert set(kinds(wire, group)) == {old.id, new.id}
    assert describe_group(wire, group).group_epoch == epoch


def test_what_a_classic_member_is_refused(wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember) -> None:
    RawMember(wire, group).join(topic[0])
    old = classic()
    old.join()
    assert old.heartbeat(generation=old.generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert old.commit(topic[0], 1, generation=old.generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert old.commit(topic[0], 1, generation=old.generation - 1) == ErrorCode.ILLEGAL_GENERATION
    old.protocol = "sticky"
    assert old.sync_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    old.protocol, old.protocol_type = "range", "connect"
    assert old.sync_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    old.protocol_type, old.generation = "consumer", old.generation - 1
    assert old.sync_once().error_code == ErrorCode.ILLEGAL_GENERATION
    old.id = "nobody"
    assert old.sync_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    old.instance_id = "nobody"
    assert old.sync_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_of_the_new_protocol_cannot_use_the_old_one(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    new = RawMember(wire, group).join(topic[0])
    pretender = classic()
    pretender.id, pretender.generation, pretender.protocol = new.id, new.epoch, "range"
    assert pretender.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert pretender.sync_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_commits_in_any_version(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    RawMember(wire, group).join(topic[0])
    old = classic()
    old.join()
    assert old.commit(topic[0], 3, version=7) == ErrorCode.NONE
    assert committed(wire, group, topic[0]) == 3


def test_a_rebalance_that_begins_before_the_sync_is_told(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    new = RawMember(wire, group).join(topic[0])
    old = classic()
    old.join()
    RawMember(wire, group).join(topic[0])
    share_out(new)
    assert old.sync_once().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_silent_classic_member_is_put_out(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    new = RawMember(wire, group).join(topic[0])
    old = classic(session_timeout_ms=1000)
    old.join()
    old.sync()
    eventually(lambda: new.beat() and set(kinds(wire, group)) == {new.id}, "the member is gone", every_s=0.2)


@pytest.mark.parametrize("syncs", [False, True], ids=["joined", "synced"])
def test_a_classic_member_has_its_rebalance_timeout_for_each_step(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember, syncs: bool
) -> None:
    """Who has joined must sync, and who is told to join must join, however often it reports."""
    new = RawMember(wire, group).join(topic[0])
    old = classic(rebalance_timeout_ms=1000)
    old.join()
    if syncs:
        old.sync()
        RawMember(wire, group).join(topic[0])

    def is_gone() -> bool:
        new.beat()
        return old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID

    eventually(is_gone, "the member is put out", every_s=0.1)
    assert old.id not in kinds(wire, group)


def test_a_classic_member_leaves_a_consumer_group(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, id = topic
    old = stable(classic(), {name: range(4)})
    new = RawMember(wire, group).join(name)
    [left] = old.leave_once().members
    assert (left.member_id, left.error_code) == (old.id, ErrorCode.NONE)
    new.beat_until_it_has({id: [0, 1, 2, 3]})
    assert kinds(wire, group) == {new.id: CONSUMER}


# Downgrade


def leaves(wire: Wire, new: RawMember) -> None:
    new.leave()


def is_removed(wire: Wire, new: RawMember) -> None:
    """As an administrator removes members."""
    request = LeaveGroupRequest(group_id=new.group, members=[MemberIdentity(member_id=new.id)])
    [left] = wire.ask(request).members
    assert left.error_code == ErrorCode.NONE


@pytest.mark.parametrize("goes", [leaves, is_removed])
def test_a_group_of_which_only_classic_members_are_left_is_a_classic_one(
    wire: Wire,
    group: str,
    topic: tuple[str, UUID],
    classic: NewMember,
    goes: Callable[[Wire, RawMember], None],
) -> None:
    name, _ = topic
    old = stable(classic(), {name: range(4)})
    assert old.commit(name, 7) == ErrorCode.NONE
    new = RawMember(wire, group).join(name)
    joins_again(old, new)
    epoch = describe_group(wire, group).group_epoch
    goes(wire, new)
    listed = list_group(wire, group)
    assert listed is not None
    assert (listed.group_type, listed.protocol_type, listed.group_state) == (
        "classic",
        "consumer",
        "PreparingRebalance",
    )
    assert describe_group(wire, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    [shown] = describe_classic(wire, group).members
    assert shown.member_id == old.id
    assert old.generation == epoch
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    answer = old.join()
    assert (answer.generation_id, answer.leader) == (epoch + 1, old.id)
    everything = assignment({name: range(4)})
    old.sync({old.id: everything})
    assert describe_classic(wire, group).group_state == "Stable"
    assert committed(wire, group, name) == 7


def test_up_and_down_and_up_again(wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember) -> None:
    name, _id = topic
    old = stable(classic(), {name: range(4)})
    for _ in range(3):
        before = old.generation
        new = RawMember(wire, group).join(name)
        joins_again(old, new)
        new.leave()
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        stable(old, {name: range(4)})
        assert old.generation == before + 2


def test_a_group_without_members_is_no_classic_one(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    old = stable(classic(), {topic[0]: range(4)})
    new = RawMember(wire, group).join(topic[0])
    old.leave_once()
    new.leave()
    listed = list_group(wire, group)
    assert listed is not None
    assert (listed.group_type, listed.group_state) == ("consumer", "Empty")


# Static members


def test_a_static_member_changes_to_the_new_protocol(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, id = topic
    old = stable(classic(instance_id="one"), {name: range(4)})
    new = RawMember(wire, group, instance="one").join(name)
    assert kinds(wire, group) == {new.id: CONSUMER}
    new.beat_until_it_has({id: [0, 1, 2, 3]})
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("wants", ["the same", "another topic"])
def test_a_static_member_changes_back(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember, new_name: Callable[[], str], wants: str
) -> None:
    """A group of one is a classic one at once; it rebalances if the member wants something else."""
    name, id = topic
    new = RawMember(wire, group, instance="one").join(name)
    assert new.owned == {id: [0, 1, 2, 3]}
    old = classic(instance_id="one")
    if wants != "the same":
        old.protocols = {"range": subscription(new_name())}
    old.join()
    listed = list_group(wire, group)
    assert listed is not None
    assert listed.group_type == "classic"
    if wants == "the same":
        assert listed.group_state == "Stable"
        assert old.generation == new.epoch
        assert old.sync() == assignment({name: range(4)})
    else:
        assert listed.group_state == "PreparingRebalance"
        assert old.sync_once().error_code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
        assert old.join().leader == old.id
    assert new.send().error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_static_member_changes_back_in_a_group_with_others(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    name, id = topic
    other = RawMember(wire, group).join(name)
    new = RawMember(wire, group, instance="one").join(name)
    settle(other, new)
    had = new.owned
    old = classic(instance_id="one")
    old.join()
    assert kinds(wire, group) == {other.id: CONSUMER, old.id: CLASSIC}
    assert old.sync() == assignment({name: had[id]})
    assert new.send().error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_commit_without_a_member_is_refused_while_there_are_members(
    wire: Wire, group: str, topic: tuple[str, UUID], classic: NewMember
) -> None:
    stable(classic(), {topic[0]: range(4)})
    RawMember(wire, group).join(topic[0])
    assert commit_once(wire, group, topic[0], 1, version=8) == ErrorCode.UNKNOWN_MEMBER_ID
