"""A few operations as a picture: a row for each process, a bar for each operation, from when it was asked to when it
was answered. One without an answer is open to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceflow.verify.history import NEVER, Operation, Outcome
from onceflow.verify.report_page.lanes import last_moment
from onceflow.verify.report_page.markup import Raw, clipped, duration, moment, scrolling, text

__all__ = ["picture"]

WIDTH: Final = 760
NAMES: Final = 130
ROW: Final = 30
RIGHT: Final = 12


def picture(operations: Sequence[Operation]) -> Raw:
    if not operations:
        return Raw("")
    processes = list(dict.fromkeys(each.process for each in sorted(operations, key=lambda each: each.began)))
    first, last = min(each.began for each in operations), last_moment(operations)
    scale = (WIDTH - NAMES - RIGHT - 40) / max(last - first, 1e-6)
    height = ROW * len(processes) + 24
    rows = "".join(_row(at, process) for at, process in enumerate(processes))
    bars = "".join(_bar(each, processes.index(each.process), first, scale) for each in operations)
    axis = (
        f'<text x="{NAMES}" y="{height - 6}">{moment(first)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{duration(last - first)} later</text>'
    )
    return scrolling(
        f'<svg class="mini" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="These operations over time">'
        f"{rows}{bars}{axis}</svg>"
    )


def _row(at: int, process: str) -> str:
    y = at * ROW + ROW / 2 + 4
    return (
        f'<line class="grid" x1="{NAMES}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text class="name" x="0" y="{y + 4}">{text(clipped(process, 20))}</text>'
    )


def _bar(operation: Operation, row: int, first: float, scale: float) -> str:
    is_open = operation.ended == NEVER
    left = NAMES + (operation.began - first) * scale
    width = WIDTH - RIGHT - left if is_open else max(3.0, (operation.ended - operation.began) * scale)
    y = row * ROW + ROW / 2
    hint = f"{operation.f} · {operation.outcome} · {operation.id}"
    label_x, anchor = (left, "start") if left < WIDTH - 130 else (min(left + width, WIDTH - RIGHT), "end")
    mark = {Outcome.OK: "", Outcome.FAILED: " ✕", Outcome.UNKNOWN: " ?"}[operation.outcome]
    return (
        f'<g><title>{text(hint)}</title><rect class="{operation.outcome}" x="{left:.1f}" y="{y}" '
        f'width="{width:.1f}" height="8" rx="1.5"/>'
        f'<text x="{label_x:.1f}" y="{y - 3}" text-anchor="{anchor}">{text(clipped(operation.f, 20))}{mark}</text></g>'
    )
