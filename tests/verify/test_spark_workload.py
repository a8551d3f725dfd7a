"""The spark workload: a short run under faults with a real Spark, and its parts without one."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onceflow import extras
from onceflow.errors import ConfigError
from onceflow.spark import BatchFailed, CommitUnknown, TakenOver
from onceflow.spark.listening import Step
from onceflow.verify.brokers import EmbeddedBrokers
from onceflow.verify.history import History, Operation, Outcome, Recorder
from onceflow.verify.nemesis import JOB, KINDS, Pace, plan
from onceflow.verify.programs.spark_driver import Chronicle
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.workers import Worker
from onceflow.verify.workloads import spark as workload
from onceflow.verify.workloads.executors import BACKEND, Executor, _arguments, _family, executors_of
from tests.support.brokers import started
from tests.support.defects.stream import DEFECTS
from tests.support.spark_jvm import ROOT, write_settings
from tests.support.waiting import eventually

FAULTS = 4
DEFECTIVE_PYTHON = ROOT / "tests" / "support" / "defective_python"
DEFECT_VARIABLE = "ONCEFLOW_TESTS_DEFECT"
PACE = Pace(gap_s=(2.0, 4.0))


def seed_with(*wanted: tuple[str, str]) -> int:
    """The first whose plan has these faults among the first, and the driver struck once: it takes long to start."""
    roles = [*workload.Spark.strikes, "reader", "broker", "broker"]
    for seed in itertools.count():
        first = itertools.islice(plan(seed, roles, KINDS, PACE), FAULTS)
        planned = [(each.kind, each.role) for each in first]
        if set(wanted) <= set(planned) and [role for _, role in planned].count("driver") == 1:
            return seed
    raise AssertionError("unreachable")


@pytest.mark.faults  # of every day are the pipelines, whose driver and broker are killed (tests/pipelines)
@pytest.mark.timeout(600)
def test_a_spark_job_under_faults_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = started(lambda: write_settings(tmp_path / "settings"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(settings))} pyspark-shell")
    verdict, history = run(
        RunSettings(
            workload="spark",
            seed=seed_with(("kill", "driver"), ("kill", "executor")),
            faults=FAULTS,
            folder=tmp_path,
            brokers=EmbeddedBrokers(tmp_path / "broker"),
            pace=PACE,
        )
    )
    assert verdict.is_clean, verdict.to_json()
    assert len(verdict.faults) >= FAULTS
    struck = {(each.asked["kind"], each.asked["target"].rstrip(".0123456789")) for each in verdict.faults}
    assert ("kill", "driver") in struck
    drivers = {each.process for each in history.of("commit") if each.is_ok}
    assert len(drivers) >= 2, "a successor has gone on"
    assert sum(each.topic.endswith("output") for each in history.final) > 100
    assert any(each.record.n for each in history.final), "there is state"


def seed_of_both_faults_of_the_job() -> int:
    for seed in itertools.count():
        first = itertools.islice(plan(seed, (), JOB, PACE), len(JOB))
        if {each.kind for each in first} == JOB.keys():
            return seed
    raise AssertionError("unreachable")


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_spark_job_with_an_older_checkpoint_and_a_recreated_topic_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = started(lambda: write_settings(tmp_path / "settings"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(settings))} pyspark-shell")
    verdict, history = run(
        RunSettings(
            workload="spark",
            seed=seed_of_both_faults_of_the_job(),
            faults=len(JOB),
            folder=tmp_path,
            brokers=EmbeddedBrokers(tmp_path / "broker"),
            kinds=frozenset(JOB),
            pace=PACE,
        )
    )
    assert verdict.is_clean, verdict.to_json()
    assert {each.asked["kind"] for each in verdict.faults} == JOB.keys()
    assert all(each.told["hit"].endswith("was refused") for each in verdict.faults), verdict.to_json()
    arrived = {each.record.id for each in history.final if each.topic.endswith("output")}
    refilled = {each.record.id for each in history.final if "recreated" in each.topic}
    assert refilled, "the final read has the topic that was created anew"
    assert refilled <= arrived


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "defect"), [("older checkpoint", "skipped by number alone"), ("recreated topic", "topic ids ignored")]
)
def test_the_verdict_names_what_a_defect_does_to_a_spark_job(
    kind: str, defect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = started(lambda: write_settings(tmp_path / "settings"))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {shlex.quote(str(settings))} pyspark-shell")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(DEFECTIVE_PYTHON), str(ROOT)]))
    monkeypatch.setenv(DEFECT_VARIABLE, defect)
    verdict, _ = run(
        RunSettings(
            workload="spark",
            seed=1,
            faults=1,
            folder=tmp_path,
            brokers=EmbeddedBrokers(tmp_path / "broker"),
            kinds=frozenset({kind}),
            pace=PACE,
        )
    )
    assert [each.asked["kind"] for each in verdict.faults] == [kind]
    assert "went on" in verdict.faults[0].told["hit"]
    assert DEFECTS[defect].anomaly in {each.name for each in verdict.anomalies}, verdict.to_json()


# --- what is said in the history


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path / "driver.1.jsonl", "driver.1", 0.0)
    yield recorder
    recorder.close()


def commits(tmp_path: Path) -> list[Operation]:
    return History.load(tmp_path.glob("*.jsonl"), ()).of("commit")


def test_commit_is_recorded_with_the_offsets_of_its_micro_batch(record: Recorder, tmp_path: Path) -> None:
    chronicle = Chronicle(record, "app")
    with chronicle.of({("input", 0): 7}):
        chronicle.before(Step.COMMIT, 3)
        chronicle.after(Step.COMMIT, 3)
    [commit] = commits(tmp_path)
    assert commit.is_ok
    assert commit.asked == {"transaction": "driver.1/3", "group": "app", "offsets": [["input", 0, 7]]}


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (TakenOver("by another run"), Outcome.FAILED),
        (CommitUnknown("no answer"), Outcome.UNKNOWN),
        (RuntimeError("interrupted"), Outcome.UNKNOWN),
    ],
)
def test_commit_is_failed_only_if_it_was_refused(
    problem: Exception, outcome: Outcome, record: Recorder, tmp_path: Path
) -> None:
    chronicle = Chronicle(record, "app")

    def commit() -> None:
        with chronicle.of({}):
            chronicle.before(Step.COMMIT, 0)
            raise problem

    with pytest.raises(type(problem)):
        commit()
    assert [each.outcome for each in commits(tmp_path)] == [outcome]


def test_batch_that_fails_before_its_commit_says_nothing_about_one(record: Recorder, tmp_path: Path) -> None:
    chronicle = Chronicle(record, "app")
    with pytest.raises(BatchFailed), chronicle.of({}):
        raise BatchFailed("its tasks failed")
    assert commits(tmp_path) == []


def test_fence_is_the_moment_from_which_a_driver_owns_its_application(record: Recorder, tmp_path: Path) -> None:
    chronicle = Chronicle(record, "app")
    chronicle.before(Step.FENCE, 0)
    chronicle.after(Step.FENCE, 0)
    [take] = History.load(tmp_path.glob("*.jsonl"), ()).of("take")
    assert (take.is_ok, take.asked) == (True, {"transactional_id": "app"})


# --- executors


CHILD = "input()"
PROGRAM = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{CHILD}'], stdin=subprocess.PIPE).wait()"


@pytest.fixture
def driver() -> Iterator[Worker]:
    """What looks like a driver with one executor, which has a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, BACKEND, "--executor-id", "7"], start_new_session=True, stdin=subprocess.DEVNULL
    )
    driver = cast(Worker, SimpleNamespace(pid=process.pid, process_name="driver.2"))
    eventually(lambda: executors_of(driver), "its arguments are there to be seen")
    yield driver
    process.kill()
    process.wait()


def family_of(executor: Executor) -> list[str]:
    return [each.state for each in _family(executor._jvm)]


def has_started_child(executor: Executor) -> bool:
    """A parent waits for what it has forked to begin its own program, and is not shown as stopped if that one is."""
    return any(CHILD in _arguments(each.pid) for each in _family(executor._jvm))


def test_executors_are_found_and_struck_with_all_that_they_have_started(driver: Worker) -> None:
    [executor] = executors_of(driver)
    assert (executor.role, executor.name) == ("executor", "driver.2/executor-7")
    eventually(lambda: has_started_child(executor), "it has a child")
    executor.pause()
    eventually(lambda: family_of(executor) == ["T", "T"], "both are stopped")
    assert not executor.is_running
    executor.resume()
    eventually(lambda: executor.is_running and "T" not in family_of(executor), "both go on")
    executor.kill()
    os.waitpid(cast(int, driver.pid), 0)
    assert not executor.is_running
    assert executors_of(driver) == []


def test_number_that_was_given_away_again_is_not_struck(driver: Worker) -> None:
    [executor] = executors_of(driver)
    late = Executor(executor.name, executor._jvm._replace(born="1"))
    late.kill()
    assert not late.is_running
    assert executor.is_running


# --- what it needs


@pytest.fixture
def _asked_anew() -> Iterator[None]:
    workload.require_spark.cache_clear()
    yield
    workload.require_spark.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_there", lambda module: module != "pyspark")
    with pytest.raises(ConfigError, match=r"needs pyspark, which is not installed: pip install 'onceflow\[spark\]'"):
        workload.require_spark()


@pytest.mark.usefixtures("_asked_anew")
def test_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: "4.1.0")
    with pytest.raises(ConfigError, match=r"PySpark 4\.2 or newer, and 4\.1\.0 is installed"):
        workload.require_spark()


@pytest.mark.usefixtures("_asked_anew")
@pytest.mark.parametrize(("found", "words"), [(None, "none was found"), (11, "Java 11 was found")])
def test_without_a_java_that_is_new_enough_it_says_so(
    found: int | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_java_version", lambda: found)
    with pytest.raises(ConfigError, match=rf"needs Java 17 or newer, and {words}"):
        workload.require_spark()
