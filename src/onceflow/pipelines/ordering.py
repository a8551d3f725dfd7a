"""The order in which a step gets what the step before hands on.

It is the order of tuples, and where Python does not define one it is completed: a micro-batch that runs again, on any
number of partitions, hands a step the same items in the same sequence. Items arrive in no particular order, so two
that are not the same must never count as equal, and every two must be comparable:

    None < numbers < NaN < complex < str < bytes < tuples < lists < dicts < sets < anything else

- Numbers compare by value: True, 1 and 1.0 are equal, as are 0.0 and -0.0. Equal items that are not the same are
  ordered by what `exact` makes of them, after everything else: this order never contradicts Python's.
- Tuples and lists compare item by item; dicts by their items in the order of their keys; sets by their sorted items.

Items have passed through `marshal`, so there are no other types and no subclasses among them.

Nearly all items have one plain type in each field. That is found out first, and then Python's own sort is all it takes.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["sort_items"]

_PLAIN: Final = frozenset({int, str, bytes, bool, type(None)})
"""Two values of one of these types that are equal are the same."""
_RANKS: Final[dict[type, int]] = {
    type(None): 0,
    bool: 1,
    int: 1,
    float: 1,
    complex: 3,
    str: 4,
    bytes: 5,
    tuple: 6,
    list: 7,
    dict: 8,
    set: 9,
    frozenset: 9,
}
_NAN: Final = 2
_OTHERS: Final = 10


def sort_items(items: list[tuple[Any, ...]]) -> None:
    """In place. All have the same number of fields."""
    if not items:
        return
    fields = [_field(items, at) for at in range(len(items[0]))]
    if all(each is None for each in fields):
        items.sort()
        return
    if not all(each is None or each.is_exact for each in fields):
        items.sort(key=_exact)
        fields = [each and _field(items, at) for at, each in enumerate(fields)]
    columns = [map(itemgetter(at), items) if each is None else each.keys for at, each in enumerate(fields)]
    keys = list(zip(*columns, strict=True))
    items[:] = [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


class _Field(NamedTuple):
    keys: list[Any]
    """What to compare instead of the values."""
    is_exact: bool
    """Whether values with equal keys are the same."""


def _field(items: list[tuple[Any, ...]], at: int) -> _Field | None:
    """How the values of one field are compared; None: as they are."""
    kinds = set(map(type, map(itemgetter(at), items)))
    if len(kinds) == 1 and kinds <= _PLAIN:
        return None
    values = [each[at] for each in items]
    if kinds == {float}:
        numbers = np.array(values)
        if not np.isnan(numbers).any() and not ((numbers == 0) & np.signbit(numbers)).any():
            return None
    if len(kinds) == 2 and type(None) in kinds and kinds <= _PLAIN:
        return _Field([(0,) if each is None else (1, each) for each in values], is_exact=True)
    return _Field(list(map(_comparable, values)), is_exact=False)


def _comparable(value: Any) -> tuple[Any, ...]:
    """Something that compares to any other such, as the values do if they compare."""
    kind = type(value)
    rank = _RANKS.get(kind, _OTHERS)
    match rank:
        case 0:
            return (rank,)
        case 1:
            return (rank, value) if value == value else (_NAN,)  # a NaN is not equal to itself
        case 3:
            return rank, _comparable(value.real), _comparable(value.imag)
        case 6 | 7:
            return rank, [_comparable(each) for each in value]
        case 8:
            return rank, sorted((_comparable(name), _comparable(each)) for name, each in value.items())
        case 9:
            return rank, sorted(map(_comparable, value))
        case 10:
            return rank, kind.__name__, repr(value)
        case _:
            return rank, value


def _exact(value: Any) -> str:
    """Another text for whatever is not the same. (Of a set the items are sorted: it has no order of its own.)"""
    match value:
        case tuple() | list():
            return f"{type(value).__name__}({','.join(map(_exact, value))})"
        case dict():
            return f"dict({','.join(f'{_exact(name)}:{_exact(each)}' for name, each in value.items())})"
        case set() | frozenset():
            return f"{type(value).__name__}({','.join(sorted(map(_exact, value)))})"
        case _:
            return repr(value)
