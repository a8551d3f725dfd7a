"""Counters that can be fed twice, with SQLite; `tests/sinks/test_increments.py` has PostgreSQL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import ConfigError
from onceflow.sinks.databases.database import Refused
from onceflow.sinks.increments import increment
from tests.support.effort import examples

TABLE = 'CREATE TABLE "page%views" ("pa""ge" text PRIMARY KEY, views int, onceflow_partition int, onceflow_offset int)'
NAME, KEY = "page%views", 'pa"ge'


def connected() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute(TABLE)
    return connection


@pytest.fixture
def cursor() -> Iterator[sqlite3.Cursor]:
    with closing(connected()) as connection:
        yield connection.cursor()


def view(cursor: sqlite3.Cursor, page: str, *, partition: int = 0, offset: int, add: int = 1) -> bool:
    return increment(cursor, NAME, key={KEY: page}, add={"views": add}, partition=partition, offset=offset)


def views(cursor: sqlite3.Cursor) -> dict[str, int]:
    return dict(cursor.execute(f'SELECT "pa""ge", views FROM "{NAME}"').fetchall())


def test_a_record_counts_once(cursor: sqlite3.Cursor) -> None:
    assert [view(cursor, "home", offset=offset) for offset in (0, 3, 3, 0, 4)] == [True, True, False, False, True]
    assert view(cursor, "about", offset=0, add=5)
    assert views(cursor) == {"home": 3, "about": 5}


@examples(20, soak=600)
@given(
    records=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=20),
    restarts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=5),
)
def test_reading_again_from_anywhere_earlier_changes_nothing(
    records: list[tuple[str, int]], restarts: list[tuple[int, int]]
) -> None:
    """Each run goes from some offset that is not later than what was reached to another; the last one to the end."""
    with closing(connected()) as connection:
        cursor = connection.cursor()
        reached = 0
        for begin, end in [*restarts, (0, len(records))]:
            start = min(begin, reached)
            for offset in range(start, min(end, len(records))):
                page, add = records[offset]
                view(cursor, page, offset=offset, add=add)
            reached = max(reached, min(end, len(records)))
        expected: dict[str, int] = {}
        for page, add in records:
            expected[page] = expected.get(page, 0) + add
        assert views(cursor) == expected


def test_records_of_another_partition_are_refused_for_the_same_key(cursor: sqlite3.Cursor) -> None:
    view(cursor, "home", partition=1, offset=5)
    with pytest.raises(Refused, match=r"of partition 1 for pa\"ge='home', and this one is of partition 2"):
        view(cursor, "home", partition=2, offset=9)
    assert views(cursor) == {"home": 1}
    assert view(cursor, "about", partition=2, offset=9)


def test_a_row_that_was_there_before_is_taken_over(cursor: sqlite3.Cursor) -> None:
    cursor.execute(f"""INSERT INTO "{NAME}" ("pa""ge", views) VALUES ('home', 10), ('empty', NULL)""")
    assert view(cursor, "home", offset=0)
    assert not view(cursor, "home", offset=0)
    assert view(cursor, "empty", offset=1)
    assert views(cursor) == {"home": 11, "empty": 1}


def test_it_is_rolled_back_with_the_transaction_around_it(cursor: sqlite3.Cursor) -> None:
    cursor.execute("BEGIN")
    view(cursor, "home", offset=0)
    cursor.execute("ROLLBACK")
    assert view(cursor, "home", offset=0)
    assert views(cursor) == {"home": 1}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"key": {}}, "with a column each at least"),
        ({"add": {}}, "with a column each at least"),
        ({"add": {KEY: 1}}, "is in key= and in add="),
        ({"key": {KEY: None}}, "has no value"),
        ({"add": {"views": None}}, "has no value"),
        ({"offset": -1}, "not a record's place"),
        ({"partition": "0"}, "not a record's place"),
        ({"add": {"": 1}}, "is not the name of a table or a column"),
    ],
)
def test_what_cannot_be_is_refused(cursor: sqlite3.Cursor, wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        increment(cursor, NAME, **{"key": {KEY: "home"}, "add": {"views": 1}, "partition": 0, "offset": 0, **wrong})
    assert views(cursor) == {}


def test_a_cursor_of_another_driver_is_refused() -> None:
    with pytest.raises(ConfigError, match="object is no cursor of psycopg or sqlite3"):
        increment(object(), "t", key={"a": 1}, add={"b": 1}, partition=0, offset=0)
