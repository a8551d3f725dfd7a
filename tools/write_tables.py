"""Writes what the docs have from tables in the code, each between two marks, and the rule file for Prometheus.

    python -m tools.write_tables            write what changed
    python -m tools.write_tables --check    write nothing; exit 1 if something would change

A place for a table is `<!-- NAME -->` and `<!-- end of NAME -->`, each on a line of its own, anywhere under docs/.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools import client_tables

from onceflow.broker.authorization import NEEDS, Need
from onceflow.broker.handlers import APIS
from onceflow.monitor import metrics, rules_prometheus

__all__ = ["TABLES", "filled", "outdated"]

ROOT: Final = Path(__file__).resolve().parents[1]


def acl_needs() -> str:
    rows = ["| API | needs |", "| --- | --- |"]
    rows += [f"| {_api(key)} | {'; '.join(map(_need, NEEDS[key])) or 'nothing'} |" for key in sorted(APIS)]
    return "\n".join(rows) + "\n"


def _api(key: int) -> str:
    words = APIS[key].module.split("_")[1:]
    return f"{''.join(word.capitalize() for word in words)} ({key})"


def _need(need: Need) -> str:
    resource = need.resource.name.lower().replace("_", " ")
    note = f" ({need.note})" if need.note else ""
    return f"{need.operation.name} on {'the ' if resource == 'cluster' else ''}{resource}{note}"


TABLES: Final = {
    "metrics": metrics.documentation,
    "alerts": rules_prometheus.documentation,
    "acl needs": acl_needs,
    "clients": client_tables.tried_clients,
    "client tools": client_tables.tried_tools,
    "differences": client_tables.differences,
}

_PLACE: Final = re.compile(
    rf"(?P<begin><!-- (?P<name>{'|'.join(TABLES)}) -->\n).*?(?P<end><!-- end of (?P=name) -->\n)", re.DOTALL
)


def filled(page: str) -> str:
    """A page with its tables as they are now."""
    return _PLACE.sub(lambda found: f"{found['begin']}\n{TABLES[found['name']]()}\n{found['end']}", page)


def outdated() -> Iterator[tuple[Path, str]]:
    """The files that are not as they should be, and how they should be."""
    wanted = {page: filled(page.read_text()) for page in sorted((ROOT / "docs").rglob("*.md"))}
    wanted[ROOT / "monitoring" / "onceflow-alerts.yml"] = rules_prometheus.rule_file()
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            yield path, text


if __name__ == "__main__":
    changed = list(outdated())
    for path, text in changed:
        print("outdated:" if "--check" in sys.argv else "writing:", path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.write_text(text)
    sys.exit(bool(changed) and "--check" in sys.argv)
