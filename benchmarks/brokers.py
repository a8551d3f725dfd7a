"""The brokers under test: how each is started, and what its processes use.

One runs at a time. A flavour is a way to start one; a `RunningBroker` is the process tree that came of it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from tests.support.apache_kafka import ApacheKafka

KAFKA_HEAP_MB = 1024  # what kafka-server-start.sh gives it: -Xmx1G -Xms1G
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0
SAMPLE_SECONDS = 0.05
LOG_LINES_SHOWN = 15
STARTTIME_AFTER_NAME = 19  # field 22 of /proc/PID/stat, counted from 0 behind the name
CPUCLOCK_SCHED = 2  # of Linux: the clock that counts what the scheduler gave to all threads, ended ones too

READY = re.compile(r"onceflow broker ready on (\S+):(\d+)")
# Metadata v1 for no topics: size, then key 3, version 1, a correlation id, a null client id, an empty array.
METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)


class StartError(RuntimeError):
    """The broker ended or kept silent while starting."""


@dataclass(frozen=True, kw_only=True)
class RunningBroker:
    """A broker that answers."""

    bootstrap: str
    start_seconds: float
    """From the spawn of its process to the first answered Metadata request that names a broker."""

    process: psutil.Process
    restart: Callable[[signal.Signals], RunningBroker] = field(repr=False)
    """End the process with SIGTERM or SIGKILL and start it on the same data: another `RunningBroker` takes over."""

    def age_seconds(self) -> float:
        """Since the spawn of the process, to the hundredth of a second in which the kernel counts that.

        psutil's `create_time` adds the time of boot, which is known to a second only.
        """
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[STARTTIME_AFTER_NAME])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

    def cpu_seconds(self) -> float:
        """User and system time of the process and its children, those that have ended included."""
        ended = self.process.cpu_times()
        return ended.children_user + ended.children_system + sum(map(_cpu, self._family()))

    def rss_mb(self) -> float:
        """Resident memory of the process and its children; a page they share counts for each."""
        return sum(map(_rss, self._family())) / 1e6

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


@dataclass(frozen=True)
class Flavour:
    """A way to start a broker, by the name the results carry."""

    name: str
    title: str
    start: Callable[[], AbstractContextManager[RunningBroker]] = field(repr=False)


@dataclass
class Usage:
    """What a broker used while it was watched."""

    cpu_seconds: float = 0.0
    rss_peak_mb: float = 0.0


@contextmanager
def watched(broker: RunningBroker) -> Iterator[Usage]:
    """Take the broker's CPU time over the block, and sample its memory meanwhile."""
    usage = Usage(rss_peak_mb=broker.rss_mb())
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            usage.rss_peak_mb = max(usage.rss_peak_mb, broker.rss_mb())

    sampler = threading.Thread(target=sample, daemon=True)
    before = broker.cpu_seconds()
    sampler.start()
    try:
        yield usage
    finally:
        over.set()
        sampler.join()
        usage.cpu_seconds = broker.cpu_seconds() - before


@contextmanager
def _apache_kafka() -> Iterator[RunningBroker]:
    def running() -> RunningBroker:
        started = RunningBroker(
            bootstrap=kafka.bootstrap, start_seconds=0.0, process=psutil.Process(kafka.pid), restart=restart
        )
        # Formatting its storage came before the spawn, so it does not count.
        return replace(started, start_seconds=started.age_seconds())

    def restart(how: signal.Signals) -> RunningBroker:
        if how is signal.SIGKILL:
            kafka.kill()
        else:
            kafka.stop()
        kafka.start()
        return running()

    # Killed at the end rather than shut down: its data is thrown away, and that saves seconds.
    with ApacheKafka(heap_mb=KAFKA_HEAP_MB) as kafka:
        yield running()


@contextmanager
def _onceflow(durability: str) -> Iterator[RunningBroker]:
    folder = Path(tempfile.mkdtemp(prefix="onceflow-bench-"))
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> RunningBroker:
        log = folder / f"broker-{len(processes)}.log"
        spawned = time.perf_counter()
        processes.append(_spawn(folder / "data", durability, log))
        host, port = _wait_until_ready(processes[-1], log)
        return RunningBroker(
            bootstrap=f"{host}:{port}",
            start_seconds=time.perf_counter() - spawned,
            process=psutil.Process(processes[-1].pid),
            restart=restart,
        )

    def restart(how: signal.Signals) -> RunningBroker:
        _stop(processes[-1], how)
        return start()

    try:
        yield start()
    finally:
        for process in processes[-1:]:
            _stop(process)
        _show_complaints(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _spawn(data: Path, durability: str, log: Path) -> subprocess.Popen[bytes]:
    executable = Path(sys.executable).with_name("onceflow")
    with open(log, "wb") as output:
        return subprocess.Popen(
            [str(executable), "broker", "--listen", "127.0.0.1:0", "--data", str(data), "--durability", durability],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _show_complaints(folder: Path) -> None:
    """What the broker logged but for that it is ready: a number beside an error is worth little."""
    for log in sorted(folder.glob("broker-*.log")):
        said = [line for line in log.read_text(errors="replace").splitlines() if line and not READY.search(line)]
        if said:
            print("Onceflow's log ends with:", *said[-LOG_LINES_SHOWN:], sep="\n  ", file=sys.stderr)


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> tuple[str, int]:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        ready = READY.search(log.read_text(errors="replace"))
        if ready and _answers(ready[1], int(ready[2])):
            return ready[1], int(ready[2])
        if process.poll() is not None:
            break
        time.sleep(0.002)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    raise StartError(f"`onceflow broker` did not start (exit code {process.poll()}):\n{tail}")


def _answers(host: str, port: int) -> bool:
    """Does Metadata name a broker? The same question that `ApacheKafka` asks."""
    try:
        with (
            socket.create_connection((host, port), timeout=5) as connection,
            connection.makefile("rb") as answer,
        ):
            connection.sendall(METADATA_REQUEST)
            frame = answer.read(12)
    except OSError:
        return False
    return len(frame) == 12 and struct.unpack(">iii", frame)[2] > 0


def _stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        # Its own session, so its group holds the broker's children and nobody else.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cpu(process: psutil.Process) -> float:
    """User and system time by the process's own clock, which counts in nanoseconds.

    /proc, and so psutil, counts in hundredths of a second; a short case takes our broker two or three of those.
    """
    with suppress(OSError):
        return time.clock_gettime(~process.pid << 3 | CPUCLOCK_SCHED)  # clock_getcpuclockid(3), which Python lacks
    return 0.0


def _rss(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return process.memory_info().rss
    return 0.0


KAFKA = Flavour("kafka", "Apache Kafka", _apache_kafka)
ONCEFLOW = Flavour("onceflow", "Onceflow", lambda: _onceflow("os"))
ONCEFLOW_FSYNC = Flavour("onceflow-fsync", "Onceflow, fsync", lambda: _onceflow("fsync"))
FLAVOURS = {flavour.name: flavour for flavour in (KAFKA, ONCEFLOW, ONCEFLOW_FSYNC)}
