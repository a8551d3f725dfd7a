"""The alerts: one table, from which come the page's, the command's and Prometheus' rule file.

    rules_table.py       the table: every rule, in PromQL and in Python, with what it means and what to do
    rules_thresholds.py  every figure of every rule
    rules_conditions.py  the conditions in Python
    rules_windows.py     what they remember, and time
    rules_prometheus.py  the rule file, and the chapter of the docs

A condition finds something, by subject; this file knows since when, and whether that is long enough to fire. An alert
that is over is gone at once. A snapshot that lacks what a rule needs makes the rule `unknown`, never quiet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from onceflow.monitor.rules_conditions import SUBJECTS_MAX, Finding
from onceflow.monitor.rules_table import RULES, Condition, Rule
from onceflow.monitor.rules_thresholds import Thresholds
from onceflow.monitor.rules_windows import SteadyTime
from onceflow.monitor.snapshot import Snapshot

__all__ = ["RULES", "Alert", "Alerts", "Rule", "Thresholds"]

SEVERITIES: Final = ("critical", "warning")


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
    """The rules over time: shown one snapshot after the other, it knows what is wrong.

    To be shown one every few seconds. What it keeps is bounded by what a snapshot holds.
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._time = SteadyTime()
        self._watched = [_Watched(rule, self.thresholds) for rule in RULES if rule.condition is not None]

    def see(self, snapshot: Snapshot) -> None:
        self._time.see(snapshot.at_ms)
        for each in self._watched:
            each.see(snapshot, self._time)

    @property
    def current(self) -> tuple[Alert, ...]:
        """Firing ones first, then pending ones; in each the critical ones first."""
        found = [alert for each in self._watched for alert in each.alerts]
        return tuple(sorted(found, key=lambda alert: (not alert.firing, SEVERITIES.index(alert.severity))))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of rules that could not be looked at: the last snapshot lacks what they need."""
        return tuple(dict.fromkeys(each.rule.name for each in self._watched if each.is_unknown))

    @property
    def looked_ms(self) -> int:
        """For how long it has been looking."""
        return self._time.now_ms


class _Watched:
    """One rule, and since when its condition holds for whom."""

    def __init__(self, rule: Rule, thresholds: Thresholds) -> None:
        assert rule.condition is not None
        self.rule = rule
        self.is_unknown = False
        self._condition: Condition = rule.condition(thresholds)
        self._for_ms = int(getattr(thresholds, rule.for_ms)) if rule.for_ms else 0
        self._held: dict[str, tuple[int, Alert]] = {}
        """By subject: since when, by steady time, and the alert."""

    @property
    def alerts(self) -> Iterable[Alert]:
        return (alert for _, alert in self._held.values())

    def see(self, snapshot: Snapshot, time: SteadyTime) -> None:
        found = self._condition(snapshot, time)
        self.is_unknown = found is None
        if not found:
            self._held = {}
            return
        heaviest = sorted(found, key=lambda each: -each.weight)[:SUBJECTS_MAX]
        self._held = {each.subject: self._again(each, time) for each in heaviest}

    def _again(self, finding: Finding, time: SteadyTime) -> tuple[int, Alert]:
        since, before = self._held.get(finding.subject, (time.now_ms, None))
        firing = time.now_ms - since >= self._for_ms
        if before is not None:
            return since, replace(before, summary=finding.summary, firing=firing)
        alert = Alert(
            rule=self.rule.name,
            severity=self.rule.severity,
            subject=finding.subject,
            summary=finding.summary,
            meaning=self.rule.meaning,
            action=self.rule.action,
            since_ms=time.at_ms,
            firing=firing,
        )
        return since, alert
