"""The alerts: one table, from which come the page's, the command's and Prometheus' rule file."""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.monitor.snapshot import Snapshot

__all__ = ["Alert", "Alerts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Something is wrong, or about to be."""

    rule: str
    """The rule's name, for example HighAbortRate."""
    severity: str
    """critical or warning."""
    subject: str
    """What it is about: a transactional id, topic-partition, group; empty for the cluster."""
    summary: str
    """What is seen, with the figures."""
    meaning: str
    action: str
    since_ms: int
    """Since when the condition holds."""
    firing: bool
    """It has held for as long as the rule asks; before, it is pending."""


class Alerts:
    """The rules over time: shown one snapshot after the other, it knows what is wrong."""

    def see(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    @property
    def current(self) -> tuple[Alert, ...]:
        """Firing ones first, then pending ones."""
        raise NotImplementedError
