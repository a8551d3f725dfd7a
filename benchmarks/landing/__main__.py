"""Measure landing: SqlSink beside Spark's own JDBC writer and a bare COPY, on one PostgreSQL; SQLite for information.

A missed target is a result; the exit code is 1 only when something could not be measured. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.support.postgresql_binaries import JDBC_VERSION, POSTGRESQL_VERSION

from benchmarks.environment import environment
from benchmarks.landing.bench import HEAP, MASTER, SERVER, TASKS, Bench, Plan
from benchmarks.landing.plot import save_plot
from benchmarks.landing.report import as_json, as_markdown, cautions, print_tables
from benchmarks.landing.results import WAYS, rows, stream_rows
from benchmarks.plan import FULL

RESULTS = Path("benchmarks/results/landing")
PIPED_WIDTH = 170  # of the table when it goes to a file: nobody there to fold it for
MACHINE_FACTS = ("processor", "memory", "system", "load before the run", "Python", "Java")
QUICK = Plan(rows=100_000, rounds=1, warm_up=30_000, streams=((10_000, 5),))


def main() -> int:
    arguments = parse(sys.argv[1:])
    # Ended by `kill` or `timeout`, the server and the JVM have to end too: unwind instead of dying on the spot.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    plan = plan_of(arguments)
    facts = _facts(plan)
    for name, fact in facts.items():
        console.print(f"{name:>20}: {fact}", highlight=False)
    bench = Bench(plan, console)
    bench.run()
    for number, caution in enumerate(cautions(bench.measurements, quick=arguments.quick), 1):
        facts[f"caution {number}"] = caution
        console.print(f"[yellow]Caution:[/] {caution}.", highlight=False)
    print_tables(bench.measurements, bench.batches, console)
    _save(bench, facts, arguments.out)
    console.print(f"Written to {arguments.out}: results.json, results.md, results.png")
    return 1 if bench.failures else 0


def _save(bench: Bench, facts: dict[str, str], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    taken = (bench.measurements, bench.batches, facts)
    (out / "results.json").write_text(as_json(*taken, asdict(bench.plan), bench.failures))
    (out / "results.md").write_text(as_markdown(*taken, bench.failures))
    save_plot(rows(bench.measurements), stream_rows(bench.batches), out / "results.png")


def parse(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100,000 rows, one round, a minute or so: no evidence")
    parser.add_argument("--rows", type=int, help="of the DataFrame (1,000,000)")
    parser.add_argument("--rounds", type=int, help="instead of 3 (quick 1)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="to land a DataFrame (default: all)")
    parser.add_argument("--no-streams", action="store_true", help="leave out the streaming queries")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder")
    return parser.parse_args(given)


def plan_of(arguments: argparse.Namespace) -> Plan:
    plan = QUICK if arguments.quick else Plan()
    asked: dict[str, Any] = {
        name: value for name in ("rows", "rounds", "ways") if (value := getattr(arguments, name)) is not None
    }
    if arguments.no_streams:
        asked["streams"] = ()
    return replace(plan, **asked)


def _facts(plan: Plan) -> dict[str, str]:
    machine = environment(FULL)
    settings = ", ".join(f"{name}={value}" for name, value in SERVER.items())
    return {name: machine[name] for name in MACHINE_FACTS} | {
        "Onceflow": machine["Onceflow"].split(", uvloop")[0],
        "PostgreSQL": f"{POSTGRESQL_VERSION}, {settings}, else its defaults; over TCP on this machine",
        "Spark": f"{version('pyspark')}, {MASTER}, heap {HEAP}, with what `onceflow.spark.session` recommends",
        "JDBC": f"driver {JDBC_VERSION}; defaults: batchsize 1000; tuned: batchsize 10000, reWriteBatchedInserts",
        "bare COPY": f"psycopg {version('psycopg')}, FORMAT csv, ready in memory; one transaction per connection",
        "SQLite": f"{sqlite3.sqlite_version}, WAL, synchronous=FULL",
        "rows": f"{plan.rows:,} of 7 columns (115 B of CSV each), in memory, {TASKS} tasks; a new table for each",
        "rounds": f"{plan.rounds}, all ways in each, after a warm-up of {plan.warm_up:,} rows",
    }


if __name__ == "__main__":
    sys.exit(main())
