"""The plan comes from the seed alone, and a fault has a beginning, an end, and something that it hit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from onceflow.verify import nemesis
from onceflow.verify.history import Operation, Outcome, Recorder, load_operations
from onceflow.verify.nemesis import JOB, KINDS, NETWORK, PROCESS, Nemesis, Pace, Planned, plan
from tests.support.waiting import eventually

ROLES = ("producer", "transactor", "copier", "executor", "broker")
AT_ONCE = Pace(gap_s=(0.0, 0.0), pause_s=(0.0, 0.0), down_s=(0.0, 0.0))


def first(number: int, *, seed: int = 1, roles: tuple[str, ...] = ROLES, kinds: Any = KINDS) -> list[Planned]:
    return list(itertools.islice(plan(seed, roles, kinds, Pace()), number))


def test_the_same_seed_has_the_same_plan_and_another_one_another() -> None:
    assert first(200) == first(200)
    assert first(200) != first(200, seed=2)


def test_every_kind_of_fault_comes_up() -> None:
    assert {each.kind for each in first(2000)} == KINDS.keys()


def test_only_the_kinds_that_were_asked_for() -> None:
    assert {each.kind for each in first(300, kinds={"kill", "cut"})} == {"kill", "cut"}


def test_only_owners_of_a_transactional_id_become_zombies() -> None:
    zombies = {each.role for each in first(3000) if each.kind == "zombie"}
    assert zombies == {"transactor", "copier"}


def test_an_executor_is_never_asked_to_end_politely() -> None:
    assert "restart" not in {each.kind for each in first(2000) if each.role == "executor"}


def test_without_anything_to_strike_the_plan_is_empty() -> None:
    assert first(10, roles=(), kinds=PROCESS) == []


class SomeProcess:
    def __init__(self, role: str, name: str) -> None:
        self.role = role
        self.name = name
        self.is_running = True
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("kill")

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def stop(self) -> None:
        self.done.append("stop")

    def start(self) -> None:
        self.done.append("start")


class NoWorkers:
    def of(self, *_: str) -> list[Any]:
        return []


class SomeNetwork:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.struck: str | None = None
        self.emptied, self.empties = 0, 3

    def cut_all(self) -> int:
        self.done.append("cut")
        return 3

    def strike(self, kind: str, **asked: Any) -> SomeNetwork:
        self.done.append(kind)
        self.asked = asked
        return self

    def cancel(self) -> None:
        self.done.append("cancel")

    def delay(self, seconds: float) -> None:
        self.done.append("delay")

    def partition(self) -> None:
        self.done.append("partition")

    def refuse(self) -> None:
        self.done.append("refuse")

    def empty(self) -> None:
        self.done.append("empty")
        self.emptied = self.empties

    def heal(self) -> None:
        self.done.append("heal")


class SomeJobFault:
    """Is over with its third step."""

    target, busy = "driver.2", "driver"

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.done: list[str] = []
        self.struck: str | None = None

    def step(self) -> bool:
        self.done.append("step")
        if len(self.done) == 3:
            self.struck = "driver.3 was refused"
        return self.struck is not None

    def end(self) -> None:
        self.done.append("end")


class Run:
    """A nemesis with one process and one network, and its history."""

    def __init__(self, folder: Path, *planned: Planned) -> None:
        self._path = folder / "nemesis.jsonl"
        self.broker = SomeProcess("broker", "broker-1")
        self.network = SomeNetwork()
        self.told: list[str] = []
        self.job_faults: list[SomeJobFault] = []
        self.nemesis = Nemesis(
            recorder=Recorder(self._path, "nemesis", 0.0),
            planned=iter(planned),
            workers=NoWorkers(),  # type: ignore[arg-type]
            brokers=lambda: [self.broker],
            others=lambda: [],
            network=self.network,
            disk=None,
            tell=self.told.append,
            job=self._job_fault,
        )

    def _job_fault(self, kind: str) -> SomeJobFault:
        self.job_faults.append(SomeJobFault(kind))
        return self.job_faults[-1]

    def go(self) -> list[Operation]:
        """Until the plan is done and everything is healed."""
        eventually(self._step, "the plan is done")
        return load_operations([self._path])

    def _step(self) -> bool:
        self.nemesis.step(more=True)
        return self.nemesis.is_at_rest and self.nemesis._next is None


def fault(kind: str, role: str = "broker", lasting_s: float = 0.0) -> Planned:
    return Planned(after_s=0.0, kind=kind, role=role, pick=0.5, lasting_s=lasting_s, api="EndTxn")


@pytest.mark.parametrize(
    ("kind", "done"),
    [("kill", ["kill", "start"]), ("pause", ["pause", "resume"]), ("restart", ["stop", "start"])],
)
def test_a_broker_that_was_struck_is_brought_back(tmp_path: Path, kind: str, done: list[str]) -> None:
    run = Run(tmp_path, fault(kind))
    [operation] = run.go()
    assert run.broker.done == done
    assert (operation.f, operation.outcome) == ("fault", Outcome.OK)
    assert (operation.asked["kind"], operation.asked["target"]) == (kind, "broker-1")
    assert run.nemesis.struck == 1
    assert run.told == [f"{kind} broker-1"]


def test_what_does_not_run_is_not_struck(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("kill"))
    run.broker.is_running = False
    assert run.go() == []
    assert run.broker.done == []
    assert run.nemesis.struck == 0


@pytest.mark.parametrize(("kind", "done"), [("partition", "partition"), ("refusal", "refuse"), ("delay", "delay")])
def test_what_befalls_the_whole_network_is_healed(tmp_path: Path, kind: str, done: str) -> None:
    run = Run(tmp_path, fault(kind, "network"))
    [operation] = run.go()
    assert operation.is_ok
    assert run.network.done == [done, "heal"]


def test_a_fault_that_waited_for_a_request_in_vain_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nemesis, "FRAME_WAIT_S", 0.05)
    run = Run(tmp_path, fault("lost answer", "network"))
    [operation] = run.go()
    assert operation.outcome is Outcome.FAILED
    assert run.nemesis.struck == 0
    assert run.network.done == ["lost answer", "cancel"]


def test_a_fault_of_the_network_says_which_request_it_hit(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("lost answer", "network"))
    run.network.struck = "EndTxn v5 at node 1"
    [operation] = run.go()
    assert operation.told["hit"] == "EndTxn v5 at node 1"
    assert run.told == ["lost answer: EndTxn v5 at node 1"]


def test_healing_ends_what_is_still_going_on(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("pause", lasting_s=1000.0))
    eventually(lambda: run.nemesis.step(more=True) or run.broker.done == ["pause"], "the broker is paused")
    run.nemesis.heal()
    assert run.broker.done == ["pause", "resume"]
    assert run.nemesis.is_at_rest


def test_faults_of_the_network_are_all_told_apart() -> None:
    assert {each.kind for each in first(2000) if each.role == "network"} == NETWORK.keys()


def test_a_late_request_is_never_one_that_the_older_protocol_does_not_guard(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("late request", "network"))
    run.network.struck = "Produce v12 at node 1"
    run.go()
    assert run.network.asked["versions_min"] == {26: 5, 28: 5}  # EndTxn, TxnOffsetCommit


def test_unless_that_is_asked_for_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("late old request", "network"))
    run.network.struck = "EndTxn v1 at node 1"
    run.go()
    assert run.network.done[0] == "late request"
    assert run.network.asked["api"] == [26, 28]
    assert "versions_min" not in run.network.asked
    assert "late old request" not in {each.kind for each in first(2000)}


@pytest.mark.parametrize(("emptied", "outcome"), [(3, Outcome.OK), (0, Outcome.FAILED)])
def test_empty_answers_count_if_there_were_records_to_leave_out(tmp_path: Path, emptied: int, outcome: Outcome) -> None:
    run = Run(tmp_path, fault("empty answers", "network"))
    run.network.empties = emptied
    [operation] = run.go()
    assert run.network.done == ["empty", "heal"]
    assert operation.outcome is outcome
    assert run.told == (["empty answers: 3 answers"] if emptied else [])


def test_faults_of_a_job_are_made_only_if_asked_for_by_name() -> None:
    assert not {each.kind for each in first(2000)} & JOB.keys()
    assert {(each.kind, each.role) for each in first(100, kinds=JOB)} == {(kind, "job") for kind in JOB}


def test_a_fault_of_a_job_goes_on_step_by_step_and_is_ended(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("older checkpoint", "job"))
    [operation] = run.go()
    [struck] = run.job_faults
    assert (struck.kind, struck.done) == ("older checkpoint", ["step", "step", "step", "end"])
    assert (operation.asked["target"], operation.told["hit"]) == ("driver.2", "driver.3 was refused")
    assert run.told == ["older checkpoint driver.2: driver.3 was refused"]


def test_a_job_has_one_fault_of_its_own_at_a_time(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("older checkpoint", "job"), fault("recreated topic", "job"))
    [operation] = run.go()
    assert operation.asked["kind"] == "older checkpoint"
    assert [each.done for each in run.job_faults[1:]] == [[]]


def test_healing_ends_a_fault_of_a_job_that_struck_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, fault("recreated topic", "job"))
    eventually(lambda: run.nemesis.step(more=True) or bool(run.job_faults), "it has begun")
    run.nemesis.heal()
    assert run.job_faults[0].done[-1] == "end"
    assert run.nemesis.struck == 0
