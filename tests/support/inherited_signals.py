"""Commands that start with signals ignored or blocked, as they inherit it from a shell or a program."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

__all__ = ["HOW", "started_with"]

TAKE_AWAY = """
import os, signal, sys
numbers = [signal.Signals(int(each)) for each in sys.argv[2].split(",")]
if sys.argv[1] == "ignored":
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
else:
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.execv(sys.argv[3], sys.argv[3:])
"""
HOW = ("ignored", "blocked")
TAKEN_AWAY = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)


def started_with(how: str, command: Sequence[str]) -> list[str]:
    """A command that replaces itself by `command`, with the signals of `TAKEN_AWAY` ignored or blocked."""
    return [sys.executable, "-c", TAKE_AWAY, how, ",".join(str(int(each)) for each in TAKEN_AWAY), *command]
