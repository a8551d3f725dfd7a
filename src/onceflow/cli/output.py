"""How the commands show their results: tables and sentences for people, JSON for scripts.

All that commands print comes through here, and so through `printable`: names and messages come from whoever can reach
the broker, and from foreign clusters.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from onceflow.printable import json_text, printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ask", "new_table", "overwrite", "print_json", "print_json_line", "print_table", "say", "say_lines"]

CLEAR_LINE: Final = "\r\x1b[2K"


def say(line: str = "", *, err: bool = False, flush: bool = False) -> None:
    """A line on stdout, or on stderr."""
    print(printable(line), file=sys.stderr if err else sys.stdout, flush=flush)


def say_lines(text: str) -> None:
    """Text whose line breaks are ours."""
    for line in text.split("\n"):
        say(line)


def ask(question: str) -> None:
    """On stderr; the answer comes on the same line."""
    print(printable(question), end=" ", file=sys.stderr, flush=True)


def overwrite(line: str, *, err: bool = False) -> None:
    """In the place of the line that is there, on a terminal."""
    print(CLEAR_LINE + printable(line), end="", file=sys.stderr if err else sys.stdout, flush=True)


def new_table(first: str, **columns: str) -> Table:
    """A table whose first column may fold; the others, each with `left` or `right`, keep their cells on one line.

    An underscore in a name is a space in the heading.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    class PrintableTable(Table):
        def add_row(self, *cells: Any, **settings: Any) -> None:
            super().add_row(*(printable(each) if isinstance(each, str) else each for each in cells), **settings)

    table = PrintableTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
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
    print(json_text(value, indent=2))
    return 0


def print_json_line(value: Any) -> None:
    """For who reads line by line, as they come."""
    print(json_text(value), flush=True)
