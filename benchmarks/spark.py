"""Measure Spark jobs side by side: ours exactly once, ours at least once, and Spark's own Kafka source and sink.

Without --triggers and --scale the jobs go through a whole topic; see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from tests.support.kafka_jars import CONNECTOR_VERSION

from benchmarks.brokers import KAFKA, ONCEFLOW
from benchmarks.environment import environment
from benchmarks.plan import FULL, SIZES, SMALL
from benchmarks.spark_jobs.bench import Bench, Plan
from benchmarks.spark_jobs.job import AT_LEAST_ONCE, ENGINES, EXACTLY_ONCE, JOBS, MAP
from benchmarks.spark_jobs.plot import save_plot
from benchmarks.spark_jobs.report import as_json, as_markdown, cautions, print_table
from benchmarks.spark_jobs.results import SCALE, SIDE_BY_SIDE, TRIGGERS, rows

PIPED_WIDTH = 230  # of the table when it goes to a file: nobody there to fold it for
MACHINE_FACTS = (
    *("processor", "memory", "system", "load before the run", "Python", "Java"),
    *("Onceflow", "Apache Kafka"),
)
QUICK = replace(Plan(), records=100_000, sizes=(SMALL,), jobs=(MAP,), rounds=1, per_trigger=25_000)
QUICK_STEADY_SECONDS = 15.0
HUGE = 100_000_000


def main() -> int:
    arguments = parse(sys.argv[1:])
    # Ended by `kill` or `timeout`, the brokers and drivers have to end too: unwind instead of dying on the spot.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    complete = True
    for part in parts_of(arguments):
        complete &= _run(part, arguments, console)
    # A missed target is a result; only what could not be measured is an error.
    return 0 if complete else 1


def _run(part: str, arguments: argparse.Namespace, console: Console) -> bool:
    plan = plan_of(arguments, part)
    facts = _facts(plan)
    for name, fact in facts.items():
        console.print(f"{name:>20}: {fact}", highlight=False)
    bench = Bench(plan, console)
    bench.run([part])
    for number, caution in enumerate(cautions(bench.measurements, quick=arguments.quick), 1):
        facts[f"caution {number}"] = caution
        console.print(f"[yellow]Caution:[/] {caution}.", highlight=False)
    measured = rows(bench.measurements)
    print_table(part, measured, console)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    plan_fields = asdict(plan)
    (out / f"{part}.json").write_text(as_json(part, bench.measurements, facts, plan_fields, bench.failures))
    (out / f"{part}.md").write_text(as_markdown(part, bench.measurements, facts, bench.failures))
    save_plot(part, measured, out / f"{part}.png")
    console.print(f"Written to {out}: {part}.json, {part}.md, {part}.png")
    for failure in bench.failures:
        console.print(f"[red]Not measured:[/] {escape(failure)}", highlight=False)
    return not bench.failures


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="100,000 records of 100 B, map only, one round: no evidence"
    )
    parser.add_argument(
        "--side-by-side", action="store_true", help="whole topics, all engines; the default if no part is named"
    )
    parser.add_argument(
        "--triggers", action="store_true", help="a trigger each second, steady input: what exactly-once costs"
    )
    parser.add_argument("--scale", action="store_true", help="cost per record at 10^5, 10^6 and 10^7 records")
    parser.add_argument("--huge", action="store_true", help="with --scale: 10^8 too (20 GB of disk, an hour)")
    parser.add_argument("--records", type=int, help="of an input topic (2,000,000)")
    parser.add_argument("--sizes", nargs="+", type=int, choices=SIZES, help="of a value, in bytes")
    parser.add_argument("--jobs", nargs="+", choices=JOBS)
    parser.add_argument("--brokers", nargs="+", choices=[KAFKA.name, ONCEFLOW.name])
    parser.add_argument("--engines", nargs="+", choices=ENGINES)
    parser.add_argument("--rounds", type=int, help="instead of 3 (quick 1)")
    parser.add_argument("--per-trigger", type=int, help="maxOffsetsPerTrigger (500,000)")
    parser.add_argument("--seconds", type=float, dest="steady_seconds", help="with --triggers: how long (60)")
    parser.add_argument("--rate", type=int, dest="steady_rate", help="with --triggers: records per second (20,000)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spark"), help="a folder")
    return parser.parse_args(given)


def parts_of(arguments: argparse.Namespace) -> list[str]:
    chosen = {SIDE_BY_SIDE: arguments.side_by_side, TRIGGERS: arguments.triggers, SCALE: arguments.scale}
    return [part for part, is_chosen in chosen.items() if is_chosen] or [SIDE_BY_SIDE]


def plan_of(arguments: argparse.Namespace, part: str) -> Plan:
    """The full plan or the quick one, what is natural for the part, and on top what was asked for."""
    plan = QUICK if arguments.quick else Plan()
    if part == TRIGGERS:
        plan = replace(plan, engines=(EXACTLY_ONCE, AT_LEAST_ONCE), per_trigger=Plan().per_trigger)
        if arguments.quick:
            plan = replace(plan, steady_seconds=QUICK_STEADY_SECONDS)
    if part == SCALE:
        # A micro-batch is as large as the first mark: then each further record brings the same share of one.
        plan = replace(plan, engines=(EXACTLY_ONCE,), rounds=1, per_trigger=plan.marks[0])
        if arguments.quick:
            plan = replace(plan, marks=plan.marks[:2])
        if arguments.huge:
            plan = replace(plan, marks=(*plan.marks, HUGE))
    names = (
        *("records", "sizes", "jobs", "brokers", "engines", "rounds", "per_trigger"),
        *("steady_seconds", "steady_rate"),
    )
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    asked: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return replace(plan, **asked)


def _facts(plan: Plan) -> dict[str, str]:
    machine = environment(FULL)
    return {name: machine[name] for name in MACHINE_FACTS} | {
        "Spark": f"{version('pyspark')}, local[2], defaults but for what `onceflow.spark.session` recommends, "
        f"for all engines; its Kafka connector {CONNECTOR_VERSION}",
        "topics": f"{plan.partitions} partitions, {plan.keys:,} keys, written by Kafka's producer with its defaults",
        "micro-batches": f"{plan.per_trigger:,} records at most, after a warm-up of {plan.warm_up:,} in the same JVM",
        "rounds": f"{plan.rounds}, brokers taking turns, a new driver process for each figure",
    }


if __name__ == "__main__":
    sys.exit(main())
