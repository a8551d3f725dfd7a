"""How many topics one request makes."""

from __future__ import annotations

import onceflow
from onceflow.errors import ErrorCode
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.raw_client import RawClient

CREATED_MAX = 100


def test_one_metadata_request_creates_a_hundred_topics_and_the_client_may_ask_again() -> None:
    names = [f"topic-{at}" for at in range(CREATED_MAX + 20)]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    with onceflow.Broker() as broker, RawClient(broker.bootstrap) as client:
        codes = [topic.error_code for topic in client.ask(request).topics]
        assert codes == [0] * CREATED_MAX + [ErrorCode.LEADER_NOT_AVAILABLE] * 20
        assert len(client.topics()) == CREATED_MAX
        assert [topic.error_code for topic in client.ask(request).topics] == [0] * len(names)


def test_each_topic_is_described_once_however_often_it_is_named() -> None:
    with onceflow.Broker() as broker, RawClient(broker.bootstrap) as client:
        client.make_topic("one")
        request = MetadataRequest(topics=[MetadataRequestTopic(name="one")] * 3)
        assert [topic.name for topic in client.ask(request).topics] == ["one"]
