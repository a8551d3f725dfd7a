"""The workload of the reference pipelines without Spark: the pace of its input, its first faults, what is counted."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines.judging import Written
from onceflow.pipelines.reference import Raw
from onceflow.pipelines.visibility import checksum
from onceflow.verify.history import History, Outcome, Recorder
from onceflow.verify.nemesis import KINDS, Pace
from onceflow.verify.programs.feeder import Pacing, unfed
from onceflow.verify.stage import JudgesItself
from onceflow.verify.workloads import reference_runs, workload_named
from onceflow.verify.workloads.reference import FIRST_ROUND
from onceflow.verify.workloads.reference_runs import ANY, FinalRead, Findings, Progress, judgement
from onceflow.verify.workloads.references import load_reference
from tests.pipelines.clicks import REFERENCE, Oracle, generate
from tests.pipelines.workloads import Clicks

# --- the feeder


def fed_in(pacing: Pacing, ticks: int, fed: int = 0, **now: Any) -> int:
    for _ in range(ticks):
        fed += pacing.next(fed, **{"struck": 0, "is_released": False, **now})
    return fed


def test_without_faults_all_input_comes_at_once() -> None:
    assert fed_in(Pacing(12_000, 0, None), 3) == 12_000


def test_a_rate_is_kept_whatever_else_there_is() -> None:
    assert fed_in(Pacing(12_000, 0, 500.0), 10) == 500
    assert fed_in(Pacing(120_000, 1, 500.0), 10) == 500


def test_each_fault_may_use_up_its_part_of_the_input_and_then_a_trickle() -> None:
    pacing = Pacing(70_000, 6, None)
    assert 3000 < fed_in(pacing, 50) < 10_000
    assert pacing.next(10_000, struck=0, is_released=False) == 1
    assert pacing.next(10_000, struck=1, is_released=False) == 100


def test_there_is_input_after_two_minutes_without_a_fault() -> None:
    pacing = Pacing(40_000, 6, None)
    assert pacing.next(fed_in(pacing, 1200), struck=0, is_released=False) > 0
    assert fed_in(pacing, 1200) < 2 * 40_000 // 7


def test_no_more_is_fed_than_there_is() -> None:
    assert fed_in(Pacing(100, 6, None), 1000) == 100
    assert Pacing(100, 6, None).next(100, struck=0, is_released=False) == 0


def test_when_the_faults_are_over_the_rest_follows_at_once() -> None:
    assert fed_in(Pacing(12_000, 2, None), 3, struck=2) == 12_000
    assert fed_in(Pacing(12_000, 2, None), 3, is_released=True) == 12_000


def test_where_nobody_knows_how_many_faults_there_will_be_input_lasts_long() -> None:
    assert 0 < fed_in(Pacing(40_000, None, None), 600) < 30_000
    assert fed_in(Pacing(40_000, None, None), 8, is_released=True) == 40_000


def test_a_second_life_goes_on_where_the_first_has_come_to() -> None:
    everything = list(generate(1, 20))
    there = Counter({("clicks", 0): 7, ("clicks", 1): 4})
    rest = list(unfed(iter(everything), there))
    assert len(rest) == 20 - 11
    assert [each for each in rest if each.partition == 0] == [each for each in everything if each.partition == 0][7:]
    assert [each for each in rest if each.partition == 1] == [each for each in everything if each.partition == 1][4:]


# --- faults


ROLES = ("driver", "executor", "executor", "reader", "broker", "broker")


def planned(roles: tuple[str, ...], kinds: set[str], number: int) -> list[tuple[str, str]]:
    plan = Clicks().plan(4711, roles, kinds, Pace())
    return [(each.kind, each.role) for each in islice(plan, number)]


def test_the_first_faults_are_one_of_each_kind_that_a_pipeline_has_to_survive() -> None:
    first = planned(ROLES, set(KINDS), len(FIRST_ROUND))
    assert set(first) == {
        ("kill", "executor"),
        ("kill", "driver"),
        ("kill", "broker"),
        ("zombie", "driver"),
        ("lost answer", "network"),
    }
    assert len(planned(ROLES, set(KINDS), 40)) == 40


def test_what_cannot_be_struck_is_not_planned() -> None:
    everything = planned(("driver", "reader"), {"kill", "zombie"}, 40)
    assert {role for _, role in everything} == {"driver", "reader"}
    assert {kind for kind, _ in everything} == {"kill", "zombie"}


def test_two_plans_of_one_seed_are_the_same() -> None:
    first, second = (list(islice(Clicks().plan(7, ROLES, set(KINDS), Pace()), 30)) for _ in range(2))
    assert first == second


# --- what is known while it runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def recorder(folder: Path, process: str) -> Recorder:
    return Recorder(folder / f"{process}.jsonl", process, 0.0)


def test_progress_is_counted_from_the_histories(folder: Path) -> None:
    progress = Progress(folder)
    assert progress.look().committed_at is None
    feeder, driver = recorder(folder, "feeder.1"), recorder(folder, "driver.1")
    feeder.end(feeder.begin("feed", number=30), Outcome.OK, fed=30, of=100)
    commit = driver.begin("commit", transaction="driver.1/0")
    assert progress.look().batches == 0
    driver.end(commit, Outcome.OK)
    driver.end(driver.begin("batch", number=0), Outcome.OK, rows=17)
    now = progress.look()
    assert (now.fed, now.batches, now.rows) == (30, 1, 17)
    assert progress.look().batches == 1, "nothing is counted twice"


def test_the_next_fault_waits_for_a_commit_after_the_last_one(folder: Path) -> None:
    progress = Progress(folder)
    driver, nemesis = recorder(folder, "driver.1"), recorder(folder, "nemesis")

    def commit(outcome: Outcome) -> None:
        driver.end(driver.begin("commit", transaction="driver.1/0"), outcome)

    commit(Outcome.OK)
    assert progress.look().has_committed_since_the_last_fault
    fault = nemesis.begin("fault", kind="kill", target="driver.1")
    assert not progress.look().has_committed_since_the_last_fault
    nemesis.end(fault, Outcome.OK)
    commit(Outcome.UNKNOWN)
    assert not progress.look().has_committed_since_the_last_fault
    commit(Outcome.OK)
    assert progress.look().has_committed_since_the_last_fault


def test_faults_that_hit_something_are_known_by_kind_role_and_request(folder: Path) -> None:
    progress = Progress(folder)
    nemesis = recorder(folder, "nemesis")
    for kind, target, more in (
        ("kill", "driver.2/executor-1", {}),
        ("zombie", "driver.3", {}),
        ("kill", "broker-1", {}),
        ("lost answer", "network", {"api": "EndTxn"}),
    ):
        nemesis.end(nemesis.begin("fault", kind=kind, target=target, **more), Outcome.OK)
    nemesis.end(nemesis.begin("fault", kind="kill", target="driver.3"), Outcome.FAILED)
    progress.look()
    assert progress.struck == {
        ("kill", "executor", ANY),
        ("zombie", "driver", ANY),
        ("kill", "broker", ANY),
        ("lost answer", "network", "EndTxn"),
    }
    assert progress.struck < {*FIRST_ROUND}


# --- the verdict


PREFIX = "p-"
LOG = {0: {"0": 10, "1": 10}, 1: {"0": 25, "1": 25}}


class Run:
    """A run of the tiny pipeline that is over, as its oracle wants it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = PREFIX
        self.history = folder / "history"
        self.history.mkdir()
        offsets: Counter[int] = Counter()
        self.raws: list[Raw] = []
        for each in generate(1, 50):
            place = each.partition
            self.raws.append(Raw(each.timestamp, each.topic, place, offsets[place], each.key, each.value))
            offsets[place] += 1
        self.written: list[Written] = []
        self._recorders: dict[str, Recorder] = {}
        self._write()

    def _write(self) -> None:
        oracle, begin = Oracle(), 0
        ends: Counter[str] = Counter()
        (self.folder / "checkpoint" / "offsets").mkdir(parents=True)
        for number, log in LOG.items():
            text = "\n".join(["v1", "{}", json.dumps({f"{PREFIX}clicks": log})])
            (self.folder / "checkpoint" / "offsets" / str(number)).write_text(text)
            for each in oracle.batch([raw for raw in self.raws if begin <= raw.offset < log["0"]]):
                key = None if each.key is None else each.key.encode()
                value = json.dumps(each.value).encode()
                self.written.append(Written(each.topic, 0, ends[each.topic], key, value, number))
                ends[each.topic] += 1
            begin = log["0"]
        pages = [[0 if name.startswith("page") else 1, name[5:], views] for name, views in oracle.state().items()]
        self.write_state(1, pages)

    def write_state(self, batch: int, pages: list[Any]) -> None:
        lines = [json.dumps(each) for each in ({"batch": batch}, *pages)]
        (self.folder / "state.jsonl").write_text("\n".join(lines) + "\n")

    def record(self, process: str, f: str, **told: Any) -> None:
        own = self._recorders.get(process) or Recorder(self.history / f"{process}.jsonl", process, 0.0)
        self._recorders[process] = own
        own.end(own.begin(f, isolation="read_committed"), Outcome.OK, **told)

    def judged(self) -> Findings:
        history = History.load(sorted(self.history.glob("*.jsonl")), ())
        stage: Any = self
        return judgement(REFERENCE, stage, self.folder / "checkpoint", FinalRead(self.raws, self.written), history)


@pytest.fixture
def over(tmp_path: Path) -> Run:
    return Run(tmp_path)


def kinds(findings: Findings) -> set[str]:
    return {each.kind for each in findings.differences}


def test_a_run_that_is_right_is_exact(over: Run) -> None:
    findings = over.judged()
    assert findings.differences == []
    found = findings.to_json()
    assert found["exact"]
    assert (found["records"], found["batches"]) == (50, 2)
    assert found["topics"]["clicks_dead_letters"]["found"] == 1
    assert found["state"]["found"] == found["state"]["expected"] > 0


def test_an_output_that_differs_makes_the_run_inexact(over: Run) -> None:
    over.written.pop()
    assert kinds(over.judged()) == {"missing"}
    assert not over.judged().to_json()["exact"]


def test_input_that_no_batch_has_makes_the_run_inexact(over: Run) -> None:
    over.raws.append(Raw(0, "clicks", 0, 25, None, b"{"))
    assert kinds(over.judged()) == {"batches"}


def test_state_that_differs_makes_the_run_inexact(over: Run) -> None:
    over.write_state(1, [[1, "site-0", -1]])
    assert kinds(over.judged()) == {"state"}


def test_state_of_another_batch_makes_the_run_inexact(over: Run) -> None:
    lines = (over.folder / "state.jsonl").read_text().splitlines()
    over.write_state(0, [json.loads(line) for line in lines[1:]])
    [difference] = over.judged().differences
    assert difference.sentence == "the state is that of micro-batch 0, and the last one was 1."


def test_state_that_nobody_could_read_makes_the_run_inexact(over: Run) -> None:
    (over.folder / "state.jsonl").unlink()
    findings = over.judged()
    assert kinds(findings) == {"state"}
    assert findings.to_json()["state"] is None


def ends(over: Run, number: int) -> dict[str, int]:
    """Of the topics, behind a micro-batch."""
    return {each.topic: each.offset + 1 for each in over.written if each.batch == number}


def test_looks_of_the_lookout_are_judged_and_others_are_not(over: Run) -> None:
    first, last = ends(over, 0), ends(over, 1)
    over.record("lookout", "ends", offsets=[[f"{PREFIX}{topic}", 0, end] for topic, end in first.items()])
    mixed = {**last, "page_views": 0}
    over.record("observer", "ends", offsets=[[f"{PREFIX}{topic}", 0, end] for topic, end in mixed.items()])
    findings = over.judged()
    assert (findings.looks_equal, findings.looks_between, findings.differences) == (1, 0, [])


def test_a_look_that_finds_different_batches_makes_the_run_inexact(over: Run) -> None:
    mixed = {**ends(over, 1), "page_views": 0}
    over.record("lookout", "ends", offsets=[[f"{PREFIX}{topic}", 0, end] for topic, end in mixed.items()])
    assert kinds(over.judged()) == {"not atomic"}


@pytest.mark.parametrize(("moments", "wrong"), [((), {"not looked at"}), ((1, 1), {"not looked at"}), ((0, 1), set())])
def test_looks_that_all_saw_the_same_prove_nothing(
    over: Run, moments: tuple[int, ...], wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_runs, "MANY", 2)
    for number in moments:
        told = [[f"{PREFIX}{topic}", 0, end] for topic, end in ends(over, number).items()]
        over.record("lookout", "ends", offsets=told)
    assert kinds(over.judged()) == wrong


@pytest.mark.parametrize(("seen", "wrong"), [(3, set()), (2, {"reader"})])
def test_what_readers_were_shown_is_judged(over: Run, seen: int, wrong: set[str]) -> None:
    shown = [each for each in over.written if each.topic == "page_views"][:seen]
    told = [[f"{PREFIX}page_views", 0, 0, len(shown), checksum(shown)]]
    over.record("reader-1.1", "read", moved=[[f"{PREFIX}page_views", 0, 0, 3]], shown=told)
    findings = over.judged()
    assert findings.reads == 1
    assert kinds(findings) == wrong


# --- names


def test_a_reference_pipeline_is_found_by_its_name() -> None:
    assert load_reference("tests.pipelines.clicks:REFERENCE") is REFERENCE
    with pytest.raises(ConfigError, match="is not a reference pipeline"):
        load_reference("tests.pipelines.clicks:PIPELINE")


@pytest.mark.parametrize("name", ["orders", "viewing", "pricing"])
def test_the_reference_pipelines_are_workloads(name: str) -> None:
    workload = workload_named(name)
    assert workload.name == name
    assert isinstance(workload, JudgesItself)


@pytest.mark.parametrize("name", ["producers", "copy", "spark", "pipeline"])
def test_the_other_workloads_leave_the_verdict_to_the_anomalies(name: str) -> None:
    assert not isinstance(workload_named(name), JudgesItself)
