"""Groups with every client: the scenarios, and what only some of them do."""

from __future__ import annotations

import pytest

from tests.conformance.group_scenarios import ConsumerProtocolScenarios, GroupScenarios, lose_only_what_moves
from tests.conformance.transaction_scenarios import Join, NewTopic
from tests.support.clients.coordinated import CoordinatedClient, Membership


class Cooperative:
    def test_a_cooperative_member_keeps_what_it_will_have_anyway(
        self, client: CoordinatedClient, join: Join, new_topic: NewTopic, group: str
    ) -> None:
        lose_only_what_moves(client, join, new_topic, group, Membership(assignor="cooperative-sticky"))


class TestConfluent(Cooperative, GroupScenarios):
    assignors = ("range", "roundrobin", "cooperative-sticky")
    unknown_groups_are_dead = True
    test_offsets_of_topics_that_nobody_reads_can_be_deleted = None  # It has no call for that.

    @pytest.fixture
    def client(self, confluent: CoordinatedClient) -> CoordinatedClient:
        return confluent


class TestAiokafka(GroupScenarios):
    tells_instance_ids = False
    unknown_groups_are_dead = True
    # Its commits are awaited, and its admin client reads but does not change.
    test_commits_need_not_be_waited_for = None
    test_offsets_of_a_group_without_members_can_be_set = None
    test_offsets_of_topics_that_nobody_reads_can_be_deleted = None
    test_a_group_can_be_deleted_when_nobody_is_in_it = None

    @pytest.fixture
    def client(self, aiokafka: CoordinatedClient) -> CoordinatedClient:
        return aiokafka


class TestKafkaPython(Cooperative, GroupScenarios):
    test_a_static_leader_comes_back_to_its_partitions = None  # As a leader it always asks for a rebalance.
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    @pytest.fixture
    def client(self, kafka_python: CoordinatedClient) -> CoordinatedClient:
        return kafka_python


class TestJava(Cooperative, GroupScenarios):
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    @pytest.fixture
    def client(self, java: CoordinatedClient) -> CoordinatedClient:
        return java


class TestConfluentConsumerProtocol(ConsumerProtocolScenarios):
    unknown_groups_are_dead = True
    test_offsets_of_topics_that_nobody_reads_can_be_deleted = None  # It has no call for that.

    @pytest.fixture
    def client(self, confluent: CoordinatedClient) -> CoordinatedClient:
        return confluent


class TestJavaConsumerProtocol(ConsumerProtocolScenarios):
    @pytest.fixture
    def client(self, java: CoordinatedClient) -> CoordinatedClient:
        return java
