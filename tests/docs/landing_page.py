"""The guide to landing in its parts, for the tests of it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["PAGE", "ROOT", "blocks", "section", "table"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "landing.md").read_text()


def section(title: str) -> str:
    """From its heading to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def blocks(title: str, language: str = "python") -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def table(title: str, first: str) -> list[list[str]]:
    """The rows of those tables of a section whose first column has this heading."""
    found: list[list[str]] = []
    heading = ""
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            heading = ""
        elif not heading:
            heading = cells[0]
        elif heading == first and not set(line) <= set("| -"):
            found.append(cells)
    return found
