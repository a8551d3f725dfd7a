"""How `onceflow alerts` shows what it found. Names from the cluster are printed with what a terminal would act on made
visible: a transactional id may hold anything."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from onceflow.cli.alerts_look import Look
from onceflow.cli.common import counted
from onceflow.cli.durations import in_words, moment
from onceflow.cli.output import new_table, print_json, print_json_line, print_table, say
from onceflow.monitor.rules import RULES, Alert, Rule, Thresholds
from onceflow.monitor.rules_thresholds import promql_duration
from onceflow.printable import printable

__all__ = ["print_event", "print_look", "print_rules"]

WIDTH_MAX = 110


def print_look(look: Look, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(look))
        return
    firing = [each for each in look.alerts if each.firing]
    for each in firing:
        for line in _paragraph(each, look.at_ms):
            say(line)
        say()
    for each in look.alerts:
        if not each.firing:
            say(f"pending  {_headline(each)}, since {_ago(each, look.at_ms)}: {each.summary}")
    say(f"{counted(len(firing), 'alert')} {'fires' if len(firing) == 1 else 'fire'}." if firing else "Nothing fires.")
    for line in _caveats(look):
        say(line, err=True)


def _caveats(look: Look) -> Iterator[str]:
    """What the answer does not cover: nobody should take silence for health."""
    if look.undecided:
        names = ", ".join(f"{name} ({in_words(ms)})" for name, ms in look.undecided)
        yield f"Looked for {in_words(look.looked_ms or 0)}. Not long enough to be sure: {names}. See --for and --watch."
    if look.unknown:
        yield f"Not checked, since it cannot be seen from there: {', '.join(look.unknown)}."
    for note in look.notes:
        yield f"Note: {note}"


def _headline(alert: Alert) -> str:
    return f"{alert.rule}  {alert.subject}".rstrip()


def _ago(alert: Alert, at_ms: int) -> str:
    return f"{moment(alert.since_ms)} ({in_words(max(0, at_ms - alert.since_ms))})"


def _paragraph(alert: Alert, at_ms: int) -> Iterator[str]:
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns)
    yield f"{alert.severity.upper()}  {_headline(alert)}"
    parts = {"seen": alert.summary, "since": _ago(alert, at_ms), "means": alert.meaning, "do": alert.action}
    for name, text in parts.items():
        yield from textwrap.wrap(
            printable(text),
            width,
            initial_indent=f"  {name:<7}",
            subsequent_indent=" " * 9,
            break_on_hyphens=False,
            break_long_words=False,
        )


def _as_json(look: Look) -> dict[str, Any]:
    return {
        "at_ms": look.at_ms,
        "alerts": [asdict(each) for each in look.alerts],
        "unknown": list(look.unknown),
        "undecided": [{"rule": name, "needs_ms": ms} for name, ms in look.undecided],
        "looked_ms": look.looked_ms,
        "notes": list(look.notes),
    }


def print_event(at_ms: int, what: str, alert: Alert, *, as_json: bool) -> None:
    """One line, at once: somebody may be waiting for it behind a pipe."""
    if as_json:
        print_json_line({"at_ms": at_ms, "event": what, **asdict(alert)})
        return
    say(f"{moment(at_ms)}  {what:<6}  {alert.severity}  {_headline(alert)}: {alert.summary}", flush=True)


def print_rules(thresholds: Thresholds, *, as_json: bool) -> int:
    if as_json:
        figures = {each.name: getattr(thresholds, each.name) for each in fields(thresholds)}
        return print_json({"thresholds": figures, "rules": [_rule(each, thresholds) for each in RULES]})
    for each in RULES:
        say(f"{each.name}  {each.severity}" + (", in Prometheus only" if each.condition is None else ""))
        say(f"  {each.when % thresholds.in_promql()}")
    say()
    figures_table = new_table("threshold", value="right")
    for one in fields(thresholds):
        value = getattr(thresholds, one.name)
        figures_table.add_row(one.name, in_words(value) if one.name.endswith("_ms") else f"{value:,}")
    print_table(figures_table)
    return 0


def _rule(rule: Rule, thresholds: Thresholds) -> dict[str, Any]:
    return {
        "name": rule.name,
        "severity": rule.severity,
        "when": rule.when % thresholds.in_promql(),
        "expression": rule.expression % thresholds.in_promql(),
        "for": promql_duration(getattr(thresholds, rule.for_ms)) if rule.for_ms else "",
        "meaning": rule.meaning,
        "action": rule.action,
        "runbook": rule.runbook,
        "only_prometheus": rule.condition is None,
    }
