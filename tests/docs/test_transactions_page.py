"""The page on transactions shows the states as they are in the code."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "transactions.md"


def test_the_diagram_is_that_of_the_table() -> None:
    redrawn = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))["redrawn"]
    page = PAGE.read_text()
    assert "PrepareCommit --> CompleteCommit" in page
    assert redrawn(page) == page, "run `python tools/draw_states.py`"


def test_the_files_that_the_page_names_are_there() -> None:
    for name in ("src/onceflow/txn/states.py", "tests/unit/broker/test_transactions_crash.py"):
        assert name in PAGE.read_text()
        assert (ROOT / name).exists()
    assert (ROOT / "tests/unit/broker/test_transactions_properties.py").exists()
    assert (ROOT / "tests/broker/test_crash_transactions.py").exists()
