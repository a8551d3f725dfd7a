"""A run says what it could not prove, and leaves nothing behind where nothing was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.verify import runner
from onceflow.verify.brokers import EmbeddedBrokers, GivenBrokers
from onceflow.verify.history import Record
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.stage import NotDrained, Pace, Stage, Target

QUICK = Pace(gap_s=(0.05, 0.1), pause_s=(0.1, 0.2))


class Idle:
    """A workload that does nothing, but that readers can look on at."""

    name = "idle"
    strikes: Sequence[str] = ()
    pace = QUICK

    def topics(self, stage: Stage) -> Mapping[str, int]:
        return {stage.named("topic"): 1}

    def derivations(self, stage: Stage) -> Sequence[Any]:
        return ()

    def groups(self, stage: Stage) -> Sequence[str]:
        return ()

    def start(self, stage: Stage) -> None: ...

    def targets(self) -> Sequence[Target]:
        return ()

    def finish(self, stage: Stage, timeout_s: float) -> None: ...


class Endless(Idle):
    def finish(self, stage: Stage, timeout_s: float) -> None:
        raise NotDrained("there is always more")


class Hanging(Idle):
    """Leaves a transaction open that nobody will ever end."""

    def start(self, stage: Stage) -> None:
        self._producer = Producer(
            {"bootstrap.servers": stage.direct, "transactional.id": "hangs", "transaction.timeout.ms": 600_000}
        )
        self._producer.init_transactions()
        self._producer.begin_transaction()
        self._producer.produce(stage.named("topic"), Record(id="a", transaction="nobody/1").to_bytes())
        self._producer.flush()


def settings(workload: str, folder: Path, **more: Any) -> RunSettings:
    given = {"brokers": EmbeddedBrokers(folder / "broker"), "faults": 1, "kinds": frozenset({"cut"}), **more}
    return RunSettings(workload=f"{__name__}:{workload}", seed=1, folder=folder, **given)


def test_a_run_that_does_not_come_to_its_end_is_not_clean(tmp_path: Path) -> None:
    verdict, history = run(settings("Endless", tmp_path))
    assert verdict.problems == ["there is always more"]
    assert not verdict.is_clean
    assert not history.is_drained


def test_a_transaction_that_stays_open_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DECIDED_S", 1.0)
    verdict, _ = run(settings("Hanging", tmp_path))
    [problem] = verdict.problems
    assert "a transaction stays open" in problem
    assert "cannot get past offset 0 of 1" in problem


def test_faults_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    with onceflow.Broker() as broker, pytest.raises(ConfigError, match="none of the faults"):
        run(settings("Idle", tmp_path, brokers=GivenBrokers(broker.bootstrap), kinds=frozenset({"disk full"})))


def test_topics_of_a_clean_run_are_removed_and_those_of_another_stay(tmp_path: Path) -> None:
    with onceflow.Broker() as broker:
        admin = Admin(ClientSettings(bootstrap=broker.bootstrap))
        verdict, _ = run(settings("Idle", tmp_path / "clean", brokers=GivenBrokers(broker.bootstrap)))
        assert verdict.is_clean, verdict.to_json()
        assert not [each.name for each in admin.topics() if each.name.startswith("verify-")]
        run(settings("Endless", tmp_path / "not", brokers=GivenBrokers(broker.bootstrap)))
        assert [each.name for each in admin.topics() if each.name.startswith("verify-1-")]
