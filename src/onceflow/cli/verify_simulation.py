"""`onceflow verify simulation`: thousands of simulated runs, or one of them again.

Seeds are counted up from `--seed`. What fails is named by its seed, which is all that is needed to see it again:
`--replay` prints what happened when. The first run that failed, and the one that is replayed, get a report like any
other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceflow.cli.common import counted
from onceflow.cli.output import overwrite, say, say_lines
from onceflow.cli.verify_options import REPORTS, RUNS
from onceflow.cli.verify_summary import (
    print_ascii_json,
    print_findings,
    print_verdict,
    verdict_line,
)

if TYPE_CHECKING:
    from onceflow.verify.simulation import Failure, Progress, SimulationResult, Simulations
    from onceflow.verify.verdict import Verdict

__all__ = ["run_simulation"]

SHOWN_MAX: Final = 10
LINE_EVERY_S: Final = 10.0
BROKERS: Final = "onceflow, simulated"


def run_simulation(args: argparse.Namespace) -> int:
    return _replay(args) if args.replay else _run_many(args)


# Many


def _run_many(args: argparse.Namespace) -> int:
    from onceflow.verify.simulation import run_many

    first, number = args.seed, args.runs or RUNS
    with _Progress(number, is_silent=args.json) as progress:
        found = run_many(range(first, first + number), processes=os.cpu_count() or 1, on_progress=progress.show)
    page = _report(args, found.failures[0].seed) if found.failures else None
    if args.json:
        print_ascii_json(_as_json(found, first, page))
    else:
        _print_result(found, first, page)
    return 0 if found.is_clean else 1


class _Progress(AbstractContextManager["_Progress"]):
    """At a terminal one line that stays in place; elsewhere a line every ten seconds; with --json nothing."""

    def __init__(self, number: int, *, is_silent: bool) -> None:
        self._number = number
        self._is_silent = is_silent
        self._is_live = sys.stderr.isatty()
        self._told = time.monotonic()

    def __exit__(self, *_: object) -> None:
        if self._is_live and not self._is_silent:
            overwrite("", err=True)

    def show(self, progress: Progress) -> None:
        if self._is_silent:
            return
        if not self._is_live and time.monotonic() - self._told < LINE_EVERY_S:
            return
        self._told = time.monotonic()
        pace = progress.runs / max(progress.seconds, 1e-9) * 60
        line = (
            f"{progress.runs:,} of {self._number:,} runs, {counted(progress.faults, 'fault')}, "
            f"{progress.failures:,} failed, {pace:,.0f} a minute"
        )
        if self._is_live:
            overwrite(line, err=True)
        else:
            say(line, err=True, flush=True)


def _print_result(found: Simulations, first: int, page: Path | None) -> None:
    say(
        f"seeds {first} to {first + found.runs - 1}: {counted(found.runs, 'run')}, {counted(found.faults, 'fault')}, "
        f"{counted(found.operations, 'operation')}, {found.runs_per_minute:,.0f} runs a minute"
    )
    for failure in found.failures[:SHOWN_MAX]:
        say_lines(f"- seed {failure.seed}: {_first_of(failure)}")
    if len(found.failures) > SHOWN_MAX:
        say(f"- and {len(found.failures) - SHOWN_MAX:,} more")
    if page is None:
        print_verdict("CLEAN: nothing that exactly-once forbids was found", is_clean=True)
        return
    print_verdict(f"FOUND: {len(found.failures):,} of {counted(found.runs, 'run')} failed", is_clean=False)
    say(f"report  {page} (seed {found.failures[0].seed})")
    say(f"again   {_command(found.failures[0].seed)}")


def _first_of(failure: Failure) -> str:
    said = [*failure.anomalies, *failure.problems]
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return said[0].strip().splitlines()[-1] + more


def _as_json(found: Simulations, first: int, page: Path | None) -> dict[str, Any]:
    return {
        "clean": found.is_clean,
        "workload": "simulation",
        "seed": first,
        "runs": found.runs,
        "faults": found.faults,
        "operations": found.operations,
        "seconds": round(found.seconds, 3),
        "failures": [
            {"seed": each.seed, "anomalies": list(each.anomalies), "problems": list(each.problems)}
            for each in found.failures
        ],
        "report": None if page is None else str(page),
    }


# One


def _replay(args: argparse.Namespace) -> int:
    from onceflow.verify.simulation import replay

    result = replay(args.seed)
    verdict = _verdict(result)
    page = _write(args, result, verdict)
    if args.json:
        print_ascii_json({**verdict.to_json(), "trace": list(result.trace), "report": str(page)})
        return 0 if verdict.is_clean else 1
    for line in result.trace:
        say_lines(line)
    say()
    print_findings(verdict)
    print_verdict(verdict_line(verdict), is_clean=verdict.is_clean)
    say(f"report  {page}")
    return 0 if verdict.is_clean else 1


def _report(args: argparse.Namespace, seed: int) -> Path:
    from onceflow.verify.simulation import replay

    result = replay(seed)
    return _write(args, result, _verdict(result))


def _verdict(result: SimulationResult) -> Verdict:
    from onceflow.verify.verdict import Verdict

    return Verdict(
        workload="simulation",
        seed=result.seed,
        brokers=BROKERS,
        seconds=result.seconds,
        anomalies=result.anomalies,
        problems=result.problems,
        faults=result.faults,
    )


def _write(args: argparse.Namespace, result: SimulationResult, verdict: Verdict) -> Path:
    """Over what is there: the same seed gives the same."""
    from onceflow.verify import report

    folder = args.report or REPORTS / f"simulation-{result.seed}"
    return report.write(folder, verdict, result.history, command=_command(result.seed))


def _command(seed: int) -> str:
    return f"onceflow verify simulation --seed {seed} --replay"
