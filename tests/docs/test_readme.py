"""The examples in README.md run, and print what README.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.brokers import started
from tests.support.spark_jvm import environment, write_settings

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def shown_with(words: str) -> str:
    return next(block for block in blocks("") if words in block)


def output_of(example: str, folder: Path, variables: Mapping[str, str], timeout_s: float) -> str:
    program = folder / "example.py"
    program.write_text(example)
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.timeout(400)
def test_the_first_example_survives_the_kill_of_its_driver_and_prints_what_is_shown(tmp_path: Path) -> None:
    variables = started(lambda: environment(tmp_path, write_settings(tmp_path)))
    assert output_of(blocks("python")[0], tmp_path, variables, 380) == shown_with("killed after")


def test_the_example_of_the_broker_survives_the_crash_and_prints_what_is_shown(tmp_path: Path) -> None:
    example = next(block for block in blocks("python") if "crash_at" in block)
    assert output_of(example, tmp_path, os.environ, 120) == shown_with("1,000 invoices")


def test_the_first_example_with_its_output_is_within_the_first_forty_lines() -> None:
    head = "\n".join(README.splitlines()[:40])
    assert "SIGKILL" in head
    assert "50,000 invoices for 50,000 orders" in head
