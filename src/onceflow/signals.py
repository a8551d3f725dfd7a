"""What a process inherits from whoever started it, and does not keep.

A signal that is ignored or blocked stays so in every process that is started, across `exec`. A shell without job
control (a script, `sh -c`, cron) ignores SIGINT and SIGQUIT in what it starts with `&`; a program that waits for its
signals in one thread blocks them, and so they are blocked in what it starts. Python installs no handler for a SIGINT
that is ignored: there would be no KeyboardInterrupt. A child whose SIGCHLD is ignored has no exit code.

Whoever promises to end with Ctrl-C or SIGTERM begins with `restore_signals`. SIGHUP stays as it is: `nohup` means it.
SIGPIPE is Python's own affair: it ignores it, and gives its children the default back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

__all__ = ["restore_signals"]


def restore_signals() -> None:
    """Their defaults for SIGINT, SIGQUIT, SIGTERM and SIGCHLD, if they are ignored; none of them is blocked afterwards.

    For the main thread of a process that has just been started: handlers that are installed already are left alone. One
    that was blocked and has come in the meantime takes effect here, Ctrl-C as a `KeyboardInterrupt`.
    """
    if os.name != "posix":
        return
    defaults: dict[signal.Signals, Callable[[int, FrameType | None], None] | signal.Handlers] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGCHLD: signal.SIG_DFL,
    }
    for number, default in defaults.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, defaults)
