"""A disk in memory that can fail and that forgets: the twin of `RealFileSystem` for crash tests.

Every file remembers what was synced and, in order, every write since. `crash` ends the "machine": what was synced is
kept, each later write survives whole, in part, as zeros or not at all, as a seeded random generator decides, which
is what disks and kernels do. `kill` ends only the process: all that was written stays.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.errors import StorageError
from onceflow.log.files import Buffer

__all__ = ["MemoryFileSystem", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process died in the middle of a write. Not an `Exception`: nothing may catch it and go on."""


@dataclass
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)

    def sync(self) -> None:
        self.synced = bytes(self.data)
        self.unsynced.clear()


class MemoryFileSystem:
    def __init__(self) -> None:
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._directories: set[Path] = set()
        self.write_failure: tuple[int, int] | None = None
        """(appends to let pass, bytes of the failing one that still reach the file)"""
        self.sync_failures = 0
        """How many of the next syncs fail; a failed sync drops what it should have written, as Linux does."""
        self.bytes_until_crash: int | None = None
        """Raise `SimulatedCrash` after this many more bytes, in the middle of a write if it falls there."""

    # The two ways to end.

    def kill(self) -> MemoryFileSystem:
        """What the next process finds after `kill -9`: every byte that was written, synced or not."""
        after = MemoryFileSystem()
        for path, inode in self._names.items():
            kept = _Inode(bytearray(inode.data), bytes(inode.data))
            after._names[path] = after._durable_names[path] = kept
        after._directories = set(self._directories)
        return after

    def crash(self, chance: random.Random) -> MemoryFileSystem:
        """What the next boot finds after loss of power."""
        after = MemoryFileSystem()
        names = dict(self._durable_names)
        for path, inode in self._names.items():  # a name that was not synced may have made it anyway
            if path not in names and chance.random() < 0.5:
                names[path] = inode
        for path in list(names):  # and a removal may not have
            if path not in self._names and chance.random() < 0.5:
                del names[path]
        for path, inode in names.items():
            data = bytearray(inode.synced)
            for at, written in inode.unsynced:
                fate = chance.choice(("whole", "part", "zeros", "lost"))
                if fate == "lost":
                    continue
                if fate == "part":
                    written = written[: chance.randrange(len(written) + 1)]
                elif fate == "zeros":
                    written = bytes(len(written))
                if written:
                    data.extend(bytes(max(0, at + len(written) - len(data))))
                    data[at : at + len(written)] = written
            after._names[path] = after._durable_names[path] = _Inode(data, bytes(data))
        after._directories = set(self._directories)
        return after

    # FileSystem

    def open(self, path: Path) -> MemoryFile:
        self._directories.add(path.parent)
        return MemoryFile(self, path, self._names.setdefault(path, _Inode()))

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._inode(path).data)

    def size(self, path: Path) -> int:
        return len(self._inode(path).data)

    def replace(self, path: Path, data: bytes) -> None:
        self.before_write(len(data))
        self.before_sync()
        inode = _Inode(bytearray(data), bytes(data))
        self._names[path] = self._durable_names[path] = inode

    def rename(self, old: Path, new: Path) -> None:
        self._names[new] = self._names.pop(old)

    def remove(self, path: Path) -> None:
        self._names.pop(path, None)

    def remove_tree(self, path: Path) -> None:
        for name in [name for name in self._names if path in name.parents]:
            del self._names[name]
        self._directories = {d for d in self._directories if d != path and path not in d.parents}

    def make_directory(self, path: Path) -> None:
        self._directories.add(path)

    def list(self, path: Path) -> list[str]:
        children = {name.name for name in self._names if name.parent == path}
        children |= {d.relative_to(path).parts[0] for d in self._directories if path in d.parents}
        return sorted(children)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._directories

    def sync_directory(self, path: Path) -> None:
        self.before_sync()
        for name in [name for name in self._durable_names if name.parent == path]:
            del self._durable_names[name]
        self._durable_names.update({n: i for n, i in self._names.items() if n.parent == path})

    def usage(self, path: Path) -> tuple[int, int]:
        return 2**40, 2**40

    def _inode(self, path: Path) -> _Inode:
        try:
            return self._names[path]
        except KeyError:
            raise StorageError(f"Could not read {path}: No such file or directory.") from None

    # Fault hooks

    def before_write(self, size: int) -> int:
        """How many of `size` bytes reach the file before something goes wrong; raises after the caller kept them."""
        if self.write_failure is not None:
            passes, partial = self.write_failure
            if passes == 0:
                return min(partial, size)
            self.write_failure = (passes - 1, partial)
        if self.bytes_until_crash is not None:
            return min(size, self.bytes_until_crash)
        return size

    def after_write(self, wanted: int, written: int) -> None:
        if self.write_failure is not None and self.write_failure[0] == 0:
            self.write_failure = None
            raise StorageError("Could not write: No space left on device.")
        if self.bytes_until_crash is not None:
            self.bytes_until_crash -= written
            if written < wanted or self.bytes_until_crash == 0:
                raise SimulatedCrash

    def before_sync(self) -> None:
        if self.sync_failures > 0:
            self.sync_failures -= 1
            raise StorageError("Could not flush: Input/output error.")


class MemoryFile:
    def __init__(self, files: MemoryFileSystem, path: Path, inode: _Inode) -> None:
        self.path = path
        self.size = len(inode.data)
        self._files = files
        self._inode = inode
        self._lost_pages = False

    def append(self, data: Buffer) -> None:
        written = self._files.before_write(len(data))
        chunk = bytes(data[:written])
        self._inode.data[self.size : self.size + written] = chunk
        self._inode.unsynced.append((self.size, chunk))
        self._files.after_write(len(data), written)
        self.size += written

    def read(self, at: int, size: int) -> bytes:
        return bytes(self._inode.data[at : min(at + size, self.size)])

    def sync(self) -> None:
        if self._lost_pages:
            raise StorageError(f"An earlier flush of {self.path} failed.")
        try:
            self._files.before_sync()
        except StorageError:
            self._lost_pages = True
            self._inode.unsynced.clear()  # the kernel marks the pages clean and never tries them again
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        del self._inode.data[size:]
        self._inode.unsynced = [(at, data) for at, data in self._inode.unsynced if at + len(data) <= size]
        self._inode.synced = self._inode.synced[:size]
        self.size = size

    def close(self) -> None:
        pass
