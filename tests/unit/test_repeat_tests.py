"""`tools/repeat_tests.py`: counting by test, in runs of other tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tools.repeat_tests import ROOT, waiting_files, without_repetition

from tests.support.waiting import eventually

TESTS = """
import signal
from pathlib import Path
import pytest

def test_passes():
    pass

@pytest.mark.skip
def test_is_skipped():
    pass

@pytest.mark.parametrize("word", ["with space", "other"])
def test_fails_in_the_second_run(word):
    runs = Path(word)
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    assert len(runs.read_text()) != 2 or word == "other"

def test_is_started_like_this():
    print("SIGINT is", signal.getsignal(signal.SIGINT))
    assert (signal.getsignal(signal.SIGINT) is signal.SIG_IGN) == Path("background").exists()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    (tmp_path / "a path").mkdir()
    (tmp_path / "a path" / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "a path" / "test_some.py").write_text(TESTS)
    return tmp_path / "a path"


def repeat(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    command = [sys.executable, str(ROOT / "tools" / "repeat_tests.py"), "--json", "counted.json", "--logs", "logs"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout, json.loads((folder / "counted.json").read_text())


def test_a_test_that_fails_once_is_counted_shown_and_its_output_kept(folder: Path) -> None:
    code, said, counted = repeat(folder, "--times", "3", "test_some.py")
    assert code == 1
    assert [(run["passed"], run["failed"], run["skipped"]) for run in counted["runs"]] == [
        (4, 0, 1),
        (3, 1, 1),
        (4, 0, 1),
    ]
    outcomes = {name: (test["passed"], test["failed"], test["skipped"]) for name, test in counted["tests"].items()}
    assert outcomes == {
        "test_some::test_passes": (3, 0, 0),
        "test_some::test_is_skipped": (0, 0, 3),
        "test_some::test_fails_in_the_second_run[with space]": (2, 1, 0),
        "test_some::test_fails_in_the_second_run[other]": (3, 0, 0),
        "test_some::test_is_started_like_this": (3, 0, 0),
    }
    assert "2 of 3 runs green; 5 tests, 15 results, 1 tests failed" in said
    assert [file.name for file in (folder / "logs").glob("*.log")] == ["run-2.log"]
    assert "test_fails_in_the_second_run" in (folder / "logs" / "run-2.log").read_text()


def test_all_green_is_exit_code_0_and_leaves_no_logs(folder: Path) -> None:
    (folder / "background").touch()
    code, said, _ = repeat(
        folder, "--times", "1", "--background", "--busy", "1", "test_some.py", "-k", "started or passes"
    )
    assert code == 0, said
    assert "run 1 of 1: 2 passed, 0 failed, 0 skipped" in said
    assert list((folder / "logs").glob("*.log")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_ends_it_ends_everything_that_it_has_started_and_is_told_what_was_counted(
    folder: Path, number: signal.Signals
) -> None:
    (folder / "test_some.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def test_waits():\n"
        "    if Path('first').exists():\n        Path('second').touch()\n        time.sleep(600)\n"
        "    Path('first').touch()\n"
    )
    command = [sys.executable, str(ROOT / "tools" / "repeat_tests.py"), "--logs", "logs", "--busy", "1"]
    with subprocess.Popen([*command, "test_some.py"], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "run 1 of 5" in process.stdout.readline()
        eventually((folder / "second").exists, "the second run waits", timeout_s=60)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130
    assert "1 of 1 runs green" in said
    assert [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("arguments", [["-k", "no such test"], ["no_such_file.py"]])
def test_a_run_without_tests_is_not_green(folder: Path, arguments: list[str]) -> None:
    code, said, _ = repeat(folder, "--times", "1", *arguments)
    assert code == 1
    assert "0 of 1 runs green" in said


def test_files_whose_tests_wait_are_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_waits.py").write_text("import threading\n")
    (tmp_path / "tests" / "test_counts.py").write_text("import math\n")
    assert waiting_files(tmp_path, []) == waiting_files(tmp_path, ["tests"]) == ["tests/test_waits.py"]
    assert waiting_files(tmp_path, ["tests/test_counts.py"]) == []


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("tests.a::test_b[again17]", "tests.a::test_b"),
        ("tests.a::test_b[kafka-again1]", "tests.a::test_b[kafka]"),
        ("tests.a::test_b[again]", "tests.a::test_b[again]"),
        ("tests.a::test_b[again1-kafka]", "tests.a::test_b[again1-kafka]"),
    ],
)
def test_repetitions_of_a_test_are_one_test(name: str, test: str) -> None:
    assert without_repetition(name) == test


def test_each_test_can_be_repeated_in_one_process() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "--repeat", "2", "-p", "no:cacheprovider"]
    files = ["tests/unit/test_digits.py", "tests/conformance/test_raw_produce.py"]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(names) == 2 * len({without_repetition(name) for name in names}) > 100
    assert "tests/conformance/test_raw_produce.py::test_version_13_names_the_topic_by_id[kafka-again2]" in names
