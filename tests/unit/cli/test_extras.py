"""Commands without what is installed on request: a sentence with the command that installs it, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.extras import EXTRAS, advice_for, require

BLOCKER = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in sys.argv[1].split(",")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from onceflow.cli import main
sys.exit(main(sys.argv[2:]))
"""
SPARK = ",".join(EXTRAS["spark"])


def without(modules: str, arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process in which these modules are not installed."""
    (folder / "client.yaml").write_text("acks: all")
    (folder / "client.properties").write_text("acks=all\nenable.idempotence=true\ntransactional.id=x\n")
    program = [sys.executable, "-c", BLOCKER, modules, *arguments]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("modules", "arguments", "command"),
    [
        (SPARK, ["run", "orders"], "'onceflow[spark]'"),
        (SPARK, ["run", "orders", "--sql", "sqlite:///x.db"], "'onceflow[spark]'"),
        (SPARK, ["run", "orders", "--sql", "postgresql://127.0.0.1:1/x"], "'onceflow[spark]'"),
        (SPARK, ["run", "mine:PIPELINE"], "'onceflow[spark]'"),
        (SPARK, ["demo", "orders"], "'onceflow[spark]'"),
        (SPARK, ["verify", "spark"], "'onceflow[spark]'"),
        ("psycopg", ["run", "orders", "--sql", "postgresql://127.0.0.1:1/x"], "'onceflow[sql]'"),
        ("psycopg", ["demo", "orders", "--sql", "postgresql://127.0.0.1:1/x"], "'onceflow[sql]'"),
        ("yaml", ["doctor", "--client", "client.yaml"], "'onceflow[doctor]'"),
        *((each, ["run", "orders"], "'onceflow[spark]'") for each in EXTRAS["spark"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_command_says_what_to_install(modules: str, arguments: list[str], command: str, tmp_path: Path) -> None:
    done = without(modules, arguments, tmp_path)
    assert done.returncode == 2, done.stderr
    [sentence] = done.stderr.splitlines()
    assert "is not installed" in sentence
    assert f"pip install {command}" in sentence
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--help"],
        ["demo", "--help"],
        ["verify", "--help"],
        ["verify", "simulation", "--runs", "1"],
        ["broker", "--list-settings"],
        ["alerts", "--rules"],
        ["doctor", "--client", "client.properties"],
    ],
    ids=" ".join,
)
def test_what_needs_no_extra_works_without(arguments: list[str], tmp_path: Path) -> None:
    done = without(f"{SPARK},psycopg,yaml", arguments, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["pyspark", "pyspark.sql", "google.protobuf.nowhere", "psycopg"])
def test_what_is_installed_and_broken_is_not_said_to_be_missing(name: str) -> None:
    advice = advice_for(ImportError("cannot import name 'x'", name=name))
    assert advice is not None
    assert advice.endswith("is installed but cannot be imported: cannot import name 'x'")


def test_a_module_that_belongs_to_no_extra_is_a_defect_and_not_advice() -> None:
    assert advice_for(ImportError("no", name="onceflow.nowhere")) is None
    assert advice_for(ImportError("no")) is None
    for extra in EXTRAS:
        require(extra, "this test")
