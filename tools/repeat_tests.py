"""Runs the tests several times and counts by test: which of them do not always pass, and what they cost.

    python tools/repeat_tests.py                                   what `make test` runs, five times
    python tools/repeat_tests.py --times 100 tests/broker -k stop  any arguments of pytest
    python tools/repeat_tests.py --busy 2                          while two cores are kept busy by something else
    python tools/repeat_tests.py --background tests/broker         as `make test &` in a script: SIGINT, SIGQUIT ignored
    python tools/repeat_tests.py --copy-to '/tmp/a path' tests     from a fresh clone in another folder
    python tools/repeat_tests.py --selection waiting --times 100 tests/unit tests/broker
    python tools/repeat_tests.py --times 5 --repeat 20 tests/broker  each test 20 times in a run: faster

With `--repeat` a test meets what it has left in the broker that its module shares: one that creates a topic of a fixed
name passes once only. `--times` is for those.

Every run is a process of its own. The output of a run in which something failed is kept (`--logs`), and pytest's report
of every run beside it. The exit code is 0 only if all runs were green.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
AS_MAKE_TEST = ["--numprocesses", "5", "--dist", "loadscope"]
WAITS = re.compile(
    r"subprocess|multiprocessing|threading|ThreadPoolExecutor|ProcessPoolExecutor|asyncio"
    r"|\beventually\b|secured_broker|\bWire\b|BrokerProcess|onceflow\.Broker\(|FakeBroker|ApacheKafka|SecuredKafka|SecuredBroker|Workers\("
    r"|\bbroker: RunningBroker|tests\.support\.(clients|postgresql|spark|browser|scraping)"
)
"""A test file with one of these words waits for another process or thread."""
REPETITION = re.compile(r"\[again\d+\]$|-again\d+(?=\]$)")
IGNORING_SIGNALS = ["/bin/sh", "-c", 'trap "" INT QUIT; exec "$@"', "sh"]
INTERRUPTED = 130
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Counted:
    """One test over all runs."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: list[float] = field(default_factory=list)

    def add(self, outcome: str, seconds: float) -> None:
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.seconds.append(seconds)


@dataclass
class Run:
    number: int
    exit_code: int
    seconds: float
    outcomes: dict[str, tuple[str, float]]
    """By test: what became of it, and how long it took."""

    @property
    def is_green(self) -> bool:
        return self.exit_code == 0 and "failed" not in {outcome for outcome, _ in self.outcomes.values()}

    def count(self, outcome: str) -> int:
        return sum(each == outcome for each, _ in self.outcomes.values())


def read_report(report: Path) -> dict[str, tuple[str, float]]:
    """What pytest's `--junitxml` says; nothing if it did not come to write it.

    A test that fails, and then its teardown, too, is there twice.
    """
    if not report.exists():
        return {}
    found: dict[str, tuple[str, float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        before, seconds = found.get(name, ("passed", 0.0))
        found[name] = ("failed" if "failed" in (before, outcome) else outcome, seconds + float(case.get("time") or 0))
    return found


def without_repetition(name: str) -> str:
    """The name that a test has without pytest's `--repeat` (tests/conftest.py)."""
    return REPETITION.sub("", name)


def counted_by_test(runs: Sequence[Run]) -> dict[str, Counted]:
    tests: dict[str, Counted] = {}
    for run in runs:
        for name, (outcome, seconds) in run.outcomes.items():
            tests.setdefault(without_repetition(name), Counted()).add(outcome, seconds)
    return tests


def waiting_files(root: Path, places: Sequence[str]) -> list[str]:
    """Test files under these places that wait for another process or thread."""
    files = {
        file
        for place in places or ["tests"]
        for file in ([root / place] if (root / place).is_file() else sorted((root / place).rglob("test_*.py")))
    }
    return [str(file.relative_to(root)) for file in sorted(files) if WAITS.search(file.read_text())]


def selected(root: Path, selection: str, arguments: Sequence[str]) -> list[str]:
    """The arguments for pytest: with `waiting`, folders and files stand for those of their files that wait."""
    if selection == "all":
        return list(arguments)
    places = [each for each in arguments if (root / each).exists()]
    return [*waiting_files(root, places), *(each for each in arguments if each not in places)]


@contextlib.contextmanager
def busy_cores(number: int) -> Iterator[None]:
    """They end with this process, too, if that is killed."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    # Each in a session of its own: Linux shares a core among sessions first, so all in one would count as one.
    loops = [subprocess.Popen([sys.executable, "-c", loop], start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def clone(target: Path) -> Path:
    """A fresh clone of what is committed, set up by its own `make setup`. Downloads are shared."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    if (ROOT / ".cache").exists():
        (target / ".cache").symlink_to((ROOT / ".cache").resolve())
    subprocess.run(["make", "--silent", "setup"], cwd=target, check=True, stdout=subprocess.DEVNULL)
    return target


def run_once(number: int, root: Path, python: str, arguments: Sequence[str], logs: Path, *, background: bool) -> Run:
    report, log = logs / f"run-{number}.xml", logs / f"run-{number}.log"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", *arguments, f"--junitxml={report}"]
    began = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [*IGNORING_SIGNALS, *command] if background else command,
            cwd=root,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL if background else signal.SIGINT)
            process.wait()
            raise
    run = Run(number, code, time.monotonic() - began, read_report(report))
    if run.is_green:
        log.unlink()
    return run


# --- what is said


def line_of(run: Run, times: int) -> str:
    counts = ", ".join(f"{run.count(outcome)} {outcome}" for outcome in OUTCOMES)
    green = "green" if run.is_green else f"NOT GREEN (exit code {run.exit_code}, run-{run.number}.log)"
    return f"run {run.number} of {times}: {counts} in {run.seconds:.0f} s: {green}"


def table(tests: dict[str, Counted]) -> str:
    rows = [f"{'passed':>7} {'failed':>7} {'skipped':>7} {'mean s':>8} {'max s':>8}  test"]
    for name, test in tests.items():
        mean, most = statistics.fmean(test.seconds), max(test.seconds)
        rows.append(f"{test.passed:>7} {test.failed:>7} {test.skipped:>7} {mean:>8.2f} {most:>8.2f}  {name}")
    return "\n".join(rows)


def summary(runs: Sequence[Run], slowest: int) -> str:
    tests = counted_by_test(runs)
    failed = {name: test for name, test in sorted(tests.items()) if test.failed}
    slow = dict(sorted(tests.items(), key=lambda each: -statistics.fmean(each[1].seconds))[:slowest])
    said = []
    if slow:
        said.append(f"the slowest:\n{table(slow)}")
    if failed:
        said.append(f"not always passed:\n{table(failed)}")
    green = sum(run.is_green for run in runs)
    total = sum(map(len, (run.outcomes for run in runs)))
    said.append(f"{green} of {len(runs)} runs green; {len(tests)} tests, {total} results, {len(failed)} tests failed")
    return "\n\n".join(said)


def as_json(runs: Sequence[Run]) -> str:
    return json.dumps(
        {
            "runs": [
                {
                    "exit_code": run.exit_code,
                    "seconds": round(run.seconds, 3),
                    **{outcome: run.count(outcome) for outcome in OUTCOMES},
                }
                for run in runs
            ],
            "tests": {
                name: {
                    **{outcome: getattr(test, outcome) for outcome in OUTCOMES},
                    "seconds_mean": round(statistics.fmean(test.seconds), 3),
                    "seconds_max": round(max(test.seconds), 3),
                }
                for name, test in sorted(counted_by_test(runs).items())
            },
        },
        indent=1,
    )


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="%(prog)s [options] [arguments of pytest]",
    )
    parser.add_argument("--times", type=int, default=5, metavar="N", help="how often (default: 5)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep N cores busy meanwhile")
    parser.add_argument("--background", action="store_true", help="with SIGINT and SIGQUIT ignored")
    parser.add_argument("--copy-to", type=Path, metavar="PATH", help="a new folder, to clone what is committed into")
    parser.add_argument(
        "--selection",
        choices=("all", "waiting"),
        default="all",
        help="waiting: only files, of those that are named, whose tests wait for another process or thread",
    )
    parser.add_argument(
        "--slowest", type=int, default=10, metavar="N", help="how many slow tests to show (default: 10)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything that was counted, as JSON")
    parser.add_argument(
        "--logs", type=Path, default=ROOT / "build" / "repeat-tests", metavar="DIR", help="default: build/repeat-tests"
    )
    return parser.parse_known_args(argv)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):  # it may itself be in the background
        signal.signal(number, interrupt)
    options, arguments = parse(argv)
    logs = options.logs.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    root, python = Path.cwd(), sys.executable
    if options.copy_to is not None:
        root = clone(options.copy_to.resolve())
        python = str(root / ".venv" / "bin" / "python")
    arguments = selected(root, options.selection, arguments) or AS_MAKE_TEST
    runs: list[Run] = []
    is_interrupted = False
    try:
        with busy_cores(options.busy):
            for number in range(1, options.times + 1):
                run = run_once(number, root, python, ["-q", *arguments], logs, background=options.background)
                runs.append(run)
                print(line_of(run, options.times), flush=True)
    except KeyboardInterrupt:
        is_interrupted = True
        print("interrupted; what was counted so far:", flush=True)
    print(f"\n{summary(runs, options.slowest)}")
    if not all(run.is_green for run in runs):
        print(f"what failing runs printed: {logs}")
    if options.json is not None:
        options.json.write_text(as_json(runs))
    if is_interrupted:
        return INTERRUPTED
    return 0 if runs and all(run.is_green for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
