"""What must be in tables by what an oracle says, and what differs from it: each kind of difference on a few rows."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines import Json, Lands, Time
from onceflow.pipelines.judging import Differences
from onceflow.pipelines.judging_tables import ExpectedTable, Looks, Row, compare_table, counting, rows_in
from onceflow.pipelines.reference import Expected
from onceflow.sinks.databases import open_database
from onceflow.sinks.databases.database import TableName


class Price(NamedTuple):
    region: str
    tick: Time
    surge: int
    high: bool
    why: Json


PRICES = Lands("prices", Price, key=["region"], mode="upsert", order_by=["tick"], columns={"high": "is_high"})
ALL_PRICES = Lands("prices", Price, table="all_prices")


def price(region: str, tick: int, surge: int = 100, why: Any = None) -> Expected:
    value = {"region": region, "tick": tick, "surge": surge, "high": surge > 150, "why": why or {}}
    return Expected("prices", region, value)


def expected(lands: Lands, *batches: list[Expected]) -> ExpectedTable:
    table = ExpectedTable(lands)
    for number, batch in enumerate(batches):
        table.hear(number, batch)
    return table


def test_appended_is_each_record_of_the_topic() -> None:
    other = Expected("others", "x", {"region": "x"})
    table = expected(ALL_PRICES, [price("a", 1), other], [], [price("a", 2), price("a", 2)])
    assert table.rows().total() == 3
    assert sorted(table.rows().values()) == [1, 2]
    assert table.counts == {0: 1, 1: 1, 2: 3}


def test_upserted_is_the_last_of_each_key_by_order_in_a_micro_batch_and_by_micro_batch_over_them() -> None:
    table = expected(PRICES, [price("a", 3, 130), price("a", 2, 120), price("b", 2)], [price("a", 1, 110)])
    assert table.counts == {0: 2, 1: 2}
    found = {row.key: '"surge": 110' in row.values for row in table.rows()}
    assert found == {'["a"]': True, '["b"]': False}


def test_what_no_oracle_can_say_is_refused() -> None:
    with pytest.raises(ConfigError, match="the table 'prices': what mode='increment' must lead to"):
        ExpectedTable(Lands("prices", Price, mode="increment"))


def difference(wanted: list[Expected], found: list[Expected]) -> tuple[list[tuple[str, str]], Any]:
    differences = Differences()
    rows: Counter[Row] = expected(ALL_PRICES_BY_REGION, found).rows()
    tally = compare_table(expected(ALL_PRICES_BY_REGION, wanted), rows, differences)
    return [(each.kind, each.sentence) for each in differences], tally


ALL_PRICES_BY_REGION = Lands("prices", Price, key=["region"], table="all_prices")


def test_equal_rows_are_no_difference_in_any_order() -> None:
    found, tally = difference([price("a", 1), price("b", 2)], [price("b", 2), price("a", 1)])
    assert found == []
    assert (tally.expected, tally.found) == (2, 2)


def test_a_row_that_is_missing_is_named() -> None:
    [(kind, sentence)], tally = difference([price("a", 1), price("b", 2)], [price("b", 2)])
    assert kind == "row missing"
    assert sentence.startswith('the table all_prices has no {"high": false, "region": "a"')
    assert tally.missing == 1


def test_a_row_that_is_there_twice_is_named() -> None:
    [(kind, sentence)], tally = difference([price("a", 1)], [price("a", 1), price("a", 1)])
    assert kind == "row twice"
    assert sentence.endswith("2 times, not 1.")
    assert tally.twice == 1


def test_a_row_with_another_value_is_one_difference() -> None:
    [(kind, sentence)], tally = difference([price("a", 1, 100)], [price("a", 1, 101)])
    assert kind == "row wrong"
    assert '"surge": 101' in sentence.partition(", and not ")[0]
    assert '"surge": 100' in sentence.partition(", and not ")[2]
    assert (tally.wrong, tally.missing, tally.unexpected) == (1, 0, 0)


def test_a_row_that_should_not_be_there_is_named() -> None:
    [(kind, _)], tally = difference([], [price("a", 1)])
    assert (kind, tally.unexpected) == ("row unexpected", 1)


# --- in a database


def test_rows_of_a_database_are_compared_by_what_they_mean(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/prices.db")
    with closing(database.connect(lock_timeout_s=1)) as session:
        session.execute("CREATE TABLE p_prices (region TEXT, tick TEXT, surge INTEGER, is_high BOOLEAN, why TEXT)")
        session.execute("CREATE TABLE onceflow_progress (app_id TEXT, batch_id INTEGER)")
        values = ["a", "1970-01-01T00:00:01.500000+00:00", 160, 1, '{"b": 1.0, "a": [null]}']
        session.execute("INSERT INTO p_prices VALUES (?, ?, ?, ?, ?)", values)
        session.execute("INSERT INTO onceflow_progress VALUES ('app', 4)")
        found = rows_in(session, database, PRICES, "p_prices")
        statement = counting(database, ["p_prices", "p_prices"], TableName(None, "onceflow_progress"))
        assert session.execute(statement, ["app"]).rows == [(4, 1, 1)]
        assert session.execute(statement, ["another"]).rows == [(None, 1, 1)]
    assert found == expected(PRICES, [price("a", 1500, 160, {"a": [None], "b": 1})]).rows()


def test_a_query_that_sees_a_part_of_a_micro_batch_is_found() -> None:
    tables = [
        expected(ALL_PRICES, [price("a", 1)], [price("a", 2), price("b", 2)]),
        expected(PRICES, [price("a", 1)], []),
    ]
    differences = Differences()
    looks = Looks(tables, differences)
    looks.look(None, [0, 0], "at 1 s")
    looks.look(0, [1, 1], "at 2 s")
    looks.look(1, [3, 1], "at 3 s")
    assert (looks.whole, looks.torn, looks.batches) == (3, 0, {0, 1})
    assert not differences
    looks.look(0, [2, 1], "at 4 s")
    looks.look(None, [0, 1], "at 5 s")
    looks.look(7, [3, 1], "at 6 s")
    assert looks.torn == 3
    assert [each.sentence for each in differences] == [
        "at 4 s, a query after micro-batch 0 saw 2 rows of all_prices, not 1.",
        "at 5 s, a query before the first micro-batch saw 1 rows of prices, not 0.",
        "at 6 s, a query after micro-batch 7 saw 3 rows of all_prices, not None.",
        "at 6 s, a query after micro-batch 7 saw 1 rows of prices, not None.",
    ]
