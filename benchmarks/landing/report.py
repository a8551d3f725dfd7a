"""The rows, for people (tables in the terminal, the same in Markdown) and for programs (JSON)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from benchmarks.environment import OTHER_CORES_MAX
from benchmarks.landing.results import STREAMED, Batch, Measurement, Ratio, Row, StreamRow, rows, stream_rows

HEADINGS = ("way", "k rows/s", "of JDBC", "of bare load", "job CPU", "server CPU", "write ms", "merge ms", "commit ms")
STREAM_HEADINGS = (
    *("rows", "sink", "batches", "ms", "slowest", "k rows/s"),
    *("fence, stage", "write", "verify, merge", "commit"),
)
NOTE = (
    "Medians; ratios are of rates within a round, their range in brackets: to Spark's own JDBC writer (the better of "
    "its two settings) and to the bare load of the same rows (COPY; for SQLite executemany). CPU is seconds per "
    "million rows: of the job (this process, JVM, Python workers) and of the server. 'Write' is the tasks' part, "
    "'merge' and 'commit' are in the one transaction of the driver."
)
STREAM_NOTE = (
    "Medians of milliseconds in the sink, for micro-batches one after the other; 'write' runs Spark's job, which also "
    "makes the rows. Spark's own writer is at least once."
)


def cells(measured: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """One tuple of texts for each row, under HEADINGS."""
    for row in measured:
        yield (
            row.title,
            _number(row.rate / 1000),
            spread(row.to_jdbc),
            spread(row.to_copy),
            f"{row.job_cpu_s:.1f}",
            f"{row.server_cpu_s:.1f}" if row.server_cpu_s >= 0.05 else "",
            *(_ms(row.parts, name) for name in ("write", "merge", "commit")),
        )


def stream_cells(measured: Sequence[StreamRow]) -> Iterator[tuple[str, ...]]:
    for row in measured:
        times = (_number(row.ms), _number(row.slowest_ms), _number(row.rate / 1000))
        steps = (("fence", "stage"), ("write",), ("verify", "merge"), ("commit",))
        parts = (_ms(row.parts, *names) for names in steps)
        yield (f"{row.rows:,}", STREAMED[row.engine], str(row.batches), *times, *parts)


def conclusions(measured: Sequence[Row]) -> Iterator[str]:
    """Each target with its verdict."""
    for row in measured:
        for ratio, peer in ((row.to_jdbc, "Spark's JDBC writer"), (row.to_copy, "a bare COPY")):
            if ratio is not None and ratio.target is not None:
                verdict = "met" if ratio.met else "not met"
                yield f"{row.title}: {spread(ratio)} of {peer}, target {ratio.target}: {verdict}."


def cautions(measurements: Sequence[Measurement], *, quick: bool) -> list[str]:
    """Why this run may mislead; empty for a full run on a quiet machine."""
    found = []
    if quick:
        found.append("a quick run: Spark's JVM has not compiled its work, and its jobs have hardly begun when they end")
    others = [each.usage.other_cores for each in measurements]
    if others and max(others) > OTHER_CORES_MAX:
        found.append(
            f"something else kept {statistics.median(others):.2f} cores busy (median; {max(others):.2f} at most): "
            "rates are low and ratios random, CPU times are not"
        )
    return found


def print_tables(measurements: Sequence[Measurement], batches: Sequence[Batch], console: Console) -> None:
    measured = rows(measurements)
    _print("Landing a DataFrame", HEADINGS, cells(measured), console)
    _print("Micro-batches", STREAM_HEADINGS, stream_cells(stream_rows(batches)), console)
    for line in conclusions(measured):
        console.print(line, highlight=False)


def _print(title: str, headings: Sequence[str], lines: Iterator[tuple[str, ...]], console: Console) -> None:
    table = Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    if table.row_count:
        console.print(table)


def as_markdown(
    measurements: Sequence[Measurement], batches: Sequence[Batch], facts: dict[str, str], failures: Sequence[str]
) -> str:
    measured = rows(measurements)
    lines = ["# Landing", "", *_markdown_table(HEADINGS, cells(measured)), "", NOTE, ""]
    lines += [f"- {line}" for line in conclusions(measured)]
    lines += ["", "## Micro-batches", "", *_markdown_table(STREAM_HEADINGS, stream_cells(stream_rows(batches)))]
    lines += ["", STREAM_NOTE, "", "## Where and how", "", *(f"- {name}: {fact}" for name, fact in facts.items())]
    if failures:
        lines += ["", "## Not measured", "", *(f"- {' '.join(failure.split())}" for failure in failures)]
    return "\n".join(lines) + "\n"


def as_json(
    measurements: Sequence[Measurement],
    batches: Sequence[Batch],
    facts: dict[str, str],
    plan: object,
    failures: Sequence[str],
) -> str:
    document = {
        "environment": facts,
        "plan": plan,
        "rows": [
            {
                "way": row.way,
                "title": row.title,
                "rows_per_second": row.rate,
                "to_jdbc": _ratio_json(row.to_jdbc),
                "to_copy": _ratio_json(row.to_copy),
            }
            for row in rows(measurements)
        ],
        "measurements": [asdict(each) for each in measurements],
        "batches": [asdict(each) for each in batches],
        "failures": list(failures),
    }
    return json.dumps(document, indent=2) + "\n"


def spread(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    low, high = ratio.by_round[0], ratio.by_round[-1]
    return f"{ratio.median:.2f}x" + (f" ({low:.2f}-{high:.2f})" if len(ratio.by_round) > 1 else "")


def _ratio_json(ratio: Ratio | None) -> dict[str, object] | None:
    if ratio is None:
        return None
    target = None if ratio.target is None else str(ratio.target)
    return {"median": ratio.median, "by_round": ratio.by_round, "target": target, "met": ratio.met}


def _ms(parts: dict[str, float], *names: str) -> str:
    known = [parts[name] for name in names if name in parts]
    return _number(sum(known)) if known else ""


def _number(amount: float) -> str:
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _markdown_table(headings: Sequence[str], lines: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"| {' | '.join('---' if not number else '---:' for number in range(len(headings)))} |"
    for line in lines:
        yield f"| {' | '.join(line)} |"
