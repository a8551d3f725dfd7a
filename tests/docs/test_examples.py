"""The programs in examples/ do what they say, with SQLite and with PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers import Shared, started
from tests.support.postgresql import PostgreSQL, shared_postgresql
from tests.support.spark_jvm import environment, write_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="session")
def postgresql(shared: Shared) -> PostgreSQL:
    return shared_postgresql(shared)


def run_example(name: str, folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        cwd=folder,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def address(kind: str, request: pytest.FixtureRequest) -> list[str]:
    """The arguments for an example: none means SQLite."""
    return [] if kind == "sqlite" else [request.getfixturevalue("postgresql").new_database()]


BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


@BOTH
def test_the_counter_counts_once_what_is_read_three_times(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert run_example("counter.py", tmp_path, *address(kind, request)).splitlines() == [
        "read 100 records: 100 views counted; 100 by just adding",
        "read  50 records: 100 views counted; 150 by just adding",
        "read 100 records: 100 views counted; 250 by just adding",
    ]


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.faults), "postgresql"])
def test_the_example_without_spark_survives_the_kill_of_its_process(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    killed, after = run_example("land_without_spark.py", tmp_path, *address(kind, request)).splitlines()
    assert killed.endswith("the table has as many orders as the offset says: True")
    assert after == "after the second process: 10,000 orders, 49,995,000 cents of 49,995,000"


@pytest.mark.faults  # of every day: `onceflow demo --sql` in tests/pipelines, whose driver is killed
@pytest.mark.timeout(300)
@BOTH
def test_the_example_with_spark_survives_the_kill_of_its_driver(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    variables = started(lambda: environment(tmp_path, write_settings(tmp_path)))
    found = run_example("land_with_spark.py", tmp_path, *address(kind, request), variables=dict(variables))
    assert found.splitlines() == [
        "killed before the COMMIT of micro-batch 2: 10,000 orders are there",
        "after the second driver: 25,000 orders, 25,000 different ones",
        "all customers together: 25,000 orders, 312,487,500 cents of 312,487,500",
    ]
    assert f"$ python examples/land_with_spark.py\n{found}" in README
