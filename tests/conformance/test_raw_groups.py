"""Classic groups without a client: joining, syncing, heartbeats and leaving, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages.delete_groups import DeleteGroupsRequest
from onceflow.wire.messages.describe_groups import DescribeGroupsRequest
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.sync_group import SyncGroupRequest
from tests.conformance.conftest import RunningBroker
from tests.support.raw import Wire
from tests.support.raw_groups import (
    GroupMember,
    describe_group,
    joined_alone,
    list_group,
    ready,
    subscription,
)
from tests.support.waiting import eventually

NewMember = Callable[..., GroupMember]

ALL_OPERATIONS = 3400
"""Read, delete, describe, describe configs, alter configs, as a bit field."""
TOO_LATE_MS = 2_000
"""A rebalance timeout that is to run out, and not before all have said what they say in time."""


@pytest.fixture
def group(wire: Wire, new_name: Callable[[], str]) -> str:
    return ready(wire, new_name())


@pytest.fixture
def new_member(broker: RunningBroker, group: str) -> Iterator[NewMember]:
    """Makes members of the group, who have yet to join, each with a connection of its own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(GroupMember(broker.bootstrap, group, **settings))


@pytest.fixture
def alone(broker: RunningBroker, group: str) -> Iterator[GroupMember]:
    """The only member of a stable group."""
    with joined_alone(broker.bootstrap, group) as member:
        yield member


def join_together(*members: GroupMember) -> GroupMember:
    """Bring members of one group, of which some may be in it already, to one generation; returns the leader."""
    first, *others = members
    answers = [first.join()]
    for other in others:
        other.send_join()
        settled = list(members[: members.index(other)])
        for member in settled:
            eventually(lambda of=member: of.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
            member.send_join()
        answers = [member.joined() for member in (*settled, other)]
    assert len({member.generation for member in members}) == 1
    return next(member for member in members if member.id == answers[0].leader)


def make_stable(*members: GroupMember) -> GroupMember:
    leader = join_together(*members)
    leader.sync({member.id: member.id.encode() for member in members})
    for member in members:
        if member is not leader:
            assert member.sync() == member.id.encode()
    return leader


# Joining


def test_a_new_member_is_given_an_id_first(new_member: NewMember) -> None:
    member = new_member(client_id="someone")
    answer = member.join_once()
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("someone-")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", [])


@pytest.mark.parametrize("version", range(4))
def test_older_clients_join_in_one_step(new_member: NewMember, version: int) -> None:
    answer = new_member().join(version)
    assert answer.generation_id == 1
    assert answer.leader == answer.member_id != ""


@pytest.mark.parametrize("version", range(4, 10))
def test_the_first_member_leads_the_first_generation(new_member: NewMember, version: int) -> None:
    member = new_member(protocols={"range": b"mine"})
    answer = member.join(version)
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id == member.id
    assert [(each.member_id, each.metadata) for each in answer.members] == [(member.id, b"mine")]
    assert not answer.skip_assignment


def test_only_the_leader_is_told_who_is_in_the_group(new_member: NewMember) -> None:
    one, other = new_member(protocols={"range": b"1"}), new_member(protocols={"range": b"2"})
    one.join()
    other.send_join()
    eventually(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    leader, follower = one.join(), other.joined()
    assert leader.leader == follower.leader == one.id
    assert leader.generation_id == follower.generation_id == 2
    assert {(each.member_id, each.metadata) for each in leader.members} == {(one.id, b"1"), (other.id, b"2")}
    assert follower.members == []


def test_the_protocol_that_all_have_is_chosen(new_member: NewMember) -> None:
    one = new_member(protocols={"sticky": b"", "range": b""})
    other = new_member(protocols={"roundrobin": b"", "range": b""})
    join_together(one, other)
    assert one.protocol == other.protocol == "range"


def test_the_protocol_that_most_prefer_is_chosen(new_member: NewMember) -> None:
    one, two, three = (new_member(protocols={first: b"", second: b""}) for first, second in ("ab", "ba", "ba"))
    join_together(one, two, three)
    assert {member.protocol for member in (one, two, three)} == {"b"}


def test_a_member_without_a_common_protocol_is_refused(alone: GroupMember, new_member: NewMember) -> None:
    answer = new_member(protocols={"other": b""}).join_once()
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert alone.heartbeat() == ErrorCode.NONE


def test_a_member_of_another_kind_of_group_is_refused(alone: GroupMember, new_member: NewMember) -> None:
    member = new_member(protocol_type="connect", protocols=alone.protocols)
    assert member.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("settings", [{"protocols": {}}, {"protocol_type": ""}])
def test_a_member_has_to_name_a_protocol(new_member: NewMember, settings: dict[str, object]) -> None:
    assert new_member(**settings).join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_timeout_ms", [0, 1_800_001])
def test_a_session_timeout_outside_the_limits_is_refused(new_member: NewMember, session_timeout_ms: int) -> None:
    answer = new_member(session_timeout_ms=session_timeout_ms).join_once()
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_an_id_that_the_coordinator_did_not_give_is_refused(alone: GroupMember, new_member: NewMember) -> None:
    member = new_member()
    member.id = "made-up"
    answer = member.join_once()
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "made-up")


def test_an_id_for_a_group_that_does_not_exist_is_refused(new_member: NewMember, wire: Wire) -> None:
    member = new_member()
    member.id = "made-up"
    assert member.join_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list_group(wire, member.group) is None


@pytest.mark.parametrize("version", [0, 9])
def test_a_group_needs_an_id(new_member: NewMember, version: int) -> None:
    member = new_member()
    member.group = ""
    assert member.join_once(version).error_code == ErrorCode.INVALID_GROUP_ID
    assert member.heartbeat(generation=1) == ErrorCode.INVALID_GROUP_ID
    member.protocol = "range"
    assert member.sync_once().error_code == ErrorCode.INVALID_GROUP_ID
    assert member.leave_once().error_code == ErrorCode.INVALID_GROUP_ID


# Joining again


def test_a_leader_that_joins_again_begins_a_rebalance(alone: GroupMember) -> None:
    assert alone.join().generation_id == 2


def test_a_follower_that_joins_again_unchanged_stays_in_its_generation(new_member: NewMember) -> None:
    one, other = new_member(), new_member()
    leader = make_stable(one, other)
    follower = other if leader is one else one
    answer = follower.join()
    assert (answer.generation_id, answer.leader, answer.members) == (2, leader.id, [])
    assert leader.heartbeat() == ErrorCode.NONE


def test_a_follower_that_joins_again_changed_begins_a_rebalance(new_member: NewMember) -> None:
    one, other = new_member(), new_member()
    leader = make_stable(one, other)
    follower = other if leader is one else one
    follower.protocols = {"range": subscription("changed")}
    follower.send_join()
    eventually(lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    answer = leader.join()
    assert {each.member_id: each.metadata for each in answer.members}[follower.id] == subscription("changed")
    assert follower.joined().generation_id == answer.generation_id == 3


def test_a_join_repeated_before_the_sync_is_answered_the_same(new_member: NewMember) -> None:
    member = new_member()
    assert member.join() == member.join()


def test_a_member_that_comes_between_join_and_sync_begins_the_next_generation(new_member: NewMember) -> None:
    one, other = new_member(), new_member()
    one.join()
    other.send_join()
    eventually(lambda: one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    assert one.sync_once({one.id: b""}).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert one.join().generation_id == other.joined().generation_id == 2


def test_a_member_that_does_not_join_again_in_time_is_removed(new_member: NewMember) -> None:
    slow, other = new_member(rebalance_timeout_ms=TOO_LATE_MS), new_member(rebalance_timeout_ms=TOO_LATE_MS)
    slow.join()
    slow.sync({slow.id: b"all"})
    answer = other.join()
    assert answer.generation_id == 2
    assert [each.member_id for each in answer.members] == [answer.leader] == [other.id]
    assert slow.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


# Syncing


def test_every_member_gets_its_part(new_member: NewMember) -> None:
    one, other = new_member(), new_member()
    leader = join_together(one, other)
    follower = other if leader is one else one
    follower.send_sync()
    answer = leader.sync_once({leader.id: b"for me", follower.id: b"for you"})
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"for me")
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert follower.synced().assignment == b"for you"
    assert follower.sync() == b"for you"


@pytest.mark.parametrize("version", range(6))
def test_a_member_that_was_given_nothing_gets_nothing(new_member: NewMember, version: int) -> None:
    member = new_member()
    member.join()
    answer = member.sync_once({}, version)
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"")


def test_an_assignment_for_nobody_is_dropped(new_member: NewMember, wire: Wire) -> None:
    member = new_member()
    member.join()
    assert member.sync({"nobody": b"?", member.id: b"!"}) == b"!"
    assert len(describe_group(wire, member.group).members) == 1


def test_a_sync_of_another_generation_is_refused(alone: GroupMember) -> None:
    alone.generation = 7
    assert alone.sync_once().error_code == ErrorCode.ILLEGAL_GENERATION


def test_a_sync_of_nobody_known_is_refused(alone: GroupMember) -> None:
    alone.id = "made-up"
    assert alone.sync_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_for_a_group_that_does_not_exist_is_refused(wire: Wire, group: str) -> None:
    request = SyncGroupRequest(group_id=group, generation_id=1, member_id="m", protocol_type="t", protocol_name="n")
    assert wire.ask(request).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("kind", "name"), [("consumer", "other"), ("other", "range"), (None, "range"), ("consumer", None)]
)
def test_a_sync_under_another_protocol_is_refused(alone: GroupMember, kind: str | None, name: str | None) -> None:
    alone.protocol_type, alone.protocol = kind, name  # type: ignore[assignment]
    assert alone.sync_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_does_not_sync_in_time_is_removed(new_member: NewMember) -> None:
    one, other = new_member(rebalance_timeout_ms=TOO_LATE_MS), new_member(rebalance_timeout_ms=TOO_LATE_MS)
    leader = join_together(one, other)
    follower = other if leader is one else one
    leader.sync({leader.id: b"", follower.id: b""})
    eventually(lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    assert [each.member_id for each in leader.join().members] == [leader.id]
    assert follower.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


# Staying


@pytest.mark.parametrize("version", range(5))
def test_a_member_of_a_stable_group_is_told_to_go_on(alone: GroupMember, version: int) -> None:
    assert alone.heartbeat(version=version) == ErrorCode.NONE


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_a_heartbeat_of_another_generation_is_refused(alone: GroupMember, generation: int) -> None:
    assert alone.heartbeat(generation=generation) == ErrorCode.ILLEGAL_GENERATION


def test_a_heartbeat_of_nobody_known_is_refused(alone: GroupMember) -> None:
    alone.id = "made-up"
    assert alone.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_for_a_group_that_does_not_exist_is_refused(wire: Wire, group: str) -> None:
    answer = wire.ask(HeartbeatRequest(group_id=group, generation_id=1, member_id="m"))
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_before_the_sync_is_fine(new_member: NewMember) -> None:
    member = new_member()
    member.join()
    assert member.heartbeat() == ErrorCode.NONE


def test_a_silent_member_is_removed(wire: Wire, new_member: NewMember) -> None:
    silent, other = new_member(session_timeout_ms=6000), new_member()
    leader = make_stable(silent, other)
    assert leader is silent
    # Nobody hears of it for its session timeout, while the other one reports.
    eventually(lambda: other.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began", every_s=0.2)
    answer = other.join()
    assert (answer.leader, [each.member_id for each in answer.members]) == (other.id, [other.id])
    assert silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


# Leaving


@pytest.mark.parametrize("version", range(6))
def test_the_last_member_leaves_an_empty_group(wire: Wire, alone: GroupMember, version: int) -> None:
    answer = alone.leave_once(version=version)
    assert answer.error_code == ErrorCode.NONE
    if version >= 3:
        assert [(each.member_id, each.error_code) for each in answer.members] == [(alone.id, ErrorCode.NONE)]
    described = describe_group(wire, alone.group)
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "consumer", [])
    assert alone.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_others_are_rebalanced_when_one_leaves(new_member: NewMember) -> None:
    one, other = new_member(), new_member()
    leader = make_stable(one, other)
    follower = other if leader is one else one
    leader.leave_once()
    assert follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    answer = follower.join()
    assert (answer.generation_id, answer.leader) == (3, follower.id)


def test_a_join_that_waits_is_ended_by_leaving(alone: GroupMember, new_member: NewMember) -> None:
    joining = new_member()
    joining.send_join()
    eventually(lambda: alone.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    answer = alone.leave_once(MemberIdentity(member_id=joining.id))
    assert answer.members[0].error_code == ErrorCode.NONE
    assert joining.refused() == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_was_given_an_id_can_leave_without_having_joined(alone: GroupMember, new_member: NewMember) -> None:
    pending = new_member()
    pending.get_id()
    assert pending.leave_once().members[0].error_code == ErrorCode.NONE
    assert pending.join_once().error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("version", "at"), [(2, "group"), (3, "member")])
def test_nobody_known_cannot_leave(alone: GroupMember, version: int, at: str) -> None:
    alone.id = "made-up"
    answer = alone.leave_once(version=version)
    errors = {"group": answer.error_code, "member": answer.members[0].error_code if answer.members else 0}
    assert errors.pop(at) == ErrorCode.UNKNOWN_MEMBER_ID
    assert set(errors.values()) == {ErrorCode.NONE}


def test_nobody_can_leave_a_group_that_does_not_exist(wire: Wire, group: str) -> None:
    request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="m", group_instance_id="i")])
    answer = wire.ask(request)
    assert answer.error_code == ErrorCode.NONE
    [member] = answer.members
    assert (member.member_id, member.group_instance_id) == ("m", "i")
    assert member.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Static members


def test_a_static_member_joins_in_one_step(new_member: NewMember) -> None:
    member = new_member(instance_id="one")
    answer = member.join()
    assert answer.member_id.startswith("one-")
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == [(answer.member_id, "one")]


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance(new_member: NewMember) -> None:
    static, other = new_member(instance_id="one"), new_member()
    leader = make_stable(static, other)
    assert leader is static
    again = new_member(instance_id="one")
    answer = again.join()
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (2, again.id, True)
    assert {each.member_id for each in answer.members} == {again.id, other.id}
    assert again.id != static.id
    assert other.heartbeat() == ErrorCode.NONE
    assert again.sync() == static.id.encode()
    assert again.heartbeat() == ErrorCode.NONE


@pytest.mark.parametrize("version", [5, 8])
def test_older_static_leaders_that_come_back_are_not_told_that_they_lead(new_member: NewMember, version: int) -> None:
    static = new_member(instance_id="one")
    make_stable(static)
    again = new_member(instance_id="one")
    answer = again.join(version)
    assert (answer.generation_id, answer.leader, answer.members) == (1, static.id, [])
    assert answer.member_id == again.id != static.id


def test_a_static_member_that_was_replaced_is_fenced(new_member: NewMember, topic: str) -> None:
    static = new_member(instance_id="one")
    make_stable(static)
    again = new_member(instance_id="one")
    again.join()
    assert static.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert static.sync_once().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert static.join_once().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert static.commit(topic, 1) == ErrorCode.FENCED_INSTANCE_ID
    assert static.leave_once().members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert again.heartbeat() == ErrorCode.NONE


def test_a_waiting_join_is_fenced_by_the_one_that_replaces_it(new_member: NewMember) -> None:
    holder, static = new_member(), new_member(instance_id="one")
    holder.join()
    static.send_join()
    eventually(lambda: holder.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS, "a rebalance began")
    again = new_member(instance_id="one")
    again.send_join()
    assert static.refused() == ErrorCode.FENCED_INSTANCE_ID
    assert holder.join().generation_id == again.joined().generation_id == 2


def test_a_static_member_that_comes_back_with_another_protocol_begins_a_rebalance(new_member: NewMember) -> None:
    static = new_member(instance_id="one")
    make_stable(static)
    again = new_member(instance_id="one", protocols={"range": b"", "other": b""})
    again.protocols = {"other": b""}
    assert again.join_once().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    again.protocols = {"other": b"", "range": b""}
    answer = again.join()
    assert (answer.generation_id, answer.protocol_name, answer.skip_assignment) == (2, "other", False)


def test_an_unknown_instance_is_refused(alone: GroupMember) -> None:
    alone.instance_id = "unheard-of"
    assert alone.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_can_be_removed_by_instance(new_member: NewMember) -> None:
    one, two = new_member(instance_id="one"), new_member(instance_id="two")
    make_stable(one, two)
    answer = one.leave_once(
        MemberIdentity(member_id="", group_instance_id="two"),
        MemberIdentity(member_id="", group_instance_id="three"),
        MemberIdentity(member_id=two.id, group_instance_id="one"),
    )
    assert [each.error_code for each in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert two.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert one.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_does_not_join_again_keeps_its_place(new_member: NewMember) -> None:
    static = new_member(instance_id="one", rebalance_timeout_ms=TOO_LATE_MS)
    other = new_member(rebalance_timeout_ms=TOO_LATE_MS)
    static.join()
    static.sync({static.id: b"all"})
    answer = other.join()
    assert (answer.generation_id, answer.leader) == (2, other.id)
    assert {each.member_id for each in answer.members} == {static.id, other.id}


# Lists and descriptions


def test_a_stable_group_is_described(wire: Wire, new_member: NewMember) -> None:
    member = new_member(client_id="someone", instance_id="one", protocols={"range": subscription("t")})
    make_stable(member)
    described = describe_group(wire, member.group)
    assert (described.error_code, described.group_state) == (ErrorCode.NONE, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    [shown] = described.members
    assert (shown.member_id, shown.group_instance_id) == (member.id, "one")
    assert (shown.client_id, shown.client_host) == ("someone", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (subscription("t"), member.id.encode())


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes(wire: Wire, alone: GroupMember, version: int) -> None:
    described = describe_group(wire, alone.group, version)
    assert (described.group_state, len(described.members)) == ("Stable", 1)


def test_a_group_between_join_and_sync_is_described_without_what_its_members_said(
    wire: Wire, new_member: NewMember
) -> None:
    member = new_member()
    member.join()
    # As with the list: the answer to the join does not wait for the record of the new group.
    eventually(lambda: describe_group(wire, member.group).group_state != "Dead", "the group is known")
    described = describe_group(wire, member.group)
    assert (described.group_state, described.protocol_data) == ("CompletingRebalance", "")
    assert [(each.member_metadata, each.member_assignment) for each in described.members] == [(b"", b"")]


def test_a_group_that_waits_for_its_members_is_described(wire: Wire, alone: GroupMember, new_member: NewMember) -> None:
    new_member().send_join()
    eventually(lambda: describe_group(wire, alone.group).group_state == "PreparingRebalance", "a rebalance began")


@pytest.mark.parametrize(
    ("version", "error"), [(0, ErrorCode.NONE), (5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_group_that_does_not_exist_is_dead(wire: Wire, group: str, version: int, error: ErrorCode) -> None:
    described = describe_group(wire, group, version)
    assert (described.group_state, described.error_code, described.members) == ("Dead", error, [])
    if version >= 6:
        assert described.error_message == f"Group {group} not found."


def test_what_the_client_may_do_is_told_on_demand(wire: Wire, alone: GroupMember) -> None:
    assert describe_group(wire, alone.group).authorized_operations == -(2**31)
    described = describe_group(wire, alone.group, include_authorized_operations=True)
    assert described.authorized_operations == ALL_OPERATIONS


def test_several_groups_are_described_at_once(wire: Wire, alone: GroupMember) -> None:
    described = wire.ask(DescribeGroupsRequest(groups=[alone.group, alone.group + "-not"])).groups
    assert {each.group_id: each.group_state for each in described} == {
        alone.group: "Stable",
        alone.group + "-not": "Dead",
    }


@pytest.mark.parametrize("version", range(6))
def test_a_group_is_listed(wire: Wire, alone: GroupMember, version: int) -> None:
    listed = list_group(wire, alone.group, version)
    assert listed is not None
    assert listed.protocol_type == "consumer"
    assert listed.group_state == ("Stable" if version >= 4 else "")
    assert listed.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({"states_filter": ["Stable"]}, True),
        ({"states_filter": ["sTABLE"]}, True),
        ({"states_filter": ["Empty", "Stable"]}, True),
        ({"states_filter": ["Empty"]}, False),
        ({"states_filter": ["Nonsense"]}, False),
        ({"types_filter": ["classic"]}, True),
        ({"types_filter": ["Classic", "consumer"]}, True),
        ({"types_filter": ["consumer"]}, False),
        ({"types_filter": ["nonsense"]}, False),
        ({"states_filter": ["Stable"], "types_filter": ["consumer"]}, False),
    ],
)
def test_lists_can_be_filtered(wire: Wire, alone: GroupMember, filters: dict[str, list[str]], shown: bool) -> None:
    assert (list_group(wire, alone.group, **filters) is not None) is shown


def test_a_group_is_listed_as_soon_as_somebody_wants_to_join(wire: Wire, new_member: NewMember) -> None:
    member = new_member()
    member.get_id()
    # Apache Kafka answers before the record of the new group is committed, and lists what is.
    listed = eventually(lambda: list_group(wire, member.group), "the group is listed")
    assert (listed.group_state, listed.protocol_type) == ("Empty", "")


def test_groups_are_deleted_one_by_one(wire: Wire, alone: GroupMember, new_name: Callable[[], str]) -> None:
    unknown = new_name()
    results = wire.ask(DeleteGroupsRequest(groups_names=[alone.group, unknown])).results
    assert {each.group_id: each.error_code for each in results} == {
        alone.group: ErrorCode.NON_EMPTY_GROUP,
        unknown: ErrorCode.GROUP_ID_NOT_FOUND,
    }


def test_a_group_goes_on_counting_generations_when_it_was_empty(alone: GroupMember, new_member: NewMember) -> None:
    alone.leave_once()
    assert new_member().join().generation_id == 3
