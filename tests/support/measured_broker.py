"""`python -m tests.support.measured_broker ...` is `onceflow ...`, with a watch on its event loop.

How long the loop was at one thing is measured in CPU time of its thread: on a busy machine that is the same as on an
idle one. The longest turn is written to the file that ONCEFLOW_TEST_TURNS names, whenever there is a longer one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

from onceflow.broker.node import Node
from onceflow.cli import main

__all__ = ["TURNS_FILE", "longest_turn_s", "reset_turns"]

TURNS_FILE: Final = "ONCEFLOW_TEST_TURNS"
TICK_S: Final = 0.001


def longest_turn_s(file: Path) -> float:
    return float(file.read_text() or 0)


def reset_turns(file: Path) -> None:
    """Begin anew: the broker looks for the file at every turn that is longer than a moment."""
    file.write_text("0")


class _Watch:
    def __init__(self, loop: asyncio.AbstractEventLoop, file: Path) -> None:
        self._loop = loop
        self._file = file
        self._at = time.thread_time()
        self._tick()

    def _tick(self) -> None:
        now = time.thread_time()
        took, self._at = now - self._at, now
        if took > 0.01 and took > longest_turn_s(self._file):
            draft = self._file.with_suffix(".draft")
            draft.write_text(str(took))
            draft.replace(self._file)
            self._at = time.thread_time()
        self._loop.call_later(TICK_S, self._tick)


def _watched() -> None:
    attach = Node.attach

    def attach_and_watch(self: Node, loop: asyncio.AbstractEventLoop) -> None:
        attach(self, loop)
        file = Path(os.environ[TURNS_FILE])
        reset_turns(file)
        loop.call_soon(_Watch, loop, file)

    Node.attach = attach_and_watch  # type: ignore[method-assign]


if __name__ == "__main__":
    _watched()
    sys.exit(main())
