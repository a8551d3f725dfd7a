"""The simulation: clean where the broker is sound, the same for the same seed, and it does what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from onceflow.log.partition import PartitionLog
from onceflow.verify.simulation import Progress, SimulationResult, replay, run_many, simulate
from onceflow.verify.verdict import operation_to_json
from tests.support.effort import effort

SEEDS = range(effort(25, soak=4_000))


def everything(result: SimulationResult) -> str:
    operations = [operation_to_json(each) for each in result.history.operations]
    return json.dumps([operations, result.history.final, list(result.trace), result.seconds])


def test_many_runs_are_clean() -> None:
    found = run_many(SEEDS)
    assert found.failures == []
    assert found.runs == len(SEEDS)
    assert found.faults > 2 * len(SEEDS)


def test_runs_do_all_that_is_to_be_judged() -> None:
    """A run in which nothing happens is clean, too."""
    outcomes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(40):
        result = simulate(seed)
        outcomes.update(f"{each.f} {each.outcome.value}" for each in result.history.operations)
        outcomes["final"] += len(result.history.final)
        faults.update(str(each.asked["kind"]) for each in result.faults)
    for wanted in ("take ok", "write ok", "write unknown", "commit ok", "abort ok", "read ok", "offsets ok", "ends ok"):
        assert outcomes[wanted] >= 5, wanted
    assert outcomes["commit failed"] + outcomes["commit unknown"] >= 5
    assert outcomes["final"] > 500
    assert {"trouble", "kill broker", "lose power", "die over a write", "make zombie", "kill worker"} <= set(faults)


def test_a_seed_replays_exactly() -> None:
    assert everything(replay(11)) == everything(replay(11))


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Where strings have other hashes, and sets another order."""
    program = (
        "from onceflow.verify.simulation import replay\n"
        "from tests.unit.verify.test_simulation import everything\n"
        "print(everything(replay(12)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert there.stdout.strip() == everything(replay(12))


def test_a_trace_changes_nothing() -> None:
    traced, plain = replay(13), simulate(13)
    assert traced.trace
    assert not plain.trace
    assert traced.history.operations == plain.history.operations


def test_several_processes_find_what_one_finds() -> None:
    told: list[Progress] = []
    found = run_many(range(20), processes=2, on_progress=told.append)
    alone = run_many(range(20))
    assert (found.runs, found.faults, found.operations) == (alone.runs, alone.faults, alone.operations)
    assert told[-1].runs == 20
    assert [each.runs for each in told] == sorted(each.runs for each in told)


def test_an_exception_in_the_broker_is_a_problem_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PartitionLog, *args: object, **rest: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(PartitionLog, "begin_checkpoint", broken)
    problems = simulate(1).problems
    assert any("ZeroDivisionError: on purpose" in each for each in problems)


def test_an_invariant_that_does_not_hold_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.end_offset + 1))
    assert any("high watermark" in each for each in simulate(1).problems)


def test_a_run_that_does_not_come_to_rest_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionLog, "complete_flush", lambda self, flush: None)
    result = simulate(1)
    assert any(each.startswith("stuck after") for each in result.problems)
    assert not result.history.is_drained


@pytest.mark.parametrize("seed", [119_879, 131_099])
def test_copiers_wait_for_a_late_request_whose_client_has_long_given_up(seed: int) -> None:
    """In these runs it writes to the input after all producers have gone."""
    result = replay(seed)
    assert any("late: ProduceRequest" in line for line in result.trace)
    assert result.is_clean, result.anomalies


def test_partition_that_waits_for_a_marker_is_not_at_rest_even_if_it_has_to_be_mended_first() -> None:
    assert simulate(160_733).is_clean


def test_partition_that_waits_for_its_next_write_to_be_mended_is_at_rest() -> None:
    """In this run a flush and the way back from it fail, and nobody writes to that partition any more."""
    result = replay(131_776)
    assert any("in-0 takes no writes until the disk works again" in line for line in result.trace)
    assert result.is_clean, result.problems
