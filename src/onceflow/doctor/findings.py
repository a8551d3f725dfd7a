"""What the doctor says: a line per thing that was looked at, each with a verdict.

    fault     exactly-once does not hold, or the client does not even start
    warning   it holds until something else goes wrong: a machine is lost, a process hangs, somebody forgets
    unknown   it could not be looked at
    note      nothing to mend, but good to know
    ok        as it should be

A line shows values of settings that decide about exactly-once, never of others: passwords are among those.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding", "Line", "Report", "Verdict", "fault", "note", "some", "warning"]

NAMES_MAX = 5


class Verdict(enum.StrEnum):
    FAULT = "fault"
    WARNING = "warning"
    UNKNOWN = "unknown"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True)
class Finding:
    """What a check came upon."""

    verdict: Verdict
    found: str
    fix: str = ""


def fault(found: str, fix: str) -> Finding:
    return Finding(Verdict.FAULT, found, fix)


def warning(found: str, fix: str) -> Finding:
    return Finding(Verdict.WARNING, found, fix)


def note(found: str, fix: str = "") -> Finding:
    return Finding(Verdict.NOTE, found, fix)


def some(names: Iterable[str]) -> str:
    """The first few of them, and how many more there are."""
    listed = sorted(names)
    more = len(listed) - NAMES_MAX
    return ", ".join(listed[:NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check, of one cluster, file or job, and one thing that it found."""

    verdict: Verdict
    check: str
    """Its id, such as `topics.min-insync`."""
    subject: str
    """What was looked at: an address, a file."""
    title: str
    found: str
    why: str
    """Why it matters, in one sentence."""
    fix: str
    """A command, or the line to put into the file."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All lines, in the order of subjects and checks."""

    lines: tuple[Line, ...]

    def count(self, verdict: Verdict) -> int:
        return Counter(line.verdict for line in self.lines)[verdict]

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(line.subject for line in self.lines))

    def is_fit(self, *, strict: bool = False) -> bool:
        """No faults; if strict, no warnings either."""
        return not self.count(Verdict.FAULT) and not (strict and self.count(Verdict.WARNING))

    def as_json(self, *, strict: bool = False) -> dict[str, Any]:
        return {
            "fit": self.is_fit(strict=strict),
            "counts": {verdict.value: self.count(verdict) for verdict in Verdict},
            "lines": [asdict(line) | {"verdict": line.verdict.value} for line in self.lines],
        }
