"""A small disk for a server: a tmpfs in a mount namespace of its own.

A process holds the namespace and ends when its standard input does, so no mount is ever left behind. It works for root,
and for others where user namespaces are allowed (`can_mount_tmpfs`). Not the namespace of `small_disk.py`: there
everybody is root inside, which PostgreSQL refuses to be.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

__all__ = ["Tmpfs", "can_mount_tmpfs"]


class Tmpfs:
    """with Tmpfs(size_kb=4096) as disk, PostgreSQL(prefix=disk.enter) as server: ..."""

    def __init__(self, *, size_kb: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="onceflow-disk-"))
        self._home.chmod(0o755)
        self.path = self._home / "disk"
        """Where it is for whoever was started with `enter`."""
        self.path.mkdir()
        script = f'mount -t tmpfs -o size={size_kb}k,mode=1777 tmpfs "$1" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            [*_unshare(), "sh", "-c", script, "sh", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.seen = Path(f"/proc/{self._holder.pid}/root{self.path}")
        """Where it is for us."""
        self._filler = self.seen / "filler"

    def __enter__(self) -> Tmpfs:
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "mounted\n":
            self.close()
            raise OSError("A tmpfs could not be mounted.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def enter(self) -> list[str]:
        """What a command begins with that is to see the disk."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self._holder.pid}", "--mount", *user, "--"]

    def fill(self) -> None:
        """From now on there is no room for anything."""
        with open(self._filler, "ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))

    def free(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        self._holder.communicate()
        shutil.rmtree(self._home, ignore_errors=True)


@functools.cache
def can_mount_tmpfs() -> bool:
    command = [*_unshare(), "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--mount"]
