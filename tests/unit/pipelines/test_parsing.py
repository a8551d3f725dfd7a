"""JSON that fits, JSON that does not and the reason that is given, and the standard library as the judge."""

from __future__ import annotations

import base64
import json
import math
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceflow.errors import ConfigError
from onceflow.pipelines.parsing import INT_MAX, Parser, Unfit, dead_letter_json


class Order(NamedTuple):
    id: str
    quantity: int
    price: float
    gift: bool
    note: str | None = None
    priority: int = 5


class Tick(NamedTuple):
    at: int


GOOD: dict[str, Any] = {"id": "o-1", "quantity": 3, "price": 2.5, "gift": False}
ORDERS = Parser(Order)


def parsed(**changed: Any) -> Order:
    order: Order = ORDERS(json.dumps({**GOOD, **changed}).encode())
    return order


def reason(raw: bytes | None, parser: Parser = ORDERS) -> str:
    with pytest.raises(Unfit) as unfit:
        parser(raw)
    return str(unfit.value)


def test_what_is_declared_is_taken_and_the_rest_left_out() -> None:
    assert parsed(colour="red") == Order("o-1", 3, 2.5, False, None, 5)
    assert type(parsed()) is Order


def test_a_field_with_a_default_may_be_missing_and_only_one_with_none_may_be_null() -> None:
    assert parsed(note="soon", priority=1) == Order("o-1", 3, 2.5, False, "soon", 1)
    assert parsed(note=None).note is None
    assert reason(json.dumps({**GOOD, "priority": None}).encode()) == "'priority' is not an integer: null"


def test_a_whole_number_is_a_good_float_and_becomes_one() -> None:
    price = parsed(price=2).price
    assert (price, type(price)) == (2.0, float)


def test_a_schema_of_one_field_works_as_any_other() -> None:
    assert Parser(Tick)(b'{"at": 7}') == Tick(7)
    assert reason(b'{"at": "7"}', Parser(Tick)) == "'at' is not an integer: \"7\""
    assert reason(b"{}", Parser(Tick)) == "no field 'at'"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (None, "there is no value"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"id": NaN}', "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b"[1, 2]", "not a JSON object: [1, 2]"),
        (b'"text"', 'not a JSON object: "text"'),
        (b"null", "not a JSON object: null"),
        (b"17", "not a JSON object: 17"),
    ],
)
def test_what_is_no_json_object_says_so(raw: bytes | None, why: str) -> None:
    assert reason(raw) == why


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": 7}, "'id' is not a text: 7"),
        ({"id": None}, "'id' is not a text: null"),
        ({"id": ["a"]}, "'id' is not a text: [\"a\"]"),
        ({"quantity": "3"}, "'quantity' is not an integer: \"3\""),
        ({"quantity": 3.0}, "'quantity' is not an integer: 3.0"),
        ({"quantity": True}, "'quantity' is not an integer: true"),
        ({"quantity": INT_MAX + 1}, f"'quantity' is out of range: {INT_MAX + 1}"),
        ({"price": "2.5"}, "'price' is not a number: \"2.5\""),
        ({"price": True}, "'price' is not a number: true"),
        ({"gift": 1}, "'gift' is not true or false: 1"),
        ({"note": 4}, "'note' is not a text: 4"),
    ],
)
def test_a_wrong_type_names_the_field_what_it_should_be_and_what_it_is(changed: dict[str, Any], why: str) -> None:
    assert reason(json.dumps({**GOOD, **changed}).encode()) == why


@pytest.mark.parametrize("name", ["id", "quantity", "price", "gift"])
def test_a_missing_field_is_named(name: str) -> None:
    left = {each: value for each, value in GOOD.items() if each != name}
    assert reason(json.dumps(left).encode()) == f"no field {name!r}"


def test_of_a_long_value_the_beginning_is_shown() -> None:
    why = reason(json.dumps({**GOOD, "quantity": "9" * 1000}).encode())
    assert why.startswith("'quantity' is not an integer: \"999")
    assert why.endswith("...")
    assert len(why) < 120


def test_whole_numbers_up_to_the_limit_are_taken_and_beyond_64_bits_refused() -> None:
    assert parsed(quantity=INT_MAX).quantity == INT_MAX
    assert parsed(quantity=-INT_MAX).quantity == -INT_MAX
    for too_large in (INT_MAX + 1, -INT_MAX - 1, 2**64, -(2**64), 10**40):
        assert "'quantity'" in reason(json.dumps({**GOOD, "quantity": too_large}).encode())


# --- the standard library as the judge

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text() | VALUES,
        "quantity": st.integers() | VALUES,
        "price": st.floats(allow_nan=False, allow_infinity=False) | VALUES,
        "gift": st.booleans() | VALUES,
        "note": st.none() | st.text() | VALUES,
        "priority": st.integers() | VALUES,
        "other": VALUES,
    },
)


def judged(found: Any) -> tuple[Any, ...] | None:
    """What the fields must be, in the simplest words; None if it must be refused."""
    if not isinstance(found, dict):
        return None
    values = [found.get(name, Order._field_defaults.get(name, ...)) for name in Order._fields]
    for value, kind in zip(values, (str, int, float, bool, str, int), strict=True):
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits and not (value is None and kind is str and values[4] is value):
            return None
        if type(value) is int and kind is int and abs(value) > INT_MAX:
            return None
    if values[0] is None:
        return None
    return (*values[:2], float(values[2]), *values[3:])


@given(FIELDS | VALUES)
@example({**GOOD, "quantity": INT_MAX})
@example({**GOOD, "price": 10**30})
def test_it_takes_what_the_standard_library_reads_and_the_schema_allows_and_nothing_else(value: Any) -> None:
    raw = json.dumps(value).encode()
    expected = judged(json.loads(raw)) if not _has_lone_surrogate(value) else None
    try:
        found = ORDERS(raw)
    except Unfit:
        found = None
    assert found == expected
    if found is not None:
        assert list(map(type, found)) == list(map(type, expected or ()))


def _has_lone_surrogate(value: Any) -> bool:
    """Half a character: no UTF-8 can hold it, so it could not be written again."""
    return any("\ud800" <= letter <= "\udfff" for letter in json.dumps(value, ensure_ascii=False))


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_or_have_a_reason(raw: bytes) -> None:
    assert reason(raw)


# --- schemas


class Nested(NamedTuple):
    tags: list[str]


class Either(NamedTuple):
    amount: int | float


@pytest.mark.parametrize(("schema", "field"), [(Nested, "tags"), (Either, "amount")])
def test_a_schema_of_other_types_is_refused_and_the_field_named(schema: type[Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"the field '{field}' of {schema.__name__}"):
        Parser(schema)


# --- dead letters


def test_a_dead_letter_holds_the_reason_the_origin_and_the_record() -> None:
    letter = json.loads(dead_letter_json("not JSON", "orders", 1, 20, 1_700, "ä".encode(), b"{oops"))
    assert letter == {
        "reason": "not JSON",
        "topic": "orders",
        "partition": 1,
        "offset": 20,
        "timestamp": 1_700,
        "key": "ä",
        "value": "{oops",
    }


def test_bytes_that_are_no_text_are_in_base64_and_nulls_are_null() -> None:
    letter = json.loads(dead_letter_json("not UTF-8", "orders", 0, 0, 0, None, b"\xff\x00"))
    assert letter["key"] is None
    assert base64.b64decode(letter["value_base64"]) == b"\xff\x00"
    assert "value" not in letter


def test_a_number_that_no_float_can_hold_is_not_taken_for_infinity() -> None:
    try:
        price = ORDERS(b'{"id": "o", "quantity": 1, "price": 1e999, "gift": true}').price
    except Unfit:
        return
    assert not math.isinf(price)
