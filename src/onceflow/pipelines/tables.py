"""What a pipeline lands in a database: which records become rows of which table. All of it is declared here;
`landing.py` does it.

    class PageViews(NamedTuple):
        page: str
        views: int
        since: Time

    Pipeline(..., lands=[Lands("page_views", PageViews, key=["page"], mode="upsert")])

Each record that is sent to the topic is a row: of the JSON object in its value, the fields of the schema. All tables of
a pipeline change together, in one transaction per micro-batch.

The fields of a schema are `str`, `int` (a BIGINT; money is a whole number of cents), `float`, `bool`, `Time` and
`Json`, each also `| None`. A field with a default may be missing.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

from onceflow.errors import ConfigError

__all__ = ["REQUIRED", "SQL_VARIABLE", "Field", "Json", "Kind", "Lands", "Time", "fields_of", "table_name"]


class Kind(enum.Enum):
    """What a field holds."""

    TEXT = "a text"
    WHOLE = "an integer"
    NUMBER = "a number"
    FLAG = "true or false"
    TIME = "a time in ms"
    JSON = "JSON"


Time = Annotated[int, Kind.TIME]
"""ms since 1970 in the record; in the table an instant, `timestamptz`."""
Json = Annotated[Any, Kind.JSON]
"""Anything nested; in the table `jsonb`, or text where the database has no such type."""

SQL_VARIABLE: Final = "ONCEFLOW_SQL"
"""Where the address of the database may come from: on a command line everybody on the machine can read its password."""
REQUIRED: Final = ...
"""In place of a default: the field must be there. Tasks get it, and it is the same one there."""
_KINDS: Final[Mapping[Any, Kind]] = {str: Kind.TEXT, int: Kind.WHOLE, float: Kind.NUMBER, bool: Kind.FLAG}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Field(NamedTuple):
    """A field of a record, and the column that it becomes."""

    name: str
    column: str
    kind: Kind
    may_be_null: bool
    default: Any
    """Or `REQUIRED`."""


@dataclass(frozen=True)
class Lands:
    """Records of an output topic as rows of a table."""

    topic: str
    schema: type[Any]
    """A `NamedTuple`, see above."""
    key: Sequence[str] = ()
    """The fields that identify a row. The table is created with this primary key; so in mode "append" no two records
    may have the same."""
    mode: str = "append"
    """"append", "upsert", "increment" or "delete_and_upsert": as of `onceflow.sinks.Table`."""
    order_by: Sequence[str] = ()
    """For "upsert": if a micro-batch has several records of a key, these fields say which is the last one: a version, a
    number that only grows. Without it a micro-batch with two of them is refused."""
    deleted: str = "deleted"
    """For "delete_and_upsert": the field that says that the row is to go."""
    table: str = ""
    """The name of the table, without the prefix of a run; by default that of the topic."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of columns that differ from those of their fields: `user` is a word of SQL's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", self.table or self.topic)
        names = [each.name for each in fields_of(self)]
        if not _PLAIN_NAME.fullmatch(self.table):
            raise ConfigError(f"{self.table!r} is no plain name for a table: letters, digits and underscores")
        known = [*self.key, *self.order_by, *self.columns]
        for each in known + ([self.deleted] if self.mode == "delete_and_upsert" else []):
            if each not in names:
                raise ConfigError(f"the table {self.table!r}: {self.schema.__name__} has no field {each!r}")

    def column(self, name: str) -> str:
        """Of a field."""
        return self.columns.get(name, name)


def fields_of(lands: Lands) -> list[Field]:
    """Raises `ConfigError` for a schema that no table can have."""
    schema = lands.schema
    hints = typing.get_type_hints(schema, include_extras=True)
    defaults: Mapping[str, Any] = schema._field_defaults
    return [
        Field(name, lands.column(name), *_kind(schema, name, hints[name]), defaults.get(name, REQUIRED))
        for name in schema._fields
    ]


def _kind(schema: type[Any], name: str, hint: Any) -> tuple[Kind, bool]:
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = list(typing.get_args(hint)) if is_union else [hint]
    kinds = [each for each in options if each is not types.NoneType]
    if len(kinds) == 1:
        said = [each for each in typing.get_args(kinds[0])[1:] if isinstance(each, Kind)]
        kind = said[0] if said else _KINDS.get(kinds[0])
        if kind is not None:
            return kind, len(options) > 1
    raise ConfigError(
        f"the field {name!r} of {schema.__name__} is declared as {hint}: a table has str, int, float, bool, Time and "
        "Json, each also with | None"
    )


def table_name(lands: Lands, prefix: str, schema: str | None = None) -> str:
    """In the database: what topics begin with as far as it can be part of a plain name, and the schema if one was
    given."""
    name = re.sub(r"\W", "_", prefix, flags=re.ASCII).lower() + lands.table
    return name if schema is None else f"{schema}.{name}"
