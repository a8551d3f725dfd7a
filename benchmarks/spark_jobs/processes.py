"""A driver program and all processes that it starts: marks, CPU time, memory, and an end for all of them.

The driver leads a session of its own. Its JVM and the Python workers stay in it, whoever their parent is by now, so the
session is what is counted and what is ended. A process that has ended counts through its parent, which waited for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.clients import ROOT, ClientError
from benchmarks.spark_jobs.job import Job

MARK_SECONDS_MAX = 1800.0
SAMPLE_SECONDS = 0.2
SAMPLES_PER_SHARED = 5
"""Which pages are shared costs the kernel a walk through all of them, so that is asked less often."""
LOG_LINES_SHOWN = 15
JAVA = "java"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessUsage:
    """A line of /proc/PID/stat, as far as it is of interest."""

    pid: int
    name: str
    session: int
    is_zombie: bool
    own_cpu_s: float
    """User and system time."""

    waited_cpu_s: float
    """The same of children that have ended, for which it has waited."""

    rss_bytes: int

    @property
    def cpu_seconds(self) -> float:
        return self.own_cpu_s + self.waited_cpu_s


@dataclass(frozen=True)
class JobCpu:
    """CPU seconds of a job, by who used them."""

    driver: float = 0.0
    jvm: float = 0.0
    workers: float = 0.0
    """Python processes that Spark started, and the commands that Hadoop runs to change files; ended ones too."""

    @property
    def total(self) -> float:
        return self.driver + self.jvm + self.workers

    def __sub__(self, other: JobCpu) -> JobCpu:
        return JobCpu(self.driver - other.driver, self.jvm - other.jvm, self.workers - other.workers)


def parse_stat(line: str) -> ProcessUsage:
    """The name is in parentheses and may hold any character; all fields behind it are plain."""
    front, _, back = line.rpartition(")")
    pid, _, name = front.partition(" (")
    fields = back.split()
    own, waited = (sum(map(int, fields[first : first + 2])) / TICKS for first in (11, 13))
    return ProcessUsage(int(pid), name, int(fields[3]), fields[0] == "Z", own, waited, int(fields[21]) * PAGE)


def in_session(session: int) -> list[ProcessUsage]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found.append(parse_stat((folder / "stat").read_text(errors="replace")))
    return [each for each in found if each.session == session]


def cpu_of_job(found: list[ProcessUsage], driver: int) -> JobCpu:
    """Children that the driver and the JVM have waited for were workers, or launched the JVM."""
    total = sum(each.cpu_seconds for each in found)
    python = sum(each.own_cpu_s for each in found if each.pid == driver)
    jvm = sum(each.own_cpu_s for each in found if each.name == JAVA)
    return JobCpu(python, jvm, total - python - jvm)


@dataclass
class Memory:
    """Peaks over the processes of a session together, in MB."""

    rss_mb: float = 0.0
    """A page that several share counts for each: all of the JVM twice at the moment when it forks a command."""

    pss_mb: float = 0.0
    """A page that several share counts once."""


class DriverProcess:
    """A driver program at work; as a context manager it is ended with everything it started."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._log = folder / "driver.log"
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.spark_jobs.driver", job.to_argument()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=_environment(folder),
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_mark(self, name: str) -> None:
        said = self._said()
        if said.get("mark") != name:
            raise ClientError(f"the driver should have come to {name!r} and said {said}")

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        return self._said()

    def wait(self) -> None:
        self._process.wait(MARK_SECONDS_MAX)

    def cpu(self) -> JobCpu:
        return cpu_of_job(in_session(self._process.pid), self._process.pid)

    @contextlib.contextmanager
    def memory(self) -> Iterator[Memory]:
        """Sampled over the block."""
        peak = Memory()
        over = threading.Event()
        sampler = threading.Thread(target=self._sample, args=(peak, over), daemon=True)
        sampler.start()
        try:
            yield peak
        finally:
            over.set()
            sampler.join()

    def _sample(self, peak: Memory, over: threading.Event) -> None:
        number = 0
        while True:
            processes = in_session(self._process.pid)
            peak.rss_mb = max(peak.rss_mb, sum(each.rss_bytes for each in processes) / 1e6)
            if number % SAMPLES_PER_SHARED == 0:
                peak.pss_mb = max(peak.pss_mb, sum(_pss_bytes(each.pid) for each in processes) / 1e6)
            number += 1
            if over.wait(SAMPLE_SECONDS):
                return

    def _said(self) -> dict[str, Any]:
        """The next line of JSON."""
        deadline = time.monotonic() + MARK_SECONDS_MAX
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise ClientError(f"the driver was silent for {MARK_SECONDS_MAX:.0f} s:\n{self._log_tail()}") from None
            if line is None:
                raise ClientError(f"the driver ended with {self._process.wait()}:\n{self._log_tail()}")
            with contextlib.suppress(json.JSONDecodeError):
                said: dict[str, Any] = json.loads(line)
                return said

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + 30
        while alive := [each.pid for each in in_session(self._process.pid) if not each.is_zombie]:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            if time.monotonic() > deadline:
                raise ClientError(f"processes {alive} of the driver do not end")
            time.sleep(0.02)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _pss_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    return 0


def _environment(folder: Path) -> dict[str, str]:
    """Spark as pip installs it; only where it keeps its files and which Python runs the workers is ours."""
    chosen = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return others | chosen
