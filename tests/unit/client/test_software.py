"""Ours or Apache Kafka's: told by what a broker has finalized."""

from __future__ import annotations

import pytest

from onceflow.client.software import is_onceflow


@pytest.mark.parametrize(
    ("features", "ours"),
    [
        ({"transaction.version": 2, "group.version": 1}, True),
        ({"transaction.version": 2, "group.version": 1, "metadata.version": 29}, False),
        ({"transaction.version": 1}, True),
        ({"group.version": 1}, True),
        ({"metadata.version": 21}, False),
        ({}, False),
    ],
    ids=[
        "ours",
        "Kafka",
        "ours without groups",
        "ours without transactions",
        "Kafka before transaction.version",
        "Kafka with ZooKeeper",
    ],
)
def test_finalized_features_tell_whose_broker_it_is(features: dict[str, int], ours: bool) -> None:
    assert is_onceflow(features) is ours
