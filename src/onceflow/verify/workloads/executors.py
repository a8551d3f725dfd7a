"""Spark's executors as processes: found through /proc among those of a driver's session, and struck with their Python
workers.

A session is what a driver and everything that it started have in common: the JVM, its executors, and PySpark's daemons,
which lead process groups of their own. Executors come and go, so a target is good for one look only. A process is
known by its number and the moment of its birth: a number that was given away again is not struck.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.digits import whole_number_of
from onceflow.verify.workers import Worker

__all__ = ["Executor", "executors_of"]

BACKEND: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
PROC: Final = Path("/proc")
STOPPED_OR_GONE: Final = frozenset("TtZX")


class Seen(NamedTuple):
    """A process at one moment."""

    pid: int
    parent: int
    session: int
    state: str
    born: str


class Executor:
    """An executor's JVM with the Python workers below it: a `Target`."""

    role = "executor"

    def __init__(self, name: str, jvm: Seen) -> None:
        self.name = name
        self._jvm = jvm

    @property
    def is_running(self) -> bool:
        now = _look(self._jvm.pid)
        return now is not None and now.born == self._jvm.born and now.state not in STOPPED_OR_GONE

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for each in _family(self._jvm):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, number)


def executors_of(driver: Worker) -> list[Executor]:
    """Those of its present life, by Spark's number for them."""
    found = []
    for each in _processes():
        if each.session != driver.pid:
            continue
        arguments = _arguments(each.pid)
        if BACKEND in arguments and "--executor-id" in arguments:
            number = arguments[arguments.index("--executor-id") + 1]
            found.append(Executor(f"{driver.process_name}/executor-{number}", each))
    return sorted(found, key=lambda executor: executor.name)


def _family(first: Seen) -> list[Seen]:
    """The process, if it is still the one, and all below it, from top to bottom: a parent that is stopped starts
    nobody."""
    children: dict[int, list[Seen]] = defaultdict(list)
    family = []
    for each in _processes():
        children[each.parent].append(each)
        if each.pid == first.pid and each.born == first.born:
            family.append(each)
    for each in family:
        family.extend(children[each.pid])
    return family


def _processes() -> Iterator[Seen]:
    for name in os.listdir(PROC):
        if (number := whole_number_of(name)) is not None and (seen := _look(number)) is not None:
            yield seen


def _look(pid: int) -> Seen | None:
    """See proc_pid_stat(5). The name, in parentheses, may contain anything."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return Seen(pid, parent=int(fields[1]), session=int(fields[3]), state=fields[0], born=fields[19])


def _arguments(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
