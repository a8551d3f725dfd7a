"""Prometheus' form of the alerts: the committed files are what the table gives, and Prometheus agrees with Python."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from onceflow.monitor import metrics
from onceflow.monitor.rules import RULES, Thresholds
from onceflow.monitor.rules_prometheus import documentation, metrics_named, rule_file
from onceflow.monitor.rules_table import RECORDED
from onceflow.spark.metrics_listener import MetricsListener
from tests.support.alert_cases import CASES, case_file, promtool

ROOT = Path(__file__).parents[3]
RULE_FILE = CASES.with_name("onceflow-alerts.yml")


def written() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULE_FILE.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def metrics_in(node: Any) -> set[str]:
    """Every name that a parsed expression selects."""
    if isinstance(node, promql_parser.VectorSelector):
        return {str(node.name)}
    parts = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "vector_selector", "param")]
    parts += list(getattr(node, "args", None) or ())
    return {name for part in parts if part is not None for name in metrics_in(part)}


def spark_metrics() -> set[str]:
    """By the names that a scrape has."""
    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {f"{each.name}{end}" for each in MetricsListener().registry.collect() for end in ends[each.type]}


def test_the_cases_are_what_the_scenarios_give() -> None:
    assert CASES.read_text() == case_file(), "run `python -m tests.support.alert_cases`"


def test_the_rule_file_has_every_rule_with_all_that_people_need() -> None:
    alerts = [each for each in written() if "alert" in each]
    assert [(each["alert"], each["labels"]["severity"]) for each in alerts] == [(it.name, it.severity) for it in RULES]
    assert {frozenset(each["annotations"]) for each in alerts} == {
        frozenset({"summary", "description", "action", "runbook"})
    }
    assert next(each for each in alerts if each["alert"] == "CoordinatorUnavailable")["for"] == "30s"


@pytest.mark.parametrize("rule", written(), ids=lambda it: it.get("alert") or it["record"])
def test_every_expression_parses_and_names_only_metrics_that_there_are(rule: dict[str, Any]) -> None:
    used = metrics_in(promql_parser.parse(rule["expr"]))
    assert used
    assert used <= metrics.names() | spark_metrics() | set(RECORDED) | {"up"}


def test_what_a_rule_uses_is_found_by_its_name() -> None:
    """The cases are made of these metrics: one that is missed here would be missing there, and nothing would fire."""
    parsed = {name for each in written() for name in metrics_in(promql_parser.parse(each["expr"]))}
    assert parsed - set(RECORDED) == metrics_named()


def test_thresholds_go_into_the_rule_file() -> None:
    changed = rule_file(Thresholds().changed({"lso_stuck_ms": 90_000, "abort_share": 0.25, "coordinator_for_ms": 0}))
    assert "onceflow_partition_last_stable_offset offset 90s)" in changed
    assert "> 0.25 * onceflow:transactions_committed:increase" in changed
    assert yaml.safe_load(changed)["groups"][0]["rules"][len(RECORDED)]["for"] == "0ms"


@pytest.mark.skipif(promtool() is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments", [("check", "rules", "--lint=all", "--lint-fatal", RULE_FILE), ("test", "rules", CASES)]
)
def test_prometheus_itself_agrees(arguments: tuple[Any, ...]) -> None:
    done = subprocess.run([promtool() or "", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_is_documented_where_its_alert_points_to() -> None:
    assert all(f"### {rule.name}\n" in documentation() for rule in RULES)
