"""The table of metrics, and a snapshot in Prometheus' format."""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.monitor.rules import Alert
from onceflow.monitor.snapshot import Snapshot

__all__ = ["exposition"]


def exposition(snapshot: Snapshot, alerts: Sequence[Alert] = (), accept: str = "") -> tuple[bytes, str]:
    """A scrape: the text and its content type, as the `Accept` header asks for it."""
    raise NotImplementedError
