"""The Grafana dashboard asks for nothing that does not exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest

from onceflow.monitor import metrics
from onceflow.spark.metrics_listener import MetricsListener

DASHBOARD: dict[str, Any] = json.loads(
    Path(__file__).parents[3].joinpath("monitoring", "grafana-dashboard.json").read_text()
)
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def labels_by_name() -> dict[str, set[str]]:
    """Every name that a query may use, and the labels that it has there."""
    found = {}
    for metric in metrics.TABLE:
        for name in {metric.name, *(f"{metric.name}_{part}" for part in ("bucket", "count", "sum"))} & metrics.names():
            found[name] = {*metric.labels, "le", "instance", "job"}
    for collector in MetricsListener().registry._collector_to_names.items():
        for name in collector[1]:
            found[name] = {*collector[0]._labelnames, "le", "instance", "job"}  # type: ignore[attr-defined]
    return found


KNOWN = labels_by_name()


def parsed(expression: str) -> Any:
    for variable, value in (("$__rate_interval", "5m"), ("$__range", "1h")):
        expression = expression.replace(variable, value)
    return promql_parser.parse(expression)


def parts(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from parts(child)
    for child in getattr(node, "args", None) or ():
        yield from parts(child)


def selectors(node: Any) -> list[Any]:
    return [each for each in parts(node) if isinstance(each, promql_parser.VectorSelector)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_parses_and_names_metrics_and_labels_that_exist(expression: str) -> None:
    tree = parsed(expression)
    found = selectors(tree)
    assert found
    labels: set[str] = set()
    for each in found:
        assert each.name in KNOWN
        labels = KNOWN[each.name]
        assert {matcher.name for matcher in each.matchers.matchers} <= labels, each.name
    grouped = {label for words in re.findall(r"by \(([^)]*)\)", expression) for label in words.split(", ")}
    assert grouped <= set().union(*(KNOWN[each.name] for each in found))


def test_every_legend_uses_labels_that_its_expression_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            words = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            kept = set(grouped[0].split(", ")) if grouped else KNOWN[selectors(parsed(target["expr"]))[0].name]
            assert words <= kept, target


def test_the_dashboard_can_be_loaded_into_any_grafana() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert DASHBOARD["schemaVersion"] >= 39
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(target["datasource"]["uid"] == "${datasource}" for panel in PANELS for target in panel["targets"])
    used = set(re.findall(r"\$(?!__)(\w+)", " ".join(EXPRESSIONS)))
    assert used <= variables.keys()


def test_panels_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
