"""One classic group, as a conversation with its members.

What Kafka does is in the conformance suite; here is what takes time, a failing disk or a seldom order of things.
"""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode
from onceflow.group.classic import NEW_MEMBER_JOIN_TIMEOUT_MS, PENDING_MAX, ClassicGroup
from onceflow.group.offsets import CommittedOffset
from tests.unit.group.classic_traces import DELAY_MS, REBALANCE_MS, SESSION_MS, Conversation

COMMITTED_AT_7 = CommittedOffset(1, -1, "", commit_timestamp_ms=7)


@pytest.fixture
def talk() -> Conversation:
    return Conversation()


# The first rebalance


def test_a_new_group_waits_for_more_members(talk: Conversation) -> None:
    talk.join("a", version=3)
    talk.advance(DELAY_MS - 1)
    assert talk.state == "PreparingRebalance"
    talk.advance(1)
    assert talk.joined("a").generation_id == 1


def test_a_newcomer_prolongs_the_wait(talk: Conversation) -> None:
    talk.join("a", version=3)
    talk.advance(DELAY_MS - 1)
    talk.join("b", version=3)
    talk.advance(1)
    assert talk.answers == {}
    talk.advance(DELAY_MS)
    assert talk.joined("a").leader == talk.joined("b").leader == "c-1"
    assert [member.member_id for member in talk.joined("a").members] == ["c-1", "c-2"]


def test_newcomers_cannot_prolong_the_wait_beyond_the_rebalance_timeout(talk: Conversation) -> None:
    talk.join("0", version=3, rebalance_ms=2 * DELAY_MS)
    for number in range(1, 4):
        talk.join(str(number), version=3, rebalance_ms=2 * DELAY_MS)
        talk.advance(DELAY_MS)
    assert talk.joined("0").generation_id == 1


def test_without_a_delay_the_first_member_starts_at_once() -> None:
    talk = Conversation(initial_rebalance_delay_ms=0)
    talk.join("a", version=3)
    talk.advance(0)
    assert talk.joined("a").generation_id == 1


def test_a_new_group_whose_only_member_leaves_is_empty_again(talk: Conversation) -> None:
    talk.join("a", version=3)
    talk.leave("c-1")
    assert talk.error("a") == ErrorCode.UNKNOWN_MEMBER_ID
    talk.advance(DELAY_MS)
    assert (talk.state, talk.group.generation) == ("Empty", 1)


def test_so_many_are_given_an_id_that_a_group_can_bear() -> None:
    talk = Conversation()
    for number in range(PENDING_MAX):
        talk.join(str(number), version=4)
    talk.join("one more", version=4)
    assert talk.error("one more") == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(talk.group.members.pending) == PENDING_MAX
    talk.advance(SESSION_MS)
    talk.join("later", version=4)
    assert talk.error("later") == ErrorCode.MEMBER_ID_REQUIRED


# Sessions


def test_a_silent_member_is_put_out(talk: Conversation) -> None:
    talk.stable_pair()
    talk.advance(SESSION_MS - 1)
    talk.heartbeat("c-2")
    talk.advance(1)
    assert talk.state == "PreparingRebalance"
    assert talk.heartbeat("c-1") == ErrorCode.UNKNOWN_MEMBER_ID
    assert talk.heartbeat("c-2") == ErrorCode.REBALANCE_IN_PROGRESS
    assert talk.group.leader == "c-2"


def test_a_commit_is_a_sign_of_life(talk: Conversation) -> None:
    talk.stable_pair()
    talk.advance(SESSION_MS - 1)
    for member in ("c-1", "c-2"):
        assert talk.can_commit(member, 1) == ErrorCode.NONE
    talk.advance(SESSION_MS - 1)
    assert talk.state == "Stable"


def test_a_transactional_commit_is_no_sign_of_life(talk: Conversation) -> None:
    talk.stable_pair()
    talk.advance(SESSION_MS - 1)
    talk.heartbeat("c-1")
    assert talk.can_commit("c-2", 1, transactional=True) == ErrorCode.NONE
    talk.advance(1)
    assert talk.heartbeat("c-2") == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_for_our_answer_need_not_report(talk: Conversation) -> None:
    talk.stable_pair()
    talk.join("again", "c-1")
    talk.advance(SESSION_MS - 1)
    talk.heartbeat("c-2")
    talk.advance(SESSION_MS - 1)
    talk.join("again 2", "c-2")
    assert talk.joined("again").generation_id == talk.joined("again 2").generation_id == 2


def test_a_newcomer_that_waits_too_long_is_given_up(talk: Conversation) -> None:
    talk.stable_pair()
    for member in talk.group.members:
        member.session_timeout_ms = member.rebalance_timeout_ms = 2 * NEW_MEMBER_JOIN_TIMEOUT_MS
        member.heard_of(talk.now_ms)
    talk.join("new", version=3, rebalance_ms=1)
    talk.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert talk.error("new") == ErrorCode.UNKNOWN_MEMBER_ID
    assert len(talk.group.members) == 2


def test_an_id_that_nobody_joins_with_is_forgotten_and_holds_up_nobody(talk: Conversation) -> None:
    talk.stable_pair()
    talk.join("new")
    assert talk.error("new") == ErrorCode.MEMBER_ID_REQUIRED
    talk.join("1", "c-1")
    talk.join("2", "c-2", metadata=b"changed")
    assert "1" not in talk.answers, "the third is waited for"
    talk.advance(SESSION_MS)
    assert talk.joined("1").generation_id == talk.joined("2").generation_id == 2
    talk.join("late", "c-3")
    assert talk.error("late") == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_falling_silent_empties_the_group(talk: Conversation) -> None:
    talk.stable_pair()
    talk.advance(SESSION_MS)
    assert talk.state == "Empty"
    assert (talk.log[-1].generation, talk.log[-1].members, talk.log[-1].protocol) == (2, [], None)
    assert talk.log[-1].current_state_timestamp == talk.now_ms


# Rebalances


def test_who_does_not_join_again_is_removed_after_the_rebalance_timeout(talk: Conversation) -> None:
    talk.stable_pair()
    talk.join("1", "c-1")
    for _ in range(12):
        assert talk.heartbeat("c-2") == ErrorCode.REBALANCE_IN_PROGRESS
        talk.advance(REBALANCE_MS // 12)
    assert [member.member_id for member in talk.joined("1").members] == ["c-1"]
    assert talk.heartbeat("c-2") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_come_back_is_succeeded_even_if_it_is_static(talk: Conversation) -> None:
    talk.join("static", instance="i")
    talk.join("dynamic", version=3)
    talk.advance(DELAY_MS)
    talk.advance(DELAY_MS)
    assert talk.group.leader == "i-1"
    talk.join("again", "c-2", metadata=b"changed")
    for _ in range(12):
        talk.advance(REBALANCE_MS // 12)
        talk.heartbeat("i-1", instance="i")
    assert talk.joined("again").leader == "c-2"
    assert {member.member_id for member in talk.joined("again").members} == {"i-1", "c-2"}


def test_with_only_absent_static_members_the_rebalance_goes_on(talk: Conversation) -> None:
    talk.join("static", instance="i")
    talk.advance(DELAY_MS)
    talk.sync("sync", "i-1", i_1=b"x")
    talk.disk()
    talk.join("other", version=3)
    talk.leave("c-2")
    for _ in range(12):
        talk.advance(REBALANCE_MS // 12)
        talk.heartbeat("i-1", instance="i")
    assert talk.state == "PreparingRebalance"
    talk.join("back", "i-1", instance="i")
    assert talk.joined("back").generation_id == 2


def test_who_does_not_sync_in_time_is_removed(talk: Conversation) -> None:
    talk.join("1", version=3)
    talk.join("2", version=3)
    talk.advance(DELAY_MS)
    talk.advance(DELAY_MS)
    talk.sync("sync", "c-2")
    for _ in range(12):
        assert talk.heartbeat("c-1") == ErrorCode.NONE
        talk.advance(REBALANCE_MS // 12)
    assert talk.error("sync") == ErrorCode.REBALANCE_IN_PROGRESS
    assert [member.id for member in talk.group.members] == ["c-2"]
    assert talk.state == "PreparingRebalance"


def test_a_second_request_of_the_same_member_takes_the_place_of_the_first(talk: Conversation) -> None:
    talk.stable_pair()
    talk.join("first", "c-1")
    talk.join("second", "c-1")
    assert talk.error("first") == ErrorCode.REBALANCE_IN_PROGRESS
    talk.join("other", "c-2")
    assert talk.joined("second").generation_id == 2
    talk.sync("sync", "c-2")
    talk.sync("sync again", "c-2")
    assert talk.error("sync") == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_full_group_takes_nobody_in() -> None:
    talk = Conversation(max_size=2)
    talk.stable_pair()
    talk.join("third", version=3)
    assert talk.answers["third"].member_id == ""
    assert talk.error("third") == ErrorCode.GROUP_MAX_SIZE_REACHED
    talk.join("1", "c-1")
    talk.join("2", "c-2")
    assert talk.joined("1").generation_id == talk.joined("2").generation_id == 2


def test_the_most_votes_decide_the_protocol(talk: Conversation) -> None:
    for ticket, protocols in {"1": "a b", "2": "b a", "3": "b a"}.items():
        talk.join(ticket, protocols=protocols, version=3)
    talk.advance(DELAY_MS)
    talk.advance(DELAY_MS)
    assert talk.joined("1").protocol_name == "b"


# The disk


def test_nobody_gets_its_part_before_it_is_on_disk(talk: Conversation) -> None:
    talk.join("1", version=3)
    talk.advance(DELAY_MS)
    talk.sync("sync", "c-1", c_1=b"all")
    assert "sync" not in talk.answers
    assert [member.assignment for member in talk.log[-1].members] == [b"all"]
    assert talk.state == "CompletingRebalance"
    talk.disk()
    assert talk.synced("sync") == b"all"
    assert talk.state == "Stable"


def test_an_assignment_that_cannot_be_written_begins_a_new_rebalance(talk: Conversation) -> None:
    talk.join("1", version=3)
    talk.advance(DELAY_MS)
    talk.sync("sync", "c-1", c_1=b"all")
    talk.disk(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert talk.error("sync") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert talk.state == "PreparingRebalance"
    talk.join("again", "c-1")
    assert talk.joined("again").generation_id == 2


def test_an_assignment_that_a_rebalance_has_overtaken_is_not_given_out(talk: Conversation) -> None:
    talk.join("1", version=3)
    talk.advance(DELAY_MS)
    talk.sync("sync", "c-1", c_1=b"all")
    talk.join("2", version=3)
    assert talk.error("sync") == ErrorCode.REBALANCE_IN_PROGRESS
    talk.disk()
    assert talk.state == "PreparingRebalance"


# Static members


def static_pair(talk: Conversation) -> None:
    """i-1 leads and is static, c-2 follows, generation 1."""
    talk.join("join 1", instance="i")
    talk.join("join 2", version=3)
    talk.advance(DELAY_MS)
    talk.advance(DELAY_MS)
    talk.sync("sync 1", "i-1", instance="i", i_1=b"one", c_2=b"two")
    talk.sync("sync 2", "c-2")
    talk.disk()
    assert talk.state == "Stable"


def test_a_static_member_that_comes_back_is_answered_when_its_new_id_is_on_disk(talk: Conversation) -> None:
    static_pair(talk)
    talk.join("back", instance="i")
    assert "back" not in talk.answers
    assert [member.member_id for member in talk.log[-1].members] == ["i-3", "c-2"]
    talk.disk()
    answer = talk.joined("back")
    assert (answer.member_id, answer.leader, answer.generation_id, answer.skip_assignment) == ("i-3", "i-3", 1, True)
    assert talk.heartbeat("i-1", instance="i") == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_old_id_if_the_new_one_cannot_be_written(talk: Conversation) -> None:
    static_pair(talk)
    talk.join("back", instance="i", metadata=b"changed")
    talk.disk(ErrorCode.NOT_COORDINATOR)
    assert talk.error("back") == ErrorCode.NOT_COORDINATOR
    assert talk.heartbeat("i-1", instance="i") == ErrorCode.NONE
    assert talk.group.leader == "i-1"
    assert next(iter(talk.group.members)).metadata("range") == b""


def test_of_two_that_come_back_as_the_same_static_member_the_second_stays(talk: Conversation) -> None:
    static_pair(talk)
    talk.join("first", instance="i")
    talk.join("second", instance="i")
    assert talk.error("first") == ErrorCode.FENCED_INSTANCE_ID
    talk.disk()
    assert talk.joined("second").member_id == "i-4"
    assert talk.heartbeat("i-4", instance="i") == ErrorCode.NONE


def test_a_static_member_that_comes_back_while_a_rebalance_begins_is_part_of_it(talk: Conversation) -> None:
    static_pair(talk)
    talk.join("back", instance="i")
    talk.join("again", "c-2", metadata=b"changed")
    talk.disk()
    assert talk.joined("back").generation_id == talk.joined("again").generation_id == 2


def test_a_static_member_that_changes_what_it_reads_but_not_the_protocol_begins_no_rebalance(
    talk: Conversation,
) -> None:
    static_pair(talk)
    talk.join("back", instance="i", metadata=b"changed")
    talk.disk()
    assert talk.joined("back").members[0].metadata == b"changed"
    assert talk.heartbeat("c-2") == ErrorCode.NONE


# Offsets


def test_only_members_of_this_generation_may_commit(talk: Conversation) -> None:
    assert talk.can_commit() == ErrorCode.NONE
    talk.stable_pair()
    assert talk.can_commit() == ErrorCode.UNKNOWN_MEMBER_ID
    assert talk.can_commit("c-1", 0) == ErrorCode.ILLEGAL_GENERATION
    assert talk.can_commit("c-9", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert talk.can_commit("c-1", 1) == ErrorCode.NONE


def test_a_transaction_may_commit_without_a_member_but_not_as_a_wrong_one(talk: Conversation) -> None:
    talk.stable_pair()
    assert talk.can_commit(transactional=True) == ErrorCode.NONE
    assert talk.can_commit("c-1", 0, transactional=True) == ErrorCode.ILLEGAL_GENERATION
    assert talk.can_commit("c-9", 1, transactional=True) == ErrorCode.UNKNOWN_MEMBER_ID
    assert talk.can_commit("c-9", -1, transactional=True) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_transaction_may_commit_between_join_and_sync(talk: Conversation) -> None:
    talk.join("1", version=3)
    talk.advance(DELAY_MS)
    assert talk.can_commit("c-1", 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert talk.can_commit("c-1", 1, transactional=True) == ErrorCode.NONE


def test_a_replaced_static_member_may_not_commit(talk: Conversation) -> None:
    static_pair(talk)
    talk.join("back", instance="i")
    talk.disk()
    assert talk.can_commit("i-1", 1, instance="i", transactional=True) == ErrorCode.FENCED_INSTANCE_ID
    assert talk.can_commit("i-3", 1, instance="i", transactional=True) == ErrorCode.NONE


def test_offsets_of_a_simple_group_are_unused_since_their_commit(talk: Conversation) -> None:
    assert talk.group.unused_since_ms(COMMITTED_AT_7) == 7


def test_offsets_of_a_group_that_was_left_are_unused_since_then(talk: Conversation) -> None:
    talk.stable_pair()
    talk.leave("c-1", "c-2")
    assert talk.group.unused_since_ms(COMMITTED_AT_7) == talk.now_ms


def test_offsets_of_a_group_in_use_are_in_use_unless_its_topics_are_known(talk: Conversation) -> None:
    talk.stable_pair()
    assert talk.group.unused_since_ms(COMMITTED_AT_7) is None
    assert talk.group.is_subscribed("anything"), "nobody can tell, so all are"


def test_the_topics_of_consumers_are_known(talk: Conversation) -> None:
    talk.join("1", version=3, metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    talk.advance(DELAY_MS)
    talk.sync("sync", "c-1")
    talk.disk()
    assert talk.group.is_subscribed("t")
    assert not talk.group.is_subscribed("u")
    assert talk.group.unused_since_ms(COMMITTED_AT_7) == 7


# Restarts and the end


def test_a_group_comes_back_as_it_was_written(talk: Conversation) -> None:
    static_pair(talk)
    back = ClassicGroup.of("g", talk.log[-1], talk.limits, 0)
    assert (back.state_name, back.generation, back.protocol, back.leader) == ("Stable", 1, "range", "i-1")
    assert {member.id: member.assignment for member in back.members} == {"i-1": b"one", "c-2": b"two"}
    back.on_loaded(talk.now_ms)
    assert back.next_deadline_ms() == talk.now_ms + SESSION_MS
    assert back.heartbeat("i-1", "i", 1, talk.now_ms) == ErrorCode.NONE


def test_a_group_that_is_too_large_after_a_restart_is_rebalanced(talk: Conversation) -> None:
    static_pair(talk)
    smaller = Conversation(max_size=1)
    back = ClassicGroup.of("g", talk.log[-1], smaller.limits, 0)
    back.on_loaded(talk.now_ms)
    assert back.state_name == "PreparingRebalance"


def test_whoever_waits_is_told_when_the_group_is_abandoned(talk: Conversation) -> None:
    talk.stable_pair()
    talk.join("waits", "c-1")
    talk.carry_out(talk.group.abandon(ErrorCode.NOT_COORDINATOR))
    assert talk.error("waits") == ErrorCode.NOT_COORDINATOR
    assert talk.group.next_deadline_ms() is None
    assert talk.heartbeat("c-1") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    talk.join("more", "c-1")
    assert talk.error("more") == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert talk.can_commit() == ErrorCode.COORDINATOR_NOT_AVAILABLE
