"""The examples in README.md run, and print what README.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def test_the_first_example_survives_the_crash_and_prints_what_is_shown(tmp_path: Path) -> None:
    example = blocks("python")[0]
    shown = next(block for block in blocks("") if "invoices" in block)
    ran = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == shown


def test_the_example_with_its_output_is_within_the_first_forty_lines() -> None:
    head = "\n".join(README.splitlines()[:40])
    assert "1,000 invoices for 1,000 orders" in head
