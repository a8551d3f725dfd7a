"""The databases that there are, by how their addresses begin. Another one is a file here, and a line in the table."""

from __future__ import annotations

import importlib
from typing import Final

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Database

__all__ = ["Database", "open_database"]

_BY_SCHEME: Final = {
    "postgresql": "postgresql:PostgreSql",
    "postgres": "postgresql:PostgreSql",
    "sqlite": "sqlite:Sqlite",
}


def open_database(url: str | Database) -> Database:
    """What an address is about; nothing is connected yet. Raises `ConfigError` for one that nobody understands."""
    if isinstance(url, Database):
        return url
    scheme, colon, _ = url.partition(":") if isinstance(url, str) else ("", "", "")
    where = _BY_SCHEME.get(scheme.lower())
    if not colon or where is None:
        raise ConfigError(
            "url= is no address of a database that is known: postgresql://user:password@host/database, or "
            "sqlite:///folder/file.db (four slashes for a path from the root)"
            + (". For PostgreSQL leave the jdbc: away" if scheme.lower() == "jdbc" else "")
        )
    module, _, name = where.partition(":")
    database = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return database(url)  # type: ignore[no-any-return]
