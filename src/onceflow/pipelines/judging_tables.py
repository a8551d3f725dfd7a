"""Compares what a pipeline has landed in its tables with what its oracle says must be there, row by row.

    tables = [ExpectedTable(lands) for lands in pipeline.lands]
    compare(..., hears=...)                            each is told what the oracle says of each micro-batch
    compare_table(table, rows_in(session, ...))        what is in the database in the end

Invariants:

- What must be in a table follows from the records that the oracle expects in its topic, and from nothing else: in mode
  "append" each of them once, in mode "upsert" the last of each key. Nothing of it is the code that lands them.
- Rows are compared as multisets of their values: times in ms, and numbers as numbers (`jsonb` knows no difference
  between 1 and 1.0).
- After each micro-batch it is known how many rows there must be. A query that sees another number at another moment has
  seen a part of a micro-batch (`Looks`).
"""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onceflow.errors import ConfigError
from onceflow.pipelines.judging import TEXT_MAX, Differences, Tally
from onceflow.pipelines.reference import Expected
from onceflow.pipelines.tables import REQUIRED, Field, Kind, Lands, fields_of
from onceflow.sinks.databases.database import Database, Session, TableName

__all__ = ["ExpectedTable", "Looks", "Row", "compare_table", "counting", "rows_in"]

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND: Final = datetime.timedelta(microseconds=1)


class Row(NamedTuple):
    """As JSON: the values of the key, and all of them."""

    key: str
    values: str


# --- what must be there


class ExpectedTable:
    def __init__(self, lands: Lands) -> None:
        if lands.mode not in ("append", "upsert"):
            raise ConfigError(f"the table {lands.table!r}: what mode={lands.mode!r} must lead to, no oracle can say")
        self.lands = lands
        self.counts: dict[int, int] = {}
        """How many rows there must be after each micro-batch."""
        self._fields = fields_of(lands)
        self._rows: Counter[Row] = Counter()
        self._by_key: dict[str, Row] = {}

    def hear(self, number: int, expected: Iterable[Expected]) -> None:
        """What the oracle says of a micro-batch; to be called in their order."""
        ours = [each.value or {} for each in expected if each.topic == self.lands.topic]
        for value in sorted(ours, key=lambda each: [each[name] for name in self.lands.order_by]):
            self._take(self._row(value))
        self.counts[number] = self._rows.total()

    def _take(self, row: Row) -> None:
        if self.lands.mode == "upsert":
            if (before := self._by_key.get(row.key)) is not None:
                del self._rows[before]
            self._by_key[row.key] = row
        self._rows[row] += 1

    def _row(self, value: Mapping[str, Any]) -> Row:
        values = [
            _expected(value[each.name] if each.default is REQUIRED else value.get(each.name, each.default))
            for each in self._fields
        ]
        return _as_row(self.lands, self._fields, values)

    def rows(self) -> Counter[Row]:
        return self._rows


def _expected(value: Any) -> Any:
    """Databases keep no U+0000."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, Mapping):
        return {_expected(name): _expected(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_expected(each) for each in value]
    return value


# --- what is there


def rows_in(session: Session, database: Database, lands: Lands, table: str) -> Counter[Row]:
    """All rows of a table. Raises `Trouble`."""
    fields = fields_of(lands)
    names = ", ".join(database.quoted(each.column) for each in fields)
    found = session.execute(f"SELECT {names} FROM {database.quoted(TableName.parse(table))}").rows
    return Counter(_as_row(lands, fields, list(map(_found, fields, row))) for row in found)


def counting(database: Database, tables: Sequence[str], progress: TableName) -> str:
    """A statement with the app id as its value: the micro-batch that the app has come to, and how many rows each table
    has at the same moment."""
    counts = ", ".join(f"(SELECT COUNT(*) FROM {database.quoted(TableName.parse(each))})" for each in tables)
    return f"SELECT (SELECT batch_id FROM {database.quoted(progress)} WHERE app_id = ?), {counts}"


def _found(field: Field, value: Any) -> Any:
    if value is None:
        return None
    if field.kind is Kind.TIME:
        return _milliseconds(datetime.datetime.fromisoformat(value) if isinstance(value, str) else value)
    if field.kind is Kind.JSON and isinstance(value, str):
        return json.loads(value)
    if field.kind is Kind.FLAG and value in (0, 1):
        return bool(value)  # SQLite has numbers in their place
    return value


def _milliseconds(value: datetime.datetime) -> float:
    whole, rest = divmod((value - EPOCH) // MICROSECOND, 1000)
    return whole if rest == 0 else whole + rest / 1000


def _as_row(lands: Lands, fields: Sequence[Field], values: Sequence[Any]) -> Row:
    named = {each.column: _plain(value) for each, value in zip(fields, values, strict=True)}
    return Row(_json([named[lands.column(each)] for each in lands.key]), _json(named))


def _plain(value: Any) -> Any:
    """1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


# --- the comparison


def compare_table(expected: ExpectedTable, found: Counter[Row], differences: Differences) -> Tally:
    table, wanted = expected.lands.table, expected.rows()
    tally = Tally(expected=wanted.total(), found=found.total())
    missing, extra = wanted - found, found - wanted
    for row in [each for each in extra if each in wanted]:
        tally.twice += extra.pop(row)
        sentence = f"the table {table} has {_shown(row.values)} {found[row]} times, not {wanted[row]}."
        differences.add("row twice", sentence)
    for row, instead in _same_key(missing, extra):
        tally.wrong += 1
        sentence = f"the table {table} has {_shown(instead.values)}, and not {_shown(row.values)}."
        differences.add("row wrong", sentence)
    for row in missing.elements():
        tally.missing += 1
        differences.add("row missing", f"the table {table} has no {_shown(row.values)}.")
    for row in extra.elements():
        tally.unexpected += 1
        differences.add("row unexpected", f"the table {table} has {_shown(row.values)}, and should not.")
    return tally


def _same_key(missing: Counter[Row], extra: Counter[Row]) -> list[tuple[Row, Row]]:
    """One that is missing with one that is there in its place. Takes them out of both."""
    by_key: defaultdict[str, list[Row]] = defaultdict(list)
    for row in extra.elements():
        by_key[row.key].append(row)
    pairs = [(row, by_key[row.key].pop(0)) for row in missing.elements() if by_key[row.key]]
    for row, instead in pairs:
        missing[row] -= 1
        extra[instead] -= 1
    return pairs


class Looks:
    """Judges what a query could see while the pipeline ran: whole micro-batches only, in all tables the same."""

    def __init__(self, tables: Sequence[ExpectedTable], differences: Differences) -> None:
        self._tables = tables
        self._differences = differences
        self.whole = 0
        self.torn = 0
        self.batches: set[int] = set()
        """Those that a look found to be the newest."""

    def look(self, batch: int | None, counts: Sequence[int], when: str) -> None:
        """`batch`: the newest one by the progress of the app, None before the first."""
        if batch is not None:
            self.batches.add(batch)
        wanted = [0 if batch is None else each.counts.get(batch) for each in self._tables]
        if list(counts) == wanted:
            self.whole += 1
            return
        self.torn += 1
        after = "before the first micro-batch" if batch is None else f"after micro-batch {batch}"
        for table, count, right in zip(self._tables, counts, wanted, strict=True):
            if count != right:
                sentence = f"{when}, a query {after} saw {count} rows of {table.lands.table}, not {right}."
                self._differences.add("not atomic", sentence)


def _shown(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
