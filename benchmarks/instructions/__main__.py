"""`python -m benchmarks.instructions --against REVISION`: instructions per request, and the ratio to another commit.

Needs valgrind. Each kind of request is counted by itself, between a connection and a memory of what was sent: user
space only, without sockets. A count repeats to a few parts in ten thousand, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.instructions.cases import CASES, COUNT, COUNTED_INSIDE

ROOT: Final = Path(__file__).parents[2]
SQLITE_MAX: Final = 100_000
"""What SQLite needs for its own steps."""
TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--against", metavar="REVISION", help="a commit to compare with")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed; on Debian and Ubuntu: apt-get install valgrind")
    with tempfile.TemporaryDirectory(prefix="onceflow-instructions-") as folder:
        here = _count(ROOT / "src", arguments.only, Path(folder))
        there = None
        if arguments.against:
            other = Path(folder) / "other"
            _git("worktree", "add", "--detach", "--quiet", str(other), arguments.against)
            try:
                there = _count(other / "src", arguments.only, Path(folder))
            finally:
                _git("worktree", "remove", "--force", str(other))
    for name in arguments.only:
        ratio = f"   {here[name] / there[name]:.3f} of {there[name]:,}" if there is not None else ""
        print(f"{name:>16}: {here[name]:>10,} instructions{ratio}")
    return 0


def _count(source: Path, names: list[str], folder: Path) -> dict[str, int]:
    """Instructions per request of each case, with the broker that is in `source`."""
    dumps = folder / f"{len(list(folder.iterdir()))}.callgrind"
    command = [
        "valgrind",
        "--tool=callgrind",
        "--collect-atstart=no",
        f"--toggle-collect={COUNTED_INSIDE}",
        f"--dump-after={COUNTED_INSIDE}",
        f"--callgrind-out-file={dumps}",
        sys.executable,
        "-m",
        "benchmarks.instructions.cases",
        *names,
    ]
    path = os.pathsep.join([str(source), str(ROOT), str(ROOT / "tests"), *sys.path[1:]])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    files = sorted(folder.glob(f"{dumps.name}.*"), key=lambda file: int(file.suffix[1:]))
    totals = [int(found[1]) for file in files if (found := TOTAL.search(file.read_text()))]
    counted = [total // COUNT for total in totals if total > SQLITE_MAX]
    return dict(zip(names, counted, strict=True))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
