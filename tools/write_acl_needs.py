"""Writes the table of what each API needs (`broker/authorization.py`, `NEEDS`) into the page that has its place.

    python tools/write_acl_needs.py

A test keeps the two the same.
"""

from __future__ import annotations

import re
from pathlib import Path

from onceflow.broker.authorization import NEEDS, Need
from onceflow.broker.handlers import APIS

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- acl needs -->\n", "<!-- end of acl needs -->\n"
NOTHING = "nothing"


def table() -> str:
    rows = ["| API | needs |", "| --- | --- |"]
    rows += [f"| {_api(key)} | {_needs(NEEDS[key])} |" for key in sorted(APIS)]
    return "\n".join(rows) + "\n"


def _api(key: int) -> str:
    words = APIS[key].module.split("_")[1:]
    return f"{''.join(word.capitalize() for word in words)} ({key})"


def _needs(needs: tuple[Need, ...]) -> str:
    return "; ".join(_need(need) for need in needs) or NOTHING


def _need(need: Need) -> str:
    resource = need.resource.name.lower().replace("_", " ")
    note = f" ({need.note})" if need.note else ""
    return f"{need.operation.name} on {'the ' if resource == 'cluster' else ''}{resource}{note}"


def page() -> Path:
    """The one page with a place for the table."""
    [found] = [each for each in DOCS.rglob("*.md") if BEGIN in each.read_text()]
    return found


def written(text: str) -> str:
    """The page with the table as it is now."""
    return re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + "\n" + table() + "\n" + END, text, flags=re.DOTALL)


if __name__ == "__main__":
    path = page()
    path.write_text(written(path.read_text()))
