"""Values as SQLite keeps them, and which columns keep them as they are.

SQLite knows integers, floating-point numbers, text and bytes; a column has an *affinity*, which it derives from the
words of the declared type and by which it converts what comes in. So:

- **Decimals are text**, with all digits of their scale: any column that takes numbers would make a float of them.
- **Times are text in ISO 8601**, always with four digits of the year and six of the second, instants always in UTC: so
  they sort as what they mean, and SQLite's date functions read them. Years outside of 1 to 9999 are refused.
- **NaN is refused**: SQLite would keep NULL in its place.
- A whole column of a record batch is converted at once. No value becomes an object of Arrow's.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onceflow.sinks.databases.database import Column, Kind, Refused, TableColumn

__all__ = ["SqliteColumn", "affinity_of", "as_lists", "bindable", "misfit", "type_for"]

# --- types

_TYPES: Final = {
    "boolean": "BOOLEAN",
    "smallint": "INTEGER",
    "integer": "INTEGER",
    "bigint": "INTEGER",
    "real": "REAL",
    "double": "REAL",
    "decimal": "TEXT",
    "text": "TEXT",
    "binary": "BLOB",
    "date": "TEXT",
    "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
    "json": "TEXT",
}

_KEPT_BY: Final = {
    "boolean": {"INTEGER", "NUMERIC", "NONE"},
    "smallint": {"INTEGER", "NUMERIC", "REAL", "NONE"},
    "integer": {"INTEGER", "NUMERIC", "REAL", "NONE"},
    "bigint": {"INTEGER", "NUMERIC", "NONE"},  # a REAL has 53 bits
    "real": {"REAL", "NUMERIC", "NONE"},
    "double": {"REAL", "NUMERIC", "NONE"},
    "decimal": {"TEXT", "NONE"},
    "text": {"TEXT", "NONE"},
    "binary": {"BLOB", "NONE"},
    "date": {"TEXT", "NUMERIC", "NONE"},  # no date looks like a number, so NUMERIC (DATE, TIMESTAMP) leaves it alone
    "timestamp": {"TEXT", "NUMERIC", "NONE"},
    "timestamp_ntz": {"TEXT", "NUMERIC", "NONE"},
    "json": {"TEXT", "NONE"},
}
"""The affinities that leave values of a kind as they are."""

WHOLE_DIGITS_MAX: Final = 18
"""Every number with so many digits is an integer of 64 bits."""


@dataclass(frozen=True)
class SqliteColumn(TableColumn):
    """With what decides about the values that it takes."""

    is_strict: bool = False
    """Of a STRICT table."""
    is_generated: bool = False


def type_for(kind: Kind) -> str:
    if kind.name not in _TYPES:
        raise Refused(f"SQLite has no type for {kind}")
    return _TYPES[kind.name]


def affinity_of(column: TableColumn) -> str:
    """NONE keeps everything as it comes. BLOB is that of a STRICT table, which takes nothing but bytes."""
    declared = column.type.upper()
    if isinstance(column, SqliteColumn) and column.is_strict:
        return {"INT": "INTEGER", "ANY": "NONE"}.get(declared, declared)
    for affinity, words in _WORDS:
        if any(word in declared for word in words):
            return affinity
    return "NUMERIC" if declared else "NONE"


_WORDS: Final = (  # in SQLite's order: "CHARINT" is an integer
    ("INTEGER", ("INT",)),
    ("TEXT", ("CHAR", "CLOB", "TEXT")),
    ("NONE", ("BLOB",)),
    ("REAL", ("REAL", "FLOA", "DOUB")),
)


def misfit(column: Column, there: TableColumn) -> str | None:
    kind = column.kind
    if isinstance(there, SqliteColumn) and there.is_generated:
        return "it is generated, and takes no values: drop it from the rows"
    affinity = affinity_of(there)
    if affinity in _KEPT_BY[kind.name] or (affinity in ("INTEGER", "NUMERIC") and _is_whole(kind)):
        return None
    shown = there.type or "no type"
    if affinity == "BLOB":
        return f"it is {shown} of a STRICT table, which takes nothing but bytes, and the rows have {kind}"
    consequence = "would make a floating-point number of it" if kind.name == "decimal" else "would convert it"
    if affinity == "TEXT" or kind.name == "binary":
        consequence = "keeps text"
    return f"it is {shown}, which {consequence}, and the rows have {kind}: make it {type_for(kind)}, or cast the rows"


def _is_whole(kind: Kind) -> bool:
    return kind.name == "decimal" and kind.scale == 0 and kind.precision <= WHOLE_DIGITS_MAX


# --- single values


def bindable(value: Any) -> Any:
    """What is given to SQLite for a value of Python's: the same that a column of such values would become."""
    if isinstance(value, datetime.datetime):
        return _moment(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return value


def _moment(value: datetime.datetime) -> str:
    utc = value if value.tzinfo is None else value.astimezone(datetime.UTC)
    return utc.isoformat(timespec="microseconds")


# --- columns of a record batch


def as_lists(batch: Any, columns: Sequence[Column], first_row: int) -> list[list[Any]]:
    """The values of the columns, each as SQLite keeps it. `first_row` is the number of the batch's first row in its
    task, for messages. Raises `Refused` for a value that cannot be kept."""
    return [
        _CONVERSIONS.get(column.kind.name, _objects)(batch.column(at), _Place(column.name, first_row))
        for at, column in enumerate(columns)
    ]


@dataclass(frozen=True)
class _Place:
    column: str
    first_row: int

    def refuse(self, is_bad: Any, what: str) -> None:
        """`is_bad`: an Arrow array of booleans."""
        import pyarrow.compute as pc

        at = pc.index(is_bad, True).as_py()
        if at >= 0:
            raise Refused(f"row {self.first_row + at} of a task has {what} in column {self.column!r}")


def _numbers(values: Any, place: _Place) -> list[Any]:
    """NumPy makes Python's numbers much faster than Arrow does, but knows no nulls: they are put back."""
    if not values.null_count:
        return values.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    listed: list[Any] = values.fill_null(0).to_numpy(zero_copy_only=False).tolist()
    for at in values.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
        listed[at] = None
    return listed


def _booleans(values: Any, place: _Place) -> list[Any]:
    return _numbers(values.cast("int8"), place)


def _floats(values: Any, place: _Place) -> list[Any]:
    import pyarrow.compute as pc

    place.refuse(pc.is_nan(values), "NaN, which SQLite would keep as NULL: make it one, or a number")
    return _numbers(values, place)


def _objects(values: Any, place: _Place) -> list[Any]:
    return values.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _decimals(values: Any, place: _Place) -> list[Any]:
    """Arrow writes small numbers as 1E-7."""
    import pyarrow.compute as pc

    texts = values.cast("string")
    listed = _objects(texts, place)
    for at in pc.match_substring(texts, "E").fill_null(False).to_numpy(zero_copy_only=False).nonzero()[0].tolist():
        listed[at] = format(decimal.Decimal(listed[at]), "f")
    return listed


_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = datetime.date.min.toordinal() - datetime.date(1970, 1, 1).toordinal()
_LAST_DAY: Final = datetime.date.max.toordinal() - datetime.date(1970, 1, 1).toordinal()
_YEARS: Final = "a year outside of 1 to 9999, which does not sort as text"


def _dates(values: Any, place: _Place) -> list[Any]:
    _check_range(values.cast("date32").cast("int32"), _FIRST_DAY, _LAST_DAY, place)
    return _objects(values.cast("string"), place)


def _instants(values: Any, place: _Place) -> list[Any]:
    return _objects(_iso(values, "+00:00", place), place)


def _wall_clocks(values: Any, place: _Place) -> list[Any]:
    return _objects(_iso(values, "", place), place)


def _iso(values: Any, zone: str, place: _Place) -> Any:
    """Arrow keeps instants in UTC, whatever the zone in their type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    microseconds = values.cast(pa.timestamp("us", values.type.tz)).cast("int64")
    _check_range(microseconds, _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1, place)
    texts = microseconds.cast(pa.timestamp("us")).cast("string")
    return pc.binary_join_element_wise(pc.utf8_replace_slice(texts, 10, 11, "T"), zone, "")


def _check_range(values: Any, first: int, last: int, place: _Place) -> None:
    import pyarrow.compute as pc

    place.refuse(pc.or_(pc.less(values, first), pc.greater(values, last)), _YEARS)


_CONVERSIONS: Final[dict[str, Callable[[Any, _Place], list[Any]]]] = {
    "boolean": _booleans,
    "smallint": _numbers,
    "integer": _numbers,
    "bigint": _numbers,
    "real": _floats,
    "double": _floats,
    "decimal": _decimals,
    "date": _dates,
    "timestamp": _instants,
    "timestamp_ntz": _wall_clocks,
}
