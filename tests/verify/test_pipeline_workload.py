"""A pipeline of somebody else's is verified, too: the one that people write first is caught."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from onceflow.errors import ConfigError
from onceflow.verify.brokers import EmbeddedBrokers
from onceflow.verify.history import History
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.verdict import Verdict

PIPELINES = Path(__file__).with_name("pipelines")


def verify(folder: Path, name: str, *, faults: int) -> tuple[Verdict, History]:
    command = shlex.join([sys.executable, str(PIPELINES / f"{name}.py")])
    settings = RunSettings(
        workload="pipeline",
        seed=11,
        faults=faults,
        folder=folder,
        brokers=EmbeddedBrokers(folder / "broker"),
        kinds=frozenset({"kill", "lost answer", "cut"}),
        options={"command": command},
    )
    return run(settings)


@pytest.mark.faults  # that of the guide is of every day
def test_a_pipeline_with_transactions_is_clean(tmp_path: Path) -> None:
    verdict, history = verify(tmp_path, "exact", faults=8)
    assert verdict.is_clean, verdict.to_json()
    assert len(verdict.faults) >= 8
    assert sum(seen.topic.endswith("output") for seen in history.final) > 100


@pytest.mark.faults
def test_a_pipeline_that_commits_now_and_then_doubles_records(tmp_path: Path) -> None:
    """A fault that strikes between a commit and the next record doubles nothing, so one run may be lucky."""
    runs = (verify(tmp_path / str(number), "naive", faults=8)[0] for number in range(3))
    assert any("duplicate" in {each.name for each in verdict.anomalies} for verdict in runs)


def test_without_a_command_there_is_nothing_to_verify(tmp_path: Path) -> None:
    settings = RunSettings(workload="pipeline", seed=1, folder=tmp_path, brokers=EmbeddedBrokers(tmp_path / "broker"))
    with pytest.raises(ConfigError, match="--command"):
        run(settings)
