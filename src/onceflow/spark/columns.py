"""Arrow columns as numpy sees them: what encoding and partitioning share.

A binary array is one block of bytes and the ends of its elements in it. Both are read where they lie. An array may be
a slice of a larger one, and bytes may lie under its nulls; whoever uses this does not notice.

Arrays are made of buffers, never by `pa.array` or `pa.scalar`: those import pandas to see whether they were given some
of it, which costs every Python worker half a second and 40 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "array_of",
    "binary_array",
    "binary_of",
    "binary_of_list",
    "binary_scalar",
    "bits_of",
    "ends_of",
    "lengths_of",
    "nulls_of",
    "repeated_text",
    "stable_order",
]

NULL_LENGTH: Final = -1
_INTEGERS: Final = {np.dtype(np.int32): pa.int32(), np.dtype(np.int64): pa.int64()}
_BINARY_MAX: Final = 2**31 - 1
_RADIX_MAX: Final = 2**16
"""numpy sorts integers of 16 bits in linear time, ten times as fast as wider ones."""


def binary_of(column: pa.Array) -> pa.Array:
    """The column as a `binary` array: as it is, or another view of it, or a copy where the layout differs."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.type == pa.binary():
        return column
    if column.type == pa.string():
        return column.view(pa.binary())
    return column.cast(pa.binary())


def binary_array(ends: npt.NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    """The elements that end there, without nulls and without a copy."""
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), data])


def binary_of_list(values: Sequence[bytes | None]) -> pa.Array:
    """These bytes, as a column."""
    there = [each or b"" for each in values]
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, there), np.int64, len(values)), out=ends[1:])
    if ends[-1] > _BINARY_MAX:
        raise ValueError(f"{len(values)} values of {ends[-1]} bytes in all are too much for one column.")
    valid = (
        bits_of(np.fromiter((each is not None for each in values), np.bool_, len(values))) if None in values else None
    )
    buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(there))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def repeated_text(text: str, count: int) -> pa.Array:
    """The same text in every row."""
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(raw * count)])


def bits_of(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Flags as Arrow keeps them, for example which elements are valid."""
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def binary_scalar(value: bytes) -> pa.Scalar:
    """One element, to be joined with every row."""
    return binary_array(np.array([0, len(value)], dtype=np.int32), pa.py_buffer(value))[0]


def array_of(numbers: npt.NDArray[np.integer[Any]], kind: pa.DataType | None = None) -> pa.Array:
    """These integers, where they are. `kind` is a type of the same width to read them as."""
    numbers = np.ascontiguousarray(numbers)
    layout = kind or _INTEGERS[numbers.dtype]
    return pa.Array.from_buffers(layout, len(numbers), [None, pa.py_buffer(numbers)])


def ends_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where in the data of a `binary` array its first element begins, and where each element ends."""
    if not len(column):
        return np.zeros(1, dtype=np.int32)  # an empty array need not have any offset
    ends = np.frombuffer(column.buffers()[1], dtype=np.int32, count=column.offset + len(column) + 1)
    return ends[column.offset :]


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which elements are null; None if none is."""
    if not column.null_count:
        return None
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def lengths_of(column: pa.Array) -> npt.NDArray[np.int32]:
    """The length of each element as Kafka writes it: -1 for null."""
    lengths = np.diff(ends_of(column))
    if (nulls := nulls_of(column)) is not None:
        lengths[nulls] = NULL_LENGTH
    return lengths


def stable_order(numbers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """The indices that sort `numbers`, of which there is at least one; equal ones keep their order."""
    lowest, highest = int(numbers.min()), int(numbers.max())
    if highest - lowest < _RADIX_MAX:
        numbers = (numbers.astype(np.int64) - lowest).astype(np.uint16)
    return np.argsort(numbers, kind="stable")
