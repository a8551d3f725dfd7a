"""The tables of docs/clients.md: clients and tools as they were last recorded, and where we differ from Apache Kafka.

The record is `tests/conformance/clients.json`, which `make clients` writes. Tools and differences are marks on tests,
found in the tests' source: `tried(tool, what)` on a test that uses a tool, `onceflow_differs(reason)` on one that must
fail on our broker.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["RECORD", "differences", "marks", "recorded", "tried_clients", "tried_tools"]

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "tests" / "conformance" / "clients.json"
COLUMNS: Final = {
    "records": ("records",),
    "codecs": ("none", "gzip", "snappy", "lz4", "zstd"),
    "idempotence": ("idempotence",),
    "transactions": ("commit", "abort", "offsets", "fencing"),
    "groups": ("group", "rebalance"),
    "groups of KIP-848": ("consumer protocol",),
    "administration": ("admin",),
}
"""Of the table of clients, with the scenarios that each stands for."""
NOT_THERE: Final = "-"


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def tried_clients() -> str:
    rows = ["client", "version", *COLUMNS], ["---"] * (2 + len(COLUMNS))
    clients = [(each["client"], _cells(each["results"]), each["version"]) for each in recorded()["clients"]]
    same = itertools.groupby(clients, lambda each: each[:2])
    more = ([client, ", ".join(each[2] for each in those), *cells] for (client, cells), those in same)
    return _table([*rows, *more])


def _cells(results: dict[str, str | None]) -> list[str]:
    return [_cell({each: results[each] for each in scenarios if each in results}) for scenarios in COLUMNS.values()]


def _cell(results: dict[str, str | None]) -> str:
    """`results` says of each scenario what went wrong."""
    if not results:
        return NOT_THERE
    failed = [each for each, error in results.items() if error is not None]
    if failed:
        return f"**fails**: {', '.join(failed)}"
    some_codecs = 1 < len(results) < len(COLUMNS["codecs"]) and "none" in results
    return ", ".join(results) if some_codecs else "yes"


def tried_tools() -> str:
    rows = [["tool", "version", "what was tried", "result"], ["---"] * 4]
    for each in recorded()["tools"]:
        failed = [what for what, passed in each["tried"].items() if not passed]
        result = f"**fails**: {'; '.join(failed)}" if failed else "works"
        rows.append([each["tool"], each["version"], "; ".join(each["tried"]), result])
    return _table(rows)


def differences() -> str:
    found = sorted({(reason, f"`{path.relative_to(ROOT)}`") for path, (reason,) in marks("onceflow_differs")})
    rows = [["difference", "shown by"], ["---"] * 2, *map(list, found)]
    return _table(rows) if found else "There is none.\n"


def marks(name: str) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The arguments of `pytest.mark.NAME(...)`, wherever it stands in the tests' source."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text()
        if f"mark.{name}(" in source:
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == f"pytest.mark.{name}":
                    yield path, tuple(map(ast.literal_eval, node.args))


def _table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
