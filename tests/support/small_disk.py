"""A disk that can be filled, in two kinds: a real small file system, and a limit on the size of files.

`TmpfsDisk` mounts a tmpfs in a mount namespace of its own, held by a process that ends when its standard input does: no
mount is ever left behind, and no root is needed where user namespaces are allowed. `LimitedFiles` works everywhere: the
kernel refuses to let any file of the broker grow beyond a size (RLIMIT_FSIZE), in the middle of a write if need be.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from pathlib import Path
from typing import Protocol

from tests.support.broker_process import BrokerProcess

__all__ = ["LimitedFiles", "SmallDisk", "TmpfsDisk", "can_mount"]

TMPFS_KB = 1024


class SmallDisk(Protocol):
    broker: BrokerProcess

    def fill(self) -> None:
        """From now on there is no room for a further record batch."""
        ...

    def free(self) -> None: ...
    def close(self) -> None: ...


def _unshare() -> list[str]:
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--user", "--mount"]


def _enter(pid: int) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", f"--target={pid}", "--mount", *user, "--"]


@functools.cache
def can_mount() -> bool:
    command = [*_unshare(), "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class TmpfsDisk:
    def __init__(self, tmp_path: Path, durability: str, settings: dict[str, object]) -> None:
        mount_point = tmp_path / "disk"
        mount_point.mkdir()
        script = f'mount -t tmpfs -o size={TMPFS_KB}k tmpfs "$1" && echo mounted && exec cat'
        self._holder = subprocess.Popen(
            [*_unshare(), "sh", "-c", script, "sh", str(mount_point)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "mounted\n"
        inside = Path(f"/proc/{self._holder.pid}/root{mount_point}")
        self._filler = inside / "filler"
        data = mount_point / "data"
        self.broker = BrokerProcess(data, durability=durability, settings=settings, prefix=_enter(self._holder.pid))
        self.broker.seen_data = inside / "data"

    def fill(self) -> None:
        with open(self._filler, "ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(4096))

    def free(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        self._holder.communicate()


class LimitedFiles:
    def __init__(self, tmp_path: Path, durability: str, settings: dict[str, object]) -> None:
        self.broker = BrokerProcess(tmp_path / "data", durability=durability, settings=settings)

    def fill(self) -> None:
        largest = max(path.stat().st_size for path in self.broker.data.rglob("*.log"))
        self.broker.limit_file_size(largest + 10)  # ten bytes of the next batch still fit

    def free(self) -> None:
        self.broker.limit_file_size(None)

    def close(self) -> None: ...
