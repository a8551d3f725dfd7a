"""Columns of numbers as varints, and columns of bytes laid into each other: the two steps from columns to records.

`glued` writes the numbers of each row one after the other: into a matrix that has room for the longest varint of each
column, from which a mask then takes the bytes that are used. `interleaved` joins columns of bytes row by row, in one
pass of Arrow's: the data of the result are the rows end to end.

A column of `n` numbers that are all the same, or all as long, is written as one: most columns of a batch are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceflow.spark.columns import binary_array, binary_scalar

__all__ = ["NULL", "ZERO", "Varints", "glued", "interleaved", "size_of", "varints"]

_NOTHING: Final = binary_scalar(b"")
_NULLS_ARE_NOTHING: Final = pc.JoinOptions(null_handling="replace", null_replacement="")

Integers = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class Varints:
    """A column of zigzag varints: `bits` to write in groups of seven, `sizes` in bytes, `width` the largest of these.

    Both are a single number where it is the same for every row.
    """

    bits: npt.NDArray[np.unsignedinteger[Any]] | int
    sizes: npt.NDArray[np.uint8] | int
    width: int


ZERO: Final = Varints(0, 1, 1)
NULL: Final = Varints(1, 1, 1)
"""-1, the length of what is null."""


def size_of(number: int) -> int:
    """The bytes of one number as a zigzag varint."""
    return _groups((number << 1) ^ (number >> 63))


def _groups(bits: int) -> int:
    return max(1, (bits.bit_length() + 6) // 7)


def varints(numbers: Integers) -> Varints:
    """Of at least one number."""
    last_bit = 8 * numbers.itemsize - 1
    bits = ((numbers << 1) ^ (numbers >> last_bit)).view(f"u{numbers.itemsize}")
    narrow, width = _groups(int(bits.min())), _groups(int(bits.max()))
    if narrow == width:
        return Varints(bits, width, width)
    sizes = np.full(len(bits), narrow, dtype=np.uint8)
    for groups in range(narrow, width):
        sizes += bits >= bits.dtype.type(1 << 7 * groups)
    return Varints(bits, sizes, width)


def glued(count: int, *columns: Varints) -> pa.Array:
    """`count` elements: in each, the numbers of one row."""
    width = sum(column.width for column in columns)
    matrix = np.empty((count, width), dtype=np.uint8)
    ragged = any(not isinstance(column.sizes, int) for column in columns)
    used = np.ones((count, width), dtype=np.bool_) if ragged else None
    at = 0
    for column in columns:
        _write(column, matrix[:, at : at + column.width])
        if used is not None and not isinstance(column.sizes, int):
            _mark(column.sizes, used[:, at : at + column.width])
        at += column.width
    if used is None:
        return binary_array(np.arange(0, count * width + 1, width, dtype=np.int32), pa.py_buffer(matrix))
    sizes = sum(column.sizes for column in columns)
    return binary_array(_ends(sizes), pa.py_buffer(matrix[used]))


def _write(column: Varints, room: npt.NDArray[np.uint8]) -> None:
    """Seven bits a byte, the lowest first; in all but the last the eighth says that more follow."""
    bits, sizes, last = np.asarray(column.bits), column.sizes, column.width - 1
    for group in range(last):
        seven = (bits >> 7 * group & 0x7F).astype(np.uint8)
        more = 0x80 if isinstance(sizes, int) else (sizes > group + 1).view(np.uint8) << np.uint8(7)
        room[:, group] = seven | more
    room[:, last] = bits >> 7 * last


def _mark(sizes: npt.NDArray[np.uint8], used: npt.NDArray[np.bool_]) -> None:
    for group in range(1, used.shape[1]):
        used[:, group] = sizes > group


def _ends(sizes: Any) -> npt.NDArray[np.int32]:
    ends = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def interleaved(*columns: pa.Array | pa.Scalar) -> pa.Array:
    """Rows of bytes: in each, one element of every column, a scalar in all of them. Nulls are no bytes."""
    return pc.binary_join_element_wise(*columns, _NOTHING, options=_NULLS_ARE_NOTHING)
