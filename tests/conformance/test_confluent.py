"""confluent-kafka: the scenarios, and what only it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicCollection, admin

from onceflow.errors import ErrorCode
from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios, NewTopic, numbered, values
from tests.support.clients import TIMEOUT_S, Received, Record, read, refused
from tests.support.clients.confluent import ConfluentClient
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[ConfluentClient]:
    client = ConfluentClient(broker.bootstrap)
    yield client
    client.close()


class TestConfluent(ClientScenarios):
    def test_header_values_may_be_null(self, client: ConfluentClient, topic: str) -> None:
        headers = (("nothing", None), ("empty", b""), ("nothing", b"something"))
        client.produce(topic, [Record(value=b"v", headers=headers)])
        assert read(client, topic, 1)[0].record.headers == headers

    def test_a_record_may_be_empty_altogether(self, client: ConfluentClient, topic: str) -> None:
        client.produce(topic, [Record()])
        [received] = read(client, topic, 1)
        assert (received.record.key, received.record.value, received.record.headers) == (None, None, ())

    def test_reading_can_start_at_the_beginning_wherever_that_is(self, client: ConfluentClient, topic: str) -> None:
        client.produce(topic, numbered(10))
        client.delete_records(topic, before=4)
        assert read(client, topic, 1, offset=OFFSET_BEGINNING)[0].offset == 4

    def test_reading_can_start_at_the_end_wherever_that_is(self, client: ConfluentClient, topic: str) -> None:
        client.produce(topic, numbered(10))

        def write_and_read() -> list[Received]:
            client.produce(topic, values("later"))
            return reader.poll(0.2)

        with client.reader(topic, OFFSET_END) as reader:
            # Nobody knows when the client looks up the end: what is written before that is before the end.
            received = eventually(write_and_read, "something arrives after the end")
        assert received[0].offset >= 10

    def test_watermarks_are_the_ends_of_the_log(self, client: ConfluentClient, topic: str) -> None:
        client.produce(topic, numbered(10))
        client.delete_records(topic, before=4)
        assert client.watermarks(topic) == (4, 10)

    def test_list_settings_take_and_lose_single_values(self, client: ConfluentClient, topic: str) -> None:
        def policy() -> set[str]:
            return set(client.describe_config(topic)["cleanup.policy"].value.split(","))

        client.alter_config(
            topic,
            [admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=admin.AlterConfigOpType.APPEND)],
        )
        eventually(lambda: policy() == {"delete", "compact"}, "there are two policies")
        client.alter_config(
            topic,
            [admin.ConfigEntry("cleanup.policy", "delete", incremental_operation=admin.AlterConfigOpType.SUBTRACT)],
        )
        eventually(lambda: policy() == {"compact"}, "there is one policy")

    def test_only_lists_take_single_values(self, client: ConfluentClient, topic: str) -> None:
        entry = admin.ConfigEntry("retention.ms", "1", incremental_operation=admin.AlterConfigOpType.APPEND)
        with refused(ErrorCode.INVALID_CONFIG):
            client.alter_config(topic, [entry])

    def test_records_of_a_compacted_topic_cannot_be_deleted(self, client: ConfluentClient, new_topic: NewTopic) -> None:
        topic = new_topic(config={"cleanup.policy": "compact"})
        client.produce(topic, [Record(key=b"k", value=b"v")])
        with refused(ErrorCode.POLICY_VIOLATION):
            client.delete_records(topic, before=1)

    def test_a_topic_is_described_with_its_leader(self, client: ConfluentClient, topic: str) -> None:
        [(node, _, _)] = client.cluster().nodes
        described = client.admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S)
        [partition] = described.partitions
        assert (described.is_internal, partition.id, partition.leader.id) == (False, 0, node)
        assert [each.id for each in partition.replicas] == [each.id for each in partition.isr] == [node]

    def test_each_topic_of_a_request_has_its_own_outcome(
        self, client: ConfluentClient, new_name: Callable[[], str]
    ) -> None:
        good, bad = new_name(), "not a name"
        outcomes = client.admin.create_topics([admin.NewTopic(good, 1), admin.NewTopic(bad, 1)])
        assert outcomes[good].result(TIMEOUT_S) is None
        assert outcomes[bad].exception(TIMEOUT_S).args[0].code() == ErrorCode.INVALID_TOPIC_EXCEPTION
        eventually(lambda: client.partition_count(good) == 1, "the good topic exists")
