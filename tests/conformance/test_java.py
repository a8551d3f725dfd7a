"""Apache Kafka's own clients and command line tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import TOPIC_DEFAULTS, ClientScenarios, NewTopic, numbered
from tests.support.clients.java import JavaClient
from tests.support.waiting import eventually


@pytest.fixture
def client(java: JavaClient) -> JavaClient:
    return java


class TestJava(ClientScenarios):
    def test_settings_have_types_and_sources(self, client: JavaClient, new_topic: NewTopic) -> None:
        topic = new_topic(config={"retention.ms": "1000"})
        types, sources = client.config_types(topic), client.config_sources(topic)
        assert {name: types[name] for name in ("retention.ms", "segment.bytes", "preallocate", "cleanup.policy")} == {
            "retention.ms": "LONG",
            "segment.bytes": "INT",
            "preallocate": "BOOLEAN",
            "cleanup.policy": "LIST",
        }
        assert types["min.cleanable.dirty.ratio"] == "DOUBLE"
        assert types["compression.type"] == "STRING"
        assert sources["retention.ms"] == "DYNAMIC_TOPIC_CONFIG"
        assert sources["segment.bytes"] == "DEFAULT_CONFIG"

    def test_watermarks_are_the_ends_of_the_log(self, client: JavaClient, topic: str) -> None:
        client.produce(topic, numbered(10))
        client.delete_records(topic, before=4)
        assert client.watermarks(topic) == (4, 10)

    def test_nothing_is_stored_elsewhere(self, client: JavaClient, topic: str) -> None:
        client.produce(topic, numbered(10))
        assert client.list_offset(topic, "earliest_local") == 0
        assert client.list_offset(topic, "latest_tiered") == -1

    def test_producers_of_a_partition_are_described(self, client: JavaClient, topic: str) -> None:
        client.produce(topic, numbered(3))
        assert client.describe_producers(topic) == []
        client.produce(topic, numbered(10), idempotence=True)
        [described] = client.describe_producers(topic)
        assert (described["epoch"], described["last_sequence"], described["in_transaction"]) == (0, 9, False)

    def test_log_folders_grow_with_what_is_written(self, client: JavaClient, topic: str) -> None:
        assert client.log_sizes()[f"{topic}-0"] == 0
        client.produce(topic, numbered(10))
        assert client.log_sizes()[f"{topic}-0"] > 0

    # --- command line tools

    @pytest.mark.tried("kafka-topics", "create, describe, alter, list and delete topics")
    def test_topic_tool_creates_describes_alters_lists_and_deletes(
        self, client: JavaClient, broker: RunningBroker, new_name: Callable[[], str]
    ) -> None:
        name = new_name()

        def topics(*arguments: str) -> str:
            return client.tool(
                "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.bootstrap, *arguments
            )

        topics("--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=1000")
        eventually(lambda: client.partition_count(name) == 2, f"topic {name} exists")
        described = topics("--describe", "--topic", name)
        assert "PartitionCount: 2\tReplicationFactor: 1" in described
        assert "retention.ms=1000" in described
        topics("--alter", "--topic", name, "--partitions", "3")
        eventually(lambda: client.partition_count(name) == 3, f"topic {name} has grown")
        assert name in topics("--list").splitlines()
        topics("--delete", "--topic", name)
        eventually(lambda: client.partition_count(name) == 0, f"topic {name} is gone")

    @pytest.mark.tried("kafka-console-producer, kafka-console-consumer", "records with keys, compressed")
    def test_console_producer_and_consumer_understand_each_other(
        self, client: JavaClient, broker: RunningBroker, topic: str
    ) -> None:
        client.tool(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic),
            *("--reader-property", "parse.key=true", "--compression-codec", "zstd"),
            feed="k0\tzero\nk1\tone\nk2\ttwo\n",
        )
        printed = client.tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition", "0", "--offset", "1"),
            *("--max-messages", "2", "--timeout-ms", "15000"),
            *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        )
        assert printed.splitlines() == ["Offset:1\tk1\tone", "Offset:2\tk2\ttwo"]

    @pytest.mark.tried("kafka-get-offsets", "the ends of partitions")
    def test_offset_tool_prints_the_end_of_each_partition(
        self, client: JavaClient, broker: RunningBroker, topic: str
    ) -> None:
        client.produce(topic, numbered(7))
        printed = client.tool(
            "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", broker.bootstrap, "--topic", topic
        )
        assert printed.strip() == f"{topic}:0:7"

    @pytest.mark.tried("kafka-configs", "change and describe the settings of topics")
    def test_config_tool_changes_and_describes_settings(
        self, client: JavaClient, broker: RunningBroker, topic: str
    ) -> None:
        def configs(*arguments: str) -> str:
            about = ("--bootstrap-server", broker.bootstrap, "--entity-type", "topics", "--entity-name", topic)
            return client.tool("kafka.admin.ConfigCommand", *about, *arguments)

        configs("--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
        eventually(lambda: client.describe_config(topic)["retention.ms"].value == "5000", "the change is visible")
        assert "retention.ms=5000" in configs("--describe")
        everything = configs("--describe", "--all")
        for name, value in (TOPIC_DEFAULTS | {"retention.ms": "5000", "cleanup.policy": "compact,delete"}).items():
            assert f"  {name}={value} " in everything

    @pytest.mark.tried("kafka-producer-perf-test", "20,000 records")
    def test_performance_tool_writes_what_it_says(self, client: JavaClient, broker: RunningBroker, topic: str) -> None:
        printed = client.tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records", "20000"),
            *("--record-size", "100", "--throughput", "-1"),
        )
        assert "20000 records sent" in printed
        assert client.latest(topic) == 20_000

    @pytest.mark.tried("kafka-delete-records", "the start of a partition moves")
    def test_delete_records_tool_moves_the_start(
        self, client: JavaClient, broker: RunningBroker, topic: str, tmp_path: Path
    ) -> None:
        client.produce(topic, numbered(10))
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 4}]}))
        printed = client.tool(
            "org.apache.kafka.tools.DeleteRecordsCommand",
            *("--bootstrap-server", broker.bootstrap, "--offset-json-file", str(plan)),
        )
        assert f"partition: {topic}-0\tlow_watermark: 4" in printed
        assert client.earliest(topic) == 4

    @pytest.mark.tried("kafka-log-dirs", "sizes of partitions")
    def test_log_dirs_tool_prints_sizes(self, client: JavaClient, broker: RunningBroker, topic: str) -> None:
        client.produce(topic, numbered(10))
        printed = client.tool(
            "org.apache.kafka.tools.LogDirsCommand",
            *("--bootstrap-server", broker.bootstrap, "--describe", "--topic-list", topic),
        )
        [folder] = json.loads(printed.splitlines()[-1])["brokers"][0]["logDirs"]
        [partition] = folder["partitions"]
        assert partition["partition"] == f"{topic}-0"
        assert partition["size"] > 0
