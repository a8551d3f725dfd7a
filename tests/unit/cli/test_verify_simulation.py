"""`onceflow verify simulation`: many runs and one again, with the real simulation where that is quick."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from onceflow.cli import main
from onceflow.verify import simulation
from onceflow.verify.simulation import Failure, Progress, Simulations
from onceflow.verify.simulation.many import run_many


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pool: a new interpreter costs more than a few runs."""

    def run(
        seeds: Iterable[int], *, processes: int, on_progress: Callable[[Progress], None] | None = None
    ) -> Simulations:
        return run_many(seeds, processes=1, on_progress=on_progress)

    monkeypatch.setattr(simulation, "run_many", run)


def failing(monkeypatch: pytest.MonkeyPatch, *failures: Failure) -> None:
    found = Simulations(runs=100, faults=400, operations=9000, seconds=2.0, failures=list(failures))
    monkeypatch.setattr(simulation, "run_many", lambda *_, **__: found)


@pytest.mark.usefixtures("in_this_process")
def test_seeds_are_counted_up_from_the_one_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "simulation", "--seed", "40", "--runs", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("seeds 40 to 42: 3 runs, ")
    assert "CLEAN: nothing that exactly-once forbids was found\n" in out
    assert err == ""
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("in_this_process")
def test_json_is_the_result_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "simulation", "--seed", "40", "--runs", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["clean"], found["seed"], found["runs"], found["failures"]) == (True, 40, 2, [])


def test_a_failure_is_named_by_its_seed_and_has_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(monkeypatch, Failure(44, ["duplicate: \x1bx is there twice"], []), Failure(45, [], ["Traceback\nKeyError"]))
    assert main(["verify", "simulation", "--seed", "40", "--runs", "100"]) == 1
    out = capsys.readouterr().out
    assert "- seed 44: duplicate: \\x1bx is there twice\n- seed 45: KeyError\n" in out
    assert "FOUND: 2 of 100 runs failed" in out
    assert "again   onceflow verify simulation --seed 44 --replay" in out
    assert Path("onceflow-verify/simulation-44/report.html").exists()


def test_failures_in_json_have_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failing(monkeypatch, Failure(44, ["duplicate: twice"], ["stuck"]))
    assert main(["verify", "simulation", "--seed", "40", "--json", "--report", "there"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == [{"seed": 44, "anomalies": ["duplicate: twice"], "problems": ["stuck"]}]
    assert found["report"] == "there/report.html"


def test_a_replay_tells_what_happened_and_is_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert main(["verify", "simulation", "--seed", "3", "--replay"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "broker: life 1 begins" in said[0]
    assert "CLEAN" in said[0]
    assert (
        "onceflow verify simulation --seed 3 --replay" in Path("onceflow-verify/simulation-3/report.html").read_text()
    )


def test_a_replay_in_json_has_the_verdict_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "simulation", "--seed", "3", "--replay", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["workload"], found["seed"]) == (True, "simulation", 3)
    assert len(found["trace"]) > 10
