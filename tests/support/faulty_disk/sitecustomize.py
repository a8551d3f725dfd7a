"""A disk whose syncs fail on demand: Python imports this at its start in a process that has our folder on PYTHONPATH.

The test and the broker talk through files in $ONCEFLOW_TEST_FAULTS, each holding a part of the paths that it is about:

    fail-always   syncs of such files fail with EIO as long as this file is there
    fail-once     the next such sync fails; the file is gone then
    hold          such syncs wait as long as this file is there; the file `holding` says that one does
    die           holds a number instead: the process kills itself in place of the write or sync after so many more
"""

import errno
import os
import signal
import time

_FOLDER = os.environ.get("ONCEFLOW_TEST_FAULTS", "")


def _applies(trigger: str, fd: int) -> bool:
    try:
        with open(f"{_FOLDER}/{trigger}") as file:
            return file.read() in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False


def _consume(trigger: str) -> bool:
    try:
        os.unlink(f"{_FOLDER}/{trigger}")
    except FileNotFoundError:
        return False
    return True


_steps_left: int | None = None


def _step() -> None:
    """One more write or sync; the last one, if a test has said so."""
    global _steps_left
    if _steps_left is None:
        try:
            with open(f"{_FOLDER}/die") as file:
                _steps_left = int(file.read())
        except FileNotFoundError:
            return
    if _steps_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _steps_left -= 1


def _counted(real):  # type: ignore[no-untyped-def]
    def write(fd: int, data: bytes, at: int) -> int:
        _step()
        return real(fd, data, at)

    return write


def _faulty(real):  # type: ignore[no-untyped-def]
    def sync(fd: int) -> None:
        _step()
        if _applies("hold", fd):
            with open(f"{_FOLDER}/holding", "w"):
                pass
            while os.path.exists(f"{_FOLDER}/hold"):
                time.sleep(0.002)
        if _applies("fail-always", fd) or (_applies("fail-once", fd) and _consume("fail-once")):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    return sync


if _FOLDER:
    os.fdatasync = _faulty(os.fdatasync)
    os.fsync = _faulty(os.fsync)
    os.pwrite = _counted(os.pwrite)
