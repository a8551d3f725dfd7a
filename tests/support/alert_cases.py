"""The scenarios of the alerts as test cases for `promtool test rules`: `monitoring/onceflow-alerts.test.yml`.

`python -m tests.support.alert_cases` writes it; a test compares, and runs promtool where there is one. Every scrape is
what the broker's `/metrics` would answer in the scenario, of which only what the rules name is kept.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from onceflow.monitor.metrics import exposition
from onceflow.monitor.rules_prometheus import metrics_named
from onceflow.monitor.snapshot import Snapshot
from tests.support.alert_scenarios import SCENARIOS, Expected, Scenario

__all__ = ["CASES", "case_file", "promtool"]

CASES: Final = Path(__file__).parents[2] / "monitoring" / "onceflow-alerts.test.yml"
STEP_S: Final = 15
TARGET: Final = {"job": "onceflow", "instance": "broker:9644"}
SUBJECTS: Final = {
    "LongTransaction": "transactional_id",
    "StaleProducerEpoch": "transactional_id",
    "CoordinatorUnavailable": "coordinator",
    "LagGrowing": "consumergroup",
}
FIRING: Final = (
    "count by (alertname, severity, transactional_id, coordinator, consumergroup, topic, partition) "
    '(ALERTS{alertstate="firing"})'
)
FIRING_NAMES: Final = 'count by (alertname) (ALERTS{alertstate="firing"})'

_HEAD = """\
# What has to fire when: written by `python -m tests.support.alert_cases` from the scenarios that the rules of the page
# and of `onceflow alerts` are tested with. Run it with `promtool test rules monitoring/onceflow-alerts.test.yml`.
rule_files:
  - onceflow-alerts.yml
evaluation_interval: 15s
tests:
"""

Series = dict[str, list[str]]


def promtool() -> str | None:
    return shutil.which("promtool")


def case_file() -> str:
    return _HEAD + "\n".join([*(line for each in SCENARIOS for line in _case(each)), *_alone_cases(), ""])


def _case(scenario: Scenario) -> Iterator[str]:
    yield f"  - name: {json.dumps(scenario.name)}"
    yield f"    interval: {STEP_S}s"
    yield "    input_series:"
    for name, values in _series(scenario).items():
        yield f"      - series: {json.dumps(name)}"
        yield f"        values: {json.dumps(' '.join(_in_short(values)))}"
    yield "    promql_expr_test:"
    for second, expected in scenario.fires.items():
        yield from _expectation(second - second % STEP_S, expected - scenario.only_python)


def _expectation(second: int, expected: Iterable[Expected]) -> Iterator[str]:
    yield f"      - expr: {json.dumps(FIRING)}"
    yield f"        eval_time: {second}s"
    found = sorted(expected)
    yield "        exp_samples:" + ("" if found else " []")
    for rule, severity, subject in found:
        labels = {"alertname": rule, "severity": severity, **_subject(rule, subject)}
        yield f"          - labels: {json.dumps(_with_labels('', labels))}"
        yield "            value: 1"


def _subject(rule: str, subject: str) -> dict[str, str]:
    if rule == "LsoStuck":
        topic, _, partition = subject.rpartition("-")
        return {"topic": topic, "partition": partition}
    return {SUBJECTS[rule]: subject} if rule in SUBJECTS else {}


def _series(scenario: Scenario) -> Series:
    """By name with labels, one value for each scrape: `stale` where it ceases, `_` where it is not."""
    series: Series = {}
    for number, second in enumerate(range(0, scenario.lasts_s + 1, STEP_S)):
        scraped = _scraped(scenario.at(second))
        for name in scraped.keys() - series.keys():
            series[name] = ["_"] * number
        for name, values in series.items():
            is_new_gap = name not in scraped and values[-1:] not in (["_"], ["stale"])
            values.append(scraped.get(name, "stale" if is_new_gap else "_"))
    return dict(sorted(series.items()))


def _scraped(snapshot: Snapshot) -> dict[str, str]:
    text, _ = exposition(snapshot)
    wanted = metrics_named()
    return {
        _with_labels(sample.name, {**sample.labels, **TARGET}): f"{sample.value:.15g}"
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name in wanted
    }


def _with_labels(name: str, labels: Mapping[str, str]) -> str:
    return name + "{" + ", ".join(f"{key}={json.dumps(value)}" for key, value in labels.items()) + "}"


def _in_short(values: list[str]) -> Iterator[str]:
    """Runs with equal steps as promtool writes them: `1+2x3` is 1 3 5 7."""
    at = 0
    while at < len(values):
        steps = _run(values, at)
        if steps:
            step = int(values[at + 1]) - int(values[at])
            yield f"{values[at]}{step:+d}x{steps}"
        else:
            yield values[at]
        at += steps + 1


def _run(values: list[str], at: int) -> int:
    """How many equal steps of whole numbers follow, if it is more than one."""
    steps = 0
    numbers = values[at:]
    while steps + 1 < len(numbers) and all(each.isdigit() for each in numbers[steps : steps + 2]):
        if steps and int(numbers[steps + 1]) - int(numbers[steps]) != int(numbers[1]) - int(numbers[0]):
            break
        steps += 1
    return steps if steps > 1 else 0


JOB: Final = {"app": "landing", "sink": "kafka", "job": "spark", "instance": "driver:4041"}
QUERY: Final = {"query": "landing", "job": "spark", "instance": "driver:4041"}


def _alone(name: str, series: Mapping[str, str], fires: Mapping[int, Iterable[str]]) -> Iterator[str]:
    """A case of what no snapshot tells, with promtool's own notation for values."""
    yield f"  - name: {json.dumps(name)}"
    yield f"    interval: {STEP_S}s"
    yield "    input_series:"
    for each, values in series.items():
        yield f"      - series: {json.dumps(each)}"
        yield f"        values: {json.dumps(values)}"
    yield "    promql_expr_test:"
    for second, rules in fires.items():
        yield f"      - expr: {json.dumps(FIRING_NAMES)}"
        yield f"        eval_time: {second}s"
        yield "        exp_samples:" + ("" if rules else " []")
        for rule in rules:
            yield f"          - labels: {json.dumps(_with_labels('', {'alertname': rule}))}"
            yield "            value: 1"


def _query(*, rate: str, interval_s: int = 10, commits: str = "0+15x20 300x60") -> dict[str, str]:
    """A job that commits with each scrape, for five minutes, and then no more."""
    return {
        _with_labels("onceflow_microbatch_last_commit_timestamp_seconds", JOB): commits,
        _with_labels("onceflow_query_active", QUERY): "1x80",
        _with_labels("onceflow_query_input_rows_per_second", QUERY): rate,
        _with_labels("onceflow_query_trigger_interval_seconds", QUERY): f"{interval_s}x80",
    }


def _alone_cases() -> Iterator[str]:
    yield from _alone(
        "a broker that is down",
        {_with_labels("up", TARGET): "1x4 0x8 1x8"},
        {90: [], 165: ["BrokerDown"], 240: []},
    )
    failures = _with_labels("onceflow_microbatch_failures_total", {**JOB, "reason": "SinkError"})
    yield from _alone(
        "a micro-batch that fails, and later another",
        {failures: "_x8 1x40 2x40"},
        {105: [], 150: ["MicroBatchFailing"], 600: [], 780: ["MicroBatchFailing"], 1200: []},
    )
    stuck = ["MicroBatchStuck"]
    yield from _alone(
        "a micro-batch that is stuck",
        _query(rate="50x80", commits="0+15x20 300x24 675+15x30"),
        {300: [], 570: [], 630: stuck, 705: []},
    )
    yield from _alone("a query without input", _query(rate="50x20 0x60"), {300: [], 630: [], 1000: []})
    yield from _alone("a query with a long trigger", _query(rate="50x80", interval_s=600), {630: [], 1000: []})


if __name__ == "__main__":
    CASES.write_text(case_file())
