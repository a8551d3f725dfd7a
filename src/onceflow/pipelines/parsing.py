"""JSON to typed records, or the reason why not.

Strict: what is not exactly what was declared is not passed on. A number is not a text, true is not 1, 5.0 is not an
`int`; only an `int` is a good `float`. Fields that were not declared are left out.
"""

from __future__ import annotations

import base64
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from onceflow.errors import ConfigError

__all__ = ["Parser", "Unfit", "dead_letter_json", "dumps", "shown"]

TYPES: Final[Mapping[type, str]] = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}
INT_MAX: Final = 2**63 - 1
"""What Spark and databases call a BIGINT; JSON knows no limit, and its parser takes twice as much."""
SHOWN_MAX: Final = 60
_MISSING: Final = object()


def dumps(value: Any) -> str:
    """Compact JSON."""
    return orjson.dumps(value).decode()


class Unfit(ValueError):
    """A value that does not fit the schema; says why."""


class Parser:
    """For one schema: a `NamedTuple`."""

    def __init__(self, schema: type[Any]) -> None:
        self._make: Callable[[Any], Any] = schema._make
        names: tuple[str, ...] = schema._fields
        defaults: Mapping[str, Any] = schema._field_defaults
        hints = typing.get_type_hints(schema)
        self._fields = [(name, *_kind(schema, name, hints[name]), defaults.get(name, _MISSING)) for name in names]
        self._exactly = _exactly(self.kinds)

    @property
    def kinds(self) -> dict[str, type]:
        """The types of the fields."""
        return {name: kind for name, kind, *_ in self._fields}

    def __call__(self, raw: bytes | None) -> Any:
        """The record's value. Raises `Unfit`."""
        return self._make(self.values(raw))

    def values(self, raw: bytes | None) -> tuple[Any, ...]:
        """The record's value as a plain tuple. Raises `Unfit`."""
        if raw is None:
            raise Unfit("there is no value")
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise Unfit("not UTF-8" if _is_no_text(raw) else "not JSON") from None
        return self._exactly(found) or self._slowly(found)

    def _slowly(self, found: Any) -> tuple[Any, ...]:
        if type(found) is not dict:
            raise Unfit(f"not a JSON object: {shown(found)}")
        return tuple(
            _fitting(name, kind, found.get(name, default), may_be_null)
            for name, kind, may_be_null, default in self._fields
        )


def _exactly(kinds: Mapping[str, type]) -> Callable[[Any], tuple[Any, ...] | None]:
    """A function that takes the fields of what is exactly as declared, which is nearly everything, and None of anything
    else: written out for this schema, it takes half the time of a loop over its fields."""
    names = [f"field_{number}" for number in range(len(kinds))]
    checks = [f"type({name}) is {kind.__name__}" for name, kind in zip(names, kinds.values(), strict=True)]
    checks += [
        f"{-INT_MAX} <= {name} <= {INT_MAX}" for name, kind in zip(names, kinds.values(), strict=True) if kind is int
    ]
    lines = [
        "def exactly(found):",
        "    try:",
        *(f"        {name} = found[{field!r}]" for name, field in zip(names, kinds, strict=True)),
        "    except (KeyError, TypeError):",
        "        return None",
        f"    return ({', '.join(names)},) if {' and '.join(checks)} else None",
    ]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    function: Callable[[Any], tuple[Any, ...] | None] = made["exactly"]
    return function


def _fitting(name: str, kind: type[Any], value: Any, may_be_null: bool) -> Any:
    if value is _MISSING:
        raise Unfit(f"no field {name!r}")
    if value is None and may_be_null:
        return None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise Unfit(f"{name!r} is not {TYPES[kind]}: {shown(value)}")
    if kind is int and not -INT_MAX <= value <= INT_MAX:
        raise Unfit(f"{name!r} is out of range: {shown(value)}")
    return value


def _is_no_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def _kind(schema: type[Any], name: str, hint: Any) -> tuple[type, bool]:
    options = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    kinds = options - {types.NoneType}
    if len(kinds) == 1 and (kind := kinds.pop()) in TYPES:
        return kind, types.NoneType in options
    raise ConfigError(
        f"the field {name!r} of {schema.__name__} is declared as {hint}: a schema has str, int, float and bool, "
        "each also "
        "with | None"
    )


def shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:  # orjson reads a little deeper than this one writes
        return "something nested very deep"
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def dead_letter_json(
    reason: str, topic: str, partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
) -> str:
    """What is written to the dead letters: why, where it came from, and the record itself, bytes that are no text in
    base64."""
    envelope: dict[str, Any] = {
        "reason": reason,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp,
    }
    for name, raw in (("key", key), ("value", value)):
        try:
            envelope[name] = None if raw is None else raw.decode()
        except UnicodeDecodeError:
            envelope[f"{name}_base64"] = base64.b64encode(raw or b"").decode()
    return dumps(envelope)
