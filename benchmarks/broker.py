"""Measure both brokers, print the table, and write it with the raw numbers and a plot into a folder."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.bench import Bench
from benchmarks.brokers import KAFKA, ONCEFLOW
from benchmarks.environment import OtherLoad, cautions, environment
from benchmarks.measures import MEASURES
from benchmarks.plan import FULL, QUICK
from benchmarks.plot import save_plot
from benchmarks.report import as_json, as_markdown, print_table

PIPED_WIDTH = 200  # of the table when it goes to a file: nobody there to fold it for


def main() -> int:
    arguments = _arguments()
    # Ended by `kill` or `timeout`, the brokers have to end too: unwind instead of dying on the spot.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds:
        plan = replace(plan, rounds=arguments.rounds)
    if arguments.partitions:
        plan = replace(plan, partitions=arguments.partitions)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    facts = environment(plan)
    for name, fact in facts.items():
        console.print(f"{name:>20}: {fact}", highlight=False)

    measures = [measure for name, measure in MEASURES.items() if name in arguments.only]
    others = OtherLoad()
    results = Bench(plan, console).run(measures, arguments.brokers)

    other_cores = others.cores()
    facts["busy with something else meanwhile"] = f"{other_cores:.2f} cores"
    print_table(results, console)
    for number, caution in enumerate(cautions(quick=arguments.quick, other_cores=other_cores), 1):
        facts[f"caution {number}"] = caution
        console.print(f"[yellow]Caution:[/] {caution}.", highlight=False)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.json").write_text(as_json(results, facts, plan))
    (arguments.out / "results.md").write_text(as_markdown(results, facts))
    save_plot(results, arguments.out / "results.png")
    console.print(f"Written to {arguments.out}: results.json, results.md, results.png")
    for failure in results.failures:
        console.print(f"[red]Not measured:[/] {escape(failure)}", highlight=False)
    # A missed target is a result; only what could not be measured is an error.
    return 1 if results.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about two minutes, one round: a smoke test, not evidence")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=MEASURES,
        default=list(MEASURES),
        metavar="NAME",
        help=", ".join(MEASURES),
    )
    parser.add_argument(
        "--brokers", nargs="+", choices=[KAFKA.name, ONCEFLOW.name], default=[KAFKA.name, ONCEFLOW.name]
    )
    parser.add_argument("--rounds", type=int, help="instead of the plan's (3, quick 1)")
    parser.add_argument("--partitions", type=int, help="of the topics, instead of the plan's 4")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="a folder")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
