"""CPU time: of the database's server, of everything else that works for the benchmark, and of others on the machine."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Usage:
    seconds: float
    job_cpu_s: float
    """This process, the JVM, Python workers."""

    server_cpu_s: float
    other_cores: float
    """Busy with something that is none of ours."""


class Clock:
    """Time and CPU time since it was made."""

    def __init__(self, server_pid: int) -> None:
        self._server_pid = server_pid
        self._before = self._reading()
        self._since = time.monotonic()

    def stop(self) -> Usage:
        seconds = time.monotonic() - self._since
        job, server, machine = (now - then for now, then in zip(self._reading(), self._before, strict=True))
        other = max(machine - job - server, 0.0) / seconds
        return Usage(seconds=seconds, job_cpu_s=job, server_cpu_s=server, other_cores=other)

    def _reading(self) -> tuple[float, float, float]:
        server = tree_cpu_s(self._server_pid)
        return tree_cpu_s(psutil.Process().pid) - server, server, _machine_cpu_s()


def tree_cpu_s(pid: int) -> float:
    """Of a process and all that have come of it, ended ones too: those are counted by who waited for them."""
    root = psutil.Process(pid)
    return sum(_cpu_s(process) for process in (root, *root.children(recursive=True)))


def _cpu_s(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))  # user, system, and the same of children that were waited for
    except psutil.NoSuchProcess:
        return 0.0


def _machine_cpu_s() -> float:
    """What its host took included."""
    machine = psutil.cpu_times()
    # The kernel counts the time of guests under user time as well.
    return float(sum(machine) - machine.idle - machine.iowait - machine.guest - machine.guest_nice)
