"""Records to rows: what becomes of each kind of value, and what is refused."""

from __future__ import annotations

import datetime
import json
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from onceflow.pipelines import Json, Lands, Time
from onceflow.pipelines.conversion import FIRST_MS, LAST_MS, Conversion, DoesNotFit
from onceflow.pipelines.tables import fields_of
from onceflow.spark.packed_rows import PACKED, pack_rows

MS = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Sale(NamedTuple):
    name: str
    cents: int
    share: float
    good: bool
    at: Time
    more: Json


class Optional(NamedTuple):
    name: str | None
    cents: int | None
    share: float | None
    good: bool | None
    at: Time | None
    more: Json | None


class Defaults(NamedTuple):
    name: str
    cents: int = 5


class One(NamedTuple):
    name: str


def conversion(schema: type[Any], topic: str = "sales") -> Conversion:
    lands = Lands(topic, schema, columns={"name": "who"}, table="sold")
    return Conversion(topic, lands.table, tuple(fields_of(lands)))


def rows(schema: type[Any], *values: Any) -> list[tuple[Any, ...]]:
    converted = conversion(schema).convert([json.dumps(each).encode() for each in values])
    return [tuple(row.values()) for row in converted.to_pylist()]


SOLD = {"name": "Zoë", "cents": -3, "share": 0.25, "good": True, "at": 1_767_603_599_820, "more": {"a": [1, None]}}


def test_each_kind_of_value_has_its_column() -> None:
    [row] = rows(Sale, SOLD | {"further": "fields are left out"})
    at = datetime.datetime(2026, 1, 5, 8, 59, 59, 820_000, tzinfo=datetime.UTC)
    assert row == ("Zoë", -3, 0.25, True, at, '{"a":[1,null]}')
    assert conversion(Sale).schema.names == ["who", "cents", "share", "good", "at", "more"]


def test_null_is_null_in_every_kind_of_column() -> None:
    assert rows(Optional, dict.fromkeys(SOLD), SOLD)[0] == (None,) * 6
    assert rows(Optional, dict.fromkeys(SOLD), SOLD)[1] == rows(Sale, SOLD)[0]


def test_a_whole_number_is_a_good_number() -> None:
    assert rows(Sale, SOLD | {"share": 2})[0][2] == 2.0


def test_what_is_missing_has_its_default() -> None:
    assert rows(Defaults, {"name": "a"}, {"name": "b", "cents": 6}) == [("a", 5), ("b", 6)]


def test_a_table_may_have_one_column() -> None:
    assert rows(One, {"name": "a"}, {"name": "b"}) == [("a",), ("b",)]


def test_the_character_that_no_database_keeps_is_replaced() -> None:
    [row] = rows(Sale, SOLD | {"name": "a\0b", "more": {"k\0": ["\0", "\\u0000"]}})
    assert row[0] == "a\ufffdb"
    assert json.loads(row[5]) == {"k\ufffd": ["\ufffd", "\\u0000"]}, "six characters that only look like it stay"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"name": 5}, "'name' is not a text: 5"),
        ({"name": None}, "'name' is not a text: null"),
        ({"cents": 5.0}, "'cents' is not an integer: 5.0"),
        ({"cents": True}, "'cents' is not an integer: true"),
        ({"cents": 2**63}, "'cents' is not an integer: 9223372036854775808"),
        ({"share": "0.5"}, "'share' is not a number"),
        ({"good": 1}, "'good' is not true or false: 1"),
        ({"at": LAST_MS + 1}, "'at' is not a time in ms: 253402300800000"),
        ({"at": FIRST_MS - 1}, "'at' is not a time in ms"),
        ({"more": None}, "'more' is not JSON: null"),
    ],
)
def test_what_does_not_fit_is_named(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(DoesNotFit, match=f"a record of 'sales' cannot be a row of the table 'sold': {reason}"):
        rows(Sale, SOLD, SOLD | wrong)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "it has no value"),
        (b"{", "it is not JSON"),
        (b"[]", r"it is not a JSON object: \[\]"),
        (b"{}", "it has no field 'name'"),
    ],
)
def test_what_is_no_record_of_the_topic_is_named(value: bytes | None, reason: str) -> None:
    with pytest.raises(DoesNotFit, match=reason):
        conversion(One).convert([value])


def test_the_first_and_the_last_time_that_databases_know_are_kept() -> None:
    first, last = rows(Sale, SOLD | {"at": FIRST_MS}, SOLD | {"at": LAST_MS})
    assert first[4] == datetime.datetime.min.replace(tzinfo=datetime.UTC)
    assert last[4].year == 9999


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "name": st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                "cents": st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
                "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "good": st.none() | st.booleans(),
                "at": st.none() | st.integers(FIRST_MS, LAST_MS),
                "more": st.none() | st.lists(st.integers(-(2**53), 2**53)),
            }
        ),
        min_size=1,
        max_size=20,
    )
)
def test_nothing_else_is_changed(sold: list[dict[str, Any]]) -> None:
    for given_, (name, cents, share, good, at, more) in zip(sold, rows(Optional, *sold), strict=True):
        found = {"name": name, "cents": cents, "share": share, "good": good}
        found["at"] = None if at is None else (at - EPOCH) // MS
        found["more"] = None if more is None else json.loads(more)
        assert found == given_


# --- what the sinks are given

VALUES = [b'{"name":"a"}', b'{"name":"b"}']


def names(converted: Any) -> list[str]:
    return [row["who"] for batch in converted for row in batch.to_pylist()]


def test_of_packed_rows_those_of_the_topic_are_taken() -> None:
    keys: list[bytes | None] = [b"k", None]
    cells = [pack_rows({"others": (keys, [b"{", b"{"]), "sales": (keys, [*VALUES])}), pack_rows({})]
    batch = pa.RecordBatch.from_arrays([pa.array(cells, pa.binary())], names=[PACKED])
    assert names(conversion(One)([batch])) == ["a", "b"]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_of_plain_rows_those_of_the_topic_are_taken(kind: pa.DataType) -> None:
    columns = {
        "topic": pa.array(["others", "sales", "sales", None]),
        "key": pa.array([None] * 4, pa.string()),
        "value": pa.array([b"{", *VALUES, b"{"], pa.binary()).cast(kind),
    }
    assert names(conversion(One)([pa.RecordBatch.from_pydict(columns)])) == ["a", "b"]


def test_tasks_can_be_given_it() -> None:
    copied: Conversion = cloudpickle.loads(cloudpickle.dumps(conversion(Defaults)))
    assert copied.convert([b'{"name":"a"}']).to_pylist() == [{"who": "a", "cents": 5}]
    with pytest.raises(DoesNotFit, match="it has no field 'name'"):
        copied.convert([b"{}"])
