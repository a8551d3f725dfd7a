"""A run of real processes finds a broker's defect, too: real clients, a real network, and a broker that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.verify import brokers
from onceflow.verify.brokers import EmbeddedBrokers
from onceflow.verify.runner import RunSettings, run

DEFECTS = {
    "deduplication off": ({"lost answer"}, "duplicate"),
    "aborted list empty": ({"cut"}, "aborted read"),
    "last stable offset ignored": ({"cut"}, "read before commit"),
}
"""With the faults that bring it to light, and the anomaly that it leads to."""


DAILY = "aborted list empty"


@pytest.mark.parametrize(
    "defect", [pytest.param(name, marks=[] if name == DAILY else pytest.mark.faults) for name in DEFECTS]
)
def test_the_verdict_names_what_a_defect_does(defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, anomaly = DEFECTS[defect]
    monkeypatch.setattr(
        brokers._FaultyBroker,
        "_program",
        lambda self: ["tests.support.defective_broker", defect, "--faults", str(self.faults_dir)],
    )
    settings = RunSettings(
        workload="producers",
        seed=27,  # by its plan, answers to Produce are lost first
        faults=6,
        folder=tmp_path,
        brokers=EmbeddedBrokers(tmp_path / "broker"),
        kinds=frozenset(kinds),
    )
    verdict, _ = run(settings)
    assert anomaly in {each.name for each in verdict.anomalies}, verdict.to_json()
