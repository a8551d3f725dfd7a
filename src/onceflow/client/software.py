"""Whose broker answers: ours, or Apache Kafka's. The protocol has no question for that; finalized features tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["is_onceflow"]

OURS: Final = frozenset({"group.version", "transaction.version"})


def is_onceflow(features: Mapping[str, int]) -> bool:
    """Every Kafka since 3.3 has finalized a version of its metadata, unless it is one with ZooKeeper, which has no
    features of these names. Ours has none either after both were set to 0, and is not recognized then."""
    return "metadata.version" not in features and not OURS.isdisjoint(features)
