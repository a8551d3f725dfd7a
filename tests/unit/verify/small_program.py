"""What the workers of `test_workers.py` run: a life that does one of a few things, and says so."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from onceflow.verify.history import Outcome
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.watchdog import Watchdog


def say(words: str) -> None:
    print(words, flush=True)


def wait(life: Life) -> None:
    while not life.is_over:
        life.rest(10)


def ignore_the_end(life: Life) -> None:
    while True:
        time.sleep(10)


def open_the_gate(life: Life) -> None:
    while not Path(life.settings["gate"]).exists():
        life.rest(0.01)
    say(f"{life.process} passed the gate")
    wait(life)


def have_a_child(life: Life) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    say(f"child {child.pid}")
    wait(life)


def leave_a_child(life: Life) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    say(f"child {child.pid} of {life.process}")
    while not life.is_over and (life.settings["life"] > 1 or not Path(life.settings["gate"]).exists()):
        life.rest(0.01)


def fail(life: Life) -> None:
    sys.exit(f"{life.process} fails")


def hang(life: Life) -> None:
    Watchdog(life, patience_s=1, tick_s=0.25)
    time.sleep(60)


def be_slow(life: Life) -> None:
    """Moves only behind the gate, which is opened when it has been stopped for longer than the watchdog waits."""
    watchdog = Watchdog(life, patience_s=2, tick_s=0.25)
    gate = Path(life.settings["gate"])
    while not gate.exists():
        life.rest(0.01)
    say(f"{life.process} passed the gate")
    while not life.is_over:
        watchdog.pet()
        life.rest(0.1)


DEEDS = (wait, ignore_the_end, open_the_gate, have_a_child, leave_a_child, fail, hang, be_slow)


def main() -> None:
    life = Life.begin()
    op = life.record.begin("begin")
    life.record.end(op, Outcome.OK)
    say(f"{life.process} began")
    deed = life.settings["does"].replace(" ", "_")
    {each.__name__: each for each in DEEDS}[deed](life)
    say(f"{life.process} ended cleanly")


if __name__ == "__main__":
    main()
