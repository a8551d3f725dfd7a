"""Consumer groups by hand: what takes a clock, a restart or many steps. The rest is in the conformance suite."""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic import Join
from onceflow.group.consumer_group import FENCE_RETRY_MS, ConsumerSettings
from onceflow.group.consumer_members import MemberState
from onceflow.group.consumer_records import (
    CurrentAssignmentKey,
    PartitionMetadataKey,
    PartitionMetadataValue,
    decode_record,
    encode_record,
)
from onceflow.group.effects import Client
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.unit.group.consumer_support import GROUP, Bench, Consumer, settle, snapshot

SESSION_MS = 45_000


@pytest.fixture
def bench() -> Bench:
    return Bench()


def refused(code: ErrorCode) -> pytest.RaisesContext[ProtocolError]:
    return pytest.raises(ProtocolError, check=lambda error: error.code is code)


# Epochs


def test_a_group_begins_with_epoch_1_and_its_first_member_with_2(bench: Bench) -> None:
    id = bench.topics.create("t", 3)
    consumer = bench.join("t")
    assert (consumer.epoch, consumer.owned) == (2, {id: {0, 1, 2}})
    assert (bench.group.epoch, bench.group.assignment_epoch, bench.group.state_name) == (2, 2, "Stable")


def test_a_heartbeat_without_news_writes_nothing(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    written = len(bench.log)
    consumer.say()
    consumer.beat()
    assert len(bench.log) == written


def test_a_refused_heartbeat_changes_nothing(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    before, written = snapshot(bench.group), len(bench.log)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        consumer.say(member_epoch=consumer.epoch + 1, subscribed_topic_names=["other"])
    with refused(ErrorCode.INVALID_REGULAR_EXPRESSION):
        consumer.say(subscribed_topic_regex="(", subscribed_topic_names=["other"])
    assert (snapshot(bench.group), len(bench.log)) == (before, written)


def test_other_settings_of_a_member_are_kept_but_are_no_new_epoch(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    consumer.say(rebalance_timeout_ms=5, rack_id="rack")
    member = bench.group.members[consumer.id]
    assert (member.rebalance_timeout_ms, member.rack_id, bench.group.epoch) == (5, "rack", 2)


def test_any_change_of_the_wanted_topics_is_a_new_epoch(bench: Bench) -> None:
    id = bench.topics.create("t")
    bench.topics.create("other")
    consumer = bench.join("t", "later")
    epochs = [bench.group.epoch]
    for change in (
        lambda: bench.topics.grow("t", 2),
        lambda: bench.topics.create("later"),
        lambda: bench.topics.delete("t"),
        lambda: bench.topics.delete("other"),  # nobody wants it
    ):
        change()
        settle(consumer)
        epochs.append(bench.group.epoch)
    assert epochs == [2, 3, 4, 5, 5]
    assert id not in consumer.owned


def test_a_full_group_takes_nobody_but_its_members(bench: Bench) -> None:
    full = Bench(ConsumerSettings(members_max=1))
    full.topics.create("t")
    consumer = full.join("t", member="one")
    with refused(ErrorCode.GROUP_MAX_SIZE_REACHED):
        full.join("t", member="two")
    consumer.join("t")
    assert list(full.group.members) == ["one"]


def test_a_new_target_has_to_wait_for_its_interval() -> None:
    patient = Bench(ConsumerSettings(assignment_interval_ms=1_000))
    patient.topics.create("t", 2)
    first = patient.join("t")
    patient.wait(999)
    second = patient.join("t")
    assert (patient.group.state_name, patient.group.epoch, patient.group.assignment_epoch) == ("Assigning", 3, 2)
    assert (second.epoch, second.owned) == (2, {})
    patient.wait(1)
    settle(first, second)
    assert (patient.group.state_name, len(second.owned)) == ("Stable", 1)


# Handing over


def test_a_partition_has_one_owner_until_the_other_has_let_go(bench: Bench) -> None:
    id = bench.topics.create("t", 2)
    first, second = bench.join("t"), bench.join("t")
    first.say()
    assert bench.group.members[first.id].state is MemberState.UNREVOKED_PARTITIONS
    assert (first.epoch, first.owned, second.owned) == (2, {id: {0}}, {})
    second.beat()
    assert bench.group.members[second.id].state is MemberState.UNRELEASED_PARTITIONS
    assert second.owned == {}
    first.beat()
    assert (first.epoch, bench.group.members[first.id].state) == (3, MemberState.STABLE)
    second.beat()
    assert (second.epoch, second.owned) == (3, {id: {1}})


def test_silence_about_partitions_gives_none_back(bench: Bench) -> None:
    bench.topics.create("t", 2)
    first, second = bench.join("t"), bench.join("t")
    for _ in range(3):
        first.say()
        second.beat()
    assert second.owned == {}


def test_a_member_that_left_frees_its_partitions_at_once(bench: Bench) -> None:
    id = bench.topics.create("t", 2)
    first, second = bench.join("t"), bench.join("t")
    first.leave()
    settle(second)
    assert second.owned == {id: {0, 1}}


def test_a_partition_that_is_wanted_back_stays(bench: Bench) -> None:
    id = bench.topics.create("t", 2)
    first, second = bench.join("t"), bench.join("t")
    first.say()
    second.leave()
    settle(first)
    assert first.owned == {id: {0, 1}}


def test_partitions_know_since_which_epoch_they_are_held(bench: Bench) -> None:
    id = bench.topics.create("t", 2)
    first, second = bench.join("t"), bench.join("t")
    settle(first, second)
    assert bench.group.members[first.id].assigned == {id: {0: 2}}
    assert bench.group.members[second.id].assigned == {id: {1: 3}}


# Time


def test_a_silent_member_is_removed_when_its_session_is_over(bench: Bench) -> None:
    bench.topics.create("t")
    bench.join("t")
    bench.wait(SESSION_MS - 1)
    assert len(bench.group.members) == 1
    bench.wait(1)
    assert (bench.group.members, bench.group.state_name, bench.group.epoch) == ({}, "Empty", 3)


def test_every_heartbeat_begins_the_session_anew(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    for _ in range(5):
        bench.wait(SESSION_MS - 1)
        consumer.say()
    assert len(bench.group.members) == 1


def test_who_keeps_what_it_must_give_back_is_removed_after_its_rebalance_timeout(bench: Bench) -> None:
    id = bench.topics.create("t", 2)
    greedy, other = bench.join("t", rebalance_timeout_ms=1_000), bench.join("t")
    greedy.say()
    bench.wait(999)
    greedy.say()
    assert greedy.id in bench.group.members
    bench.wait(1)
    assert greedy.id not in bench.group.members
    settle(other)
    assert other.owned == {id: {0, 1}}


def test_who_has_given_back_in_time_has_no_deadline_any_more(bench: Bench) -> None:
    bench.topics.create("t", 2)
    first, second = bench.join("t", rebalance_timeout_ms=1_000), bench.join("t")
    first.say()
    first.beat()
    second.beat()
    bench.wait(1_001)
    assert first.id in bench.group.members


def test_a_removal_that_cannot_be_written_is_tried_again(bench: Bench) -> None:
    bench.topics.create("t")
    bench.join("t")
    bench.now_ms += SESSION_MS
    for _, effects in bench.coordinator.on_time(bench.now_ms):
        assert effects.records, "and the disk refuses"
    assert bench.group.members
    bench.wait(FENCE_RETRY_MS - 1)
    assert bench.group.members
    bench.wait(1)
    assert not bench.group.members


def test_a_static_member_that_is_away_keeps_its_place_for_a_session(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t", instance_id="one")
    consumer.leave(-2)
    bench.wait(SESSION_MS - 1)
    assert [member.epoch for member in bench.group.members.values()] == [-2]
    bench.wait(1)
    assert bench.group.members == {}


def test_the_heir_of_a_static_member_has_a_session_of_its_own(bench: Bench) -> None:
    bench.topics.create("t")
    bench.join("t", instance_id="one").leave(-2)
    bench.wait(SESSION_MS - 1)
    heir = bench.join("t", instance_id="one")
    bench.wait(SESSION_MS - 1)
    assert list(bench.group.members) == [heir.id]
    assert bench.group.session_deadlines.keys() == {heir.id}


# Expressions


def test_an_expression_is_matched_after_the_heartbeat_that_brings_it(bench: Bench) -> None:
    id = bench.topics.create("orders-eu", 2)
    consumer = bench.join(subscribed_topic_regex="orders-.*", subscribed_topic_names=None)
    assert (consumer.epoch, consumer.owned) == (1, {})
    assert bench.group.regexes["orders-.*"].topics == {"orders-eu"}
    consumer.beat()
    assert (consumer.epoch, consumer.owned) == (2, {id: {0, 1}})


def test_a_new_topic_is_matched_but_not_more_often_than_every_ten_seconds(bench: Bench) -> None:
    consumer = bench.join(subscribed_topic_regex="orders-.*")
    id = bench.topics.create("orders-eu")
    bench.wait(10_000)
    settle(consumer)
    assert consumer.owned == {}
    bench.wait(1)
    consumer.beat()
    consumer.beat()
    assert consumer.owned == {id: {0}}


def test_an_expression_that_nobody_has_any_more_is_forgotten(bench: Bench) -> None:
    bench.topics.create("orders-eu")
    first, second = (bench.join(subscribed_topic_regex="orders-.*") for _ in range(2))
    first.leave()
    assert bench.group.regexes
    second.say(subscribed_topic_regex="")
    assert bench.group.regexes == {}
    assert not bench.group.is_subscribed("orders-eu")


def test_who_takes_up_a_known_expression_has_its_topics_at_once(bench: Bench) -> None:
    bench.topics.create("orders-eu", 2)
    first = bench.join(subscribed_topic_regex="orders-.*")
    first.beat()
    second = bench.join(subscribed_topic_regex="orders-.*")
    settle(first, second)
    assert bench.group.epoch == 3
    assert [len(consumer.owned) for consumer in (first, second)] == [1, 1]


def test_expressions_are_matched_again_after_a_restart(bench: Bench) -> None:
    consumer = bench.join(subscribed_topic_regex="orders-.*")
    bench.wait(10_001)
    id = bench.topics.create("orders-eu")
    bench.restart()
    consumer.beat()
    consumer.beat()
    assert consumer.owned == {id: {0}}


# The other kind of group


def join_classic(bench: Bench, group: str = GROUP) -> None:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    join = Join(request, 3, Client("classic", "/host"), object())
    bench.write(bench.coordinator.make_room(join, bench.now_ms))
    bench.log += bench.coordinator.join(join, bench.now_ms).records


def test_a_classic_group_with_members_is_not_converted(bench: Bench) -> None:
    join_classic(bench)
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        bench.join("t")
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        Consumer(bench, "one").say(member_epoch=3)


def test_a_tool_removes_members_of_a_consumer_group(bench: Bench) -> None:
    bench.topics.create("t")
    static, dynamic = bench.join("t", instance_id="one"), bench.join("t")
    named = [
        MemberIdentity(group_instance_id="one"),
        MemberIdentity(member_id=dynamic.id),
        MemberIdentity(member_id="nobody"),
        MemberIdentity(member_id=dynamic.id, group_instance_id="one"),
        MemberIdentity(group_instance_id="two"),
    ]
    answers, effects = bench.coordinator.leave(LeaveGroupRequest(group_id=GROUP, members=named), bench.now_ms)
    bench.write(effects.records)
    assert [answer.error_code for answer in answers] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert bench.group.members == {}
    assert static.id != dynamic.id


# A restart


def test_a_restart_finds_everything_as_it_was(bench: Bench) -> None:
    bench.topics.create("t", 4)
    first, second = bench.join("t", instance_id="one"), bench.join("t", subscribed_topic_regex="t.*")
    first.say()
    before = snapshot(bench.group)
    bench.restart()
    assert snapshot(bench.group) == before
    settle(first, second)
    assert bench.group.state_name == "Stable"


def test_after_a_restart_members_have_a_fresh_session_and_fresh_time_to_give_back(bench: Bench) -> None:
    bench.topics.create("t", 2)
    greedy, _ = bench.join("t", rebalance_timeout_ms=50_000), bench.join("t")
    greedy.say()
    bench.wait(SESSION_MS - 1)
    bench.restart()
    bench.wait(SESSION_MS - 1)
    greedy.say()
    assert greedy.id in bench.group.members
    bench.wait(50_000 - SESSION_MS + 1)
    assert greedy.id not in bench.group.members


def test_a_record_of_older_brokers_is_cleared_away(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    key = PartitionMetadataKey(group_id=GROUP)
    bench.write([encode_record((key, PartitionMetadataValue()))])
    bench.restart()
    assert bench.group.has_partition_metadata
    consumer.say()
    assert bench.log[-1] == encode_record((key, None))
    assert not bench.group.has_partition_metadata


def test_a_deleted_group_is_gone_after_a_restart(bench: Bench) -> None:
    bench.topics.create("t")
    bench.join("t").leave()
    bench.write(bench.coordinator.delete_group(GROUP))
    assert bench.coordinator.groups == {}
    bench.restart()
    assert bench.coordinator.groups == {}


def test_a_member_in_a_state_of_the_future_must_have_nothing_to_go_on(bench: Bench) -> None:
    bench.topics.create("t")
    consumer = bench.join("t")
    key, value = next(
        (key, value) for key, value in reversed(bench.log) if isinstance(_key(key, value), CurrentAssignmentKey)
    )
    assert value is not None
    future = bytearray(value)
    future[2 + 4 + 4] = 99  # version, two epochs, then the state
    bench.write([(key, bytes(future))])
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        consumer.beat()
    consumer.join("t")
    assert bench.group.members[consumer.id].state is MemberState.STABLE


def _key(key: bytes, value: bytes | None) -> object:
    decoded = decode_record(key, value)
    assert decoded is not None
    return decoded[0]
