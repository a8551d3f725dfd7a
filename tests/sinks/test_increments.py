"""Counters that can be fed twice, with PostgreSQL: its cursors, autocommit, and two writers at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from onceflow.sinks.databases.database import Refused
from onceflow.sinks.increments import increment

KEY = {"pa%ge": "home"}


@pytest.fixture
def table(database: str) -> str:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA web")
        connection.execute(
            'CREATE TABLE web.views ("pa%ge" text PRIMARY KEY, n int, onceflow_partition int, onceflow_offset bigint)'
        )
    return database


def count(cursor: Any, offset: int, partition: int = 0) -> bool:
    return increment(cursor, "web.views", key=KEY, add={"n": 1}, partition=partition, offset=offset)


def total(url: str) -> int:
    with psycopg.connect(url) as connection:
        [(number,)] = connection.execute("SELECT n FROM web.views").fetchall()
        return int(number)


@pytest.mark.parametrize(
    "cursor_of",
    [
        lambda connection: connection.cursor(),
        lambda connection: psycopg.RawCursor(connection),
        lambda connection: psycopg.ClientCursor(connection),
        lambda connection: connection.cursor(row_factory=dict_row),
    ],
)
def test_a_record_counts_once_with_any_cursor(table: str, cursor_of: Callable[[Any], Any]) -> None:
    with psycopg.connect(table, autocommit=True) as connection:
        cursor = cursor_of(connection)
        assert [count(cursor, offset) for offset in (0, 5, 5, 3, 6)] == [True, True, False, False, True]
        with pytest.raises(Refused, match=r"partition 0 .* partition 1"):
            count(cursor, 9, partition=1)
    assert total(table) == 3


def test_writers_that_read_the_same_records_at_the_same_time_count_them_once(table: str) -> None:
    def write(_: int) -> int:
        with psycopg.connect(table, autocommit=True) as connection:
            cursor = connection.cursor()
            return sum(count(cursor, offset) for offset in range(200))

    with ThreadPoolExecutor(4) as writers:
        applied = list(writers.map(write, range(4)))
    # The one who is ahead writes, and who is behind finds it done.
    assert total(table) == sum(applied) == 200
