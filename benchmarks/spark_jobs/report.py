"""The rows, for people (a table in the terminal, the same in Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks.brokers import FLAVOURS
from benchmarks.plan import SIZES
from benchmarks.spark_jobs.job import ENGINES, EXACTLY_ONCE, JOBS
from benchmarks.spark_jobs.results import (
    COMMIT_MS_MAX,
    REFERENCE,
    SCALE,
    SIDE_BY_SIDE,
    TRIGGERS,
    Measurement,
    Ratio,
    Row,
    growth,
    kept_up,
    rows,
)

TITLES = {
    SIDE_BY_SIDE: "Spark jobs side by side",
    TRIGGERS: "A trigger each second, steady input",
    SCALE: "Cost per record as the input grows",
}
HEADINGS = (
    *("job", "broker", "engine", "k rec/s", "", "in batches", "job CPU", "", "its JVM", "broker CPU"),
    *("peak MB", "", "RSS MB", "batch ms", "", "commit ms"),
)
METRIC_NAMES = {
    "rate": "records per second",
    "cpu_s_per_million": "CPU per record of the job",
    "pss_peak_mb": "peak memory",
    "batch_ms": "time of a micro-batch",
}
OTHER_CORES_MAX = 0.1
NOTE = (
    "Medians; ratios are to {reference} on the same broker, by round, their range in brackets. CPU is seconds per "
    "million records: of the job (driver, JVM, Python workers), of its JVM alone, of the broker. 'In batches' leaves "
    "out what it takes to start and end a query. Peak MB counts a page that processes share once, RSS for each of them."
)


def cells(measured: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One tuple of texts for each row, under HEADINGS."""
    for row in measured:
        yield (
            f"{JOBS[row.case.job]}, {row.case.records:,} of {SIZES[row.case.size]}",
            FLAVOURS[row.case.broker].title,
            ENGINES[row.engine],
            _number(row.values["rate"], 1e3),
            _ratio(row, "rate"),
            _number(row.values["rate_in_batches"], 1e3),
            _number(row.values["cpu_s_per_million"]),
            _ratio(row, "cpu_s_per_million"),
            _number(row.values["jvm_cpu_s_per_million"]),
            _number(row.values["broker_cpu_s_per_million"]),
            _number(row.values["pss_peak_mb"]),
            _ratio(row, "pss_peak_mb"),
            _number(row.values["rss_peak_mb"]),
            _number(row.values["batch_ms"]),
            _ratio(row, "batch_ms"),
            _number(row.values["commit_ms"]),
        )


def print_table(part: str, measured: Sequence[Row], console: Console) -> None:
    table = Table(title=TITLES[part])
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number > 2 else "left")
    for texts in cells(measured):
        table.add_row(*texts)
    console.print(table)
    console.print(_note(part), highlight=False)
    for line in conclusions(part, measured):
        console.print(line, highlight=False)


def as_markdown(part: str, measurements: Sequence[Measurement], facts: dict[str, str], failures: Sequence[str]) -> str:
    measured = rows(measurements)
    lines = [f"# {TITLES[part]}", "", *(f"- {name}: {fact}" for name, fact in facts.items())]
    lines += ["", _markdown_row(HEADINGS), "| --- | --- | --- |" + " ---: |" * (len(HEADINGS) - 3)]
    lines += [_markdown_row(texts) for texts in cells(measured)]
    lines += ["", _note(part), "", *(f"- {line}" for line in conclusions(part, measured))]
    lines += ["", f"![{TITLES[part]}]({part}.png)"]
    if failures:
        lines += ["", "Not measured:", "", *(f"- {' '.join(failure.split())}" for failure in failures)]
    return "\n".join(lines) + "\n"


def as_json(
    part: str, measurements: Sequence[Measurement], facts: dict[str, str], plan: object, failures: Sequence[str]
) -> str:
    document = {
        "part": part,
        "environment": facts,
        "plan": plan,
        "rows": [
            {
                **asdict(row.case),
                "engine": row.engine,
                "values": row.values,
                "ratios": {name: _ratio_json(ratio) for name, ratio in row.ratios.items()},
            }
            for row in rows(measurements)
        ],
        "measurements": [asdict(each) for each in measurements],
        "failures": list(failures),
    }
    return json.dumps(document, indent=2) + "\n"


def conclusions(part: str, measured: Sequence[Row]) -> Iterator[str]:
    """Each target with its verdict; then what more records cost."""
    for row in measured:
        for name, ratio in row.ratios.items():
            if ratio.target is not None:
                yield (
                    f"{_where(row)}: {METRIC_NAMES[name]} {_spread(ratio)} of {ENGINES[REFERENCE[part]]}, "
                    f"target {ratio.target}: {'met' if ratio.met else 'not met'}."
                )
        commit = row.values["commit_ms"]
        if row.engine == EXACTLY_ONCE and commit is not None:
            verdict = "met" if commit <= COMMIT_MS_MAX else "not met"
            yield f"{_where(row)}: the transaction adds {commit:.1f} ms, target ≤ {COMMIT_MS_MAX:g} ms: {verdict}."
    if part == SCALE:
        for each in growth(measured):
            yield (
                f"{FLAVOURS[each.broker].title}, {ENGINES[each.engine]}: a record between {each.marks[0]:,} and "
                f"{each.marks[1]:,} costs {each.cpu_s_per_million:.2f} CPU seconds per million."
            )


def cautions(measurements: Sequence[Measurement], *, quick: bool) -> list[str]:
    """Why this run may mislead; empty for a full run on a quiet machine."""
    found = []
    if quick:
        found.append("a quick run: most of it is the start of queries, and Spark's JVM has not compiled its work")
    if not all(map(kept_up, measurements)):
        found.append("micro-batches took longer than the trigger: queries did not keep up, so there is no verdict")
    if measurements:
        others = statistics.median(each.other_cores for each in measurements)
        most = max(each.other_cores for each in measurements)
        if most > OTHER_CORES_MAX:
            found.append(
                f"something else kept {others:.2f} cores busy (median; {most:.2f} at most): "
                "rates are low and ratios random"
            )
    return found


def _where(row: Row) -> str:
    return f"{JOBS[row.case.job]}, {row.case.records:,} of {SIZES[row.case.size]}, {FLAVOURS[row.case.broker].title}"


def _note(part: str) -> str:
    return NOTE.format(reference=f'"{ENGINES[REFERENCE[part]]}"')


def _number(amount: float | None, unit: float = 1.0) -> str:
    if amount is None:
        return ""
    return f"{amount / unit:,.0f}" if amount / unit >= 100 else f"{amount / unit:.3g}"


def _ratio(row: Row, name: str) -> str:
    return _spread(row.ratios[name]) if name in row.ratios else ""


def _spread(ratio: Ratio) -> str:
    low, high = ratio.by_round[0], ratio.by_round[-1]
    spread = f" ({low:.2f}-{high:.2f})" if len(ratio.by_round) > 1 else ""
    return f"{ratio.median:.2f}x{spread}"


def _ratio_json(ratio: Ratio) -> dict[str, object]:
    target = str(ratio.target) if ratio.target else None
    return {"median": ratio.median, "by_round": ratio.by_round, "target": target, "met": ratio.met}


def _markdown_row(texts: tuple[str, ...]) -> str:
    return "| " + " | ".join(texts) + " |"
