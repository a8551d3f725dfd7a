"""The databases that landing is tested with, looked at without landing's own code."""

from __future__ import annotations

import abc
import contextlib
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

__all__ = ["Place", "PostgresqlPlace", "ProgressRow", "SqlitePlace"]

Rows = list[tuple[Any, ...]]
STAGE = "onceflow_stage"


class ProgressRow(NamedTuple):
    epoch: int
    query_id: str | None
    batch_id: int | None
    offsets: Any


class Place(abc.ABC):
    """A database of one test."""

    name: str
    url: str

    @abc.abstractmethod
    def another_url(self) -> str:
        """Of the same database, spelled differently."""

    @abc.abstractmethod
    def execute(self, *statements: str) -> Rows:
        """In a transaction of their own; what the last one gives."""

    @abc.abstractmethod
    def stages(self) -> list[str]:
        """Whatever is there of staging tables."""

    @abc.abstractmethod
    def tables(self) -> list[str]:
        """All that there is, but stages."""

    def rows(self, table: str, columns: Sequence[str] = ()) -> Rows:
        """All of them, in an order that does not depend on the database."""
        names = ", ".join(f'"{each}"' for each in columns) or "*"
        return in_order(self.execute(f"SELECT {names} FROM {table}"))

    def progress(self, app_id: str) -> ProgressRow | None:
        if "onceflow_progress" not in self.tables():
            return None
        statement = "SELECT epoch, query_id, batch_id, offsets FROM onceflow_progress WHERE app_id = "
        found = self.execute(f"{statement}'{app_id}'")
        if not found:
            return None
        [(epoch, query_id, batch_id, offsets)] = found
        return ProgressRow(epoch, query_id, batch_id, None if offsets is None else json.loads(offsets))


def in_order(rows: Sequence[Sequence[Any]]) -> Rows:
    return sorted((tuple(row) for row in rows), key=repr)


class PostgresqlPlace(Place):
    name = "postgresql"

    def __init__(self, url: str, looked_at_by: str | None = None) -> None:
        """`looked_at_by`: the address that we use, if it is another one than landing's."""
        self.url = url
        self._own_url = looked_at_by or url

    def another_url(self) -> str:
        assert "@127.0.0.1:" in self.url
        return self.url.replace("@127.0.0.1:", "@localhost:")

    def execute(self, *statements: str) -> Rows:
        with psycopg.connect(self._own_url) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stages(self) -> list[str]:
        return [name for (name,) in self.execute(f"SELECT relname FROM pg_class WHERE relname LIKE '{STAGE}%'")]

    def tables(self) -> list[str]:
        found = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        return [name for (name,) in found if not name.startswith(STAGE)]


class SqlitePlace(Place):
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def another_url(self) -> str:
        return f"sqlite:///{self.path.parent}/../{self.path.parent.name}/{self.path.name}"

    def execute(self, *statements: str) -> Rows:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            connection.execute("COMMIT")
            return rows

    def stages(self) -> list[str]:
        """Files and folders beside the database, and tables in it."""
        beside = [each.name for each in self.path.parent.iterdir() if not each.name.startswith(self.path.name)]
        folder = self.path.with_name(f"{self.path.name}.onceflow")
        inside = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        return beside + inside + [name for name in self._names() if name.startswith(STAGE)]

    def tables(self) -> list[str]:
        return [name for name in self._names() if not name.startswith(STAGE)]

    def _names(self) -> list[str]:
        return [name for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
