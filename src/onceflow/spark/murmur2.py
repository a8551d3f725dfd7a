"""Kafka's default partitioner for records with a key, over a whole column at once.

    partition = (murmur2(key) & 0x7fffffff) % number of partitions

A key must go where the Java producer would put it, or programs that write the same topic in both ways break its
order (`Utils.murmur2`, `BuiltInPartitioner.partitionForKey`).

Keys are ragged. All of them advance together, four bytes a step, shortest first, so that those still under way
are always the end of the column: a step costs as much as keys are left in it. The last few, where a step over arrays
would cost more than it does, are hashed one by one. So a megabyte in one key costs that megabyte, whatever the number
of the others.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceflow.spark.columns import binary_of, ends_of, nulls_of, stable_order

__all__ = ["NO_PARTITION", "partitions_of"]

NO_PARTITION: Final = -1
"""What a record without a key gets: nothing about it says where it belongs."""

Hashes = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_TOGETHER_MIN: Final = 24
"""From so many keys on, a step over arrays is cheaper than one over each key."""
_TAIL_MASK: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def partitions_of(keys: pa.Array, count: int | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """The partition, of `count`, of each key, which may be of any binary or string type; `NO_PARTITION` for null.

    `count` may be another one for each key.
    """
    counts = np.asarray(count)
    if counts.size and (least := counts.min()) < 1:
        raise ValueError(f"A topic of {least} partitions has no place for a key.")
    keys = binary_of(keys)
    partitions = ((_hashes(keys) & np.uint32(_POSITIVE)) % counts.astype(np.uint32)).astype(np.int32)
    if (nulls := nulls_of(keys)) is not None:
        partitions[nulls] = NO_PARTITION
    return partitions


def _hashes(keys: pa.Array) -> Hashes:
    """`murmur2` of each key. What stands for a null is without meaning."""
    ends = ends_of(keys)
    data = _bytes(keys)
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends)
    if not len(lengths) or lengths.min() == lengths.max():
        return _hashes_in_order(data, starts, lengths)
    order = stable_order(lengths)
    hashes = np.empty(len(lengths), dtype=np.uint32)
    hashes[order] = _hashes_in_order(data, starts[order], lengths[order])
    return hashes


def _bytes(keys: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes of the column. There are always some, so that nobody has to ask."""
    buffer = keys.buffers()[2]
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None and buffer.size else np.zeros(1, dtype=np.uint8)


def _hashes_in_order(data: npt.NDArray[np.uint8], starts: Positions, lengths: npt.NDArray[np.int32]) -> Hashes:
    """The hashes of keys that are ordered by length."""
    hashes = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    words = lengths >> 2
    step = _advance_together(hashes, data, starts, words)
    for row in range(int(np.searchsorted(words, step, side="right")), len(words)):
        at = int(starts[row])
        rest = data[at + 4 * step : at + 4 * int(words[row])]
        hashes[row] = _advance_alone(int(hashes[row]), rest)
    return _finished(hashes, data, starts, lengths)


def _advance_together(
    hashes: Hashes, data: npt.NDArray[np.uint8], starts: Positions, words: npt.NDArray[np.int32]
) -> int:
    """Takes the words of all keys into the hashes, as long as that pays. Returns how many of each were taken."""
    every_word = _words_at_each_byte(data)
    step = 0
    # The key that ends the loop: behind it there are too few.
    last = len(words) - _TOGETHER_MIN
    while last >= 0 and step < words[last]:
        first = int(np.searchsorted(words, step, side="right"))
        under_way = hashes[first:]
        under_way *= np.uint32(_M)
        under_way ^= _mixed(every_word[starts[first:] + 4 * step])
        step += 1
    return step


def _words_at_each_byte(data: npt.NDArray[np.uint8]) -> Hashes:
    """The little-endian word that begins at each byte, as a view: words in a column stand where they like."""
    count = max(0, len(data) - 3)
    return np.ndarray((count,), dtype=np.dtype("<u4"), buffer=data, strides=(1,))


def _mixed(words: Hashes) -> Hashes:
    words = words * np.uint32(_M)
    words ^= words >> np.uint32(24)
    words *= np.uint32(_M)
    return words


def _advance_alone(hashed: int, rest: npt.NDArray[np.uint8]) -> int:
    """One long key. Only the chain is walked in Python; what goes into it is computed at once."""
    for word in _mixed(np.frombuffer(rest.tobytes(), dtype=np.dtype("<u4"))).tolist():
        hashed = (hashed * _M & _UINT32) ^ word
    return hashed


def _finished(hashes: Hashes, data: npt.NDArray[np.uint8], starts: Positions, lengths: npt.NDArray[np.int32]) -> Hashes:
    """With the one to three bytes after the last word, and the final mixing."""
    left = lengths & 3
    if left.any():
        tails = _tails(data, starts + (lengths - left)) & _TAIL_MASK[left]
        hashes = np.where(left > 0, (hashes ^ tails) * np.uint32(_M), hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _tails(data: npt.NDArray[np.uint8], at: Positions) -> Hashes:
    """Three bytes from each position. Behind the end of the data the last byte repeats, for a mask to remove."""
    tails = np.zeros(len(at), dtype=np.uint32)
    for index in range(3):
        byte = data.take(at + index, mode="clip").astype(np.uint32)
        tails |= byte << np.uint32(8 * index)
    return tails
