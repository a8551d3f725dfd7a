"""The results, for people (a table in the terminal, the same in Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.plan import Plan
from benchmarks.results import Case, Comparison, Results, cpu
from benchmarks.targets import OwnTarget

HEADINGS = ("", "Apache Kafka", "Onceflow", "ratio", "target", "CPU Kafka", "CPU Onceflow", "ratio", "target")
NOTE = (
    "Ratios are ours over Kafka's, by medians; their range over the rounds is in brackets. "
    "CPU is broker seconds per million records, of commits per million transactions. "
    "MB are 10^6 bytes of record values."
)


def cells(results: Results) -> Iterator[tuple[str, ...]]:
    """One tuple of texts for each case, under HEADINGS."""
    for case, rate, cpu_time in results.rows():
        yield (
            case.title,
            _amount(case, rate.kafka),
            _amount(case, rate.ours),
            _ratio(rate),
            _target(rate),
            _number(cpu_time.kafka),
            _number(cpu_time.ours),
            _ratio(cpu_time),
            _target(cpu_time),
        )


def print_table(results: Results, console: Console) -> None:
    table = Table(title="Onceflow beside Apache Kafka")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left")
    for row in cells(results):
        table.add_row(*map(_coloured, row))
    console.print(table)
    console.print(NOTE, highlight=False)
    for line in _growth_lines(results):
        console.print(line, highlight=False)


def as_markdown(results: Results, facts: dict[str, str]) -> str:
    lines = ["# Onceflow beside Apache Kafka", ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    lines += ["", _markdown_row(HEADINGS), "| --- |" + " ---: |" * (len(HEADINGS) - 1)]
    lines += [_markdown_row(row) for row in cells(results)]
    lines += ["", NOTE, *_growth_lines(results), "", "![ratios and growth](results.png)"]
    if results.failures:
        lines += [
            "",
            "Not measured:",
            "",
            *(f"- {' '.join(failure.split())}" for failure in results.failures),
        ]
    return "\n".join(lines) + "\n"


def as_json(results: Results, facts: dict[str, str], plan: Plan) -> str:
    document = {
        "environment": facts,
        "plan": asdict(plan),
        "cases": [
            {
                "key": case.key,
                "title": case.title,
                "unit": case.unit,
                "record_bytes": case.record_bytes,
                "value": _comparison(rate),
                "broker_cpu_s_per_million": _comparison(cpu_time),
            }
            for case, rate, cpu_time in results.rows()
        ],
        "samples": [asdict(sample) for sample in results.samples],
        "failures": results.failures,
    }
    return json.dumps(document, indent=2) + "\n"


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "kafka": comparison.kafka,
        "onceflow": comparison.ours,
        "ratio": comparison.ratio,
        "ratios_by_round": comparison.ratios,
        "target": str(comparison.target) if comparison.target else None,
        "met": comparison.met,
        "ours_by_round": comparison.own,
    }


def _growth_lines(results: Results) -> Iterator[str]:
    """What a record costs at the last mark, relative to the first: the slope in one sentence."""
    for what in ("produce", "fetch"):
        keys = [key for key in results.cases if key.startswith(f"growth/{what}/")]
        slopes = []
        for title, broker in (("Onceflow", "onceflow"), ("Apache Kafka", "kafka")):
            first, last = (results.median(key, broker, cpu) for key in (keys[0], keys[-1])) if keys else (None, None)
            if first and last is not None:
                slopes.append(f"{title} {last / first:.2f}x")
        if slopes:
            yield f"Broker CPU per record, {what}, at the largest log over the smallest: {', '.join(slopes)}."


def _amount(case: Case, amount: float | None) -> str:
    if amount is None:
        return "-"
    if case.record_bytes:
        return f"{amount * case.record_bytes / 1e6:.1f} MB/s ({amount / 1e3:,.0f} k/s)"
    return f"{_number(amount)} {case.unit}"


def _number(amount: float | None) -> str:
    if amount is None:
        return ""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _ratio(comparison: Comparison) -> str:
    if comparison.ratio is None:
        return ""
    low, *_, high = (*comparison.ratios, *comparison.ratios) or (0.0, 0.0)
    spread = f" ({low:.2f}-{high:.2f})" if len(comparison.ratios) > 1 else ""
    return f"{comparison.ratio:.2f}x{spread}"


def _target(comparison: Comparison) -> str:
    if comparison.target is None:
        return ""
    verdict = {True: " met", False: " not met", None: ""}[comparison.met]
    if isinstance(comparison.target, OwnTarget):
        noise = " no verdict: noise" if comparison.met is None and comparison.ours is not None else verdict
        return f"{comparison.target}{_own_range(comparison)}{noise}"
    return f"{comparison.target}{verdict}"


def _own_range(comparison: Comparison) -> str:
    own = comparison.own
    return f" ({own[0]:.1f}-{own[-1]:.1f})" if len(own) > 1 else ""


def _markdown_row(texts: tuple[str, ...]) -> str:
    return "| " + " | ".join(texts) + " |"


def _coloured(text: str) -> str:
    for verdict, colour in ((" not met", "red"), (" met", "green")):
        if text.endswith(verdict):
            return f"{text.removesuffix(verdict)}[{colour}]{verdict}[/]"
    return text
