"""Records on their way into a table: JSON to typed Arrow columns, in the tasks that load them.

A whole record batch is converted at once, column by column; only a batch with something unusual in it, a field that is
missing or of another type, is looked at record by record. Strict, as `parsing.py` is: a number is not a text, true is
not 1, 5.0 is not an `int`; only an `int` is a good `float`.

Two things are not kept as they are, because databases cannot: the character U+0000 in a text becomes U+FFFD, and a time
outside of the years 1 to 9999 is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from onceflow.errors import OnceflowError
from onceflow.pipelines.parsing import shown
from onceflow.pipelines.tables import REQUIRED, Field, Kind
from onceflow.spark.columns import binary_of, binary_of_list, bits_of
from onceflow.spark.packed_rows import unpack_rows

__all__ = ["ARROW_TYPES", "Conversion", "DoesNotFit"]

ARROW_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    Kind.TEXT: pa.string(),
    Kind.WHOLE: pa.int64(),
    Kind.NUMBER: pa.float64(),
    Kind.FLAG: pa.bool_(),
    Kind.TIME: pa.timestamp("us", tz="UTC"),
    Kind.JSON: pa.string(),
}
_ACCEPTED: Final[Mapping[Kind, frozenset[type]]] = {
    Kind.TEXT: frozenset({str}),
    Kind.WHOLE: frozenset({int}),
    Kind.NUMBER: frozenset({float, int}),
    Kind.FLAG: frozenset({bool}),
    Kind.TIME: frozenset({int}),
    Kind.JSON: frozenset({str, int, float, bool, list, dict}),
}
INT_MAX: Final = 2**63 - 1
FIRST_MS: Final = -62_135_596_800_000
LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999."""
NUL: Final = "\0"
INSTEAD: Final = "\ufffd"

Row = tuple[Any, ...]


class DoesNotFit(OnceflowError):
    """A record that cannot be a row of its table: what the pipeline declares it to land is not what it sends."""


@dataclass(frozen=True)
class Conversion:
    """From what the sinks of a pipeline are given to the rows of one table. Tasks get it, so it can be pickled."""

    topic: str
    """As Kafka knows it."""
    table: str
    fields: tuple[Field, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(each.column, ARROW_TYPES[each.kind]) for each in self.fields])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`: of a DataFrame with `topic` and `value`, or with packed rows."""
        for batch in unpack_rows(batches):
            values = self._of_our_topic(batch)
            if len(values):
                yield self.convert(values.to_pylist())

    def _of_our_topic(self, batch: pa.RecordBatch) -> pa.Array:
        values = binary_of(batch.column(batch.schema.get_field_index("value")))
        topics = binary_of(batch.column(batch.schema.get_field_index("topic")))
        ours = np.array([each == self.topic.encode() for each in topics.to_pylist()], dtype=np.bool_)
        if ours.all():
            return values
        return values.take(pa.Array.from_buffers(pa.int64(), int(ours.sum()), [None, pa.py_buffer(ours.nonzero()[0])]))

    def convert(self, values: Sequence[bytes | None]) -> pa.RecordBatch:
        """Raises `DoesNotFit`."""
        columns = self._columns([self._loaded(each) for each in values])
        arrays = [_COLUMNS[each.kind](column) for each, column in zip(self.fields, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _loaded(self, value: bytes | None) -> Any:
        if value is None:
            raise self._unfit("it has no value")
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            raise self._unfit("it is not JSON") from None

    def _columns(self, found: list[Any]) -> list[Sequence[Any]]:
        take = _taking([each.name for each in self.fields])
        try:
            columns: list[Sequence[Any]] = list(zip(*map(take, found), strict=True))
        except (KeyError, TypeError):
            columns = []
        if columns and all(_is_fine(each, column) for each, column in zip(self.fields, columns, strict=True)):
            return columns
        return list(zip(*map(self._row, found), strict=True))

    def _row(self, found: Any) -> Row:
        """One by one, to find what is wrong, or what is only missing."""
        if type(found) is not dict:
            raise self._unfit(f"it is not a JSON object: {shown(found)}")
        return tuple(self._value(each, found.get(each.name, each.default)) for each in self.fields)

    def _value(self, field: Field, value: Any) -> Any:
        if value is REQUIRED:
            raise self._unfit(f"it has no field {field.name!r}")
        if not _is_fine(field, (value,)):
            raise self._unfit(f"{field.name!r} is not {field.kind.value}: {shown(value)}")
        return value

    def _unfit(self, why: str) -> DoesNotFit:
        return DoesNotFit(f"a record of {self.topic!r} cannot be a row of the table {self.table!r}: {why}")


def _taking(names: Sequence[str]) -> Callable[[Any], Row]:
    if len(names) == 1:
        [name] = names
        return lambda found: (found[name],)
    return operator.itemgetter(*names)


def _is_fine(field: Field, values: Sequence[Any]) -> bool:
    types = set(map(type, values))
    if type(None) in types:
        if not field.may_be_null:
            return False
        types.discard(type(None))
        values = [each for each in values if each is not None]
    if not types <= _ACCEPTED[field.kind]:
        return False
    if field.kind is Kind.TIME:
        return not values or (min(values) >= FIRST_MS and max(values) <= LAST_MS)
    if field.kind is Kind.WHOLE:
        return not values or (min(values) >= -INT_MAX and max(values) <= INT_MAX)
    return True


# --- columns; nulls are marked, and something is under them


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    return bits_of(np.fromiter((each is not None for each in values), np.bool_, len(values)))


def _fixed(values: Sequence[Any], dtype: type[Any], kind: pa.DataType, factor: int = 1) -> pa.Array:
    valid = _validity(values)
    numbers = np.array(values if valid is None else [each or 0 for each in values], dtype=dtype)
    if factor != 1:
        numbers *= factor
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(numbers)])


def _integers(values: Sequence[Any]) -> pa.Array:
    return _fixed(values, np.int64, pa.int64())


def _floats(values: Sequence[Any]) -> pa.Array:
    return _fixed(values, np.float64, pa.float64())


def _times(values: Sequence[Any]) -> pa.Array:
    return _fixed(values, np.int64, ARROW_TYPES[Kind.TIME], factor=1000)


def _flags(values: Sequence[Any]) -> pa.Array:
    bits = bits_of(np.fromiter(map(bool, values), np.bool_, len(values)))
    return pa.Array.from_buffers(pa.bool_(), len(values), [_validity(values), bits])


def _texts(values: Sequence[Any]) -> pa.Array:
    encoded = [None if each is None else each.encode() for each in values]
    array = binary_of_list(encoded)
    if b"\0" in array.buffers()[2].to_pybytes():
        array = binary_of_list([None if each is None else each.replace(NUL, INSTEAD).encode() for each in values])
    return array.view(pa.string())


def _documents(values: Sequence[Any]) -> pa.Array:
    return binary_of_list([None if each is None else _document(each) for each in values]).view(pa.string())


def _document(value: Any) -> bytes:
    document = orjson.dumps(value)
    return orjson.dumps(_without_nul(value)) if rb"\u0000" in document else document


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(NUL, INSTEAD)
    if isinstance(value, list):
        return [_without_nul(each) for each in value]
    if isinstance(value, dict):
        return {_without_nul(name): _without_nul(each) for name, each in value.items()}
    return value


_COLUMNS: Final[Mapping[Kind, Callable[[Sequence[Any]], pa.Array]]] = {
    Kind.TEXT: _texts,
    Kind.WHOLE: _integers,
    Kind.NUMBER: _floats,
    Kind.FLAG: _flags,
    Kind.TIME: _times,
    Kind.JSON: _documents,
}
