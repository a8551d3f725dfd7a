"""Snapshots over time: what is shown on the page, and what is scraped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceflow.monitor.snapshot import Snapshot

__all__ = ["Watcher"]


class Watcher:
    def __init__(self, take: Callable[[], Snapshot]) -> None:
        """`take` makes a snapshot as of now."""
        raise NotImplementedError

    def look(self) -> None:
        """Take a snapshot: into the history, and past the alerts. Called every few seconds."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What the page shows, for JSON."""
        raise NotImplementedError

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """A scrape: the text and its content type."""
        raise NotImplementedError
