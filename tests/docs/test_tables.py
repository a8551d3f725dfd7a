"""The docs have the tables that the code has."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.write_tables import TABLES, filled, outdated

DOCS = Path(__file__).parents[2] / "docs"


def test_docs_and_rule_file_are_what_the_code_says() -> None:
    assert [str(path) for path, _ in outdated()] == [], "run: python -m tools.write_tables"


@pytest.mark.parametrize("name", TABLES)
def test_each_table_has_one_place(name: str) -> None:
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    assert sum(page.count(f"<!-- {name} -->\n") for page in pages) == 1
    assert sum(page.count(TABLES[name]()) for page in pages) == 1


def test_what_is_between_the_marks_is_replaced_and_nothing_else() -> None:
    page = filled("before\n<!-- metrics -->\nof yesterday\n<!-- end of metrics -->\nafter\n")
    assert page.startswith("before\n<!-- metrics -->\n")
    assert page.endswith("<!-- end of metrics -->\nafter\n")
    assert TABLES["metrics"]() in page
    assert "of yesterday" not in page
