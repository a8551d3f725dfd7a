"""Which rows go into which table, and how: what users declare, and whether it fits the table that is there.

A table that does not fit is refused before anything is written: a column that it lacks, a type that could not hold
every value, a column that must have a value and gets none, a key that is not unique.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Column, Database, Kind, Session, TableColumn, TableName

__all__ = ["Mode", "Table", "bookkeeping", "check_columns", "creation", "fit"]

MODES: Final = ("append", "upsert", "increment", "delete_and_upsert")
RIGHTS: Final = {
    "append": ("INSERT",),
    "upsert": ("SELECT", "INSERT", "UPDATE"),
    "increment": ("SELECT", "INSERT", "UPDATE"),
    "delete_and_upsert": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}
"""What merging needs on a table."""
Mode = str

QUERY: Final = Column("onceflow_query", Kind("text"))
BATCH: Final = Column("onceflow_batch", Kind("bigint"))
PARTITION: Final = Column("onceflow_partition", Kind("integer"))
OFFSET: Final = Column("onceflow_offset", Kind("bigint"))
"""What a row of mode "increment" keeps: the micro-batch, or the record, that has changed it last."""

NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "real", "double", "decimal"})
WHOLE: Final = frozenset({"smallint", "integer", "bigint"})


@dataclass(frozen=True)
class Table:
    """A table, and how the rows of a micro-batch get into it.

    - `name`: "orders", or with a schema "sales.orders".
    - `mode`: "append" adds rows. "upsert" adds a row or takes the place of the one with its key. "delete_and_upsert":
      the same, and where the column `deleted` is true the row with this key is deleted. "increment" adds each column
      that is not part of the key to what is there.
    - `key`: the columns that identify a row. In the table they must be its primary key, or unique.
    - `order_by`: for "upsert" and "delete_and_upsert": the columns that say which of several rows with the same key in
      one micro-batch is the last one. Without it, two rows with the same key in one micro-batch are refused.
    - `deleted`: for "delete_and_upsert", the name of the boolean column. It is not kept.
    - `position`: for "increment", the columns with the partition and the offset of the record that a row comes from.
      The table then keeps them, and ignores a record that is not newer, whoever writes it. Without it, the last
      micro-batch is kept.
    - `rows`: which rows of the micro-batch, and as what: a function from its DataFrame to another. All, if None.
    - `create`: create the table if it is not there, from the DataFrame's schema.
    """

    name: str
    key: Sequence[str] = ()
    mode: Mode = "append"
    order_by: Sequence[str] = ()
    deleted: str = "deleted"
    position: tuple[str, str] | None = None
    rows: Callable[[Any], Any] | None = None
    create: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not all(part.strip() for part in self.name.split(".")):
            raise ConfigError(f"table={self.name!r} is no name of a table")
        if self.mode not in MODES:
            near = difflib.get_close_matches(str(self.mode), MODES, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"mode={self.mode!r} does not exist; there is {', '.join(map(repr, MODES))}{hint}")
        for name in ("key", "order_by"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.mode != "append" and not self.key:
            raise ConfigError(f"mode={self.mode!r} needs key=[...]: the columns that identify a row of {self.name}")
        if self.order_by and not self.replaces:
            raise ConfigError(f"order_by= means nothing in mode={self.mode!r}: it decides which row replaces which")
        if self.position is not None:
            self._check_position()

    def _check_position(self) -> None:
        if self.mode != "increment":
            raise ConfigError(f"position= means nothing in mode={self.mode!r}: it is for 'increment'")
        object.__setattr__(self, "position", _names("position", self.position))
        if len(self.position or ()) != 2:
            raise ConfigError("position= must be two columns: that of the partition and that of the offset")

    @property
    def replaces(self) -> bool:
        return self.mode in ("upsert", "delete_and_upsert")

    @property
    def target(self) -> TableName:
        return TableName.parse(self.name)


def _names(what: str, given: Any) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(each, str) and each for each in names) or len(set(names)) != len(names):
        raise ConfigError(f"{what}={given!r} must be names of columns, each once")
    return names


# --- what of the rows is kept


def kept(table: Table, columns: Sequence[Column]) -> list[Column]:
    """Of the columns of the rows, those that the table has under the same name."""
    left_out = {table.deleted} if table.mode == "delete_and_upsert" else set(table.position or ())
    return [each for each in columns if each.name not in left_out]


def bookkeeping(table: Table) -> list[Column]:
    """The columns that the table has beside those of the rows."""
    if table.mode != "increment":
        return []
    return [QUERY, BATCH] if table.position is None else [PARTITION, OFFSET]


def check_columns(table: Table, columns: Sequence[Column]) -> None:
    """Raises `ConfigError` unless rows with these columns can go into a table in this way."""
    kinds = {each.name: each.kind for each in columns}
    if len(kinds) != len(columns):
        raise ConfigError(f"rows for {table.name} have two columns of the same name. {_NOTHING}")
    wanted = [*table.key, *table.order_by, *(table.position or ())]
    if table.mode == "delete_and_upsert":
        wanted.append(table.deleted)
    for name in wanted:
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"they have {', '.join(kinds)}."
            raise ConfigError(f"rows for {table.name} have no column {name!r}: {hint} {_NOTHING}")
    if table.mode == "delete_and_upsert" and kinds[table.deleted].name != "boolean":
        raise ConfigError(
            f"column {table.deleted!r} for {table.name} is {kinds[table.deleted]}, and must be boolean: "
            f"deleted='...' names another one. {_NOTHING}"
        )
    for name in (*table.key, *table.order_by):
        if kinds[name].name == "json":
            raise ConfigError(f"column {name!r} is an array, a map or a struct: it cannot be compared. {_NOTHING}")
    for each in bookkeeping(table):
        if each.name in {column.name for column in kept(table, columns)}:
            raise ConfigError(f"column {each.name!r} of {table.name} is the sink's own: rename yours. {_NOTHING}")
    if table.mode == "increment":
        _check_increments(table, columns, kinds)


def _check_increments(table: Table, columns: Sequence[Column], kinds: dict[str, Kind]) -> None:
    for name in table.position or ():
        if kinds[name].name not in WHOLE:
            raise ConfigError(f"column {name!r} is {kinds[name]}; a position is two whole numbers. {_NOTHING}")
    added = [each for each in kept(table, columns) if each.name not in table.key]
    if not added:
        raise ConfigError(f"mode='increment' for {table.name}: beside the key there is no column to add. {_NOTHING}")
    for each in added:
        if each.kind.name not in NUMBERS:
            raise ConfigError(
                f"mode='increment' adds numbers, and column {each.name!r} for {table.name} is {each.kind}: make it "
                f"part of the key, or drop it. {_NOTHING}"
            )


# --- the table that is there, or is to be


def check_kinds(database: Database, table: Table, columns: Sequence[Column]) -> None:
    """Raises `ConfigError` for a kind that this database cannot do with what the mode asks for."""
    for each in _computed_with(table, columns):
        if database.keeps_as_text(each.kind):
            raise ConfigError(
                f"column {each.name!r} of {table.name} is {each.kind}, which {database.shown} keeps as text, so it can "
                f"neither add nor compare it: cast it in Spark, to a whole number of the smallest unit. {_NOTHING}"
            )


def creation(database: Database, table: Table, columns: Sequence[Column]) -> str:
    """CREATE TABLE."""
    parts = [
        f"{database.quoted(each.name)} {database.type_for(each.kind)}{' NOT NULL' if each.name in table.key else ''}"
        for each in [*kept(table, columns), *bookkeeping(table)]
    ]
    if table.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(database.quoted, table.key))})")
    return f"CREATE TABLE IF NOT EXISTS {database.quoted(table.target)} ({', '.join(parts)})"


def fit(database: Database, session: Session, table: Table, columns: Sequence[Column]) -> None:
    """Raises `ConfigError` unless the table is there and takes these rows, `Refused` if we may not write them."""
    there = database.columns(session, table.target)
    if there is None:
        raise ConfigError(
            f"there is no table {table.name} in {database.shown}: create it, or let the sink do it: "
            "SqlSink(create_table=True) or Table(create=True). By the rows it would be: "
            f"{creation(database, table, columns)}. {_NOTHING}"
        )
    known = {each.name: each for each in there}
    _check_types(database, table, columns, known)
    brought = {each.name for each in [*kept(table, columns), *bookkeeping(table)]}
    for each in there:
        if each.name not in brought and not each.is_nullable and not each.has_default:
            raise ConfigError(
                f"column {each.name!r} of {table.name} must have a value, and the rows bring none: add it to the rows, "
                f"or give it a default. {_NOTHING}"
            )
    if table.mode != "append":
        _check_key(database, session, table)
    database.check_rights(session, table.target, RIGHTS[table.mode])


def _check_types(database: Database, table: Table, columns: Sequence[Column], known: dict[str, TableColumn]) -> None:
    for each in [*kept(table, columns), *bookkeeping(table)]:
        if each.name not in known:
            raise ConfigError(
                f"{table.name} has no column {each.name!r}{_why(table, each, known)}: "
                f"ALTER TABLE {database.quoted(table.target)} "
                f"ADD COLUMN {database.quoted(each.name)} {database.type_for(each.kind)}"
                f"{'' if each in bookkeeping(table) else ', or drop it from the rows'}. {_NOTHING}"
            )
        if problem := database.misfit(each, known[each.name]):
            raise ConfigError(f"column {each.name!r} of {table.name}: {problem}. {_NOTHING}")


def _computed_with(table: Table, columns: Sequence[Column]) -> list[Column]:
    added = table.mode == "increment"
    return [
        each
        for each in columns
        if each.name in table.order_by or (added and each.name not in (*table.key, *(table.position or ())))
    ]


def _why(table: Table, column: Column, known: Iterable[str]) -> str:
    if column not in bookkeeping(table):
        near = difflib.get_close_matches(column.name.lower(), known, n=1)
        return f" (it has {near[0]!r})" if near else ""
    return ", which mode='increment' needs to know what was added last"


def _check_key(database: Database, session: Session, table: Table) -> None:
    if frozenset(table.key) not in database.unique_keys(session, table.target):
        name = f"{table.target.name}_key"
        columns = ", ".join(map(database.quoted, table.key))
        raise ConfigError(
            f"key={list(table.key)} is not unique in {table.name}: CREATE UNIQUE INDEX {database.quoted(name)} ON "
            f"{database.quoted(table.target)} ({columns}). {_NOTHING}"
        )


_NOTHING: Final = "Nothing was written"
