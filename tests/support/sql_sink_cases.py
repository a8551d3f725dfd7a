"""Jobs into a database, one for each mode: what their micro-batches bring, and what must be in the tables afterwards.

The oracle knows nothing of SQL: it goes through the rows of all micro-batches, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceflow.sinks.tables import Table

__all__ = ["CASES", "Case", "Rows"]

Rows = Sequence[tuple[Any, ...]]
Batch = Mapping[str, Sequence[Rows]]
"""By table: the rows of each task."""


@dataclass(frozen=True)
class Case:
    name: str
    tables: Sequence[Table]
    schemas: Mapping[str, str]
    batches: Sequence[Batch]

    def __str__(self) -> str:
        return self.name

    def columns(self, table: Table) -> list[str]:
        """Those of the table."""
        left_out = {table.deleted} if table.mode == "delete_and_upsert" else set(table.position or ())
        own = [name for name in self._names(table) if name not in left_out]
        if table.mode != "increment":
            return own
        return [*own, "onceflow_query", "onceflow_batch"] if not table.position else [*own, *_POSITION]

    def oracle(self, table: Table, last: int, query_id: str) -> list[tuple[Any, ...]]:
        """The rows of the table after this micro-batch."""
        if table.mode == "append":
            return [row for number in range(last + 1) for row in self._rows(table, number)]
        names, known = self._names(table), dict[tuple[Any, ...], dict[str, Any]]()
        for number in range(last + 1):
            rows = [dict(zip(names, row, strict=True)) for row in self._rows(table, number)]
            if table.mode == "increment":
                _add(table, known, rows, {"onceflow_query": query_id, "onceflow_batch": number})
            else:
                _replace(table, known, rows)
        return [tuple(row[name] for name in self.columns(table)) for row in known.values()]

    def _names(self, table: Table) -> list[str]:
        return [each.split()[0] for each in self.schemas[table.name].split(",")]

    def _rows(self, table: Table, number: int) -> list[tuple[Any, ...]]:
        return [row for task in self.batches[number][table.name] for row in task]


_POSITION = ("onceflow_partition", "onceflow_offset")
Known = dict[tuple[Any, ...], dict[str, Any]]


def _replace(table: Table, known: Known, rows: list[dict[str, Any]]) -> None:
    """Rows in the order of `order_by`, where nothing is less than something, so that the last one stays."""
    rows.sort(key=lambda row: [(row[name] is not None, row[name]) for name in table.order_by])
    for row in rows:
        key = tuple(row[name] for name in table.key)
        if table.mode == "delete_and_upsert" and row[table.deleted]:
            known.pop(key, None)
        else:
            known[key] = row


def _add(table: Table, known: Known, rows: list[dict[str, Any]], batch: dict[str, Any]) -> None:
    before = {key: row.get("onceflow_offset", -1) for key, row in known.items()}
    for row in rows:
        key = tuple(row[name] for name in table.key)
        if table.position is not None:
            partition, offset = (row.pop(name) for name in table.position)
            if offset <= before.get(key, -1):
                continue
            newest = max(offset, known.get(key, {}).get("onceflow_offset", -1))
            batch = {"onceflow_partition": partition, "onceflow_offset": newest}
        there = known.setdefault(key, {})
        for name, value in row.items():
            there[name] = value if name in table.key else _sum(there.get(name), value)
        there.update(batch)


def _sum(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else one + other


# --- the jobs; an empty micro-batch, and a task without rows, is in each

APPEND = Case(
    "append",
    [Table("events", create=True)],
    {"events": "id bigint, name string, amount double"},
    [
        {"events": [[(1, "a", 1.5), (2, None, None), (2, None, None)], [(3, "ä\n\t'\"\\,", -0.25)]]},
        {"events": [[], []]},
        {"events": [[(4, "", 0.0)], [], [(None, None, None), (1, "a", 1.5), (5, "\\N", 1e300)]]},
    ],
)
UPSERT = Case(
    "upsert",
    [Table("people", key=["id"], mode="upsert", create=True)],
    {"people": "id bigint, name string, amount double"},
    [
        {"people": [[(1, "a", 1.0), (2, "b", None)], [(3, None, 3.0)]]},
        {"people": [[(2, None, 20.0)], [(4, "d", 4.0), (3, "c", None)]]},
        {"people": [[]]},
        {"people": [[(1, "z", 1.0)], [(2, "y", 2.0)]]},
    ],
)
UPSERT_LATEST = Case(
    "upsert with order_by",
    [Table("latest", key=["user", "device"], mode="upsert", order_by=["version", "part"], create=True)],
    {"latest": "user string, device int, version bigint, part int, name string"},
    [
        {"latest": [[("u", 1, 1, 0, "old"), ("u", 1, 3, 0, "new")], [("u", 1, 2, 9, "mid"), ("v", 1, None, 0, "?")]]},
        {"latest": [[("v", 1, None, 1, "none"), ("v", 1, 1, 0, "first")], [("u", 2, 5, 1, "b"), ("u", 2, 5, 0, "a")]]},
        {"latest": [[], []]},
        {"latest": [[("u", 1, 0, 0, "later batch wins")], [("v", 1, None, None, None)]]},
    ],
)
DELETE_AND_UPSERT = Case(
    "delete_and_upsert",
    [Table("accounts", key=["id"], mode="delete_and_upsert", order_by=["at"], create=True)],
    {"accounts": "id bigint, at bigint, owner string, deleted boolean"},
    [
        {"accounts": [[(1, 1, "a", False), (2, 1, "b", None)], [(3, 1, "c", False), (3, 2, "c", True)]]},
        {"accounts": [[(1, 5, None, True), (4, 1, "d", True)], [(2, 2, "bb", False)]]},
        {"accounts": [[]]},
        {"accounts": [[(1, 6, "again", False), (2, 3, "x", True), (2, 4, "back", None)], []]},
    ],
)
DELETE_WITHOUT_ORDER = Case(
    "delete_and_upsert without order_by",
    [Table("flags", key=["a", "b"], mode="delete_and_upsert", deleted="gone", create=True)],
    {"flags": "a int, gone boolean, b string, note string"},
    [
        {"flags": [[(1, False, "x", "one"), (1, None, "y", "two")], [(2, False, "x", "three")]]},
        {"flags": [[(1, True, "x", None)], [(1, False, "y", "changed"), (9, True, "x", None)]]},
        {"flags": [[]]},
    ],
)
INCREMENT = Case(
    "increment by batch",
    [Table("counts", key=["word"], mode="increment", create=True)],
    {"counts": "word string, seen bigint, weight double"},
    [
        {"counts": [[("a", 1, 0.5), ("b", 1, None), ("a", 2, 0.25)], [("a", 4, None)]]},
        {"counts": [[("a", 1, 1.0)], [("c", None, None), ("c", None, None), ("b", 5, 2.0)]]},
        {"counts": [[], []]},
        {"counts": [[("c", 7, None), ("b", None, None)], [("a", -3, -1.5)]]},
    ],
)
BY_POSITION = Case(
    "increment by position",
    [Table("clicks", key=["page"], mode="increment", position=("partition", "offset"), create=True)],
    {"clicks": "page string, clicks bigint, partition int, offset bigint"},
    [
        {"clicks": [[("a", 1, 0, 0), ("b", 1, 0, 1), ("a", 1, 0, 2)], [("c", 1, 1, 0)]]},
        # Records 1 and 2 come again, as from a writer that does not know what was written.
        {"clicks": [[("b", 1, 0, 1), ("a", 1, 0, 2), ("a", 1, 0, 3)], [("c", None, 1, 7)]]},
        {"clicks": [[]]},
        {"clicks": [[("a", 10, 0, 3), ("b", 5, 0, 9)], [("d", 1, 1, 8), ("d", 1, 1, 9), ("c", 3, 1, 10)]]},
    ],
)


def _part(name: str) -> Any:
    return lambda frame: frame.parts[name]


TOGETHER = Case(
    "several tables",
    [
        Table("orders", key=["id"], mode="upsert", rows=_part("orders"), create=True),
        Table("lines", rows=_part("lines"), create=True),
        Table("totals", key=["customer"], mode="increment", rows=_part("totals"), create=True),
    ],
    {
        "orders": "id bigint, customer string",
        "lines": "id bigint, item string",
        "totals": "customer string, cents bigint",
    },
    [
        {
            "orders": [[(1, "ann")], [(2, "bob")]],
            "lines": [[(1, "tea"), (1, "tea")], [(2, "pen")]],
            "totals": [[("ann", 500), ("bob", 120)]],
        },
        {"orders": [[(1, "bob")]], "lines": [[], [(3, "ink")]], "totals": [[("ann", 1)], [("ann", 2), ("cy", None)]]},
        {"orders": [[]], "lines": [[]], "totals": [[]]},
        {"orders": [[(3, "cy")]], "lines": [[(3, "ink")]], "totals": [[("cy", 7)]]},
    ],
)
CASES = (
    APPEND,
    UPSERT,
    UPSERT_LATEST,
    DELETE_AND_UPSERT,
    DELETE_WITHOUT_ORDER,
    INCREMENT,
    BY_POSITION,
    TOGETHER,
)
