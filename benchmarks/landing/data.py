"""The rows that every way of landing them is given, and how one sees that a table has exactly these.

They follow from their ids, so Spark makes them anew wherever they are needed; nothing in them is random.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

USERS = 100_000
TEXT = (
    "Delivered to the front desk, signed by a neighbour; the second parcel follows on Thursday, said the driver, "
    "and the customer was told so"
)
EXPRESSIONS = (
    "id",
    f"pmod(id * 2654435761, {USERS}) AS user_id",
    "cast(cast(pmod(id * 7919, 10000000) AS decimal(9, 0)) * 0.01BD AS decimal(12, 2)) AS amount",
    "cast(pmod(id * 104729, 1000003) AS double) / 7 AS price",
    f"substring('{TEXT}', 1 + cast(pmod(id, 60) AS int), 20 + cast(pmod(id * 31, 41) AS int)) AS note",
    "timestamp_micros(1767225600000000 + id * 1000003) AS at",
    "pmod(id, 3) = 0 AS ok",
)
COLUMNS = (
    "id bigint, user_id bigint, amount numeric(12,2), price double precision, note text, at timestamptz, ok boolean"
)
SQLITE_COLUMNS = "id INTEGER, user_id INTEGER, amount TEXT, price REAL, note TEXT, at TEXT, ok BOOLEAN"
TOTALS_SQL = "SELECT count(*), coalesce(sum(id), 0), coalesce(sum(amount), 0), coalesce(sum(length(note)), 0) FROM {}"
SQLITE_TOTALS_SQL = "SELECT count(*), sum(id), sum(cast(round(amount * 100) AS INTEGER)), sum(length(note)) FROM {}"
EVENTS_SQL = "SELECT count(*), 0, coalesce(sum(amount), 0), coalesce(sum(events), 0) FROM {}"


@dataclass(frozen=True)
class Totals:
    """What must be the same whichever way the rows came: a row that is missing, twice or cut changes one of them."""

    rows: int
    ids: int
    amount: Decimal
    characters: int
    """Of the notes; where a table counts events, the events."""


def rows(ids: Any) -> Any:
    """A DataFrame with a column `id`, as the rows."""
    return ids.selectExpr(*EXPRESSIONS)


def totals(frame: Any) -> Totals:
    [found] = frame.selectExpr("count(*)", "sum(id)", "sum(amount)", "sum(length(note))").collect()
    return Totals(*found)


def totals_of_users(frame: Any) -> Totals:
    """Of a table with a row for each user: the sum of the amounts, and the number of events."""
    [found] = frame.selectExpr("count(DISTINCT user_id)", "0", "sum(amount)", "count(*)").collect()
    return Totals(*found)
