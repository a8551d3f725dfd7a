"""How the commands show their results: tables for people, JSON for scripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["new_table", "print_json", "print_table"]


def new_table(first: str, **columns: str) -> Table:
    """A table whose first column may fold; the others, each with `left` or `right`, keep their cells on one line.

    An underscore in a name is a space in the heading.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name, justify in columns.items():
        heading = name.replace("_", " ")
        table.add_column(heading, justify=justify, no_wrap=True, min_width=len(heading))  # type: ignore[arg-type]
    return table


def print_table(table: Table) -> None:
    from rich.console import Console

    # A pipe has no width; rich would assume 80 columns and cut long names short.
    width = None if sys.stdout.isatty() else 10_000
    Console(highlight=False, markup=False, width=width).print(table)


def print_json(value: Any) -> int:
    """Also the exit code."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))
    return 0
