"""What users declare about a table, and which declarations are refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Column, Kind, TableName
from onceflow.sinks.tables import Table, bookkeeping, check_columns, kept

NUMBER, TEXT = Kind("bigint"), Kind("text")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "empty name": ({"name": ""}, "is no name of a table"),
    "empty schema": ({"name": ".orders"}, "is no name of a table"),
    "a mode with a slip": ({"mode": "upsrt", "key": ["id"]}, "did you mean 'upsert'"),
    "upsert without key": ({"mode": "upsert"}, r"mode='upsert' needs key="),
    "increment without key": ({"mode": "increment"}, r"mode='increment' needs key="),
    "delete_and_upsert without key": ({"mode": "delete_and_upsert"}, r"mode='delete_and_upsert' needs key="),
    "a key twice": ({"mode": "upsert", "key": ["id", "id"]}, "must be names of columns, each once"),
    "a key that is no name": ({"mode": "upsert", "key": [1]}, "must be names of columns, each once"),
    "order_by in append": ({"order_by": ["at"]}, "order_by= means nothing in mode='append'"),
    "order_by in increment": ({"mode": "increment", "key": ["id"], "order_by": ["at"]}, "order_by= means nothing"),
    "position in upsert": ({"mode": "upsert", "key": ["id"], "position": ("p", "o")}, "position= means nothing"),
    "one column as position": ({"mode": "increment", "key": ["id"], "position": ("o",)}, "must be two columns"),
}


@pytest.mark.parametrize("what", WRONG)
def test_declaration_that_means_nothing_is_refused(what: str) -> None:
    settings, words = WRONG[what]
    with pytest.raises(ConfigError, match=words):
        Table(**{"name": "orders", **settings})


def test_one_name_is_a_key() -> None:
    assert Table("orders", key="id", mode="upsert").key == ("id",)


def test_name_may_have_a_schema() -> None:
    assert Table("sales.orders").target == TableName("sales", "orders")
    assert Table("orders").target == TableName(None, "orders")


def test_position_is_kept_as_bookkeeping_and_not_under_its_own_names() -> None:
    table = Table("t", key=["id"], mode="increment", position=("p", "o"))
    columns = [Column("id", NUMBER), Column("n", NUMBER), Column("p", Kind("integer")), Column("o", NUMBER)]
    check_columns(table, columns)
    assert [each.name for each in kept(table, columns)] == ["id", "n"]
    assert [each.name for each in bookkeeping(table)] == ["onceflow_partition", "onceflow_offset"]


def test_mark_of_deletion_is_not_kept() -> None:
    table = Table("t", key=["id"], mode="delete_and_upsert", deleted="gone")
    columns = [Column("id", NUMBER), Column("gone", Kind("boolean"))]
    check_columns(table, columns)
    assert [each.name for each in kept(table, columns)] == ["id"]
    assert bookkeeping(table) == []


def test_two_columns_of_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two columns of the same name"):
        check_columns(Table("t"), [Column("a", NUMBER), Column("a", TEXT)])
