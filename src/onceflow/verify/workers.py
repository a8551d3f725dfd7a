"""Worker processes: real ones, which are killed for real.

A `Worker` is a place ("copier-2") that is filled by one process after the other; each is a *life* with a name of its
own ("copier-2.3"), and that is the process that the history speaks of. A worker whose life ended is started again by
`Workers.supervise`, which the run calls all the time, unless it was told to `finish`.

A life is `python -m MODULE SETTINGS`, SETTINGS being JSON; `onceflow.verify.programs.life` reads it. It has a session
of its own, so that a kill reaches its children too: a Spark driver has a JVM, and that has Python workers.

A `zombie` is a life that was replaced while it was stopped: its successor is started beside it under the same name of
the place, takes over what belongs to it, and then the old life is woken up again. It must find out by itself that it
is over.

The supervisor, the nemesis and the end of a run come from different threads. One lock per worker makes each of their
steps whole: a place never has two lives at once that are not a zombie and its successor, and none is begun after
`finish`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["Worker", "Workers"]

STOP_S: Final = 20.0
FAILURES_MAX: Final = 25
"""Lives in a row that ended by themselves with an error, soon after their start: then something is wrong with us."""
SOON_S: Final = 5.0


class Worker:
    def __init__(self, role: str, name: str, module: str, settings: Mapping[str, Any], folder: Path) -> None:
        self.role = role
        self.name = name
        self._module = module
        self._settings = dict(settings)
        self._folder = folder
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []
        self._began = 0.0
        self._expected_to_end = False
        self.life = 0
        self.failures = 0
        self.is_finishing = False
        self.is_paused = False
        self.is_held = False

    @property
    def process_name(self) -> str:
        return f"{self.name}.{self.life}"

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    @property
    def is_running(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None and not self.is_paused

    @property
    def log_path(self) -> Path:
        """What its lives wrote to stdout and stderr."""
        return self._folder / "logs" / f"{self.name}.log"

    @property
    def history_path(self) -> Path:
        """Of the present life."""
        return self._folder / "history" / f"{self.process_name}.jsonl"

    def start(self) -> None:
        with self._lock:
            self.life += 1
            self.is_paused = self._expected_to_end = False
            self._began = time.monotonic()
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            self.history_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_path, "ab") as log:
                log.write(f"--- {self.process_name}\n".encode())
                log.flush()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self._module, json.dumps(self._settings_of_this_life())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def _settings_of_this_life(self) -> dict[str, Any]:
        life = {"process": self.process_name, "worker": self.name, "life": self.life}
        return {**self._settings, **life, "history": str(self.history_path), "parent": os.getpid()}

    def kill(self) -> None:
        self._signal(signal.SIGKILL, last=True)

    def stop(self) -> None:
        self._signal(signal.SIGTERM, last=True)

    def pause(self) -> None:
        with self._lock:
            self.is_paused = True
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        with self._lock:
            self._signal(signal.SIGCONT)
            self.is_paused = False

    def replace(self) -> None:
        """The present life, paused before, becomes a zombie: a successor is started while it sleeps."""
        with self._lock:
            if self.is_finishing:
                return
            if self._process is not None:
                self._zombies.append(self._process)
            self.start()

    def wake_zombies(self) -> None:
        with self._lock:
            for zombie in self._zombies:
                _signal(zombie, signal.SIGCONT)

    def hold(self) -> None:
        """Kill -9, zombies too, and start nobody in its place until `release`."""
        with self._lock:
            self.is_held = True
            zombies, self._zombies = self._zombies, []
            for process in (*zombies, *([] if self._process is None else [self._process])):
                _signal(process, signal.SIGKILL)
                process.wait()
            self._expected_to_end = True

    def release(self, **settings: Any) -> None:
        """The next life may begin, and gets these settings besides those that it had."""
        with self._lock:
            self._settings |= settings
            self.is_held = False

    def supervise(self) -> None:
        """Bury what has ended, and start it again unless its work is over."""
        with self._lock:
            if self.is_finishing or self.is_held:
                return
            self._zombies = [each for each in self._zombies if each.poll() is None]
            if self._process is None or (code := self._process.poll()) is None:
                return
            if code != 0 and not self._expected_to_end:
                soon = time.monotonic() - self._began < SOON_S
                self.failures = self.failures + 1 if soon else 1
            _signal(self._process, signal.SIGKILL)  # what it left behind in its session
            self._process = None
            if self.failures <= FAILURES_MAX:
                self.start()

    def finish(self, timeout_s: float = STOP_S) -> bool:
        """End for good: SIGTERM, and False if it had to be killed after all.

        A zombie that has to be killed counts for nothing: nobody waits for what it does.
        """
        with self._lock:
            self.is_finishing = True
            self.is_paused = False
            present, zombies = self._process, self._zombies
        processes = [*zombies] if present is None else [present, *zombies]
        for process in processes:
            _signal(process, signal.SIGCONT)
            _signal(process, signal.SIGTERM, group=False)
        deadline = time.monotonic() + timeout_s
        in_time = {process.pid: _ends_before(deadline, process) for process in processes}
        return present is None or in_time[present.pid]

    def _signal(self, number: signal.Signals, *, last: bool = False) -> None:
        with self._lock:
            if self._process is None:
                return
            self._expected_to_end |= last
            # A clean end is asked of the process itself, which knows how to end its children; all else is for all.
            _signal(self._process, number, group=number is not signal.SIGTERM)


def _ends_before(deadline: float, process: subprocess.Popen[bytes]) -> bool:
    """Whoever has not ended by then is killed."""
    in_time = True
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        in_time = False
    _signal(process, signal.SIGKILL)  # what it left behind in its session
    process.wait()
    return in_time


class Workers:
    """All workers of a run, supervised by a thread."""

    def __init__(self, folder: Path, shared: Mapping[str, Any]) -> None:
        """`shared`: settings that every life gets."""
        self._folder = folder
        self._shared = dict(shared)
        self._workers: dict[str, Worker] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def __enter__(self) -> Workers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for worker in self._workers.values():
            worker.finish(timeout_s=1.0)

    def add(self, role: str, name: str, module: str, **settings: Any) -> Worker:
        """Start a worker. It goes on, life after life, until `finish`."""
        worker = Worker(role, name, module, {**self._shared, **settings}, self._folder)
        worker.start()
        self._workers[name] = worker
        return worker

    def of(self, *roles: str) -> list[Worker]:
        return [each for each in list(self._workers.values()) if not roles or each.role in roles]

    def finish(self, *roles: str, timeout_s: float = STOP_S) -> list[str]:
        """Ends all workers of these roles, all at the same time; returns those that had to be killed."""
        from concurrent.futures import ThreadPoolExecutor

        workers = self.of(*roles)
        with ThreadPoolExecutor(max(1, len(workers))) as pool:
            ended = list(pool.map(lambda each: each.finish(timeout_s), workers))
        return [worker.name for worker, in_time in zip(workers, ended, strict=True) if not in_time]

    def problems(self) -> list[str]:
        return [
            f"{each.name} gave up again and again; the end of its log:\n{_tail(each.log_path)}"
            for each in self._workers.values()
            if each.failures > FAILURES_MAX
        ]

    def _supervise(self) -> None:
        while not self._ending.wait(0.05):
            for worker in list(self._workers.values()):
                if not worker.is_finishing:
                    worker.supervise()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals, *, group: bool = True) -> None:
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, number)  # a session leader leads its group, too
        elif process.poll() is None:
            os.kill(process.pid, number)


def _tail(path: Path, size: int = 2000) -> str:
    return path.read_bytes()[-size:].decode(errors="replace") if path.exists() else ""
