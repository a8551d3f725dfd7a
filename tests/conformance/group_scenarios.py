"""What every client with groups must be able to do, written once.

`test_groups.py` subclasses `GroupScenarios` for each client, and `ConsumerProtocolScenarios` for those that speak the
protocol of KIP-848. A client that cannot do one thing sets that scenario to None and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onceflow.errors import ErrorCode
from tests.conformance.scenarios import numbered, values
from tests.conformance.transaction_scenarios import Coordinated, Join, NewTopic, texts
from tests.support.clients import Received, refused
from tests.support.clients.coordinated import CLASSIC, CONSUMER, CoordinatedClient, Group, Member, Membership, Partition
from tests.support.waiting import eventually

SESSION_MS = 1500
"""How long the group waits for members that are meant to die."""


def settle(client: CoordinatedClient, members: Sequence[Member], partitions: set[Partition]) -> list[Received]:
    """Lets the members poll until all partitions are theirs, fairly shared, and returns what they read meanwhile."""
    received: list[Received] = []
    fair = {len(partitions) // len(members), -(-len(partitions) // len(members))}

    def shared() -> bool:
        received.extend(client.poll_each(members))
        held = [member.assignment() for member in members]
        complete = set().union(*held) == partitions and sum(map(len, held)) == len(partitions)
        return complete and {len(each) for each in held} <= fair

    eventually(shared, f"{len(members)} members share {len(partitions)} partitions")
    return received


def stable(client: CoordinatedClient, members: Sequence[Member], group: str) -> Any:
    """The group when it has come to rest: a cooperative one may have a round left when everything is shared out."""

    def at_rest() -> Any:
        client.poll_each(members)
        described = client.describe_group(group)
        return described if described.state == "Stable" else None

    return eventually(at_rest, f"{group} is stable")


def take(
    client: CoordinatedClient, members: Sequence[Member], count: int, received: Sequence[Received] = ()
) -> list[Received]:
    """What was received already and what else it takes to have `count` records."""
    taken = list(received)
    eventually(lambda: taken.extend(client.poll_each(members)) or len(taken) >= count, f"{count} records arrive")
    assert len(taken) == count, texts(taken)
    return taken


def partitions_of(topic: str, count: int) -> set[Partition]:
    return {(topic, number) for number in range(count)}


class GroupScenarios(Coordinated):
    protocol = CLASSIC
    assignors: tuple[str, ...] = ("range", "roundrobin", "sticky")
    tells_instance_ids = True
    unknown_groups_are_dead = False
    """Before version 6 of DescribeGroups an unknown group was no error, but one that is dead."""

    @pytest.fixture
    def group(self, new_name: Callable[[], str]) -> str:
        return new_name()

    def membership(self, **how: object) -> Membership:
        return Membership(**{"protocol": self.protocol, "assignor": self.assignors[0], **how})

    # --- members and their partitions

    def test_a_single_member_reads_everything_in_order(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        topic = new_topic(partitions=3)
        for partition in range(3):
            client.produce(topic, numbered(10, partition))
        member = join(group, topic, membership=self.membership())
        received = take(client, [member], 30, settle(client, [member], partitions_of(topic, 3)))
        for partition in range(3):
            own = [each for each in received if each.record.partition == partition]
            assert texts(own) == [str(number) for number in range(10)]

    def test_members_share_the_partitions_and_take_over_from_who_leaves(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        topic = new_topic(partitions=6)
        everything = partitions_of(topic, 6)
        members = []
        for _ in range(3):
            members.append(join(group, topic, membership=self.membership()))
            settle(client, members, everything)
        for partition in range(6):
            client.produce(topic, values("once", partition=partition))
        received = take(client, members, 6)
        assert sorted(each.record.partition for each in received) == list(range(6))
        members.pop(0).close()
        settle(client, members, everything)
        members.pop().close()
        settle(client, members, everything)

    def test_the_partitions_of_a_dead_member_go_to_the_living(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        topic = new_topic(partitions=2)
        membership = self.membership(session_timeout_ms=SESSION_MS)
        dying = client.dying_member(group, topic, membership)
        try:
            dying.join()
        finally:
            dying.die()
        survivor = join(group, topic, membership=membership)
        settle(client, [survivor], partitions_of(topic, 2))
        assert len(client.describe_group(group).members) == 1

    def test_every_assignor_shares_two_topics_among_two_members(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, new_name: Callable[[], str]
    ) -> None:
        topics = [new_topic(partitions=2), new_topic(partitions=2)]
        everything = partitions_of(topics[0], 2) | partitions_of(topics[1], 2)
        for assignor in self.assignors:
            group = new_name()
            members = [join(group, *topics, membership=self.membership(assignor=assignor)) for _ in range(2)]
            settle(client, members, everything)
            described = stable(client, members, group)
            assert described.assignor == assignor
            assert {each.partitions for each in described.members} == {
                frozenset(member.assignment()) for member in members
            }
            for member in members:
                member.close()

    def test_a_static_member_comes_back_to_its_partitions(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        self.comes_back(client, join, new_topic, group, "second")

    def test_a_static_leader_comes_back_to_its_partitions(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        """KIP-814: it is told that it leads, and that there is nothing to assign."""
        self.comes_back(client, join, new_topic, group, "first")

    def comes_back(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str, returning: str
    ) -> None:
        topic = new_topic(partitions=4)
        members = {}
        for name in ("first", "second"):
            members[name] = join(group, topic, membership=self.membership(instance_id=name))
            settle(client, list(members.values()), partitions_of(topic, 4))
        [staying] = [member for name, member in members.items() if name != returning]
        held, lost = members[returning].assignment(), staying.revoked()
        members[returning].close()
        members[returning] = join(group, topic, membership=self.membership(instance_id=returning))
        settle(client, list(members.values()), partitions_of(topic, 4))
        assert members[returning].assignment() == held
        assert staying.revoked() == lost
        if self.tells_instance_ids:
            assert {each.instance_id for each in client.describe_group(group).members} == set(members)

    # --- offsets

    def test_a_group_goes_on_where_it_committed(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(10))
        first = join(group, topic, membership=self.membership())
        take(client, [first], 10)
        first.commit({(topic, 0): 6})
        assert first.committed((topic, 0)) == 6
        first.close()
        second = join(group, topic, membership=self.membership())
        assert texts(take(client, [second], 4)) == ["6", "7", "8", "9"]
        assert second.position((topic, 0)) == 10

    def test_nothing_is_committed_at_first(self, client: CoordinatedClient, join: Join, topic: str, group: str) -> None:
        member = join(group, topic, membership=self.membership())
        settle(client, [member], {(topic, 0)})
        assert member.committed((topic, 0)) is None
        assert client.group_offsets(group) == {}

    def test_commits_need_not_be_waited_for(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(10))
        member = join(group, topic, membership=self.membership())
        take(client, [member], 10)
        for offset in (3, 8):
            member.commit_async({(topic, 0): offset})
        eventually(
            lambda: client.poll_each([member]) or client.group_offsets(group) == {(topic, 0): 8}, "the last one counts"
        )

    def test_positions_are_committed_by_themselves(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(10))
        member = join(group, topic, membership=self.membership(auto_commit_ms=100))
        take(client, [member], 10)
        eventually(
            lambda: client.poll_each([member]) or client.group_offsets(group) == {(topic, 0): 10}, "all is committed"
        )

    def test_seeking_reads_again(self, client: CoordinatedClient, join: Join, topic: str, group: str) -> None:
        client.produce(topic, numbered(10))
        member = join(group, topic, membership=self.membership())
        take(client, [member], 10)
        member.seek((topic, 0), 7)
        assert texts(take(client, [member], 3)) == ["7", "8", "9"]

    def test_a_new_group_may_begin_at_the_end(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(10))
        member = join(group, topic, membership=self.membership(reset="latest"))
        settle(client, [member], {(topic, 0)})

        def write_and_read() -> list[Received]:
            client.produce(topic, values("later"))
            return client.poll_each([member])

        # Nobody knows when the client looks up the end: what is written before that is before the end.
        assert eventually(write_and_read, "something arrives after the end")[0].offset >= 10

    def test_two_groups_do_not_know_of_each_other(
        self, client: CoordinatedClient, join: Join, topic: str, new_name: Callable[[], str]
    ) -> None:
        client.produce(topic, numbered(5))
        groups = [new_name(), new_name()]
        for number, group in enumerate(groups):
            member = join(group, topic, membership=self.membership())
            take(client, [member], 5)
            member.commit({(topic, 0): number})
        assert [client.group_offsets(group) for group in groups] == [{(topic, 0): 0}, {(topic, 0): 1}]

    def test_a_stranger_cannot_commit_for_a_group_with_members(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(5))
        stranger = join(group)
        stranger.commit({(topic, 0): 1})
        member = join(group, topic, membership=self.membership())
        take(client, [member], 4)
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            stranger.commit({(topic, 0): 5})
        assert client.group_offsets(group) == {(topic, 0): 1}

    # --- what an administrator sees and does

    def test_a_group_is_listed_and_described_while_it_lives_and_after(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        topic = new_topic(partitions=2)
        assert group not in client.groups()
        member = join(group, topic, membership=self.membership())
        settle(client, [member], partitions_of(topic, 2))
        assert group in client.groups()
        described = in_state(client, group, "Stable")
        [only] = described.members
        assert only.partitions == partitions_of(topic, 2)
        assert described.protocol in (self.protocol, "")
        member.commit({(topic, 0): 0})
        member.close()
        described = in_state(client, group, "Empty")
        assert described.members == ()

    def test_an_unknown_group_is_told_to_be_so(self, client: CoordinatedClient, group: str) -> None:
        if self.unknown_groups_are_dead:
            assert client.describe_group(group).state == "Dead"
        else:
            with refused(ErrorCode.GROUP_ID_NOT_FOUND):
                client.describe_group(group)
        assert client.group_offsets(group) == {}

    def test_offsets_of_a_group_without_members_can_be_set(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        client.produce(topic, numbered(10))
        client.alter_group_offsets(group, {(topic, 0): 7})
        member = join(group, topic, membership=self.membership())
        assert texts(take(client, [member], 3)) == ["7", "8", "9"]
        with refused(ErrorCode.UNKNOWN_MEMBER_ID):
            client.alter_group_offsets(group, {(topic, 0): 2})
        assert client.group_offsets(group) == {(topic, 0): 7}

    def test_offsets_of_topics_that_nobody_reads_can_be_deleted(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        topic, other = new_topic(), new_topic()
        client.alter_group_offsets(group, {(topic, 0): 0, (other, 0): 0})
        member = join(group, topic, membership=self.membership())
        settle(client, [member], {(topic, 0)})
        with refused(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC):
            client.delete_group_offsets(group, [(topic, 0)])
        client.delete_group_offsets(group, [(other, 0)])
        assert client.group_offsets(group) == {(topic, 0): 0}

    def test_a_group_can_be_deleted_when_nobody_is_in_it(
        self, client: CoordinatedClient, join: Join, topic: str, group: str
    ) -> None:
        member = join(group, topic, membership=self.membership())
        settle(client, [member], {(topic, 0)})
        member.commit({(topic, 0): 0})
        with refused(ErrorCode.NON_EMPTY_GROUP):
            client.delete_group(group)
        member.close()
        in_state(client, group, "Empty")
        client.delete_group(group)
        assert group not in client.groups()
        assert client.group_offsets(group) == {}
        with refused(ErrorCode.GROUP_ID_NOT_FOUND):
            client.delete_group(group)


class ConsumerProtocolScenarios(GroupScenarios):
    """The same, in the protocol of KIP-848: the broker assigns, and members agree to one change after the other."""

    protocol = CONSUMER
    assignors = ("uniform", "range")

    def test_a_member_keeps_what_it_will_have_anyway(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        lose_only_what_moves(client, join, new_topic, group, self.membership())

    def test_a_living_group_can_change_its_protocol(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        """Members of the classic protocol go on with it, and the broker assigns to them what others have not."""
        topic = new_topic(partitions=4)
        classic = join(group, topic, membership=Membership(assignor="range"))
        settle(client, [classic], partitions_of(topic, 4))
        classic.commit({(topic, 0): 0})
        modern = join(group, topic, membership=self.membership())
        settle(client, [classic, modern], partitions_of(topic, 4))
        assert client.describe_group(group).protocol == CONSUMER
        classic.close()
        settle(client, [modern], partitions_of(topic, 4))
        assert client.group_offsets(group) == {(topic, 0): 0}


def lose_only_what_moves(
    client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str, membership: Membership
) -> None:
    """Of cooperative rebalances: no partition is taken away that its member gets back at once."""
    topic = new_topic(partitions=4)
    first = join(group, topic, membership=membership)
    settle(client, [first], partitions_of(topic, 4))
    second = join(group, topic, membership=membership)
    settle(client, [first, second], partitions_of(topic, 4))
    assert set(first.revoked()) == second.assignment()
    assert len(first.revoked()) == 2


def in_state(client: CoordinatedClient, group: str, state: str) -> Group:
    def described() -> Group | None:
        found = client.describe_group(group)
        return found if found.state == state else None

    return eventually(described, f"group {group} is {state}")
