"""The table of alerts as Prometheus' rule file, in which strings are as JSON has them, which is YAML as well; and as a
chapter of the docs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from onceflow.monitor.rules_table import RECORDED, RULES, Rule
from onceflow.monitor.rules_thresholds import Thresholds, promql_duration

__all__ = ["documentation", "metrics_named", "rule_file"]

_METRIC = re.compile(r"\b(?:(?:kafka|onceflow)_[a-z0-9_]+|up)\b(?!:)")

_HEAD = """\
# Onceflow's alerts for Prometheus: written by tools/write_tables.py from src/onceflow/monitor/rules_table.py.
# `onceflow alerts --prometheus --set NAME=VALUE` prints it with other thresholds. What each means: docs/monitoring.md.
"""


def rule_file(thresholds: Thresholds | None = None) -> str:
    limits = thresholds or Thresholds()
    return "\n".join([_HEAD + "groups:", *_recorded(limits), *_alerts(limits)]) + "\n"


def _recorded(limits: Thresholds) -> Iterator[str]:
    yield "  - name: onceflow"
    yield "    rules:"
    for name, expression in RECORDED.items():
        yield f"      - record: {name}"
        yield f"        expr: {_text(expression % limits.in_promql())}"


def _alerts(limits: Thresholds) -> Iterator[str]:
    for rule in RULES:
        yield from _alert(rule, limits)


def _alert(rule: Rule, limits: Thresholds) -> Iterator[str]:
    yield f"      - alert: {rule.name}"
    yield f"        expr: {_text(rule.expression % limits.in_promql())}"
    if rule.for_ms:
        yield f"        for: {promql_duration(getattr(limits, rule.for_ms))}"
    yield "        labels:"
    yield f"          severity: {rule.severity}"
    yield "        annotations:"
    for name, text in (("summary", rule.summary), ("description", rule.meaning), ("action", rule.action)):
        yield f"          {name}: {_text(text)}"
    yield f"          runbook: {rule.runbook}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def metrics_named() -> frozenset[str]:
    """Every metric that an expression uses, without what is recorded."""
    expressions = [*RECORDED.values(), *(rule.expression for rule in RULES)]
    return frozenset(name for each in expressions for name in _METRIC.findall(each))


def documentation() -> str:
    """What each rule means and what to do, as Markdown: the runbook that alerts point to."""
    limits = Thresholds().in_promql()
    parts = []
    for name in dict.fromkeys(rule.name for rule in RULES):
        parts.append(f"### {name}")
        for rule in RULES:
            if rule.name == name:
                alone = ", in Prometheus only" if rule.condition is None else ""
                parts.append(f"**{rule.severity.capitalize()}**{alone}: {rule.when % limits}")
                parts += [f"What it means: {rule.meaning}", f"What to do: {rule.action}"]
    return "\n\n".join(parts) + "\n"
