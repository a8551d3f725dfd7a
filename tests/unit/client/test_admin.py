"""Questions about topics through librdkafka, against a scripted broker."""

from __future__ import annotations

from uuid import UUID

from onceflow.client.admin import Admin
from onceflow.client.topic_ids import to_text
from tests.unit.client.fake_broker import FakeBroker


def test_a_topic_of_which_the_broker_says_no_id_has_none() -> None:
    """It has one after the broker was upgraded, and is the same topic."""
    known = UUID(int=7)
    with FakeBroker() as broker:
        broker.topics = {"orders": 1, "clicks": 1}
        broker.topic_ids = {"clicks": known}
        assert Admin(broker.settings()).topic_ids(["orders", "clicks"]) == {"clicks": to_text(known)}
