"""The long proof: every workload under hundreds of faults, on our broker, on Apache Kafka, and on three Apache Kafkas.

    make verify                                        all of it (about three hours on two cores)
    python -m tests.verify.long_run --brokers three --workload copy --faults 50 --seed 7

Each run writes its report to a folder of its own; the table at the end says what was found. The exit code is 0 only if
nothing was.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from onceflow.pipelines.reference import REFERENCES
from onceflow.verify import report, simulation
from onceflow.verify.brokers import SOON, Brokers, EmbeddedBrokers
from onceflow.verify.display import display_for
from onceflow.verify.runner import RunSettings, run
from onceflow.verify.verdict import Verdict
from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_cluster import ThreeBrokers
from tests.support.verified_kafka import KafkaBrokers, KafkaClusterBrokers

REPORTS = Path("onceflow-verify")
SIMULATIONS = 100_000
PIECE = 100
"""Faults per run: a history that can still be looked at, and many seeds."""


class Part(NamedTuple):
    brokers: str
    workload: str
    faults: int


PARTS = (
    Part("onceflow", "producers", 400),
    Part("onceflow", "copy", 400),
    Part("onceflow", "spark", 200),
    Part("kafka", "producers", 70),
    Part("kafka", "copy", 70),
    Part("kafka", "spark", 30),
    Part("three", "producers", 60),
    Part("three", "copy", 50),
    Part("three", "spark", 20),
    *(Part(brokers, pipeline, 20) for pipeline in REFERENCES for brokers in ("onceflow", "kafka")),
)
RECORDS = 200_000
"""Of input, for the pipelines."""


def brokers_for(name: str, folder: Path, stack: ExitStack) -> Brokers:
    if name == "onceflow":
        return EmbeddedBrokers(folder / "broker")
    if name == "kafka":
        return KafkaBrokers(stack.enter_context(ApacheKafka(SOON)))
    return KafkaClusterBrokers(stack.enter_context(ThreeBrokers(dict(SOON))))


def pieces(part: Part) -> Iterator[int]:
    left = part.faults
    while left > 0:
        yield min(PIECE, left)
        left -= PIECE


def one_run(part: Part, faults: int, seed: int, console: Console) -> Verdict:
    folder = REPORTS / f"{part.brokers}-{part.workload}-{seed}"
    folder.mkdir(parents=True)
    console.print(f"\n[bold]{part.brokers} / {part.workload}[/bold], {faults} faults, seed {seed}")
    with ExitStack() as stack:
        brokers = brokers_for(part.brokers, folder, stack)
        options = {"records": str(RECORDS), "faults": str(faults)} if part.workload in REFERENCES else {}
        settings = RunSettings(
            workload=part.workload, seed=seed, faults=faults, folder=folder, brokers=brokers, options=options
        )
        display = stack.enter_context(display_for(is_silent=False, title=f"{part.brokers} / {part.workload}"))
        verdict, history = run(settings, display)
        page = report.write(folder, verdict, history)
    colour, word = ("green", "clean") if verdict.is_clean else ("red", "NOT CLEAN")
    console.print(f"[{colour}]{word}[/{colour}] after {verdict.seconds:.0f} s: {page}")
    return verdict


def simulate(runs: int, seed: int, console: Console) -> int:
    """How many of the runs failed."""
    began = time.monotonic()
    results = simulation.run_many(range(seed, seed + runs), processes=os.cpu_count() or 1)
    minutes = (time.monotonic() - began) / 60
    console.print(f"{runs:,} simulated runs in {minutes:.1f} min: {len(results.failures)} failed")
    for failure in results.failures:
        console.print(f"  onceflow verify simulation --replay --seed {failure.seed}")
    return len(results.failures)


def summary(verdicts: Sequence[tuple[Part, Verdict]]) -> Table:
    table = Table("brokers", "workload", "seed", "faults", "commits ok", "committed", "found", show_edge=False)
    for part, verdict in verdicts:
        names = sorted({each.name for each in verdict.anomalies}) + list(verdict.problems)
        counts = verdict.counts
        found = ", ".join(names) or "nothing"
        numbers = (verdict.seed, len(verdict.faults), counts.get("commit ok", 0), counts.get("records committed", 0))
        table.add_row(part.brokers, part.workload, *(f"{number:,}" for number in numbers), found)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", choices=("onceflow", "kafka", "three"), help="only these (default: all)")
    workloads = sorted({part.workload for part in PARTS})
    parser.add_argument("--workload", choices=workloads, help="only this one (default: all)")
    parser.add_argument("--faults", type=int, help="so many for each part (default: as listed here)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the first run")
    parser.add_argument("--simulations", type=int, default=SIMULATIONS, help="simulated runs (default: %(default)s)")
    args = parser.parse_args()
    console = Console(highlight=False)
    chosen = [
        part._replace(faults=args.faults or part.faults)
        for part in PARTS
        if args.brokers in (None, part.brokers) and args.workload in (None, part.workload)
    ]
    verdicts: list[tuple[Part, Verdict]] = []
    seed = args.seed
    for part in chosen:
        for faults in pieces(part):
            verdicts.append((part, one_run(part, faults, seed, console)))
            seed += 1
    failed = simulate(args.simulations, seed, console) if args.simulations else 0
    console.print()
    console.print(summary(verdicts))
    return int(failed > 0 or any(not verdict.is_clean for _, verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
