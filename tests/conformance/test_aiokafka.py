"""aiokafka: the scenarios, and what only it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import RunningBroker
from tests.conformance.scenarios import ClientScenarios, NewTopic
from tests.support.clients.aio import AioClient
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def client(broker: RunningBroker) -> Iterator[AioClient]:
    client = AioClient(broker.bootstrap)
    yield client
    client.close()


class TestAiokafka(ClientScenarios):
    # It wants a number of partitions, and speaks no version of the protocol with topic ids or with timestamp -3.
    test_a_new_topic_without_a_partition_count_has_one = None
    test_a_topic_created_again_has_a_new_id = None
    test_the_greatest_timestamp_need_not_be_the_last = None
    # It has AlterConfigs only, which is not incremental: see below.
    test_changing_one_setting_leaves_the_others = None

    def test_old_alter_configs_puts_back_whatever_it_does_not_name(
        self, client: AioClient, new_topic: NewTopic
    ) -> None:
        topic = new_topic(config={"segment.ms": "60000", "retention.ms": "1000"})
        client.set_config(topic, {"retention.ms": "777000"})
        eventually(lambda: client.describe_config(topic)["retention.ms"].value == "777000", "the change is visible")
        assert client.describe_config(topic)["segment.ms"].is_default
