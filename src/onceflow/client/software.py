"""Whose broker answers: ours, or Apache Kafka's. The protocol has no question for that; finalized features tell."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["is_onceflow"]


def is_onceflow(features: Mapping[str, int]) -> bool:
    """Every Kafka since 3.3 has finalized a version of its metadata, unless it is one with ZooKeeper, which has no
    transaction.version."""
    return "transaction.version" in features and "metadata.version" not in features
