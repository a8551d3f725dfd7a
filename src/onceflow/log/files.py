"""The door to the disk: what the log asks of a file system, and the real one.

The log never touches `os` itself, so that `log.memory_files` can stand in for the disk in tests: fail the next
write, fail the next sync, forget whatever was not synced. What the log may rely on, and both implement:

- `File.append` writes all of its bytes at the end or raises `StorageError`; after a failure the file's `size` is
  what it was, and the next append writes over whatever the failed one left behind.
- A `sync` that failed once fails ever after on that open file: the kernel reports a lost page once and may call the
  next sync a success.
- Bytes are certain to survive loss of power only after `File.sync`; a new name only after `sync_directory` of its
  folder.
- `replace` is all or nothing: after a crash the name holds the old bytes or the new ones, whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final, Protocol

from onceflow.errors import StorageError

__all__ = ["Buffer", "File", "FileSlice", "FileSystem", "RealFileSystem", "make_data_directory"]

Buffer = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"


def temporary_for(path: Path) -> Path:
    """Where the new content of a file is written before it takes the name; a name has at most 255 bytes."""
    return path.with_name(path.name[: 255 - len(TEMPORARY_SUFFIX)] + TEMPORARY_SUFFIX)


class File(Protocol):
    path: Path
    size: int
    lost_pages: bool
    """A sync has failed; every further one will."""

    def append(self, data: Buffer) -> None: ...
    def read(self, at: int, size: int) -> bytes: ...
    def send(self, socket: int, at: int, size: int) -> int:
        """Send bytes to a socket that does not block, as many as it takes now: possibly none."""
        ...

    def sync(self) -> None: ...
    def truncate(self, size: int) -> None: ...
    def close(self) -> None: ...


class FileSlice:
    """Bytes of a file that are to be sent. They are read, or sent past our memory, when their turn comes."""

    __slots__ = ("at", "file", "size")

    def __init__(self, file: File, at: int, size: int) -> None:
        self.file = file
        self.at = at
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """The bytes from `start` on, all or `size` of them: whoever announced so many must not send fewer."""
        size = self.size - start if size is None else size
        data = self.file.read(self.at + start, size)
        if len(data) != size:
            raise StorageError(f"{self.file.path} was cut while a part of it was on its way to a reader.")
        return data

    def send(self, socket: int, start: int) -> int:
        return self.file.send(socket, self.at + start, self.size - start)


class FileSystem(Protocol):
    def open(self, path: Path) -> File:
        """Open for reading and appending; created empty if it is not there."""
        ...

    def read_bytes(self, path: Path) -> bytes: ...
    def size(self, path: Path) -> int: ...
    def replace(self, path: Path, data: bytes, *, private: bool = False) -> None: ...
    def rename(self, old: Path, new: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_tree(self, path: Path) -> None: ...
    def make_directory(self, path: Path) -> None: ...
    def list(self, path: Path) -> list[str]: ...
    def exists(self, path: Path) -> bool: ...
    def sync_directory(self, path: Path) -> None: ...
    def usage(self, path: Path) -> tuple[int, int]:
        """Total and usable bytes of the volume."""
        ...


def _sentence(doing: str, path: Path, error: OSError) -> StorageError:
    return StorageError(f"Could not {doing} {path}: {error.strerror or error}.")


class RealFile:
    """One open file. Appends go by position, so a failed one is simply written over by the next."""

    __slots__ = ("_fd", "lost_pages", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost_pages = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            raise _sentence("open", path, error) from error

    def append(self, data: Buffer) -> None:
        end = self.size
        try:
            written = os.pwrite(self._fd, data, end)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], end + written)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next append writes over it; this only frees the space sooner
                os.ftruncate(self._fd, end)
            raise _sentence("write to", self.path, error) from error
        self.size = end + written

    def read(self, at: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, max(0, min(size, self.size - at)), at)
        except OSError as error:
            raise _sentence("read", self.path, error) from error

    def send(self, socket: int, at: int, size: int) -> int:
        try:
            return os.sendfile(socket, self._fd, at, size)
        except BlockingIOError:
            return 0

    def sync(self) -> None:
        if self.lost_pages:
            raise StorageError(f"An earlier flush of {self.path} failed.")
        if self._fd < 0:  # closed meanwhile by the loop's thread: `os.fdatasync` would raise ValueError
            raise StorageError(f"Could not flush {self.path}: Bad file descriptor.")
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.lost_pages = True
            raise _sentence("flush", self.path, error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _sentence("cut", self.path, error) from error
        self.size = size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealFileSystem:
    def open(self, path: Path) -> File:
        return RealFile(path)

    def read_bytes(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise _sentence("read", path, error) from error

    def size(self, path: Path) -> int:
        try:
            return path.stat().st_size
        except OSError as error:
            raise _sentence("read", path, error) from error

    def replace(self, path: Path, data: bytes, *, private: bool = False) -> None:
        """`private` is for what nobody but the owner may read."""
        temporary = temporary_for(path)
        mode = 0o600 if private else 0o666
        try:
            if private:
                temporary.unlink(missing_ok=True)  # one that a crash has left may be readable for all
            with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _sentence("write", path, error) from error
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        try:
            os.replace(old, new)
        except OSError as error:
            raise _sentence("rename", old, error) from error

    def remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _sentence("remove", path, error) from error

    def remove_tree(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _sentence("remove", path, error) from error

    def make_directory(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _sentence("create", path, error) from error

    def list(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _sentence("list", path, error) from error

    def exists(self, path: Path) -> bool:
        return path.exists()

    def sync_directory(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _sentence("flush", path, error) from error

    def usage(self, path: Path) -> tuple[int, int]:
        usage = shutil.disk_usage(path)
        return usage.total, usage.free


def make_data_directory(directory: Path) -> None:
    """For its owner only, as what is in topics may be. One that is there stays as it is: somebody may want it so."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


class DirectoryLock:
    """Holds a data directory for one process. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        os.close(self._fd)
