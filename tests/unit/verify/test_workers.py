"""Workers with real processes, killed for real. The program is a small one, and says in its log what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceflow.verify import workers as module
from onceflow.verify.history import load_operations
from onceflow.verify.programs.watchdog import HUNG
from onceflow.verify.workers import Worker, Workers
from tests.support.waiting import eventually

PROGRAM = "tests.unit.verify.small_program"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with Workers(tmp_path, shared(tmp_path)) as workers:
        yield workers


def shared(folder: Path) -> dict[str, Any]:
    return {
        "bootstrap": "127.0.0.1:1",
        "client_config": {},
        "seed": 1,
        "zero": time.monotonic(),
        "gate": str(folder / "gate"),
    }


@pytest.fixture
def add(workers: Workers) -> Callable[..., Worker]:
    def add(does: str = "wait", name: str = "worker-1", role: str = "worker") -> Worker:
        return workers.add(role, name, PROGRAM, does=does)

    return add


def until_it_said(worker: Worker, words: str) -> None:
    eventually(lambda: words in log(worker), f"{worker.name} says {words!r}")


def log(worker: Worker) -> str:
    return worker.log_path.read_text() if worker.log_path.exists() else ""


def is_there(pid: int) -> bool:
    """Alive: a process that has ended and was not waited for is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def pid_of(worker: Worker) -> int:
    assert worker.pid is not None
    return worker.pid


def test_a_killed_worker_is_given_a_new_life_with_a_name_of_its_own(add: Callable[..., Worker]) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    worker.kill()
    until_it_said(worker, "worker-1.2 began")
    assert worker.process_name == "worker-1.2"
    assert worker.failures == 0
    assert "ended cleanly" not in log(worker)


def test_a_stopped_worker_ends_cleanly_and_is_given_a_new_life(add: Callable[..., Worker]) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    worker.stop()
    until_it_said(worker, "worker-1.2 began")
    assert "worker-1.1 ended cleanly" in log(worker)


def test_every_life_writes_a_history_of_its_own(add: Callable[..., Worker], tmp_path: Path) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    worker.kill()
    until_it_said(worker, "worker-1.2 began")
    found = load_operations(sorted((tmp_path / "history").glob("*.jsonl")))
    assert [each.process for each in found] == ["worker-1.1", "worker-1.2"]


def test_a_paused_worker_does_nothing_until_it_is_resumed(add: Callable[..., Worker], tmp_path: Path) -> None:
    worker = add("open the gate")
    until_it_said(worker, "worker-1.1 began")
    worker.pause()
    eventually(lambda: _state(pid_of(worker)) == "T", "it is stopped")
    assert not worker.is_running
    (tmp_path / "gate").touch()
    assert "passed the gate" not in log(worker)
    worker.resume()
    until_it_said(worker, "worker-1.1 passed the gate")
    assert worker.is_running


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_zombie_sleeps_beside_its_successor_and_goes_on_when_woken(
    add: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = add("open the gate")
    until_it_said(worker, "worker-1.1 began")
    old = pid_of(worker)
    worker.pause()
    worker.replace()
    until_it_said(worker, "worker-1.2 began")
    (tmp_path / "gate").touch()
    until_it_said(worker, "worker-1.2 passed the gate")
    assert is_there(old)
    assert "worker-1.1 passed the gate" not in log(worker)
    worker.wake_zombies()
    until_it_said(worker, "worker-1.1 passed the gate")
    assert worker.process_name == "worker-1.2"


def test_the_end_of_a_zombie_starts_nobody(add: Callable[..., Worker]) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    old = pid_of(worker)
    worker.pause()
    worker.replace()
    until_it_said(worker, "worker-1.2 began")
    os.kill(old, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{old}").exists(), "the zombie is buried")
    assert worker.process_name == "worker-1.2"
    assert worker.is_running


def test_a_held_worker_is_dead_until_it_is_released(add: Callable[..., Worker]) -> None:
    worker, other = add(), add(name="worker-2")
    until_it_said(worker, "worker-1.1 began")
    worker.hold()
    assert not is_there(pid_of(worker))
    assert not worker.is_running
    until_it_said(other, "worker-2.1 began")
    other.kill()
    until_it_said(other, "worker-2.2 began")  # so the supervisor has looked at all of them
    assert worker.life == 1
    worker.release(does="fail")
    until_it_said(worker, "worker-1.2 fails")


def test_who_holds_a_worker_has_killed_its_zombies_too(add: Callable[..., Worker]) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    zombie = pid_of(worker)
    worker.pause()
    worker.replace()
    until_it_said(worker, "worker-1.2 began")
    worker.hold()
    assert not is_there(zombie)
    assert not is_there(pid_of(worker))
    worker.release()
    until_it_said(worker, "worker-1.3 began")
    assert worker.failures == 0


def test_finish_ends_all_lives_for_good_also_those_that_sleep(workers: Workers, add: Callable[..., Worker]) -> None:
    worker = add()
    until_it_said(worker, "worker-1.1 began")
    pids = [pid_of(worker)]
    worker.pause()
    worker.replace()
    until_it_said(worker, "worker-1.2 began")
    pids.append(pid_of(worker))
    worker.pause()
    assert workers.finish() == []
    assert [is_there(pid) for pid in pids] == [False, False]
    assert "worker-1.2 ended cleanly" in log(worker)
    assert worker.life == 2


def test_finish_kills_whoever_does_not_end_and_says_who_it_was(workers: Workers, add: Callable[..., Worker]) -> None:
    deaf, obedient = add("ignore the end", "deaf"), add("wait", "obedient")
    until_it_said(deaf, "deaf.1 began")
    until_it_said(obedient, "obedient.1 began")
    pid = pid_of(deaf)
    assert workers.finish(timeout_s=5) == ["deaf"]
    assert not is_there(pid)
    assert "obedient.1 ended cleanly" in log(obedient)


def test_finish_is_for_the_roles_that_are_named(workers: Workers, add: Callable[..., Worker]) -> None:
    reader, writer = add("wait", "reader-1", "reader"), add("wait", "writer-1", "writer")
    until_it_said(reader, "reader-1.1 began")
    until_it_said(writer, "writer-1.1 began")
    workers.finish("reader")
    assert (reader.is_running, writer.is_running) == (False, True)
    assert workers.of("writer") == [writer]


def test_a_kill_takes_the_children_along(add: Callable[..., Worker]) -> None:
    worker = add("have a child")
    until_it_said(worker, "child ")
    child = _child(worker)
    assert is_there(child)
    worker.kill()
    eventually(lambda: not is_there(child), "the child is gone")


def test_a_life_that_ends_by_itself_leaves_no_children(add: Callable[..., Worker], tmp_path: Path) -> None:
    worker = add("leave a child")
    until_it_said(worker, "child ")
    child = _child(worker)
    (tmp_path / "gate").touch()
    until_it_said(worker, "worker-1.2 began")
    assert not is_there(child)


def _child(worker: Worker) -> int:
    return int(log(worker).partition("child ")[2].split()[0])


def test_a_worker_that_fails_again_and_again_is_a_problem(
    workers: Workers, add: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILURES_MAX", 2)
    worker = add("fail")
    [problem] = eventually(workers.problems, "the worker is given up")
    assert problem.startswith("worker-1 gave up again and again")
    assert "worker-1.3 fails" in problem
    assert worker.life == 3
    assert not worker.is_running


def test_kills_of_the_nemesis_are_no_failures(
    workers: Workers, add: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILURES_MAX", 1)
    worker = add()
    for life in range(1, 5):
        until_it_said(worker, f"worker-1.{life} began")
        worker.kill()
    until_it_said(worker, "worker-1.5 began")
    assert workers.problems() == []


def test_no_life_is_begun_after_finish(tmp_path: Path) -> None:
    worker = Worker("worker", "worker-1", PROGRAM, {**shared(tmp_path), "does": "wait"}, tmp_path)
    worker.start()
    worker.finish()
    worker.supervise()
    worker.replace()
    assert worker.life == 1
    assert not worker.is_running


@pytest.mark.parametrize("meanwhile", ["replace", "finish"])
def test_no_process_is_lost_if_something_is_asked_while_a_life_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    worker = Worker("worker", "worker-1", PROGRAM, {**shared(tmp_path), "does": "wait"}, tmp_path)
    worker.start()
    until_it_said(worker, "worker-1.1 began")
    worker.kill()
    eventually(lambda: not worker.is_running, "it is dead")
    start = subprocess.Popen
    beginning, go_on = threading.Event(), threading.Event()

    def start_slowly(*args: Any, **options: Any) -> Any:
        beginning.set()
        go_on.wait(10)
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    supervisor = threading.Thread(target=worker.supervise)
    supervisor.start()
    assert beginning.wait(10)
    asking = threading.Thread(target=getattr(worker, meanwhile))
    asking.start()
    asking.join(0.3)  # whoever does not wait for the other is through by then
    go_on.set()
    supervisor.join()
    asking.join()
    if meanwhile == "replace":
        worker.finish()
    assert _processes_with(str(tmp_path)) == []


def _processes_with(words: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if PROGRAM in command and words in command and is_there(int(folder.name)):
            found.append(int(folder.name))
    return found


def test_a_worker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    started = f"""
import json, sys, time
from pathlib import Path
from onceflow.verify.workers import Worker
settings = json.loads(sys.argv[1])
worker = Worker("worker", "worker-1", {PROGRAM!r}, settings, Path(settings["folder"]))
worker.start()
print(worker.pid, flush=True)
time.sleep(60)
"""
    settings = {**shared(tmp_path), "does": "wait", "folder": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", started, json.dumps(settings)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        eventually(lambda: b"worker-1.1 began" in (tmp_path / "logs/worker-1.log").read_bytes(), "it has begun")
        parent.kill()
    eventually(lambda: not is_there(pid), "the worker is gone, too")


def test_a_life_whose_parent_is_gone_before_it_begins_ends_at_once(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    settings = {**shared(tmp_path), "does": "wait", "process": "worker-1.1", "worker": "worker-1", "parent": gone.pid}
    settings["history"] = str(tmp_path / "history.jsonl")
    command = [sys.executable, "-m", PROGRAM, json.dumps(settings)]
    orphan = subprocess.run(command, start_new_session=True, capture_output=True, timeout=30, check=False)
    assert orphan.returncode == -signal.SIGKILL


def test_a_life_that_hangs_ends_itself_and_says_where(add: Callable[..., Worker], workers: Workers) -> None:
    worker = add("hang")
    until_it_said(worker, "worker-1.1 hangs, nothing moved for 1 s: ending it")
    until_it_said(worker, "worker-1.2 began")
    assert "in hang" in log(worker)


def test_a_life_that_was_stopped_for_longer_is_not_one_that_hangs(tmp_path: Path) -> None:
    settings = {**shared(tmp_path), "does": "be slow"}
    worker = Worker("worker", "worker-1", PROGRAM, settings, tmp_path)
    worker.start()
    until_it_said(worker, "worker-1.1 began")
    worker.pause()
    time.sleep(2.3)  # longer than the watchdog's patience
    worker.resume()
    (tmp_path / "gate").touch()
    until_it_said(worker, "worker-1.1 passed the gate")
    assert worker.finish()


def test_the_exit_code_of_a_life_that_hangs_is_its_own(tmp_path: Path) -> None:
    settings = {**shared(tmp_path), "does": "hang", "process": "worker-1.1", "worker": "worker-1"}
    settings["history"] = str(tmp_path / "history.jsonl")
    command = [sys.executable, "-m", PROGRAM, json.dumps(settings)]
    hung = subprocess.run(command, start_new_session=True, capture_output=True, timeout=30, check=False)
    assert hung.returncode == HUNG
