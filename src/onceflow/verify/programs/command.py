"""A pipeline of somebody else's, as a worker: the command that was given, with the addresses and names in its
environment.

It runs in this process's session, so whatever strikes the worker strikes the command and its children. SIGTERM is
passed on; when the command ends, this process ends with its exit code, and the supervisor starts both again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from onceflow.verify.history import Outcome
from onceflow.verify.programs.life import Life

LOOK_EVERY_S = 0.05


def main() -> int:
    life = Life.begin()
    command: str = life.settings["command"]
    op = life.record.begin("start", command=command)
    child = subprocess.Popen(command, shell=True, env={**os.environ, **life.settings["environment"]})
    life.record.end(op, Outcome.OK, pid=child.pid)
    while child.poll() is None and not life.is_over:
        life.rest(LOOK_EVERY_S)
    if child.poll() is None:
        # The shell does not pass a signal on to what it runs; our own is blocked meanwhile.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
