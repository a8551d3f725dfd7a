"""What a process makes of signals that it was started with ignored or blocked."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from onceflow.signals import restore_signals
from tests.support.inherited_signals import HOW, TAKEN_AWAY, started_with

SAY = """
import signal, subprocess, sys
from onceflow.signals import restore_signals
restore_signals()
print([signal.getsignal(number) is signal.SIG_IGN for number in (2, 3, 15, 17)], signal.pthread_sigmask(0, ()))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(subprocess.run([sys.executable, "-c", "import sys; sys.exit(7)"]).returncode)
"""


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*TAKEN_AWAY, signal.SIGHUP)}
    yield
    if signal.SIGINT in signal.sigpending():
        signal.sigwait({signal.SIGINT})
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.mark.parametrize("how", HOW)
def test_a_process_takes_back_what_it_inherited_and_its_children_have_exit_codes(how: str) -> None:
    done = subprocess.run(
        started_with(how, [sys.executable, "-c", SAY]), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[False, False, False, False] set()", "True", "7"]


def test_handlers_that_are_there_are_left_alone() -> None:
    def handler(*_: object) -> None: ...

    for number in TAKEN_AWAY:
        signal.signal(number, handler)
    restore_signals()
    assert all(signal.getsignal(number) is handler for number in TAKEN_AWAY)


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    restore_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_ctrl_c_that_had_to_wait_is_a_keyboard_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        restore_signals()
