"""kafka-python: the scenarios, and what only it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios, NewTopic, numbered
from tests.support.clients.kafka_python import INSTALLED_CODECS, KafkaPythonClient


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[KafkaPythonClient]:
    client = KafkaPythonClient(broker.bootstrap)
    yield client
    client.close()


class TestKafkaPython(ClientScenarios):
    codecs = INSTALLED_CODECS
    # It throws the error away and returns nothing.
    test_settings_of_an_unknown_topic_are_refused = None

    def test_partitions_are_described_page_by_page(self, client: KafkaPythonClient, new_topic: NewTopic) -> None:
        topic = new_topic(partitions=3)
        page = client.admin.describe_topic_partitions([topic], response_partition_limit=2)
        [described] = page["topics"]
        assert [each["partition_index"] for each in described["partitions"]] == [0, 1]
        assert (page["next_cursor"]["topic_name"], page["next_cursor"]["partition_index"]) == (topic, 2)

    def test_log_folders_hold_the_partitions(self, client: KafkaPythonClient, new_topic: NewTopic) -> None:
        topic = new_topic(partitions=2)
        client.produce(topic, numbered(10))
        [answer] = client.admin.describe_log_dirs({topic: [0, 1]})
        sizes = {
            each["partition_index"]: each["partition_size"]
            for folder in answer["log_dirs"]
            for found in folder["topics"]
            for each in found["partitions"]
            if found["name"] == topic
        }
        assert sizes[0] > 0
        assert sizes[1] == 0

    def test_producers_of_a_partition_are_described(self, client: KafkaPythonClient, topic: str) -> None:
        client.produce(topic, numbered(10), idempotence=True)
        [described] = client.describe_producers(topic)
        assert described.last_sequence == 9
