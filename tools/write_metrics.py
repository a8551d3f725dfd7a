"""Write the table of metrics into the docs: `python -m tools.write_metrics`.

It goes between two marks, wherever under docs/ they are:

    <!-- metrics -->
    <!-- end of metrics -->
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from onceflow.monitor.metrics import documentation

__all__ = ["documents", "with_table"]

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
_PLACE: Final = re.compile(r"(<!-- metrics -->\n).*?(<!-- end of metrics -->\n)", re.DOTALL)


def documents() -> list[Path]:
    """Those with a place for the table."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _PLACE.search(path.read_text())]


def with_table(text: str) -> str:
    return _PLACE.sub(lambda found: f"{found[1]}\n{documentation()}\n{found[2]}", text)


if __name__ == "__main__":
    for document in documents():
        document.write_text(with_table(document.read_text()))
        print(document)
