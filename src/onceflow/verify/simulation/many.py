"""Thousands of runs, and one of them again.

    found = run_many(range(100_000), processes=2, on_progress=show)
    print(replay(found.failures[0].seed).trace)

A run says the same wherever it is made, so the processes share nothing but the seeds.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final, NamedTuple

from onceflow.verify.simulation.running import SimulationResult, simulate

__all__ = ["Failure", "Progress", "Simulations", "replay", "run_many"]

CHUNK: Final = 25
"""Runs that a process is given at a time: about a second of work."""


class Failure(NamedTuple):
    """A run that was not clean. `replay` makes it again."""

    seed: int
    anomalies: Sequence[str]
    """Names and sentences."""
    problems: Sequence[str]


class Progress(NamedTuple):
    runs: int
    faults: int
    failures: int
    seconds: float


@dataclass
class Simulations:
    """What came of many runs."""

    runs: int = 0
    faults: int = 0
    operations: int = 0
    seconds: float = 0.0
    """Of real time."""
    failures: list[Failure] = field(default_factory=list)
    """In the order of their seeds."""

    @property
    def is_clean(self) -> bool:
        return self.runs > 0 and not self.failures

    @property
    def runs_per_minute(self) -> float:
        return self.runs / self.seconds * 60 if self.seconds else 0.0


class _Part(NamedTuple):
    runs: int
    faults: int
    operations: int
    failures: list[Failure]


def replay(seed: int) -> SimulationResult:
    """One run again, with the trace of everything that happened in it."""
    return simulate(seed, is_traced=True)


def run_many(
    seeds: Iterable[int], *, processes: int = 1, on_progress: Callable[[Progress], None] | None = None
) -> Simulations:
    """Simulate each of the seeds. `on_progress` is called about once a second, and at the end."""
    found = Simulations()
    began = time.monotonic()
    for part in _parts(seeds, processes):
        found.runs += part.runs
        found.faults += part.faults
        found.operations += part.operations
        found.failures += part.failures
        found.seconds = time.monotonic() - began
        if on_progress is not None:
            on_progress(Progress(found.runs, found.faults, len(found.failures), found.seconds))
    found.failures.sort()
    return found


def _parts(seeds: Iterable[int], processes: int) -> Iterator[_Part]:
    chunks = _chunks(seeds)
    if processes == 1:
        yield from map(_simulate_all, chunks)
        return
    # A fresh interpreter for each: whoever calls this may have threads, which a fork would not survive.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_leave_interrupts) as pool:
        running = {pool.submit(_simulate_all, chunk) for chunk in itertools.islice(chunks, 2 * processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()
                running |= {pool.submit(_simulate_all, chunk) for chunk in itertools.islice(chunks, 1)}


def _leave_interrupts() -> None:
    """Ctrl-C is for whoever waits for us, and who then tells us to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    left = iter(seeds)
    while chunk := list(itertools.islice(left, CHUNK)):
        yield chunk


def _simulate_all(seeds: Sequence[int]) -> _Part:
    results = [_summary(simulate(seed)) for seed in seeds]
    failures = [failure for _, _, failure in results if failure is not None]
    return _Part(len(results), sum(each[0] for each in results), sum(each[1] for each in results), failures)


def _summary(result: SimulationResult) -> tuple[int, int, Failure | None]:
    failure = None
    if not result.is_clean:
        anomalies = [f"{each.name}: {each.sentence}" for each in result.anomalies]
        failure = Failure(result.seed, anomalies, list(result.problems))
    return len(result.faults), len(result.history.operations), failure
