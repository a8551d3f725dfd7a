"""Counters that can be fed twice: each row remembers the last record that it counted, and ignores what is not newer.

    place = {"partition": record.partition, "offset": record.offset}
    increment(cursor, "page_views", key={"page": "home"}, add={"views": 1}, **place)

For writers that keep their offsets nowhere, or elsewhere than in this database: they read again from any earlier
offset, and every record counts once. Right in autocommit mode too, because one statement decides and writes.

What it asks for:

- The table has a primary key or unique constraint on exactly the columns of `key`, and two columns of ours:
  `onceflow_partition integer` and `onceflow_offset bigint`, as in `SqlSink(mode="increment", position=...)`.
- Records of one key are in one partition of one topic, and come in order, as Kafka keeps them for producers that
  partition by key. Offsets of two partitions cannot be compared, so a second partition for a key is an error.
- A record adds to a row at most once: if it has several amounts for a row, they are in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Refused, TableName
from onceflow.sinks.tables import OFFSET, PARTITION

__all__ = ["increment"]


def increment(
    cursor: Any, table: str, *, key: Mapping[str, Any], add: Mapping[str, Any], partition: int, offset: int
) -> bool:
    """Adds to the row with this key, or begins it. False: a record that was counted already, and nothing was changed.

    `cursor` is one of psycopg or of sqlite3, whose exceptions come through. Raises `Refused` if the row counts records
    of another partition.
    """
    _check(key, add, partition, offset)
    statements = _Statements(cursor, table, list(key), list(add))
    cursor.execute(statements.add(), [*key.values(), *add.values(), partition, offset])
    if cursor.rowcount > 0:
        return True
    cursor.execute(statements.select(), list(key.values()))
    known = cursor.fetchone()
    # What comes in a row may have names, if the cursor was made to give rows as mappings.
    known_partition = known[PARTITION.name] if isinstance(known, Mapping) else known[0]
    if known_partition != partition:
        shown = ", ".join(f"{name}={value!r}" for name, value in key.items())
        raise Refused(
            f"{table} counts records of partition {known_partition} for {shown}, and this one is of partition "
            f"{partition}: their offsets cannot be compared. Nothing was changed. Write records with the same key to "
            "the same partition"
        )
    return False


def _check(key: Mapping[str, Any], add: Mapping[str, Any], partition: int, offset: int) -> None:
    if not key or not add:
        raise ConfigError("increment needs key={column: value} and add={column: amount}, with a column each at least")
    if both := sorted(key.keys() & add.keys()):
        raise ConfigError(f"the column {both[0]!r} is in key= and in add=")
    for name, value in (*key.items(), *add.items()):
        if value is None:
            raise ConfigError(f"the column {name!r} has no value: NULL is neither found again as a key, nor a number")
    if not isinstance(partition, int) or not isinstance(offset, int) or partition < 0 or offset < 0:
        raise ConfigError(f"partition={partition!r}, offset={offset!r} are not a record's place in a topic")


class _Statements:
    """In the words of a cursor's driver."""

    def __init__(self, cursor: Any, table: str, key: Sequence[str], add: Sequence[str]) -> None:
        self._mark, self._escape = _style(cursor)
        self._table = ".".join(self._quoted(part) for part in TableName.parse(table) if part is not None)
        self._key = [self._quoted(name) for name in key]
        self._add = [self._quoted(name) for name in add]

    def _quoted(self, name: str) -> str:
        if not isinstance(name, str) or not name or "\0" in name:
            raise ConfigError(f"{name!r} is not the name of a table or a column")
        return self._escape('"' + name.replace('"', '""') + '"')

    def add(self) -> str:
        names = [*self._key, *self._add, PARTITION.name, OFFSET.name]
        marks = ", ".join(self._mark(number) for number in range(1, len(names) + 1))
        sums = [f"{name} = COALESCE(known.{name}, 0) + excluded.{name}" for name in self._add]
        last = [f"{name} = excluded.{name}" for name in (PARTITION.name, OFFSET.name)]
        return (
            f"INSERT INTO {self._table} AS known ({', '.join(names)}) VALUES ({marks}) "
            f"ON CONFLICT ({', '.join(self._key)}) DO UPDATE SET {', '.join([*sums, *last])} "
            # A row that was there before it was counted with offsets has none.
            f"WHERE known.{OFFSET.name} IS NULL OR (known.{PARTITION.name} = excluded.{PARTITION.name} "
            f"AND known.{OFFSET.name} < excluded.{OFFSET.name})"
        )

    def select(self) -> str:
        same = " AND ".join(f"{name} = {self._mark(number)}" for number, name in enumerate(self._key, 1))
        return f"SELECT {PARTITION.name} FROM {self._table} WHERE {same}"


Style = tuple[Callable[[int], str], Callable[[str], str]]
_STYLES: Final[Mapping[str, Style]] = {
    "sqlite3": (lambda number: "?", lambda name: name),
    "psycopg": (lambda number: "%s", lambda name: name.replace("%", "%%")),
    "psycopg2": (lambda number: "%s", lambda name: name.replace("%", "%%")),
}
_NUMBERED: Final[Style] = (lambda number: f"${number}", lambda name: name)


def _style(cursor: Any) -> Style:
    """How the driver of a cursor wants its values marked, and what is to be doubled in names."""
    classes = type(cursor).__mro__
    if any(each.__name__ == "RawCursorMixin" for each in classes):  # psycopg's, with PostgreSQL's own marks
        return _NUMBERED
    for each in classes:
        if style := _STYLES.get(each.__module__.partition(".")[0]):
            return style
    raise ConfigError(f"{type(cursor).__name__} is no cursor of psycopg or sqlite3")
