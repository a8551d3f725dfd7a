"""A reference pipeline with a real Spark and a database, compared with its oracle: left alone, and under faults."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from onceflow.verify import report
from onceflow.verify.brokers import Brokers, EmbeddedBrokers
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.verdict import Verdict
from tests.support.brokers import started
from tests.support.spark_jvm import write_settings

CLICKS = "tests.pipelines.workloads:Clicks"
SEED = 11


@pytest.fixture(autouse=True)
def _quick_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = started(lambda: write_settings(tmp_path / "settings"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(settings))} pyspark-shell")
    monkeypatch.setenv("ONCEFLOW_SQL", f"sqlite:///{tmp_path}/landed.db")


def demo(brokers: Brokers, folder: Path, *, records: int, faults: int, **more: Any) -> tuple[Verdict, dict[str, Any]]:
    options = {"records": str(records), "faults": str(faults), "sql": "yes", **more.pop("options", {})}
    settings = RunSettings(
        workload=CLICKS, seed=SEED, folder=folder, brokers=brokers, faults=faults, options=options, **more
    )
    verdict, history = run(settings)
    assert verdict.is_clean, verdict.to_json()
    page = report.write(folder, verdict, history).read_text()
    kinds = ("feed", "batch", "commit", "land")
    assert all(kind in page for kind in kinds), "the page has room for what a pipeline does"
    compared: dict[str, Any] = json.loads((folder / "comparison.json").read_text())
    views = compared["topics"]["page_views"]["found"]
    tables = {name: each["found"] for name, each in compared["tables"].items()}
    assert tables == {"page_views": 200, "all_page_views": views, "site_views": 5}
    assert compared["queries"]["whole"] > 0
    assert compared["queries"]["torn"] == 0
    return verdict, compared


@pytest.mark.timeout(300)
@pytest.mark.faults  # of every day: test_job.py, without faults; and the Spark job of tests/docs whose driver is killed
def test_a_pipeline_that_is_left_alone_is_exact(brokers: Brokers, tmp_path: Path) -> None:
    verdict, compared = demo(brokers, tmp_path, records=3000, faults=0, options={"per_batch": "1000"})
    assert verdict.faults == []
    assert compared["records"] == 3000
    assert compared["batches"] >= 3
    assert compared["topics"]["clicks_dead_letters"]["found"] == 3000 // 50
    assert compared["topics"]["page_views"]["found"] == compared["topics"]["page_views"]["expected"] > 200
    assert compared["state"]["found"] == compared["state"]["expected"] == 205
    assert compared["looks"]["equal"] > 0
    assert compared["reads"] > 0


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_pipeline_whose_driver_and_broker_are_killed_is_exact(tmp_path: Path) -> None:
    verdict, compared = demo(
        EmbeddedBrokers(tmp_path / "broker"), tmp_path, records=6000, faults=3, kinds=frozenset({"kill", "lost answer"})
    )
    struck = {(each.asked["kind"], each.asked["target"].partition(".")[0]) for each in verdict.faults}
    assert {("kill", "driver"), ("kill", "broker-1")} <= struck
    assert compared["records"] == 6000
    assert compared["batches"] > 3
    assert compared["state"]["found"] == 205


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_pipeline_under_all_kinds_of_faults_is_exact(brokers: Brokers, tmp_path: Path) -> None:
    verdict, compared = demo(brokers, tmp_path, records=40_000, faults=12)
    assert len(verdict.faults) >= 12
    assert {"kill", "zombie", "lost answer"} <= {each.asked["kind"] for each in verdict.faults}
    assert compared["records"] == 40_000
