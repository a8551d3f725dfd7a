"""What the programs for Python's clients have in common. They run beside any version of their client, by themselves:
nothing of the tests is imported. What they are is in tests/support/clients/programs.py."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

PATIENCE_S = 30.0

Scenario = Callable[[str], None]
"""Plays it on this topic."""


def play(scenarios: dict[str, Scenario]) -> None:
    """All scenarios that the command line names, at once: most of the time each of them waits for the broker."""
    _, prefix, *names = sys.argv[1:]
    lock = threading.Lock()

    def play_one(name: str) -> None:
        error = None
        try:
            scenarios[name](f"{prefix}-{name.replace(' ', '-')}")
        except BaseException:
            error = traceback.format_exc()
        with lock:
            print(json.dumps({"scenario": name, "error": error}), flush=True)

    pool = ThreadPoolExecutor(8)
    wait([pool.submit(play_one, name) for name in names], timeout=3 * PATIENCE_S)
    os._exit(0)  # threads of a client that hangs are no reason to stay


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")


def check(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
