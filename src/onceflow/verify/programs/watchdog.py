"""Ends a process whose work has stopped moving: a client that waits for ever after a fault must not stall the run.

    watchdog = Watchdog(life)
    while not life.is_over:
        watchdog.pet()
        ...

Its patience is counted in seconds that the process was awake, so a process that was stopped (SIGSTOP) for longer than
that is not taken for one that hangs. What all threads were doing goes to the log before the end.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from typing import Final

from onceflow.verify.programs.life import Life

__all__ = ["HUNG", "PATIENCE_S", "Watchdog"]

PATIENCE_S: Final = 45
"""The transactions of a dead process are open for ten seconds, and then a scan every ten seconds finds them."""
HUNG: Final = 70
"""The exit code."""


class Watchdog:
    def __init__(self, life: Life, patience_s: int = PATIENCE_S, tick_s: float = 1.0) -> None:
        self._process = life.process
        self._patience_s = patience_s
        self._tick_s = tick_s
        self._still_ticks = 0
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def pet(self) -> None:
        """The work goes on."""
        self._still_ticks = 0

    def _watch(self) -> None:
        while self._still_ticks * self._tick_s < self._patience_s:
            time.sleep(self._tick_s)
            self._still_ticks += 1
        print(f"{self._process} hangs, nothing moved for {self._patience_s} s: ending it", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(HUNG)
