"""A connection to a SQLite file, and what SQLite's errors mean.

- **Transactions are begun with BEGIN IMMEDIATE**: there is one writer at a time, and who has begun is it. Nobody finds
  out at the first change, or at COMMIT, that somebody else was faster.
- **The file is in WAL mode**, and stays so when we are gone: readers see the last commit while the next transaction is
  written, all of it or nothing. `synchronous=FULL`: a commit that was answered survives a loss of power.
- **A transaction that SQLite has rolled back by itself** (no room, an I/O error) is over. What comes after it is
  refused, instead of being executed without one.
- A COMMIT that fails with an I/O error may have been written or not: if the file is opened by nobody else, the next one
  reads the log and decides. So it is `Gone`, as with a server.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from onceflow.sinks.databases.database import Again, Gone, Refused, Result, Session, Trouble
from onceflow.sinks.databases.sqlite_values import bindable

__all__ = ["SqliteSession", "meaning", "primary_code", "translated"]

WAL_KEPT_BYTES: Final = 64 << 20
"""The log grows with the largest transaction; afterwards it is cut back to this."""
STEPS_BETWEEN_LOOKS: Final = 100_000
"""Of SQLite's virtual machine, before it asks whether a statement has taken too long: a few milliseconds."""

_SETTINGS: Final = (
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",  # on macOS nothing less reaches the disk
    "PRAGMA foreign_keys=ON",
    "PRAGMA temp_store=FILE",
    "PRAGMA temp.secure_delete=OFF",  # otherwise a stage is overwritten with zeros when it is dropped
    f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}",
)


class SqliteSession(Session):
    def __init__(self, path: str, *, lock_timeout_s: float, statement_timeout_s: float | None = None) -> None:
        self._path = path
        self._statement_timeout_s = statement_timeout_s
        self._deadline = float("inf")
        self._has_begun = False
        _check_place(path)
        with translated(path):
            # A driver's steps may run in several threads, one after the other.
            self._connection = sqlite3.connect(
                path, timeout=lock_timeout_s, isolation_level=None, check_same_thread=False, uri=True
            )
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        with translated(self._path):
            mode = self._write_ahead()
            for setting in _SETTINGS:
                self._connection.execute(setting)
        if mode != "wal":
            raise Refused(
                f"{self._path} is on a file system where SQLite cannot keep a write-ahead log (journal_mode stays "
                f"{mode!r}), so readers would be locked out: put it on a local disk"
            )
        if self._statement_timeout_s is not None:
            self._connection.set_progress_handler(self._is_too_late, STEPS_BETWEEN_LOOKS)
        self._file = _identity(self._path)

    def _write_ahead(self) -> str:
        """The mode that the file is in. To change it does not wait for a writer, so that is done first."""
        mode = self._connection.execute("PRAGMA journal_mode").fetchone()[0]
        if mode != "wal":
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("ROLLBACK")
            mode = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        return str(mode)

    def _is_too_late(self) -> bool:
        return time.monotonic() > self._deadline

    @property
    def connection(self) -> sqlite3.Connection:
        return self._connection

    @property
    def is_in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # it is closed
            return False

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        self._check_transaction()
        if self._statement_timeout_s is not None:
            self._deadline = time.monotonic() + self._statement_timeout_s
        with translated(self._path):
            cursor = self._connection.execute(statement, [bindable(each) for each in values])
            try:
                return Result(cursor.fetchall() if cursor.description else [], max(cursor.rowcount, 0))
            finally:
                cursor.close()

    def _check_transaction(self) -> None:
        if self._has_begun and not self.is_in_transaction:
            raise Refused(
                "the transaction is over, although it was not committed here: SQLite rolled it back after an error, "
                "or somebody has called commit() or rollback() of the connection, which must be left alone"
            )

    def begin(self) -> None:
        self._check_file()
        with translated(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
        self._has_begun = True

    def _check_file(self) -> None:
        """Otherwise commits would go into a file that no longer has a name."""
        if _identity(self._path) != self._file:
            raise Refused(
                f"{self._path} was deleted, or another file has taken its place, while it was in use: nobody would see "
                "what is written into the old one. Bring it back, and start again"
            )

    def commit(self) -> None:
        self._check_transaction()
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.rollback()
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                self.close()  # as a lost connection: the next one sees what there is
                raise Gone(f"an I/O error while a transaction was committed into {self._path}: {error}") from error
            raise meaning(error, self._path) from error
        self._has_begun = False

    def rollback(self) -> None:
        self._has_begun = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.close()  # which rolls back, here or when the file is opened again

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


# --- where the file is


def _check_place(path: str) -> None:
    """SQLite says "unable to open database file" to all of these."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise Refused(f"there is no folder {folder} for the database {os.path.basename(path)}: create it")
    if os.path.isdir(path):
        raise Refused(f"{path} is a folder, not a database")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Refused(f"the folder {folder} is not writable for this user: SQLite keeps its log beside the database")
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        raise Refused(f"the database {path} is not writable for this user")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# --- errors


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's exceptions, and those of its module, as `Trouble`."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise meaning(error, path) from error


def meaning(error: Exception, path: str) -> Trouble:
    code = primary_code(error)
    if code in _AGAIN:
        return Again(f"{_AGAIN[code].format(path=path)} ({error})")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return Refused(_constraint(error))
    if code in _REFUSED:
        return Refused(f"{_REFUSED[code].format(path=path)} ({error})")
    if "closed database" in str(error):
        return Gone(f"the connection to {path} is closed")
    return Refused(f"SQLite refuses it: {error}")


def primary_code(error: BaseException | None) -> int | None:
    """Without the details in the upper bytes: SQLITE_BUSY for SQLITE_BUSY_SNAPSHOT. Errors of the module have none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


_AGAIN: Final = {
    sqlite3.SQLITE_BUSY: "another process, or another session, writes into {path} and was waited for in vain",
    sqlite3.SQLITE_LOCKED: "another session holds a lock in {path}",
    sqlite3.SQLITE_PROTOCOL: "too many processes open {path} at the same time",
    sqlite3.SQLITE_SCHEMA: "somebody changes the tables of {path}",
    sqlite3.SQLITE_INTERRUPT: "a statement took longer than it may",
}

_REFUSED: Final = {
    sqlite3.SQLITE_FULL: "there is no room left on the disk of {path}, or where SQLite keeps temporary files "
    "(SQLITE_TMPDIR names another folder): make room, and start again",
    sqlite3.SQLITE_READONLY: "{path} is read-only for this process",
    sqlite3.SQLITE_CORRUPT: "{path} is damaged: bring it back from a backup, or try sqlite3's .recover",
    sqlite3.SQLITE_NOTADB: "{path} is no SQLite database, or is encrypted",
    sqlite3.SQLITE_IOERR: "an I/O error in {path}: look at the disk and into the system's log",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened: is its folder there and writable, or are too many files open?",
    sqlite3.SQLITE_TOOBIG: "a value or a row is larger than SQLite allows (1,000,000,000 bytes)",
    sqlite3.SQLITE_PERM: "this process may not use {path}",
    sqlite3.SQLITE_AUTH: "this process may not do that in {path}",
}

_CONSTRAINTS: Final = {
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: "a row with the same values is there already",
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: "a row with the same key is there already",
    sqlite3.SQLITE_CONSTRAINT_ROWID: "a row with the same key is there already",
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: "a column that must have a value has none",
    sqlite3.SQLITE_CONSTRAINT_CHECK: "a row breaks a CHECK of the table",
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY: "a row refers to one that is not there, or is referred to",
    sqlite3.SQLITE_CONSTRAINT_TRIGGER: "a trigger refuses a row",
    3091: "a value has not the type that a STRICT table asks for",  # SQLITE_CONSTRAINT_DATATYPE, unknown to Python
}


def _constraint(error: Exception) -> str:
    what = _CONSTRAINTS.get(getattr(error, "sqlite_errorcode", 0), "a constraint of the table does not allow it")
    return f"{what}: {error}"
