"""A short run of real producers under real faults, on our broker and on Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.verify.brokers import Brokers
from onceflow.verify.runner import RunSettings, run


@pytest.mark.faults
def test_producers_under_faults_are_clean(brokers: Brokers, tmp_path: Path) -> None:
    verdict, history = run(RunSettings(workload="producers", seed=7, faults=12, folder=tmp_path, brokers=brokers))
    assert verdict.is_clean, verdict.to_json()
    assert len(verdict.faults) >= 12
    assert verdict.counts["commit ok"] > 20
    assert len(history.final) > 200
