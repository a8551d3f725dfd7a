"""A disk that fails on demand, under a broker that runs as a process of its own.

`FaultyFiles` is the broker's disk, `FaultyDisk` the hand on it from outside. They talk through files in a folder:

    full       no write finds room while this is there: half of it is written, then ENOSPC
    fail.N     the next sync of a path that contains this file's text fails with EIO; the file is gone then
    slow       every sync takes so many seconds longer while this is there
    hits       a line for each write or sync that was spoiled: what, and where

What the log may rely on (`log.files`) holds here too, as it does on a disk that really fails: the size of a file is
what it was before a write that failed, and a sync that failed once fails ever after on that open file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from pathlib import Path
from typing import Final

from onceflow.errors import StorageError
from onceflow.log.files import Buffer, File, RealFile, RealFileSystem

__all__ = ["FaultyDisk", "FaultyFiles"]

SLOW_S: Final = 0.2
FULL, FAIL, SLOW, HITS = "full", "fail.", "slow", "hits"


class FaultyDisk:
    """What can be done to the disk of a broker that runs on `FaultyFiles(folder)`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._numbers = itertools.count()

    @property
    def is_full(self) -> bool:
        return (self._folder / FULL).exists()

    def fill(self) -> None:
        """No write finds room, until `heal`."""
        self._write(FULL, "")

    def fail_syncs(self, path_part: str = "", *, count: int = 1) -> None:
        """The next syncs of files or folders whose path contains `path_part` fail; those after them do not."""
        for _ in range(count):
            self._write(f"{FAIL}{next(self._numbers)}", path_part)

    def slow_down(self, seconds: float = SLOW_S) -> None:
        """Every sync takes so much longer, until `heal`."""
        self._write(SLOW, str(seconds))

    def heal(self) -> None:
        for name in os.listdir(self._folder):
            if name != HITS:
                (self._folder / name).unlink(missing_ok=True)  # the broker may be quicker

    def hits(self) -> list[str]:
        """What was spoiled so far: "write PATH", "sync PATH", "slow sync PATH"."""
        path = self._folder / HITS
        return path.read_text().splitlines() if path.exists() else []

    def _write(self, name: str, text: str) -> None:
        # In two steps: the broker must not read a trigger that is not written yet.
        draft = self._folder / f"draft-{name}"
        draft.write_text(text)
        draft.rename(self._folder / name)


class _Faults:
    """The broker's side of the folder. Asked in its loop and in its disk thread; unlink decides who gets a fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def refuse_write(self, path: Path) -> bool:
        if not (self._folder / FULL).exists():
            return False
        self._report("write", path)
        return True

    def refuse_sync(self, path: Path) -> bool:
        """Also takes its time, on a slow disk."""
        self._take_time(path)
        for name in os.listdir(self._folder):
            if name.startswith(FAIL) and self._is_about(name, path) and self._consume(name):
                self._report("sync", path)
                return True
        return False

    def _is_about(self, name: str, path: Path) -> bool:
        part = self._read(name)
        return part is not None and part in str(path)

    def _take_time(self, path: Path) -> None:
        if (seconds := self._read(SLOW)) is not None:
            self._report("slow sync", path)
            time.sleep(float(seconds))

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    def _consume(self, name: str) -> bool:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def _report(self, what: str, path: Path) -> None:
        with open(self._folder / HITS, "a") as hits:
            hits.write(f"{what} {path}\n")


def _sentence(doing: str, path: Path, number: int) -> StorageError:
    return StorageError(f"Could not {doing} {path}: {os.strerror(number)}.")


class _FaultyFile(RealFile):
    __slots__ = ("_faults",)

    def __init__(self, path: Path, faults: _Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def append(self, data: Buffer) -> None:
        if not self._faults.refuse_write(self.path):
            super().append(data)
            return
        end = self.size
        with contextlib.suppress(StorageError):
            super().append(memoryview(data)[: len(data) // 2])
        self.truncate(end)  # as `RealFile.append` does it after a write that failed
        raise _sentence("write to", self.path, errno.ENOSPC)

    def sync(self) -> None:
        if not self.lost_pages and self._faults.refuse_sync(self.path):
            self.lost_pages = True
            raise _sentence("flush", self.path, errno.EIO)
        super().sync()


class FaultyFiles(RealFileSystem):
    """The real disk, unless a file in `folder` says otherwise."""

    def __init__(self, folder: Path) -> None:
        self._faults = _Faults(folder)

    def open(self, path: Path) -> File:
        return _FaultyFile(path, self._faults)

    def replace(self, path: Path, data: bytes, *, private: bool = False) -> None:
        if self._faults.refuse_write(path):
            raise _sentence("write", path, errno.ENOSPC)
        if self._faults.refuse_sync(path):
            raise _sentence("write", path, errno.EIO)
        super().replace(path, data, private=private)

    def make_directory(self, path: Path) -> None:
        if not path.exists() and self._faults.refuse_write(path):
            raise _sentence("create", path, errno.ENOSPC)
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        if self._faults.refuse_sync(path):
            raise _sentence("flush", path, errno.EIO)
        super().sync_directory(path)
