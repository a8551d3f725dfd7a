"""Stages of a SQLite database: one file per attempt of a task, in a folder beside the database.

SQLite has one writer at a time, so tasks that load in parallel cannot write into the database. Instead:

    orders.db
    orders.db.onceflow/STAGE/7-12.part       attempt 12 of task 7 is loading
    orders.db.onceflow/STAGE/7-12.db         it has loaded all of its rows
    orders.db.onceflow/STAGE.sealed/7-12.db  the driver has renamed the folder: nobody adds to it any more

- **An attempt is there as a whole or not at all**: its file gets its name by one rename, when it is complete.
- **A late attempt cannot add**: the folder that it would rename its file into has another name by then. One that slips
  in at the very moment is seen by the driver, which lists the folder afterwards, or is not; what counts is the copy
  that it makes, and the list that it makes of it.
- Nothing is synced: after a crash of the machine the driver is gone too, and the next one drops the stage.
- Tasks must see the folder: they run on the driver's machine (`local[N]`), or the folder is shared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from onceflow.sinks.databases.database import Again, Column, Refused, Trouble
from onceflow.sinks.databases.sqlite_session import meaning
from onceflow.sinks.databases.sqlite_values import as_lists

__all__ = ["StageFolder", "folder_of", "names_of_stages"]

SEALED: Final = ".sealed"
DROPPED: Final = ".dropped"
COMPLETE: Final = ".db"
COMPLETE_NAME: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})\.db")
COLUMNS: Final = "columns.sql"
TRIES_MAX: Final = 100

_PART_SETTINGS: Final = (
    "PRAGMA page_size=16384",  # a tenth faster than with the default
    "PRAGMA journal_mode=OFF",  # a file that is not completed is deleted
    "PRAGMA synchronous=OFF",
    "PRAGMA locking_mode=EXCLUSIVE",
)


def folder_of(path: str) -> str:
    """Where the stages of a database are."""
    return f"{path}.onceflow"


def names_of_stages(path: str) -> list[str]:
    """Also of those that are sealed, or that somebody began to drop."""
    try:
        found = os.listdir(folder_of(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _refused(error, folder_of(path)) from error
    return sorted({urllib.parse.unquote(each.partition(".")[0]) for each in found})


class StageFolder:
    def __init__(self, path: str, name: str) -> None:
        self._database = path
        self._open = os.path.join(folder_of(path), urllib.parse.quote(name, safe="").replace(".", "%2E"))
        self._sealed = self._open + SEALED

    # --- on the driver

    def create(self, columns: str) -> None:
        """`columns`: for CREATE TABLE, when the files are gathered."""
        self.remove()  # of a transaction that was rolled back
        try:
            self._make()
            with open(os.path.join(self._open, COLUMNS), "w", encoding="utf-8") as file:
                file.write(columns)
        except OSError as error:
            raise _refused(error, self._open) from error

    def _make(self) -> None:
        for _ in range(TRIES_MAX):
            os.makedirs(folder_of(self._database), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another app has just dropped its last stage
                os.mkdir(self._open)
                return
        raise FileNotFoundError(2, "the folder vanishes", folder_of(self._database))

    def seal(self) -> None:
        try:
            os.rename(self._open, self._sealed)
        except FileNotFoundError:  # it is sealed already; or a later driver has dropped it
            pass
        except OSError as error:
            raise _refused(error, self._open) from error

    def columns(self) -> str | None:
        """What `create` was given; None if the stage is not there any more."""
        try:
            with open(os.path.join(self._sealed, COLUMNS), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(error, self._sealed) from error

    def files(self) -> Iterator[tuple[int, int, str]]:
        """Task, attempt, path; of attempts that are complete."""
        try:
            found = os.listdir(self._sealed)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(error, self._sealed) from error
        for each in sorted(found):
            if name := COMPLETE_NAME.fullmatch(each):
                yield int(name[1]), int(name[2]), os.path.join(self._sealed, each)

    def remove(self) -> None:
        """The folder gets another name first: so no attempt of a task can end while its files are deleted."""
        dropped = self._open + DROPPED
        try:
            for there in (self._open, self._sealed):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(there, f"{dropped}-{os.getpid()}-{os.urandom(4).hex()}")
            for each in self._of_name(os.path.basename(dropped)):
                _delete(each)
            with contextlib.suppress(OSError):
                os.rmdir(folder_of(self._database))  # if that was the last one
        except OSError as error:
            raise _refused(error, self._open) from error

    def _of_name(self, start: str) -> list[str]:
        folder = folder_of(self._database)
        try:
            return [os.path.join(folder, each) for each in os.listdir(folder) if each.startswith(start)]
        except FileNotFoundError:
            return []

    # --- in a task

    def add(self, columns: Sequence[Column], task: int, attempt: int, batches: Iterable[Any]) -> int:
        """Trouble with `batches` themselves is raised as it is."""
        part = os.path.join(self._open, f"{task}-{attempt}.part")
        try:
            rows = self._write(part, columns, batches)
            with self._explained():
                os.rename(part, part.removesuffix(".part") + COMPLETE)
            return rows
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _write(self, part: str, columns: Sequence[Column], batches: Iterable[Any]) -> int:
        rows = 0
        insert = f"INSERT INTO loaded VALUES ({', '.join('?' * len(columns))})"
        with self._explained():
            connection = _new_part(part, len(columns))
        with contextlib.closing(connection):
            for batch in batches:
                values = as_lists(batch, columns, rows)
                with self._explained():
                    connection.executemany(insert, zip(*values, strict=True))
                rows += batch.num_rows
            with self._explained():
                connection.execute("COMMIT")
        return rows

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, OSError) as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> Trouble:
        if not os.path.exists(self._database):
            return Refused(
                f"there is no {self._database} on {socket.gethostname()}, where this task runs: tasks that write into "
                "SQLite must run on the driver's machine (local[N]), or see the same folder under the same name"
            )
        if isinstance(error, FileNotFoundError) or not os.path.isdir(self._open):
            return Again(f"the stage {self._open} is closed: this attempt came too late, or cannot see it")
        return _refused(error, self._open) if isinstance(error, OSError) else meaning(error, self._open)


def _new_part(path: str, width: int) -> sqlite3.Connection:
    """In a transaction. Its columns have no types: values stay as they are."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for setting in _PART_SETTINGS:
            connection.execute(setting)
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE loaded ({', '.join(f'c{at}' for at in range(width))})")
    except BaseException:
        connection.close()
        raise
    return connection


def _delete(folder: str) -> None:
    """It has files only. Another driver may be doing the same."""
    for _ in range(TRIES_MAX):
        with contextlib.suppress(FileNotFoundError):
            for each in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, each))
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                continue  # a task has begun its file while the folder was renamed
        return


def _refused(error: OSError, folder: str) -> Refused:
    return Refused(f"the staging folder {folder} cannot be used: {error.strerror or error}")
