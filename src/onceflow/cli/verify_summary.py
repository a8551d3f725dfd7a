"""The end of `onceflow verify`: a small table, the verdict, and where the report is."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow.cli.common import counted
from onceflow.cli.output import new_table, print_table, say, say_lines

if TYPE_CHECKING:
    from onceflow.verify.history import History
    from onceflow.verify.verdict import Verdict

__all__ = ["print_ascii_json", "print_findings", "print_summary", "print_verdict", "verdict_line"]

PROBLEMS_MAX = 5


def print_summary(verdict: Verdict, history: History, page: Path, command: str) -> None:
    say(f"{verdict.workload}, seed {verdict.seed}, on {verdict.brokers}, {verdict.seconds:.0f} s")
    say()
    _print_counts(history)
    say()
    print_findings(verdict)
    print_verdict(verdict_line(verdict), is_clean=verdict.is_clean)
    say(f"report  {page}")
    say(f"again   {command}")


def verdict_line(verdict: Verdict) -> str:
    under = f"under {counted(len(verdict.faults), 'fault')}"
    if verdict.anomalies:
        names = ", ".join(f"{name} ({number})" for name, number in Counter(e.name for e in verdict.anomalies).items())
        return f"ANOMALIES {under}: {names}"
    if verdict.problems:
        return f"NOT PROVEN: no anomaly was found {under}, but the run did not come to its end"
    return f"CLEAN: nothing that exactly-once forbids was found {under}"


def print_ascii_json(value: Any) -> None:
    """A record's text may be what no terminal's encoding can write."""
    import json

    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_verdict(line: str, *, is_clean: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(line, style="bold green" if is_clean else "bold red"))


def print_findings(verdict: Verdict) -> None:
    """One of each kind, in full; the report has all."""
    kinds = {each.name: each for each in reversed(verdict.anomalies)}
    firsts = [each for each in verdict.anomalies if kinds[each.name] is each]
    found = [f"{each.name}: {each.sentence}" for each in firsts] + list(verdict.problems[:PROBLEMS_MAX])
    for sentence in found:
        say_lines(f"- {sentence}")
    if more := len(verdict.anomalies) + len(verdict.problems) - len(found):
        say(f"- and {more:,} more, in the report")
    if found:
        say()


def _print_counts(history: History) -> None:
    from onceflow.verify.history import Outcome

    operations = [each for each in history.operations if each.f != "fault"]
    counts = Counter((each.f, each.outcome) for each in operations)
    table = new_table("operation", **{outcome.value: "right" for outcome in Outcome})
    for kind in sorted({each.f for each in operations}):
        table.add_row(kind, *(f"{counts[kind, outcome]:,}" for outcome in Outcome))
    print_table(table)
