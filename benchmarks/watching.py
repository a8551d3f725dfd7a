"""What watching costs the broker: `python -m benchmarks.watching`.

Three brokers take turns, round after round, each on new data, under the same load from one connection: many small
produce requests (five in flight), then as many fetches. With 1 KB each, where counting costs most, or with `--bytes`
as much as producers usually send at once: 16384, as Kafka's own does.

    before   the source of a commit before the broker counted anything
    off      the source as it is, without --http: it counts, and nobody looks
    on       the same with --http; the page's state and the metrics are asked for each second

The main figure is CPU time of the broker's process per request, all of its threads: unlike the rate it hardly depends
on what else the machine does. What is compared is the median of the ratios within each round; where the machine is busy
the lowest figure of all rounds tells more. Under `--durability os`,
where a request costs the broker least and counting therefore most.

`before` is, unless told, the commit before `monitor/rates.py` was there. Whatever else changed since is in the ratio;
`--before FOLDER` compares with any other source.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table
from tests.support.raw import Wire, batch, fetch_request, produce_request

from onceflow.broker.embedded import READY
from onceflow.wire.messages.fetch import FetchRequest
from onceflow.wire.messages.produce import ProduceRequest

ROOT: Final = Path(__file__).resolve().parents[1]
VARIANTS: Final = ("before", "off", "on")
CPUCLOCK_SCHED: Final = 2  # of Linux: the clock that counts what the scheduler gave to all threads of a process
IN_FLIGHT: Final = 5
PRODUCE_VERSION, FETCH_VERSION = 12, 12
FETCH_BYTES: Final = 4096
WARM_UP: Final = 500


@dataclass(frozen=True, slots=True)
class Figure:
    """One kind of request, in one round."""

    cpu_us: float
    """CPU time of the broker per request."""
    per_second: float


def source_of(commit: str, folder: Path) -> Path:
    """The source as of a commit, unpacked (git is only read); or what is in a folder."""
    if Path(commit).is_dir():
        return Path(commit).resolve()
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def commit_before() -> str:
    """The commit before the one that brought counting; the last one, if that is not committed."""
    command = ["git", "log", "--diff-filter=A", "--format=%H", "--", "src/onceflow/monitor/rates.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return f"{found[-1]}^" if found else "HEAD"


@contextmanager
def running(source: Path, *, http: bool) -> Iterator[tuple[int, str, str | None]]:
    """A broker of that source: its process id, its address, and the URL of its page."""
    with tempfile.TemporaryDirectory(prefix="onceflow-watching-") as data:
        command = [sys.executable, "-m", "onceflow", "broker", "--listen", "127.0.0.1:0", "--data", data]
        command += ["--durability", "os", "--stop-with-stdin", *(["--http", "127.0.0.1:0"] if http else [])]
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line.startswith(READY):
                raise RuntimeError(f"The broker of {source} did not start: {line!r}")
            url = process.stdout.readline().rpartition(" ")[2].strip() if http else None
            yield process.pid, line.removeprefix(READY).strip(), url
        finally:
            process.stdin.close()
            process.wait(20)
            process.stdout.close()


@contextmanager
def looked_at(url: str | None) -> Iterator[None]:
    """Meanwhile somebody has the page open, and Prometheus scrapes each second."""
    if url is None:
        yield
        return
    over = threading.Event()
    failures: list[Exception] = []

    def look() -> None:
        while True:
            try:
                for path in ("/state.json", "/metrics"):
                    urllib.request.urlopen(url + path, timeout=10).read()
            except OSError as error:
                failures.append(error)
            if over.wait(1.0):
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    if failures:
        raise RuntimeError(f"The page was asked in vain: {failures[0]}")


def cpu_seconds(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def ask_many(wire: Wire, request: ProduceRequest | FetchRequest, version: int, count: int) -> None:
    for number in range(count + IN_FLIGHT):
        if number < count:
            wire.send(request, version)
        if number >= IN_FLIGHT:
            wire.read_frame()


def measured(pid: int, wire: Wire, request: ProduceRequest | FetchRequest, version: int, count: int) -> Figure:
    ask_many(wire, request, version, WARM_UP)
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    ask_many(wire, request, version, count)
    seconds, used = time.perf_counter() - began, cpu_seconds(pid) - cpu
    return Figure(used / count * 1e6, count / seconds)


def one_round(source: Path, *, http: bool, count: int, size: int) -> dict[str, Figure]:
    with running(source, http=http) as (pid, address, url), Wire(address) as wire, looked_at(url):
        wire.create_topic("t")
        write = produce_request("t", batch("x" * size))
        read = fetch_request("t", 0, max_wait_ms=0, partition_max_bytes=max(FETCH_BYTES, size))
        return {
            "produce": measured(pid, wire, write, PRODUCE_VERSION, count),
            "fetch": measured(pid, wire, read, FETCH_VERSION, count),
        }


def show(taken: dict[str, list[dict[str, Figure]]], console: Console) -> None:
    table = Table("request", "broker", "CPU µs/request", "lowest", "requests/s", "CPU against before", "against off")
    for kind, name in itertools.product(("produce", "fetch"), VARIANTS):
        figures = [each[kind] for each in taken[name]]
        against = [
            median(mine.cpu_us / other[kind].cpu_us for mine, other in zip(figures, taken[base], strict=True))
            for base in ("before", "off")
        ]
        cpu_us, per_second = median(each.cpu_us for each in figures), median(each.per_second for each in figures)
        lowest = min(each.cpu_us for each in figures)
        ratios = (f"{ratio - 1:+.1%}" for ratio in against)
        table.add_row(kind, name, f"{cpu_us:.1f}", f"{lowest:.1f}", f"{per_second:,.0f}", *ratios)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=20_000, help="of each kind, per broker and round")
    parser.add_argument("--bytes", type=int, default=1024, help="of a batch")
    parser.add_argument("--before", help="a commit, or a folder that holds onceflow/")
    arguments = parser.parse_args()
    console = Console()
    commit = arguments.before or commit_before()
    taken: dict[str, list[dict[str, Figure]]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="onceflow-before-") as folder:
        sources = dict.fromkeys(VARIANTS, ROOT / "src") | {"before": source_of(commit, Path(folder))}
        for number in range(arguments.rounds):
            # Another one begins each time: whatever drifts, drifts for all.
            for name in (VARIANTS * 2)[number % 3 : number % 3 + 3]:
                taken[name].append(
                    one_round(sources[name], http=name == "on", count=arguments.requests, size=arguments.bytes)
                )
            console.print(f"round {number + 1} of {arguments.rounds}", style="dim")
    show(taken, console)
    asked = f"{arguments.requests:,} requests of {arguments.bytes:,} bytes, of each kind"
    console.print(f"before: {commit}; {asked}; {arguments.rounds} rounds, medians")


if __name__ == "__main__":
    main()
