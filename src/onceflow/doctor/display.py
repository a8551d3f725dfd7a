"""A report for people: what is wrong first, with the reason and the fix; what is well is counted."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Final

from onceflow.doctor.findings import Line, Report, Verdict
from onceflow.printable import printable

__all__ = ["print_report", "summary", "text_lines"]

WORDS: Final = {
    Verdict.FAULT: "FAULT",
    Verdict.WARNING: "WARNING",
    Verdict.UNKNOWN: "UNKNOWN",
    Verdict.NOTE: "note",
    Verdict.OK: "ok",
}
COLORS: Final = {
    Verdict.FAULT: "bold red",
    Verdict.WARNING: "bold yellow",
    Verdict.UNKNOWN: "bold magenta",
    Verdict.NOTE: "cyan",
    Verdict.OK: "green",
}
ORDER: Final = tuple(Verdict)
INDENT: Final = 11
WIDTH_MIN: Final = 40


def print_report(report: Report, *, verbose: bool = False, strict: bool = False) -> None:
    from rich.console import Console
    from rich.text import Text

    # A pipe has no width: lines stay whole there, for whoever searches them.
    console = Console(highlight=False, markup=False, soft_wrap=True)
    width = max(console.width, WIDTH_MIN) if sys.stdout.isatty() else sys.maxsize
    for verdict, indent, each in text_lines(report, verbose=verbose, strict=strict):
        text = printable(each)
        if verdict is None:
            blanks = " " * indent
            console.print(textwrap.fill(text, width, initial_indent=blanks, subsequent_indent=blanks))
        else:
            word = f"  {WORDS[verdict]:<{INDENT - 2}}"
            wrapped = textwrap.fill(text, width, initial_indent=word, subsequent_indent=" " * INDENT)
            line = Text(wrapped, style="bold")
            line.stylize(COLORS[verdict], 0, INDENT)
            console.print(line)


def text_lines(report: Report, *, verbose: bool, strict: bool) -> Iterator[tuple[Verdict | None, int, str]]:
    """What is shown, in order: the verdict if a line begins with one, the indentation, the text."""
    for subject in report.subjects:
        lines = [line for line in report.lines if line.subject == subject]
        yield None, 0, subject
        folded = () if verbose else (Verdict.UNKNOWN, Verdict.OK)
        shown = [line for line in lines if line.verdict not in folded]
        for line in sorted(shown, key=lambda each: ORDER.index(each.verdict)):
            yield line.verdict, 2, line.title + (f": {line.found}" if line.found else "")
            if line.verdict is not Verdict.OK:
                yield from _details(line)
        if not verbose:
            yield from _folded(lines)
        yield None, 0, ""
    yield None, 0, summary(report, strict=strict)


def _folded(lines: list[Line]) -> Iterator[tuple[Verdict | None, int, str]]:
    """What could not be looked at, once for each reason, and how much is well."""
    reasons = Counter(line.found for line in lines if line.verdict is Verdict.UNKNOWN)
    for reason, count in reasons.items():
        yield Verdict.UNKNOWN, 2, f"{_checks(count)} {reason}"
    fine = sum(line.verdict is Verdict.OK for line in lines)
    if fine:
        yield Verdict.OK, 2, f"{_checks(fine)} (--verbose names them)"


def _checks(count: int) -> str:
    return f"{count} {'check' if count == 1 else 'checks'}"


def _details(line: Line) -> Iterator[tuple[Verdict | None, int, str]]:
    if line.verdict is not Verdict.UNKNOWN:
        yield None, INDENT, line.why
    if line.fix:
        yield None, INDENT, f"fix: {line.fix}"


def summary(report: Report, *, strict: bool = False) -> str:
    counted = [
        f"{count} {verdict.value}{'' if count == 1 or verdict is Verdict.UNKNOWN else 's'}"
        for verdict in ORDER
        if verdict is not Verdict.OK and (count := report.count(verdict))
    ]
    if not report.is_fit(strict=strict):
        return f"Not fit for exactly-once: {', '.join(counted)}."
    if report.count(Verdict.UNKNOWN):
        return f"Not everything could be looked at: {', '.join(counted)}."
    return f"Fit for exactly-once{': ' if counted else ''}{', '.join(counted)}."
