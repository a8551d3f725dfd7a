"""Text from a run on its way into HTML: always escaped, never longer than a person reads."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

__all__ = ["Raw", "clipped", "counted", "duration", "moment", "script_json", "scrolling", "table", "text", "ticks"]

TICKS_PER_S: Final = 10_000
"""The page counts time in tenths of a millisecond: whole numbers are shorter, and that is fine enough to see."""


TALL_ROWS: Final = 25


class Raw(str):
    """HTML that was made here; everything else is text."""


def text(value: object) -> str:
    return value if isinstance(value, Raw) else html.escape(str(value))


def clipped(value: object, length: int) -> str:
    whole = str(value)
    return whole if len(whole) <= length else whole[: length - 1] + "…"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def moment(seconds: float) -> str:
    return f"{seconds:,.3f} s"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def script_json(value: Any) -> str:
    """JSON that cannot end the script element that it stands in, nor begin a comment there."""
    compact = json.dumps(value, separators=(",", ":"))
    return compact.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, name: str = "") -> Raw:
    """A heading that ends in "#" is of numbers, one that ends in "!" of words that are not to be broken."""
    kinds = [{"#": "number", "!": "tight"}.get(each[-1:], "") for each in headings]
    head = "".join(
        f'<th class="{kind}" scope="col">{text(each.rstrip("#!"))}</th>'
        for each, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_cell(value, kind) for value, kind in zip(row, kinds, strict=True)) + "</tr>\n" for row in rows
    )
    inside = f'<table class="{name}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>'
    return scrolling(inside, is_tall=body.count("<tr>") > TALL_ROWS)


def scrolling(inside: str, *, is_tall: bool = False) -> Raw:
    """What is too wide, or too tall, moves within its own place and leaves the page alone."""
    return Raw(f'<div class="scroll{" tall" if is_tall else ""}" tabindex="0">{inside}</div>')


def _cell(value: object, kind: str) -> str:
    shown = f"{value:,}" if isinstance(value, int) else value
    return f'<td class="{kind}">{text(shown)}</td>'
