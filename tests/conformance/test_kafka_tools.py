"""Kafka's own command line tools, as an administrator runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import numbered, values
from tests.conformance.transaction_scenarios import Coordinated, Join, NewTopic, StartProducer, committed
from tests.support.clients.coordinated import Membership
from tests.support.clients.coordinated.java import CoordinatedJavaClient
from tests.support.waiting import eventually

Tool = Callable[..., str]

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ELECTIONS = "org.apache.kafka.tools.LeaderElectionCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
REASSIGNMENTS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


def table(printed: str) -> list[dict[str, str]]:
    """The rows of a table with its headings in the first line that is not empty; columns are apart by blanks."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


class TestTools(Coordinated):
    @pytest.fixture
    def client(self, java: CoordinatedJavaClient) -> CoordinatedJavaClient:
        return java

    @pytest.fixture
    def tool(self, client: CoordinatedJavaClient, broker: RunningBroker) -> Tool:
        """Runs a tool against the broker and returns what it prints."""
        return lambda main_class, *arguments, feed="": client.tool(
            main_class, "--bootstrap-server", broker.bootstrap, *arguments, feed=feed
        )

    # --- transactions

    @pytest.mark.tried("kafka-transactions", "list, describe, describe-producers")
    def test_an_open_transaction_is_listed_and_described(
        self, tool: Tool, start_producer: StartProducer, new_topic: NewTopic, new_name: Callable[[], str]
    ) -> None:
        name, topic = new_name(), new_topic(partitions=2)
        producer = start_producer(name, timeout_ms=50_000)
        producer.begin()
        for partition in (0, 1):
            producer.send(topic, values("open", partition=partition))
        [listed] = [row for row in table(tool(TRANSACTIONS, "list")) if row["TransactionalId"] == name]
        assert listed["TransactionState"] == "Ongoing"
        [described] = table(tool(TRANSACTIONS, "describe", "--transactional-id", name))
        assert described["ProducerId"] == listed["ProducerId"]
        assert (described["TransactionState"], described["TransactionTimeoutMs"]) == ("Ongoing", "50000")
        assert set(described["TopicPartitions"].split(",")) == {f"{topic}-0", f"{topic}-1"}
        [active] = table(tool(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "1"))
        assert (active["ProducerId"], active["CurrentTransactionStartOffset"]) == (described["ProducerId"], "0")
        producer.commit()
        eventually(lambda: _state(tool, name) == "CompleteCommit", "the transaction is over")
        [idle] = table(tool(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "1"))
        assert idle["CurrentTransactionStartOffset"] == "None"

    @pytest.mark.tried("kafka-transactions", "find-hanging")
    def test_no_transaction_hangs(
        self, tool: Tool, start_producer: StartProducer, topic: str, broker: RunningBroker
    ) -> None:
        """Open is not hanging: only where no coordinator knows of a transaction it will never end."""
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("open"))
        found = tool(TRANSACTIONS, "find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
        assert table(found) == []
        producer.abort()

    @pytest.mark.tried("kafka-transactions", "abort")
    def test_a_transaction_can_be_aborted_by_its_start_offset(
        self, tool: Tool, client: CoordinatedJavaClient, start_producer: StartProducer, topic: str
    ) -> None:
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("stuck"))
        client.produce(topic, values("behind"))
        tool(TRANSACTIONS, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
        assert committed(client, topic, 1) == ["behind"]

    @pytest.mark.tried("kafka-transactions", "forceTerminateTransaction")
    def test_older_instances_can_be_fenced(
        self,
        tool: Tool,
        client: CoordinatedJavaClient,
        start_producer: StartProducer,
        topic: str,
        new_name: Callable[[], str],
    ) -> None:
        name = new_name()
        producer = start_producer(name)
        producer.begin()
        producer.send(topic, values("orphaned"))
        tool(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", name)
        # A newer instance came and took over, which is how the tool does it.
        eventually(lambda: _state(tool, name) == "Empty", "the transaction is over")
        client.produce(topic, values("behind"))
        assert committed(client, topic, 1) == ["behind"]

    @pytest.mark.tried("kafka-console-producer, kafka-console-consumer", "read_committed beside an aborted transaction")
    def test_the_console_consumer_reads_committed_records_only(
        self, tool: Tool, start_producer: StartProducer, client: CoordinatedJavaClient, topic: str
    ) -> None:
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("aborted"))
        producer.abort()
        tool(CONSOLE_PRODUCER, "--topic", topic, feed="committed\n")
        for isolation, expected in (("read_committed", ["committed"]), ("read_uncommitted", ["aborted", "committed"])):
            printed = tool(
                CONSOLE_CONSUMER,
                *("--topic", topic, "--from-beginning", "--isolation-level", isolation),
                *("--max-messages", str(len(expected)), "--timeout-ms", "15000"),
            )
            assert printed.split() == expected

    @pytest.mark.tried("kafka-producer-perf-test", "in transactions")
    def test_the_performance_tool_writes_in_transactions(
        self, tool: Tool, client: CoordinatedJavaClient, topic: str, new_name: Callable[[], str]
    ) -> None:
        printed = tool(
            PRODUCER_PERFORMANCE,
            *("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1"),
            *("--transactional-id", new_name(), "--transaction-duration-ms", "50"),
        )
        assert "2000 records sent" in printed
        assert len(committed(client, topic, 2000)) == 2000
        assert client.latest(topic) > 2000

    # --- groups

    @pytest.mark.tried("kafka-console-producer, kafka-console-consumer", "a group that goes on where it was")
    def test_the_console_consumer_goes_on_where_its_group_was(
        self, tool: Tool, client: CoordinatedJavaClient, topic: str, new_name: Callable[[], str]
    ) -> None:
        group = new_name()
        client.produce(topic, numbered(6))
        for expected in (["0", "1", "2", "3"], ["4", "5"]):
            printed = tool(
                CONSOLE_CONSUMER,
                *("--topic", topic, "--group", group, "--from-beginning"),
                *("--max-messages", str(len(expected)), "--timeout-ms", "15000"),
            )
            assert printed.split() == expected
        assert client.group_offsets(group) == {(topic, 0): 6}

    @pytest.mark.tried("kafka-consumer-groups", "list and describe groups of both protocols")
    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_a_group_is_listed_and_described(
        self,
        tool: Tool,
        client: CoordinatedJavaClient,
        join: Join,
        new_topic: NewTopic,
        new_name: Callable[[], str],
        protocol: str,
    ) -> None:
        group, topic = new_name(), new_topic(partitions=2)
        client.produce(topic, numbered(10))
        member = join(group, topic, membership=Membership(protocol=protocol))
        eventually(lambda: client.poll_each([member]) and len(member.assignment()) == 2, "it has all partitions")
        member.commit({(topic, 0): 4})

        assert group in tool(GROUPS, "--list").split()
        [listed] = [row for row in table(tool(ALL_GROUPS, "--list")) if row["GROUP"] == group]
        assert (listed["TYPE"].lower(), listed["PROTOCOL"]) == (protocol, "consumer")
        rows = {row["PARTITION"]: row for row in table(tool(GROUPS, "--describe", "--group", group))}
        assert (rows["0"]["CURRENT-OFFSET"], rows["0"]["LOG-END-OFFSET"], rows["0"]["LAG"]) == ("4", "10", "6")
        assert (rows["1"]["CURRENT-OFFSET"], rows["1"]["LOG-END-OFFSET"]) == ("-", "0")
        [described] = table(tool(GROUPS, "--describe", "--group", group, "--members"))
        assert (described["GROUP"], described["#PARTITIONS"]) == (group, "2")
        state = tool(GROUPS, "--describe", "--group", group, "--state")
        assert re.search(rf"{group}\s+\S+:\d+\s+\(1\)\s+range\s+Stable\s+1\b", state), state

    @pytest.mark.tried("kafka-consumer-groups", "reset and delete offsets, delete groups")
    def test_offsets_are_reset_deleted_and_the_group_with_them(
        self, tool: Tool, client: CoordinatedJavaClient, new_topic: NewTopic, new_name: Callable[[], str]
    ) -> None:
        group, topic, other = new_name(), new_topic(), new_topic()
        client.produce(topic, numbered(10))
        client.alter_group_offsets(group, {(topic, 0): 9, (other, 0): 0})
        about = ("--group", group, "--topic", topic)
        for target, offset in ((("--to-earliest",), 0), (("--to-latest",), 10), (("--shift-by", "-3"), 7)):
            tool(GROUPS, *about, "--reset-offsets", *target, "--execute")
            assert client.group_offsets(group) == {(topic, 0): offset, (other, 0): 0}
        tool(GROUPS, "--delete-offsets", *about)
        assert client.group_offsets(group) == {(other, 0): 0}
        printed = tool(GROUPS, "--delete", "--group", group)
        assert "was successful" in printed
        assert group not in client.groups()

    def test_the_internal_topics_can_be_looked_at(
        self, tool: Tool, client: CoordinatedJavaClient, start_producer: StartProducer, topic: str, join: Join
    ) -> None:
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("in a transaction"))
        producer.commit()
        printed = tool(OFFSETS, "--topic-partitions", "__transaction_state")
        assert sum(int(line.rpartition(":")[2]) for line in printed.split()) > 0

    # --- the cluster

    def test_a_topic_is_described_and_nothing_is_wrong_with_it(self, tool: Tool, topic: str) -> None:
        described = tool(TOPICS, "--describe", "--topic", topic)
        assert re.search(r"Partition: 0\s+Leader: 1\s+Replicas: 1\s+Isr: 1\b", described), described
        for trouble in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
            assert topic not in tool(TOPICS, "--describe", trouble)

    @pytest.mark.parametrize("kind", ["preferred", "unclean"])
    def test_no_leader_has_to_be_elected(self, tool: Tool, topic: str, kind: str) -> None:
        printed = tool(ELECTIONS, "--election-type", kind, "--topic", topic, "--partition", "0")
        assert f"Valid replica already elected for partitions {topic}-0" in printed
        assert "could not be elected" not in tool(ELECTIONS, "--election-type", kind, "--all-topic-partitions")

    def test_a_partition_is_reassigned_to_where_it_is(self, tool: Tool, topic: str, tmp_path: Path) -> None:
        plan, topics = tmp_path / "plan.json", tmp_path / "topics.json"
        topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
        printed = tool(REASSIGNMENTS, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
        proposed = json.loads(printed.splitlines()[-1])
        assert [(each["topic"], each["replicas"]) for each in proposed["partitions"]] == [(topic, [1])]
        plan.write_text(json.dumps(proposed))
        about = ("--reassignment-json-file", str(plan))
        assert f"Successfully started partition reassignment for {topic}-0" in tool(REASSIGNMENTS, "--execute", *about)
        assert f"Reassignment of partition {topic}-0 is completed" in tool(REASSIGNMENTS, "--verify", *about)
        assert "None of the specified partition reassignments are active" in tool(REASSIGNMENTS, "--cancel", *about)
        assert "No partition reassignments found" in tool(REASSIGNMENTS, "--list")

    def test_a_partition_is_moved_to_the_directory_that_it_is_in(self, tool: Tool, topic: str, tmp_path: Path) -> None:
        described = json.loads(tool(LOG_DIRS, "--describe", "--topic-list", topic).splitlines()[-1])
        [directory] = described["brokers"][0]["logDirs"]
        assert [each["partition"] for each in directory["partitions"]] == [f"{topic}-0"]
        plan = tmp_path / "plan.json"
        partition = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [directory["logDir"]]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        printed = tool(REASSIGNMENTS, "--execute", "--reassignment-json-file", str(plan))
        moved = (
            f"Successfully started moving log directory to {directory['logDir']} for replica {topic}-0 with broker 1"
        )
        assert moved in printed

    def test_the_quorum_is_the_node(self, tool: Tool) -> None:
        status = tool(QUORUM, "describe", "--status")
        assert re.search(r"LeaderId:\s+1\b", status)
        assert re.search(r'CurrentVoters:\s+\[\{"id": 1,', status)
        [leader] = table(tool(QUORUM, "describe", "--replication"))
        assert (leader["NodeId"], leader["Lag"], leader["Status"]) == ("1", "0", "Leader")

    def test_there_are_no_subscriptions_to_metrics_of_clients(self, tool: Tool) -> None:
        assert tool(CLIENT_METRICS, "--list").split() == []

    # --- settings

    @pytest.mark.parametrize("kind", ["topics", "brokers", "users", "clients", "ips", "client-metrics", "groups"])
    def test_settings_of_every_kind_are_shown(self, tool: Tool, topic: str, kind: str) -> None:
        printed = tool(CONFIGS, "--describe", "--entity-type", kind)
        assert ("Dynamic configs for broker 1 are:" in printed) == (kind == "brokers")
        assert (f"Dynamic configs for topic {topic} are:" in printed) == (kind == "topics")

    @pytest.mark.tried("kafka-configs", "change and describe the settings of the broker")
    @pytest.mark.parametrize("whose", [("--entity-name", "1"), ("--entity-default",)], ids=["this", "all"])
    def test_a_setting_of_the_broker_is_changed_shown_and_taken_back(
        self, tool: Tool, topic: str, whose: tuple[str, ...]
    ) -> None:
        about = ("--entity-type", "brokers", *whose)
        source = "DEFAULT_BROKER_CONFIG" if whose == ("--entity-default",) else "BROKER_CONFIG"
        changed = f"  log.segment.bytes=2000000 sensitive=false synonyms={{DYNAMIC_{source}:log.segment.bytes=2000000"
        tool(CONFIGS, "--alter", *about, "--add-config", "log.segment.bytes=2000000,log.roll.ms=3600000")
        eventually(lambda: changed in tool(CONFIGS, "--describe", *about), "it is there")
        of_topic = tool(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic, "--all")
        assert f"  segment.bytes=2000000 sensitive=false synonyms={{DYNAMIC_{source}:" in of_topic
        tool(CONFIGS, "--alter", *about, "--delete-config", "log.segment.bytes,log.roll.ms")
        eventually(lambda: "log.segment.bytes" not in tool(CONFIGS, "--describe", *about), "it is gone")

    def test_the_levels_of_loggers_are_shown(self, tool: Tool) -> None:
        loggers = tool(CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", "1")
        assert re.search(r"^  root=[A-Z]+ sensitive=false", loggers, re.MULTILINE)

    def test_the_credentials_of_a_user_are_made_shown_and_deleted(
        self, tool: Tool, new_name: Callable[[], str]
    ) -> None:
        user = new_name()
        about = ("--entity-type", "users", "--entity-name", user)
        tool(CONFIGS, "--alter", *about, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=secret]")
        shown = f"SCRAM credential configs for user-principal '{user}' are SCRAM-SHA-256=iterations=4096"
        eventually(lambda: shown in tool(CONFIGS, "--describe", *about), "the user is there")
        tool(CONFIGS, "--alter", *about, "--delete-config", "SCRAM-SHA-256")
        eventually(lambda: user not in tool(CONFIGS, "--describe", *about), "the user is gone")

    # --- features

    @pytest.fixture
    def transactions_v1(self, tool: Tool) -> Iterator[None]:
        assert "was downgraded to 1" in tool(FEATURES, "downgrade", "--feature", "transaction.version=1")
        eventually(lambda: _level(tool, "transaction.version") == 1, "the level is 1")
        yield
        assert "was upgraded to 2" in tool(FEATURES, "upgrade", "--feature", "transaction.version=2")
        eventually(lambda: _level(tool, "transaction.version") == 2, "the level is 2")

    def test_feature_levels_are_shown(self, tool: Tool) -> None:
        assert (_level(tool, "transaction.version"), _level(tool, "group.version")) == (2, 1)
        would = tool(FEATURES, "downgrade", "--feature", "group.version=0", "--dry-run")
        assert "group.version can be downgraded to 0" in would
        assert _level(tool, "group.version") == 1

    def test_with_a_lower_level_producers_use_classic_transactions(
        self,
        tool: Tool,
        transactions_v1: None,
        client: CoordinatedJavaClient,
        start_producer: StartProducer,
        topic: str,
        new_name: Callable[[], str],
    ) -> None:
        name = new_name()
        producer = start_producer(name)
        epochs = []
        for value in ("first", "second"):
            producer.begin()
            producer.send(topic, values(value))
            producer.commit()
            eventually(lambda: _state(tool, name) == "CompleteCommit", "the transaction is over")
            [described] = table(tool(TRANSACTIONS, "describe", "--transactional-id", name))
            epochs.append(described["ProducerEpoch"])
        assert epochs == ["0", "0"]  # In V2 every end raises it.
        assert committed(client, topic, 2) == ["first", "second"]


def _level(tool: Tool, feature: str) -> int:
    found = re.search(rf"Feature: {feature}\s.*FinalizedVersionLevel: (\d+)", tool(FEATURES, "describe"))
    assert found
    return int(found[1])


def _state(tool: Tool, name: str) -> str:
    [described] = table(tool(TRANSACTIONS, "describe", "--transactional-id", name))
    return described["TransactionState"]
