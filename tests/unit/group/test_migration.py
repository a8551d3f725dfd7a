"""Groups that change their protocol (KIP-848), on a disk that dies and fails, and under every policy.

Whatever happens, the group id has one group, of one kind, with the offsets that were committed; and members of both
protocols can go on, or are told how.
"""

from __future__ import annotations

import random
import struct
from uuid import UUID, uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.group.base import Group
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.log.memory_files import SimulatedCrash
from onceflow.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import committed_offset, create_topic
from tests.support.raw_groups import subscription
from tests.unit.group.memory_members import MemoryMember, outcome, send_commit

ALL = struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">iii", 1, 0, -1)
"""The assignment of partition 0 of the topic t."""
NOTHING = struct.pack(">hii", 0, 0, -1)
SEEDS = range(2)


def new_broker(fsync: bool = True, **settings: str) -> MemoryBroker:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    broker = MemoryBroker(fsync=fsync, settings=named)
    create_topic(broker, "t")
    return broker


def classic_member(broker: MemoryBroker, **settings: int | str) -> MemoryMember:
    member = MemoryMember(broker, "g")
    member.metadata = subscription("t")
    for name, value in settings.items():
        setattr(member, name, value)
    return member


def stable(member: MemoryMember) -> MemoryMember:
    member.join()
    reply = member.send_sync(**{member.id: ALL})
    member.broker.settle()
    assert reply.message.error_code == ErrorCode.NONE
    return member


class Modern:
    """A member of the new protocol."""

    def __init__(self, broker: MemoryBroker, instance_id: str | None = None) -> None:
        self.broker = broker
        self.id = str(uuid4())
        self.instance_id = instance_id
        self.epoch = 0

    def send_join(self) -> Reply:
        return self._send(
            member_epoch=0, rebalance_timeout_ms=10_000, subscribed_topic_names=["t"], topic_partitions=[]
        )

    def send_leave(self) -> Reply:
        return self._send(member_epoch=-1)

    def join(self) -> Modern:
        return self._take(self.send_join())

    def beat(self) -> Modern:
        return self._take(self._send(member_epoch=self.epoch))

    def leave(self) -> ErrorCode:
        reply = self.send_leave()
        self.broker.settle()
        return ErrorCode(reply.message.error_code)

    def _send(self, **said: object) -> Reply:
        who = {"group_id": "g", "member_id": self.id, "instance_id": self.instance_id}
        return self.broker.send(ConsumerGroupHeartbeatRequest(**(who | said)), 1)

    def _take(self, reply: Reply) -> Modern:
        self.broker.settle()
        answer: ConsumerGroupHeartbeatResponse = reply.message
        assert answer.error_code == ErrorCode.NONE, answer
        self.epoch = answer.member_epoch
        return self


def group_of(broker: MemoryBroker) -> Group | None:
    return broker.node.groups.coordinator_of("g").get("g")


def joins_again(member: MemoryMember) -> bytes:
    """Until it has an assignment, whatever it is told on the way, and whoever leads."""
    for _ in range(10):
        reply = member.send_join()
        member.broker.settle()
        member.broker.pass_time(0)
        member.broker.settle()
        if reply.message.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            member.id = ""
            continue
        answer = member.joined(reply)
        synced = member.send_sync(**{member.id: ALL} if answer.leader == member.id else {})
        member.broker.settle()
        if synced.message.error_code == ErrorCode.NONE:
            assignment: bytes = synced.message.assignment
            return assignment
    raise AssertionError("the member has no assignment after ten rounds")


# Dying at every step


class Life:
    """A classic group with offsets that is upgraded, serves its member, and is downgraded again."""

    def __init__(self, *, fsync: bool) -> None:
        self.broker = new_broker(fsync)
        self.old = classic_member(self.broker)
        self.new = Modern(self.broker)
        self.has_committed = self.is_upgraded = self.is_leaving = self.is_downgraded = False

    def go(self) -> None:
        stable(self.old)
        reply = send_commit(self.broker, "g", 10, member=self.old)
        self.broker.settle()
        assert outcome(reply) == ErrorCode.NONE
        self.has_committed = True
        self.new.join()
        self.is_upgraded = True
        assert self.old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        joins_again(self.old)
        self.new.beat()
        self.is_leaving = True
        assert self.new.leave() == ErrorCode.NONE
        self.is_downgraded = True
        assert self.old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        assert joins_again(self.old) == ALL

    def check(self, after: MemoryBroker) -> None:
        if self.has_committed:
            assert committed_offset(after, "g", "t", 0) == 10
        group = group_of(after)
        if self.is_downgraded:
            assert isinstance(group, ClassicGroup)
        elif self.is_upgraded and not self.is_leaving:
            assert isinstance(group, ConsumerGroup)
            assert group.members.keys() >= {self.new.id, self.old.id}
        self.old.broker = after
        joins_again(self.old)
        Modern(after).join()
        upgraded = group_of(after)
        assert isinstance(upgraded, ConsumerGroup)
        assert upgraded.classic_members == {self.old.id}


def died(step: int, *, fsync: bool) -> Life | None:
    life = Life(fsync=fsync)
    life.broker.files.steps_until_crash = step
    try:
        life.go()
    except SimulatedCrash:
        return life
    return None


@pytest.mark.parametrize("fsync", [True, False], ids=["fsync", "os"])
def test_a_migration_survives_a_kill_at_every_step(fsync: bool) -> None:
    step = 0
    while (life := died(step, fsync=fsync)) is not None:
        life.check(life.broker.killed())
        step += 1
    assert step > 10


def test_a_migration_survives_loss_of_power_at_every_step() -> None:
    step = 0
    while (life := died(step, fsync=True)) is not None:
        for seed in SEEDS:
            old_id = life.old.id
            life.check(life.broker.crashed(random.Random(seed)))
            life.old.id = old_id
        step += 1
    assert step > 20


def test_a_restart_finds_both_kinds_of_members() -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    new = Modern(broker).join()
    joins_again(old)
    old.broker = new.broker = again = broker.killed()
    assert old.heartbeat() == ErrorCode.NONE
    new.beat()
    group = group_of(again)
    assert isinstance(group, ConsumerGroup)
    classic = group.members[old.id].classic
    assert classic is not None
    assert (classic.session_timeout_ms, classic.protocols) == (10_000, (("range", old.metadata),))


# A disk that fails


FAILURES = pytest.mark.parametrize("failure", ["write", "sync"])


def fail(broker: MemoryBroker, failure: str) -> None:
    if failure == "write":
        broker.files.write_failure = (0, 3)
    else:
        broker.files.sync_failures = 1


@FAILURES
def test_a_group_whose_upgrade_the_disk_refuses_stays_classic(failure: str) -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    fail(broker, failure)
    reply = Modern(broker).send_join()
    broker.settle()
    assert reply.message.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert isinstance(group_of(broker), ClassicGroup)
    assert old.heartbeat() == ErrorCode.NONE


def test_who_waits_in_a_group_whose_upgrade_is_refused_goes_on_waiting() -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    waiting = classic_member(broker).send_join()
    fail(broker, "write")
    Modern(broker).send_join()
    assert not waiting.is_there
    broker.files.write_failure = None
    rejoined = old.send_join()
    assert waiting.is_there
    assert rejoined.is_there


@FAILURES
def test_a_group_whose_downgrade_the_disk_refuses_stays_a_consumer_group(failure: str) -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    new = Modern(broker).join()
    joins_again(old)
    new.beat()
    fail(broker, failure)
    assert new.leave() in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group = group_of(broker)
    assert isinstance(group, ConsumerGroup)
    assert group.members.keys() == {old.id, new.id}
    new.beat()
    assert old.heartbeat() == ErrorCode.NONE


@FAILURES
def test_a_classic_member_whose_join_the_disk_refuses_is_told(failure: str) -> None:
    broker = new_broker()
    Modern(broker).join()
    fail(broker, failure)
    reply = classic_member(broker).send_join()
    broker.settle()
    assert reply.message.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    group = group_of(broker)
    assert isinstance(group, ConsumerGroup)
    assert not group.classic_members


def test_a_downgrade_that_time_brings_is_tried_again_after_the_disk_refused_it() -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    Modern(broker).join()
    joins_again(old)
    fail(broker, "write")
    for _ in range(9):
        broker.pass_time(5_000)
        assert old.heartbeat() == ErrorCode.NONE
    assert isinstance(group_of(broker), ConsumerGroup)
    broker.files.write_failure = None
    broker.pass_time(1_000)
    assert isinstance(group_of(broker), ClassicGroup)
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS


# Time


def test_the_last_modern_member_that_falls_silent_leaves_a_classic_group_behind() -> None:
    broker = new_broker(group_consumer_session_timeout_ms="6000")
    old = stable(classic_member(broker))
    Modern(broker).join()
    joins_again(old)
    broker.pass_time(6_001)
    assert isinstance(group_of(broker), ClassicGroup)
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert joins_again(old) == ALL


def test_members_of_a_downgraded_group_have_sessions() -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    new = Modern(broker).join()
    new.leave()
    group = group_of(broker)
    assert isinstance(group, ClassicGroup)
    broker.pass_time(10_001)
    broker.settle()
    assert group_of(broker) is group
    assert group.is_empty
    assert old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_of_an_upgraded_group_have_their_own_sessions() -> None:
    broker = new_broker()
    old = stable(classic_member(broker))
    new = Modern(broker).join()
    broker.pass_time(9_999)
    group = group_of(broker)
    assert isinstance(group, ConsumerGroup)
    assert group.members.keys() == {old.id, new.id}
    broker.pass_time(1)
    assert group.members.keys() == {new.id}


@pytest.mark.parametrize("step", ["join", "sync"])
def test_a_classic_member_has_its_rebalance_timeout_for_each_step(step: str) -> None:
    broker = new_broker()
    new = Modern(broker).join()
    old = classic_member(broker, rebalance_timeout_ms=3_000).join()
    if step == "join":
        old.send_sync()
        Modern(broker).join()
        new.beat()
        assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    broker.pass_time(2_999)
    assert old.heartbeat() in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE)
    broker.pass_time(1)
    assert old.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_did_what_it_was_told_to_is_not_put_out_by_the_clock() -> None:
    broker = new_broker()
    new = Modern(broker).join()
    old = classic_member(broker, rebalance_timeout_ms=3_000).join()
    old.send_sync()
    Modern(broker).join()
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    joins_again(old)
    for _ in range(2):
        broker.pass_time(3_000)
        new.beat()
        assert old.heartbeat() == ErrorCode.NONE


# Policies, and who can be converted


@pytest.mark.parametrize(
    ("policy", "up", "down"),
    [
        ("disabled", False, False),
        ("upgrade", True, False),
        ("downgrade", False, True),
        ("bidirectional", True, True),
    ],
)
def test_the_policy_says_which_way_a_group_may_change(policy: str, up: bool, down: bool) -> None:
    broker = new_broker(group_consumer_migration_policy=policy)
    stable(classic_member(broker))
    reply = Modern(broker).send_join()
    broker.settle()
    assert (reply.message.error_code == ErrorCode.NONE) == up
    assert isinstance(group_of(broker), ConsumerGroup) == up

    other = new_broker(group_consumer_migration_policy=policy)
    new = Modern(other).join()
    reply = classic_member(other).send_join()
    other.settle()
    may_join = policy != "disabled"
    assert reply.message.error_code == (ErrorCode.NONE if may_join else ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    new.leave()
    group = group_of(other)
    assert isinstance(group, ClassicGroup) == down
    assert group is not None
    assert group.is_empty == (not may_join)


def test_classic_members_of_a_group_that_may_not_be_downgraded_share_its_partitions() -> None:
    broker = new_broker(group_consumer_migration_policy="upgrade")
    new = Modern(broker).join()
    old = classic_member(broker).join()
    reply = old.send_sync()
    broker.settle()
    assert reply.message.assignment == NOTHING
    new.leave()
    assert old.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert joins_again(old) == ALL
    assert old.heartbeat() == ErrorCode.NONE


def test_a_group_that_is_too_large_stays_as_it_is() -> None:
    broker = new_broker(group_consumer_max_size="1")
    old = stable(classic_member(broker))
    reply = Modern(broker).send_join()
    broker.settle()
    assert reply.message.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert isinstance(group_of(broker), ClassicGroup)
    assert old.heartbeat() == ErrorCode.NONE

    other = new_broker(group_max_size="1")
    new = Modern(other).join()
    for _ in range(2):
        classic_member(other).join()
    new.leave()
    assert isinstance(group_of(other), ConsumerGroup)


def test_a_group_in_its_first_rebalance_is_upgraded() -> None:
    """Apache Kafka fails with an unknown error there, which a client takes for final."""
    broker = new_broker(group_initial_rebalance_delay_ms="3000")
    waiting = classic_member(broker)
    reply = waiting.send_join()
    assert not reply.is_there
    new = Modern(broker).join()
    assert reply.message.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert new.epoch == 1
    group = group_of(broker)
    assert isinstance(group, ConsumerGroup)
    assert len(group.members) == 2
    [waiting.id] = group.classic_members
    joins_again(waiting)


@pytest.mark.parametrize(
    "assigned",
    [
        pytest.param(struct.pack(">hih", 0, 1, 4) + b"gone" + struct.pack(">iii", 1, 0, -1), id="gone"),
        pytest.param(struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">iii", 1, 7, -1), id="too high"),
        pytest.param(struct.pack(">hih", 0, 1, 1) + b"t" + struct.pack(">iii", 1, -7, -1), id="negative"),
    ],
)
def test_partitions_that_do_not_exist_are_left_out(assigned: bytes) -> None:
    broker = new_broker()
    old = classic_member(broker).join()
    old.send_sync(**{old.id: assigned})
    broker.settle()
    Modern(broker).join()
    group = group_of(broker)
    assert isinstance(group, ConsumerGroup)
    assert group.members[old.id].assigned == {}
    assert all(isinstance(id, UUID) for target in group.target.values() for id in target)
