"""Groups and offsets on a disk that dies, fails and fills up.

- An offset whose commit was answered is there after any crash; one that was not answered is there or is not.
- A group comes back with the last generation that was on disk.
- What a failed flush takes back was never there: for nobody, also not for the transaction that it was part of.
"""

from __future__ import annotations

import random

import pytest

from onceflow.broker.groups import SAID_BYTES_MAX
from onceflow.broker.handlers.k11_join_group import SAID_MAX
from onceflow.errors import ErrorCode
from onceflow.log.memory_files import SimulatedCrash
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from onceflow.wire.messages.delete_groups import DeleteGroupsRequest
from onceflow.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.list_groups import ListGroupsRequest
from onceflow.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import MemoryProducer, committed_offset, create_topic
from tests.unit.group.memory_members import MemoryMember, outcome, send_commit

SEEDS = range(4)


def describe(broker: MemoryBroker, group: str) -> DescribedGroup:
    [described] = broker.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return described


def new_broker(**settings: bool) -> MemoryBroker:
    broker = MemoryBroker(**settings)  # type: ignore[arg-type]
    create_topic(broker, "t")
    return broker


# Dying at every step


class Life:
    """A group from its first member to its deletion; `offset` is what was last answered to be committed."""

    def __init__(self, *, fsync: bool) -> None:
        self.broker = new_broker(fsync=fsync)
        self.member = MemoryMember(self.broker, "g")
        self.offset = -1
        self.asked = -1
        self.stable = self.leaving = self.deleting = self.deleted = False

    def go(self) -> None:
        self.member.join().sync()
        self.stable = True
        for offset in (10, 20, 30):
            self._commit(offset)
        self.leaving = True
        self._wait(self.member.send_leave())
        self._commit(40, by_member=False)
        self.deleting = True
        self._wait(self.broker.send(DeleteGroupsRequest(groups_names=["g"]), 2))
        self.deleted = True

    def _commit(self, offset: int, *, by_member: bool = True) -> None:
        self.asked = offset
        reply = send_commit(self.broker, "g", offset, member=self.member if by_member else None)
        self._wait(reply)
        assert outcome(reply) == ErrorCode.NONE
        self.offset = offset

    def _wait(self, reply: Reply) -> None:
        self.broker.settle()
        assert reply.is_there

    def check(self, after: MemoryBroker) -> None:
        found = committed_offset(after, "g", "t", 0)
        if self.deleting:
            assert found == -1 or (found == 40 and not self.deleted)
        else:
            assert found in (self.offset, self.asked)
        if self.stable:
            self._check_group(after)

    def _check_group(self, after: MemoryBroker) -> None:
        described = describe(after, "g")
        assert described.group_state == "Stable" or self.leaving
        if described.group_state == "Stable":
            assert self.member.heartbeat(after) == ErrorCode.NONE
            assert described.members[0].member_assignment == b"all"
        assert described.group_state != "Dead" or self.deleting


def died(step: int, *, fsync: bool) -> Life | None:
    """A life that ended at a step; None if it was over before."""
    life = Life(fsync=fsync)
    life.broker.files.steps_until_crash = step
    try:
        life.go()
    except SimulatedCrash:
        return life
    return None


@pytest.mark.parametrize("fsync", [True, False], ids=["fsync", "os"])
def test_what_was_answered_survives_a_kill_at_every_step(fsync: bool) -> None:
    step = 0
    while (life := died(step, fsync=fsync)) is not None:
        life.check(life.broker.killed())
        step += 1
    assert step > 10


def test_what_was_answered_survives_loss_of_power_at_every_step() -> None:
    step = 0
    while (life := died(step, fsync=True)) is not None:
        for seed in SEEDS:
            life.check(life.broker.crashed(random.Random(seed)))
        step += 1
    assert step > 20


def test_a_group_that_went_on_after_a_restart_is_the_same_group() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join().sync()
    member.broker = again = broker.killed()
    assert member.heartbeat() == ErrorCode.NONE
    reply = send_commit(again, "g", 5, member=member)
    again.settle()
    assert outcome(reply) == ErrorCode.NONE
    again.pass_time(10_001)
    again.settle()
    assert describe(again, "g").group_state == "Empty"
    assert describe(again.killed(), "g").group_state == "Empty"


def test_a_group_that_was_rebalancing_comes_back_as_it_was_before() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join().sync()
    MemoryMember(broker, "g").send_join()
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    again = broker.killed()
    described = describe(again, "g")
    assert (described.group_state, [each.member_id for each in described.members]) == ("Stable", [member.id])


# Waiting for the disk


def test_an_offset_is_answered_and_shown_when_it_is_on_disk() -> None:
    broker = new_broker()
    reply = send_commit(broker, "g", 5)
    assert not reply.is_there
    assert committed_offset(broker.crashed(random.Random(0)), "g", "t", 0) in (-1, 5)
    broker.settle()
    assert outcome(reply) == ErrorCode.NONE


def test_offsets_can_be_lost_only_while_nobody_was_told_of_them() -> None:
    """Somebody reads between the commit and the flush: what it is told must hold."""
    for seed in range(20):
        broker = new_broker()
        send_commit(broker, "g", 5)
        told = committed_offset(broker, "g", "t", 0)
        assert committed_offset(broker.crashed(random.Random(seed)), "g", "t", 0) == told == 5


def test_who_lists_groups_is_not_told_of_one_that_is_not_on_disk() -> None:
    broker = new_broker()
    send_commit(broker, "g", 5)
    listing, describing = broker.send(ListGroupsRequest(), 5), broker.send(DescribeGroupsRequest(groups=["g"]), 6)
    assert not listing.is_there
    assert not describing.is_there
    broker.files.sync_failures = 1
    broker.settle()
    assert listing.message.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert describing.message.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.ask(ListGroupsRequest(), 5).groups == []


# A disk that fails


def test_a_commit_that_could_not_be_flushed_is_refused_and_gone() -> None:
    broker = new_broker()
    send_commit(broker, "g", 5)
    broker.settle()
    reply = send_commit(broker, "g", 6)
    broker.files.sync_failures = 1
    broker.settle()
    assert outcome(reply) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(broker, "g", "t", 0) == 5
    assert committed_offset(broker.killed(), "g", "t", 0) == 5
    reply = send_commit(broker, "g", 7)
    broker.settle()
    assert (outcome(reply), committed_offset(broker, "g", "t", 0)) == (ErrorCode.NONE, 7)


def test_a_commit_that_could_not_be_written_is_refused_and_changes_nothing() -> None:
    broker = new_broker()
    send_commit(broker, "g", 5)
    broker.settle()
    broker.files.write_failure = (0, 3)
    assert outcome(send_commit(broker, "g", 6)) == ErrorCode.NOT_COORDINATOR
    assert committed_offset(broker, "g", "t", 0) == 5


def broker_with_a_log_to_cut() -> MemoryBroker:
    """An offset is on disk; of five more the flush failed, and so did the way back."""
    broker = new_broker()
    send_commit(broker, "g", 5)
    broker.settle()
    for offset in range(6, 11):
        send_commit(broker, "g", offset)
    broker.files.sync_failures = 2
    broker.settle()
    [partition] = broker.node.groups.log.partitions
    assert partition.log.awaits_repair
    return broker


def test_while_the_log_waits_to_be_cut_readers_are_answered_and_hold_up_nobody() -> None:
    broker = broker_with_a_log_to_cut()
    assert committed_offset(broker, "g", "t", 0) == 5
    assert describe(broker, "g").group_state == "Empty"
    reply = send_commit(broker, "g", 11)
    broker.settle()
    assert (outcome(reply), committed_offset(broker, "g", "t", 0)) == (ErrorCode.NONE, 11)


def test_members_are_told_to_look_again_when_a_flush_fails_and_find_the_group_as_it_was() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join().sync()
    other = MemoryMember(broker, "g")
    waiting = other.send_join()
    send_commit(broker, "other", 5)
    broker.files.sync_failures = 1
    broker.settle()
    assert waiting.message.error_code == ErrorCode.NOT_COORDINATOR
    assert member.heartbeat() == ErrorCode.NONE
    assert describe(broker, "g").group_state == "Stable"
    assert member.generation == 1


def test_an_assignment_that_could_not_be_flushed_is_not_given_out() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join()
    sync = member.send_sync()
    broker.files.sync_failures = 1
    broker.settle()
    assert sync.message.error_code == ErrorCode.NOT_COORDINATOR
    assert describe(broker, "g").group_state == "Empty"
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignment_that_could_not_be_written_begins_a_rebalance() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join()
    broker.files.write_failure = (0, 0)
    assert member.send_sync().message.error_code == ErrorCode.NOT_COORDINATOR
    assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    again = member.send_join()
    assert member.joined(again).generation_id == 2
    member.sync()


def test_a_group_that_could_not_be_deleted_is_still_there() -> None:
    broker = new_broker()
    send_commit(broker, "g", 5)
    broker.settle()
    reply = broker.send(DeleteGroupsRequest(groups_names=["g"]), 2)
    broker.files.sync_failures = 1
    broker.settle()
    assert reply.message.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(broker, "g", "t", 0) == 5


def test_an_offset_that_could_not_be_deleted_is_still_there() -> None:
    broker = new_broker()
    send_commit(broker, "g", 5)
    broker.settle()
    topic = OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    reply = broker.send(OffsetDeleteRequest(group_id="g", topics=[topic]), 0)
    broker.files.sync_failures = 1
    broker.settle()
    assert reply.message.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(broker, "g", "t", 0) == 5


# Leaving


class MemoryConsumer:
    """A member of a consumer group (KIP-848)."""

    def __init__(self, broker: MemoryBroker, group: str, id: str = "m") -> None:
        self.broker = broker
        self.group = group
        self.id = id

    def send(self, epoch: int) -> Reply:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.id,
            member_epoch=epoch,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        return self.broker.send(request, 1)

    def join(self) -> MemoryConsumer:
        reply = self.send(0)
        self.broker.settle()
        assert reply.message.error_code == ErrorCode.NONE
        return self

    def leave(self) -> None:
        reply = self.send(-1)
        self.broker.settle()
        assert reply.message.error_code == ErrorCode.NONE

    def send_leave(self, version: int = 5) -> Reply:
        """With LeaveGroup, as a tool that removes members."""
        members = [MemberIdentity(member_id=self.id)]
        return self.broker.send(LeaveGroupRequest(group_id=self.group, member_id=self.id, members=members), version)


def consumers(broker: MemoryBroker, group: str) -> list[str] | ErrorCode:
    """The members of a consumer group, or why there is none."""
    [found] = broker.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups
    return ErrorCode(found.error_code) if found.error_code else [member.member_id for member in found.members]


@pytest.mark.parametrize("version", [2, 5])
@pytest.mark.parametrize("kind", ["consumer", "classic"])
def test_who_removes_a_member_is_answered_when_that_is_on_disk(kind: str, version: int) -> None:
    broker = new_broker()
    member = MemoryConsumer(broker, "g").join() if kind == "consumer" else MemoryMember(broker, "g").join().sync()
    reply = member.send_leave(version)
    assert not reply.is_there
    broker.settle()
    assert reply.message.error_code == ErrorCode.NONE
    for seed in SEEDS:
        after = broker.crashed(random.Random(seed))
        assert (consumers(after, "g") if kind == "consumer" else describe(after, "g").members) == []


@pytest.mark.parametrize("version", [2, 5])
@pytest.mark.parametrize(("failure", "expected"), [("write", 16), ("sync", 15)])
def test_a_member_of_a_consumer_group_whose_removal_the_disk_refuses_stays(
    failure: str, expected: int, version: int
) -> None:
    broker = new_broker()
    member = MemoryConsumer(broker, "g").join()
    if failure == "write":
        broker.files.write_failure = (0, 3)
    else:
        broker.files.sync_failures = 1
    reply = member.send_leave(version)
    broker.settle()
    assert reply.message.error_code == expected
    assert consumers(broker, "g") == consumers(broker.killed(), "g") == ["m"]
    again = member.send_leave(version)
    broker.settle()
    assert again.message.error_code == ErrorCode.NONE
    assert consumers(broker, "g") == consumers(broker.killed(), "g") == []


@pytest.mark.parametrize(("failure", "expected"), [("write", 16), ("sync", 15)])
def test_who_leaves_a_classic_group_is_told_if_the_disk_refuses(failure: str, expected: int) -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g").join().sync()
    if failure == "write":
        broker.files.write_failure = (0, 3)
    else:
        broker.files.sync_failures = 1
    reply = member.send_leave()
    broker.settle()
    assert reply.message.error_code == expected
    assert [each.member_id for each in describe(broker.killed(), "g").members] == [member.id]


def test_who_is_not_a_member_of_a_consumer_group_is_told_so_when_that_is_certain() -> None:
    """It was removed a moment ago. If that is taken back, it is a member."""
    broker = new_broker()
    member = MemoryConsumer(broker, "g").join()
    first, second = member.send_leave(), member.send_leave()
    assert not second.is_there
    broker.files.sync_failures = 1
    broker.settle()
    assert [reply.message.error_code for reply in (first, second)] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert consumers(broker, "g") == ["m"]


# A classic group in the place of a consumer group without members


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.parametrize("failure", ["write", "sync"])
def test_a_consumer_group_stays_if_the_disk_refuses_the_classic_group_in_its_place(failure: str, version: int) -> None:
    broker = new_broker()
    MemoryConsumer(broker, "g").join().leave()
    member = MemoryMember(broker, "g")
    if failure == "write":
        broker.files.write_failure = (0, 3)
    else:
        broker.files.sync_failures = 1
    reply = member.send_join(version)
    broker.settle()
    given_an_id = (ErrorCode.MEMBER_ID_REQUIRED,) if failure == "sync" and version == 9 else ()
    assert reply.message.error_code in (ErrorCode.NOT_COORDINATOR, *given_an_id)
    for each in (broker, broker.killed()):
        assert consumers(each, "g") == []
        assert describe(each, "g").group_state == "Dead"
    member.join().sync()
    for each in (broker, broker.killed()):
        assert consumers(each, "g") == ErrorCode.GROUP_ID_NOT_FOUND
        assert describe(each, "g").group_state == "Stable"


def test_a_join_that_is_refused_leaves_a_consumer_group_as_it_was() -> None:
    broker = new_broker()
    MemoryConsumer(broker, "g").join().leave()
    member = MemoryMember(broker, "g")
    member.id = "unknown"
    assert member.send_join().message.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert consumers(broker, "g") == []


@pytest.mark.parametrize("version", [3, 9])
def test_a_new_group_that_the_disk_refuses_is_not_there(version: int) -> None:
    broker = new_broker()
    send_commit(broker, "other", 1)
    broker.settle()
    broker.files.write_failure = (0, 3)
    member = MemoryMember(broker, "g")
    assert member.send_join(version).message.error_code == ErrorCode.NOT_COORDINATOR
    assert [group.group_id for group in broker.ask(ListGroupsRequest(), 5).groups] == ["other"]
    member.join().sync()
    assert describe(broker.killed(), "g").group_state == "Stable"


def test_dying_at_any_step_of_the_change_leaves_a_consumer_group_or_a_classic_one() -> None:
    for step in range(1000):
        broker = new_broker()
        MemoryConsumer(broker, "g").join().leave()
        broker.files.steps_until_crash = step
        try:
            MemoryMember(broker, "g").join().sync()
        except SimulatedCrash:
            pass
        else:
            assert step > 3
            return
        for after in (broker.killed(), *(broker.crashed(random.Random(seed)) for seed in SEEDS)):
            is_consumer_group = consumers(after, "g") == []
            assert is_consumer_group == (describe(after, "g").group_state == "Dead")
    pytest.fail("never came to an end")


# Transactions


@pytest.mark.parametrize("v2", [False, True], ids=["V1", "V2"])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_pending_offset_is_pending_after_a_restart_and_then_decided(v2: bool, commit: bool) -> None:
    broker = new_broker()
    send_commit(broker, "g", 1)
    producer = MemoryProducer(broker, "app", v2=v2, timeout_ms=60_000).init()
    if not v2:
        producer.send_add_offsets("g")
        broker.settle()
    assert outcome(_settled(broker, producer.send_offset("g", "t", 0, 5))) == ErrorCode.NONE
    producer.broker = again = broker.killed()
    again.settle()
    assert committed_offset(again, "g", "t", 0, stable=False) == 1
    assert again.node.groups.coordinator_of("g").offsets.is_pending("g", "t", 0)
    assert producer.took_end(_settled(again, producer.send_end(commit=commit)))
    assert committed_offset(again, "g", "t", 0) == (5 if commit else 1)
    assert committed_offset(again.killed(), "g", "t", 0) == (5 if commit else 1)


def test_a_pending_offset_that_could_not_be_flushed_is_not_pending() -> None:
    broker = new_broker()
    producer = MemoryProducer(broker, "app", v2=False, timeout_ms=60_000).init()
    producer.send_add_offsets("g")
    broker.settle()
    reply = producer.send_offset("g", "t", 0, 5)
    broker.files.sync_failures = 1
    broker.settle()
    assert outcome(reply) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert committed_offset(broker, "g", "t", 0) == -1
    assert not broker.node.groups.coordinator_of("g").offsets.has_pending("g")


def test_an_offset_that_was_committed_while_the_log_was_cut_gives_way_to_a_later_transaction() -> None:
    broker = broker_with_a_log_to_cut()
    assert outcome(_settled(broker, send_commit(broker, "g", 6))) == ErrorCode.NONE
    producer = MemoryProducer(broker, "app").init()
    assert outcome(_settled(broker, producer.send_offset("g", "t", 0, 7))) == ErrorCode.NONE
    assert producer.took_end(_settled(broker, producer.send_end(commit=True)))
    assert committed_offset(broker, "g", "t", 0) == 7
    assert committed_offset(broker.killed(), "g", "t", 0) == 7


def _settled(broker: MemoryBroker, reply: Reply) -> Reply:
    broker.settle()
    return reply


# What cannot be written


def test_a_group_whose_id_is_too_long_for_records_is_refused_everywhere_and_does_not_exist() -> None:
    broker = new_broker()
    too_long = "g" * 32_767
    assert outcome(send_commit(broker, too_long, 1)) == ErrorCode.INVALID_GROUP_ID
    assert MemoryMember(broker, too_long).send_join(version=9).message.error_code == ErrorCode.INVALID_GROUP_ID
    [result] = broker.ask(DeleteGroupsRequest(groups_names=[too_long]), 2).results
    assert result.error_code == ErrorCode.INVALID_GROUP_ID
    assert not broker.node.groups.coordinators or not broker.node.groups.coordinators[0].groups


def test_a_member_that_says_too_much_is_refused() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g")
    member.metadata = bytes(SAID_MAX + 1)
    assert member.send_join().message.error_code == ErrorCode.INVALID_REQUEST
    member.metadata = bytes(SAID_MAX)
    member.join()


def test_what_all_members_say_is_bounded_and_room_is_made_by_who_leaves() -> None:
    broker = new_broker()
    members = [MemoryMember(broker, f"g{number}") for number in range(SAID_BYTES_MAX // SAID_MAX)]
    for member in members:
        member.metadata = bytes(SAID_MAX)
        member.join()
    late = MemoryMember(broker, "late")
    late.metadata = bytes(SAID_MAX)
    assert late.send_join().message.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    members[0].send_leave()
    broker.settle()
    late.join()


def test_a_member_whose_names_are_too_long_for_records_is_refused() -> None:
    broker = new_broker()
    member = MemoryMember(broker, "g")
    member.instance_id = "i" * 32_767
    assert member.send_join(version=9).message.error_code == ErrorCode.INVALID_REQUEST
