"""The order of what a step hands on: total, one for every order of arrival, and Python's where Python has one."""

from __future__ import annotations

import marshal
import random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from onceflow.pipelines.ordering import sort_items

NAN = float("nan")
hashable = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(width=16) | st.text(max_size=2) | st.binary(max_size=2),
    lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
anything = st.recursive(
    hashable | st.complex_numbers(max_magnitude=2) | st.just(...),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(hashable, inner, max_size=2),
    max_leaves=4,
)
items = st.lists(st.tuples(st.integers(0, 1), anything, anything), max_size=8)


def ordered(found: list[tuple[Any, ...]]) -> list[str]:
    """As text: a NaN is not equal to itself, and 1 is equal to True. Items arrive through `marshal`."""
    arrived: list[tuple[Any, ...]] = marshal.loads(marshal.dumps(found))
    sort_items(arrived)
    return [text(each) for each in arrived]


def text(value: Any) -> str:
    """As `repr`, but one for equal sets: the order in them depends on hashes, and each NaN has one of its own."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({sorted(map(text, value))})"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(text, value))})"
    if isinstance(value, dict):
        return f"dict({[(text(key), text(each)) for key, each in value.items()]})"
    return repr(value)


@given(items, st.randoms(use_true_random=False))
@example([(0, None, 1), (0, {"a": 1}, 1), (0, {"a": None}, 1)], random.Random(1))
@example([(0, NAN, 1), (0, 1.0, 1), (0, NAN, 2), (0, -1.0, 1)], random.Random(1))
@example([(0, 0.0, 1), (0, -0.0, 1), (0, 0.0, 1)], random.Random(1))
@example([(0, {1}, 1), (0, {2}, 1), (0, {1, 2}, 1)], random.Random(1))
@example([(0, frozenset({1.0, (NAN,)}), 1)], random.Random(1))
def test_the_order_of_arrival_makes_no_difference(found: list[Any], chance: random.Random) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)
    assert ordered(shuffled) == ordered(found)


@given(st.lists(st.tuples(st.integers(-2, 2), st.text(max_size=1), st.integers() | st.floats(allow_nan=False))))
@example([(1, "b", 1), (True, "a", 1)])
def test_it_is_pythons_order_where_python_has_one(found: list[Any]) -> None:
    arrived = list(found)
    sort_items(arrived)
    assert arrived == sorted(found)


def test_what_is_equal_and_not_the_same_is_ordered_after_all_fields() -> None:
    assert ordered([(1.0, "b"), (1, "c"), (True, "a"), (1, "b")]) == [
        "tuple(True, 'a')",
        "tuple(1, 'b')",
        "tuple(1.0, 'b')",
        "tuple(1, 'c')",
    ]


def test_no_items_are_no_trouble() -> None:
    assert ordered([]) == []
