"""A disk in memory that can fail and that forgets: the twin of `RealFileSystem` for crash tests.

It keeps apart what a process sees (the page cache) and what is certain (the platter). Every write, cut and change of a
name waits between the two until `File.sync` or `sync_directory` makes it certain. `crash` ends the machine: of what
waits, each thing survives or not, as a seeded random generator decides, and a write also in part, or with zeros in
place of its end or of all of it, which is what disks and kernels do. `kill` ends only the process: everything is still
seen; what was not certain still is not.

Where a real disk has a choice, this one takes the worse: a failed append leaves its bytes behind, a failed sync drops
the pages for good, and no order holds between two things that were not synced. Three liberties, the other way: a folder
is certain as soon as it is made (unless `forgets_directories`), a name changes within one folder only, and pages that a
failed sync dropped count as waiting again for the next process.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.errors import StorageError
from onceflow.log.files import Buffer, temporary_for

__all__ = ["MemoryFileSystem", "SimulatedCrash"]


class SimulatedCrash(BaseException):
    """The process died in the middle of a write. Not an `Exception`: nothing may catch it and go on."""


@dataclass(eq=False)
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    """What a process sees."""
    certain: bytearray = field(default_factory=bytearray)
    """What loss of power cannot take."""
    waiting: list[tuple[int, bytes | None]] = field(default_factory=list)
    """What lies between the two, in order: (position, bytes written there), or (size it was cut to, None)."""
    dropped: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes that a failed sync has dropped: a process still sees them, and no later sync brings them to disk."""

    def write(self, at: int, written: bytes | None) -> None:
        """Write bytes, or cut where there are none."""
        _apply(self.data, at, written)
        self.waiting.append((at, written))
        if written is None:
            self.dropped = [(p, lost[: at - p]) for p, lost in self.dropped if p < at]
        else:
            self.dropped = [(p, lost) for p, lost in self.dropped if p + len(lost) <= at or at + len(written) <= p]

    def sync(self) -> None:
        for at, written in self.waiting:
            _apply(self.certain, at, written)
        self.waiting.clear()

    def drop_pages(self) -> None:
        """A sync failed: the kernel marks the pages clean and never tries them again."""
        lost = [(at, bytes(self.data[at : at + len(written)])) for at, written in self.waiting if written is not None]
        self.dropped += [(at, seen) for at, seen in lost if seen]
        self.waiting = [(at, written) for at, written in self.waiting if written is None]

    def killed(self) -> _Inode:
        return _Inode(bytearray(self.data), bytearray(self.certain), [*self.waiting, *self.dropped])

    def crashed(self, chance: random.Random) -> _Inode:
        data = bytearray(self.certain)
        for at, written in self.waiting:
            fate = chance.choice(("whole", "part", "torn", "zeros", "lost"))
            if fate == "lost":
                continue
            if written is not None and fate == "part":
                written = written[: chance.randrange(len(written) + 1)]
            elif written is not None and fate == "torn":  # the size got to disk, and not all of the pages
                kept = chance.randrange(len(written) + 1)
                written = written[:kept] + bytes(len(written) - kept)
            elif written is not None and fate == "zeros":
                written = bytes(len(written))
            _apply(data, at, written)
        return _Inode(data, bytearray(data))


def _apply(data: bytearray, at: int, written: bytes | None) -> None:
    if written is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
    elif written:
        data.extend(bytes(max(0, at - len(data))))
        data[at : at + len(written)] = written


_Node = _Inode | None
"""A file, or None for a folder."""


@dataclass(frozen=True, eq=False)
class _Change:
    """One change of names in one folder, all or nothing."""

    folder: Path
    gone: Path | None = None
    new: Path | None = None
    node: _Node = None

    def apply(self, names: dict[Path, _Node]) -> None:
        if self.gone is not None and names.get(self.gone) is not None:
            del names[self.gone]
        elif self.gone is not None:  # a folder, and all that is in it
            for name in [name for name in names if name == self.gone or self.gone in name.parents]:
                del names[name]
        if self.new is not None:
            names[self.new] = self.node


class MemoryFileSystem:
    def __init__(self) -> None:
        self._names: dict[Path, _Node] = {}
        self._certain_names: dict[Path, _Node] = {}
        self._changes: list[_Change] = []
        self._dead = False
        self.forgets_directories = False
        """A new folder is lost in a crash, with all that is in it, unless the folder around it was synced."""
        self.write_failure: tuple[int, int] | None = None
        """(writes to let pass, bytes of the failing one that still reach the file)"""
        self.sync_failures = 0
        """How many of the next syncs fail; a failed sync drops what it should have written, as Linux does."""
        self.bytes_until_crash: int | None = None
        """Raise `SimulatedCrash` after this many more bytes, in the middle of a write if it falls there."""
        self.steps_until_crash: int | None = None
        """Raise `SimulatedCrash` in place of the step after this many more: a write, cut, sync, or change of a name."""

    # The two ways to end.

    def kill(self) -> MemoryFileSystem:
        """What the next process finds after `kill -9`: every byte that was written, synced or not."""
        after = MemoryFileSystem()
        after.forgets_directories = self.forgets_directories
        # One inode may stand under several names and in several waiting changes, and must go on doing so.
        nodes: dict[_Node, _Node] = {None: None}
        for node in (*self._names.values(), *self._certain_names.values(), *(c.node for c in self._changes)):
            if node is not None and node not in nodes:
                nodes[node] = node.killed()
        after._names = {path: nodes[node] for path, node in self._names.items()}
        after._certain_names = {path: nodes[node] for path, node in self._certain_names.items()}
        after._changes = [_Change(c.folder, c.gone, c.new, nodes[c.node]) for c in self._changes]
        return after

    def crash(self, chance: random.Random) -> MemoryFileSystem:
        """What the next boot finds after loss of power."""
        after = MemoryFileSystem()
        after.forgets_directories = self.forgets_directories
        names = dict(self._certain_names)
        for change in self._changes:
            if chance.random() < 0.5:
                change.apply(names)
        nodes: dict[_Node, _Node] = {None: None}
        for path, node in names.items():
            if not self._is_reachable(path, names):
                continue
            if node is not None and node not in nodes:
                nodes[node] = node.crashed(chance)
            after._names[path] = nodes[node]
        after._certain_names = dict(after._names)
        return after

    def _is_reachable(self, path: Path, names: dict[Path, _Node]) -> bool:
        return not self.forgets_directories or all(
            parent in names for parent in path.parents if parent != parent.parent
        )

    # FileSystem

    def open(self, path: Path) -> MemoryFile:
        if path not in self._names:
            if path.parent not in self._names:
                raise StorageError(f"Could not open {path}: No such file or directory.")
            self._step()
            self._change(_Change(path.parent, new=path, node=_Inode()))
        return MemoryFile(self, path, self._inode("open", path))

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._inode("read", path).data)

    def size(self, path: Path) -> int:
        return len(self._inode("read", path).data)

    def replace(self, path: Path, data: bytes, *, private: bool = False) -> None:
        temporary = temporary_for(path)
        self.remove(temporary)
        file = self.open(temporary)
        try:
            file.append(data)
            file.sync()
            self.rename(temporary, path)
        except StorageError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        inode = self._inode("rename", old)
        self._step()
        self._change(_Change(new.parent, gone=old, new=new, node=inode))

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._step()
            self._change(_Change(path.parent, gone=path))

    def remove_tree(self, path: Path) -> None:
        """From the bottom up, so that a crash leaves a part of it."""
        for name in sorted((name for name in self._names if path in name.parents), reverse=True):
            self._step()
            self._change(_Change(name.parent, gone=name))
        self.remove(path)

    def make_directory(self, path: Path) -> None:
        for folder in (*reversed(path.parents), path):
            if folder != folder.parent and folder not in self._names:
                self._step()
                self._change(_Change(folder.parent, new=folder))
                if not self.forgets_directories:
                    self._make_certain([change for change in self._changes if folder in (change.gone, change.new)])

    def list(self, path: Path) -> list[str]:
        folder = f"{path}/"  # as text: simulated runs spend their time here
        names = [str(name)[len(folder) :] for name in self._names if str(name).startswith(folder)]
        return sorted(name for name in names if "/" not in name)

    def exists(self, path: Path) -> bool:
        return path in self._names

    def sync_directory(self, path: Path) -> None:
        self.before_sync()
        self._make_certain([change for change in self._changes if change.folder == path])

    def usage(self, path: Path) -> tuple[int, int]:
        return 2**40, 2**40

    def _inode(self, doing: str, path: Path) -> _Inode:
        node = self._names.get(path)
        if node is None:
            reason = "Is a directory" if path in self._names else "No such file or directory"
            raise StorageError(f"Could not {doing} {path}: {reason}.")
        return node

    def _change(self, change: _Change) -> None:
        change.apply(self._names)
        self._changes.append(change)

    def _make_certain(self, changes: Iterable[_Change]) -> None:
        for change in changes:
            change.apply(self._certain_names)
            at = self._changes.index(change)
            inside = [c for c in self._changes[:at] if change.gone in (c.folder, *c.folder.parents)]
            self._changes = [c for c in self._changes if c is not change and c not in inside]

    # Fault hooks

    def before_write(self, size: int) -> int:
        """How many of `size` bytes reach the file before something goes wrong; raises after the caller kept them."""
        self._step()
        if self.write_failure is not None:
            passes, partial = self.write_failure
            if passes == 0:
                return min(partial, max(0, size - 1))  # with all of it written there would be no failure
            self.write_failure = (passes - 1, partial)
        if self.bytes_until_crash is not None:
            return min(size, self.bytes_until_crash)
        return size

    def after_write(self, wanted: int, written: int, failing: bool) -> None:
        if failing:
            self.write_failure = None
            raise StorageError("Could not write: No space left on device.")
        if self.bytes_until_crash is not None:
            self.bytes_until_crash -= written
            if written < wanted or self.bytes_until_crash == 0:
                self._die()

    def before_sync(self) -> None:
        self._step()
        if self.sync_failures > 0:
            self.sync_failures -= 1
            raise StorageError("Could not flush: Input/output error.")

    def _step(self) -> None:
        if self._dead:
            raise SimulatedCrash
        if self.steps_until_crash is not None:
            if self.steps_until_crash == 0:
                self._die()
            self.steps_until_crash -= 1

    def _die(self) -> None:
        self._dead = True
        raise SimulatedCrash


class MemoryFile:
    def __init__(self, files: MemoryFileSystem, path: Path, inode: _Inode) -> None:
        self.path = path
        self.size = len(inode.data)
        self._files = files
        self._inode = inode
        self.lost_pages = False
        self._is_open = True

    def append(self, data: Buffer) -> None:
        self._check_open("write to")
        failing = self._files.write_failure is not None and self._files.write_failure[0] == 0
        written = self._files.before_write(len(data))
        if failing:
            self._inode.write(self.size, None)  # what two failed writes leave behind must not add up to a whole one
        self._inode.write(self.size, bytes(data[:written]))
        self._files.after_write(len(data), written, failing)
        self.size += written

    def read(self, at: int, size: int) -> bytes:
        self._check_open("read")
        return bytes(self._inode.data[at : min(at + size, self.size)])

    def send(self, socket: int, at: int, size: int) -> int:
        try:
            return os.write(socket, self.read(at, size))
        except BlockingIOError:
            return 0

    def sync(self) -> None:
        self._check_open("flush")
        if self.lost_pages:
            raise StorageError(f"An earlier flush of {self.path} failed.")
        try:
            self._files.before_sync()
        except StorageError:
            self.lost_pages = True
            self._inode.drop_pages()
            raise
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._check_open("cut")
        self._files._step()
        self._inode.write(size, None)
        self.size = size

    def close(self) -> None:
        self._is_open = False

    def _check_open(self, doing: str) -> None:
        if not self._is_open:
            raise StorageError(f"Could not {doing} {self.path}: Bad file descriptor.")
