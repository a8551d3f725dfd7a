"""SQLite: a database in a file, without a server.

    sqlite:///folder/file.db     from the working directory of the driver
    sqlite:////folder/file.db    from the root

The file is created if it is not there, its folder is not. It is switched to WAL mode (`sqlite_session.py`), which stays
with the file. Tasks load files of their own beside it (`sqlite_stages.py`), and so must run on the driver's machine.
What columns hold, and which ones are refused: `sqlite_values.py`.
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from onceflow.errors import ConfigError
from onceflow.sinks.databases import sqlite_values
from onceflow.sinks.databases.database import (
    Column,
    Database,
    Kind,
    Loaded,
    Refused,
    Session,
    Stage,
    TableColumn,
    TableName,
)
from onceflow.sinks.databases.sqlite_session import SqliteSession, primary_code
from onceflow.sinks.databases.sqlite_stages import StageFolder, folder_of, names_of_stages
from onceflow.sinks.databases.sqlite_values import SqliteColumn

__all__ = ["Sqlite"]

OLDEST: Final = (3, 35, 0)
"""The first with RETURNING. Upsert and window functions are older."""
FIRST_WITH_STRICT: Final = (3, 37, 0)
PART: Final = "onceflow_part"
LOST: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
"""What is said of a file that is not there any more, or not as the task has left it."""


class Sqlite(Database):
    """A file on the driver's machine. If tasks run elsewhere, what they load is not found, and the batch fails."""

    def __init__(self, url: str) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigError(
                f"Python's sqlite3 comes with SQLite {sqlite3.sqlite_version}, and {'.'.join(map(str, OLDEST))} is the "
                "oldest that can be used: take a newer Python, or a newer library"
            )
        self.url = url
        self.path = os.path.realpath(_path_in(url))
        """Absolute from the beginning: tasks may have another working directory."""
        self.where_stages_are = (
            f": it should be in {folder_of(self.path)}, so tasks must run on the driver's machine, or share that folder"
        )

    @property
    def shown(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self, *, lock_timeout_s: float, statement_timeout_s: float | None = None) -> SqliteSession:
        """There is no server that ends a transaction of a process that hangs; others wait, and get `Again`."""
        return SqliteSession(self.path, lock_timeout_s=lock_timeout_s, statement_timeout_s=statement_timeout_s)

    def identity(self, session: Session, table: TableName) -> str:
        file = os.stat(self.path)  # one file may have several names
        return f"{file.st_dev}:{file.st_ino}:{_table(table).lower()}"

    # --- names and types

    def quoted(self, name: str | TableName) -> str:
        """Without "main": the rows of a stage are in a temporary table."""
        if isinstance(name, TableName):
            name = _table(name)
        if "\0" in name:
            raise ConfigError(f"{name!r} is no name: it has a character with the code 0")
        return '"' + name.replace('"', '""') + '"'

    def type_for(self, kind: Kind) -> str:
        return sqlite_values.type_for(kind)

    def keeps_as_text(self, kind: Kind) -> bool:
        return kind.name == "decimal"

    def misfit(self, column: Column, there: TableColumn) -> str | None:
        return sqlite_values.misfit(column, there)

    def columns(self, session: Session, table: TableName) -> list[TableColumn] | None:
        name = _table(table)
        if not self._is_table(session, name):
            return None
        is_strict = _is_strict(session, name)
        rowid = _rowid_column(session, name)
        found = session.execute(
            "SELECT name, type, \"notnull\", dflt_value, hidden FROM pragma_table_xinfo(?, 'main')", [name]
        )
        return [
            SqliteColumn(
                column,
                declared,
                is_nullable=not required and column != rowid,  # NULL for the rowid is any number that is free
                has_default=default is not None or column == rowid or hidden != 0,
                is_strict=is_strict,
                is_generated=hidden != 0,
            )
            for column, declared, required, default, hidden in found.rows
        ]

    def _is_table(self, session: Session, name: str) -> bool:
        found = session.execute(
            "SELECT type, sql FROM main.sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')",
            [name],
        )
        for kind, statement in found.rows:
            if kind == "view":
                raise Refused(f"{name} is a view: rows go into tables")
            if str(statement).upper().startswith("CREATE VIRTUAL"):
                raise Refused(f"{name} is a virtual table, of an extension of SQLite's: rows go into ordinary tables")
        return bool(found.rows)

    def unique_keys(self, session: Session, table: TableName) -> list[frozenset[str]]:
        name = _table(table)
        rowid = _rowid_column(session, name)
        indexes = _unique_indexes(session, name)
        keys = [frozenset(column for column, _ in index) for index in indexes]
        return [frozenset([rowid]), *keys] if rowid is not None else keys

    def check_rights(self, session: Session, table: TableName, rights: Sequence[str]) -> None:
        """Who may write the file may do everything."""

    # --- stages

    def create_stage(self, session: Session, stage: Stage, target: TableName) -> None:
        self._folder(stage.name).create(self._stage_columns(session, stage, target))

    def _stage_columns(self, session: Session, stage: Stage, target: TableName | None) -> str:
        """With the target's affinities; and its collations, so that keys are the same here if they are the same
        there."""
        there = (self.columns(session, target) if target else None) or []
        types = {each.name: sqlite_values.affinity_of(each).replace("NONE", "") for each in there}
        indexes = _unique_indexes(session, _table(target)) if target else []
        collations = {column: collation for index in indexes for column, collation in index if collation != "BINARY"}
        return ", ".join(
            f"{self.quoted(each.name)} {types.get(each.name, self.type_for(each.kind))}"
            + (f" COLLATE {self.quoted(collations[each.name])}" if each.name in collations else "")
            for each in stage.columns
        )

    def load(self, stage: Stage, task: int, attempt: int, batches: Iterable[Any]) -> int:
        return self._folder(stage.name).add(stage.columns, task, attempt, batches)

    def gather(self, session: Session, stage: Stage) -> None:
        """A copy of the rows, in temporary tables of this session."""
        folder = self._folder(stage.name)
        folder.seal()
        self._drop_copy(session, stage.name)
        columns = folder.columns() or self._stage_columns(session, stage, None)
        session.execute(f"CREATE TEMP TABLE {self.quoted(stage.name)} ({columns})")
        session.execute(f"CREATE TEMP TABLE {self.quoted(_manifest(stage.name))} (task, attempt, number_of_rows)")
        for task, attempt, path in folder.files():
            self._copy(session, stage.name, path, task, attempt)

    def _copy(self, session: Session, stage: TableName, path: str, task: int, attempt: int) -> None:
        """A file that a later driver has just deleted is not in the manifest; then neither are its rows in the copy."""
        try:
            session.execute(f"ATTACH ? AS {PART}", [f"file:{urllib.parse.quote(path)}?mode=ro&immutable=1"])
            try:
                count = session.execute(f"INSERT INTO {self.quoted(stage)} SELECT * FROM {PART}.loaded").count
            finally:
                session.execute(f"DETACH {PART}")
        except Refused as trouble:
            if primary_code(trouble.__cause__) not in LOST:
                raise
        else:
            session.execute(f"INSERT INTO {self.quoted(_manifest(stage))} VALUES (?, ?, ?)", [task, attempt, count])

    def seal(self, session: Session, stage: Stage) -> list[Loaded]:
        """Nobody else sees the copy. There is none if it was made in a session that is gone."""
        manifest = _manifest(stage.name)
        if not session.execute("SELECT 1 FROM temp.sqlite_master WHERE name = ?", [manifest]).rows:
            return []
        return [Loaded(*row) for row in session.execute(f"SELECT * FROM temp.{self.quoted(manifest)}").rows]

    def drop_stage(self, session: Session, stage: TableName) -> None:
        self._drop_copy(session, stage)
        if not session.is_in_transaction:
            self._folder(stage).remove()

    def _drop_copy(self, session: Session, stage: TableName) -> None:
        for name in (_table(stage), _manifest(stage)):
            session.execute(f"DROP TABLE IF EXISTS temp.{self.quoted(name)}")

    def stages(self, session: Session, prefix: TableName) -> list[TableName]:
        start = _table(prefix)
        return [TableName(prefix.schema, name) for name in names_of_stages(self.path) if name.startswith(start)]

    def _folder(self, stage: TableName) -> StageFolder:
        return StageFolder(self.path, _table(stage))

    # --- statements in other words

    def lock_row(self, select: str) -> str:
        return select  # who has begun a transaction is the only writer

    def lock_table(self, session: Session, table: TableName) -> None: ...

    def details(self) -> Mapping[str, str]:
        return {"url": self.shown, "stages": folder_of(self.path)}


# --- the address


def _path_in(url: str) -> str:
    where, _, parameters = url.partition("?")
    if parameters:
        raise ConfigError(f"url={url!r}: there are no parameters for SQLite, so nothing may follow after a '?'")
    rest = where.partition(":")[2]
    if rest in ("", "//", "///") or rest.endswith(":memory:"):
        raise ConfigError(
            f"url={url!r} is a database in memory, and every process would have one of its own, which ends with it: "
            "sqlite:///file.db names a file"
        )
    if not rest.startswith("///") or "\0" in rest:
        raise ConfigError(
            f"url={url!r} is no address of a file: sqlite:///folder/file.db, with four slashes for a path from the root"
        )
    return rest.removeprefix("///")


def _table(name: TableName) -> str:
    if name.schema is not None and name.schema.lower() != "main":
        raise ConfigError(
            f"there is no schema {name.schema!r} in SQLite: a table has a name without a dot, or main.{name.name}"
        )
    return name.name


def _manifest(stage: TableName) -> str:
    return f"{_table(stage)} (attempts)"


# --- what SQLite knows about a table


def _is_strict(session: Session, table: str) -> bool:
    if sqlite3.sqlite_version_info < FIRST_WITH_STRICT:
        return False
    found = session.execute("SELECT strict FROM pragma_table_list(?) WHERE schema = 'main'", [table])
    return any(strict for (strict,) in found.rows)


def _rowid_column(session: Session, table: str) -> str | None:
    """INTEGER PRIMARY KEY: another name for the number that every row has, and the one primary key without an index."""
    indexed = session.execute("SELECT 1 FROM pragma_index_list(?, 'main') WHERE origin = 'pk'", [table])
    key = session.execute("SELECT name FROM pragma_table_info(?, 'main') WHERE pk > 0", [table])
    return None if indexed.rows or not key.rows else str(key.rows[0][0])


def _unique_indexes(session: Session, table: str) -> list[list[tuple[str, str]]]:
    """Column and collation of each that holds for all rows and is of columns alone."""
    found = session.execute(
        "SELECT name FROM pragma_index_list(?, 'main') WHERE \"unique\" AND NOT partial ORDER BY seq", [table]
    )
    indexes = [
        session.execute("SELECT name, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno", [name]).rows
        for (name,) in found.rows
    ]
    return [[(column, collation) for column, collation in index] for index in indexes if all(row[0] for row in index)]
