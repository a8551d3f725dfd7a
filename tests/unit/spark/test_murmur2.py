"""Kafka's partitioner over columns, against kafka-python's, key by key."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.spark.murmur2 import NO_PARTITION, partitions_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in an old way
    from kafka.partitioner.default import murmur2

COUNTS = st.sampled_from([1, 2, 7, 50, 2**31 - 1])
SHORT = st.binary(max_size=13)
KEYS = st.one_of(
    st.lists(st.none() | SHORT, max_size=10),
    st.lists(st.none() | SHORT, min_size=30, max_size=80),
    st.lists(st.binary(min_size=8, max_size=8), min_size=30, max_size=40),
)


def expected(keys: list[bytes | None], count: int) -> list[int]:
    return [NO_PARTITION if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in keys]


@given(KEYS, COUNTS)
def test_keys_go_where_kafka_puts_them(keys: list[bytes | None], count: int) -> None:
    assert partitions_of(pa.array(keys, pa.binary()), count).tolist() == expected(keys, count)


@given(st.lists(st.binary(max_size=400), min_size=30, max_size=60), COUNTS)
def test_keys_of_very_different_lengths_go_where_kafka_puts_them(keys: list[bytes], count: int) -> None:
    assert partitions_of(pa.array(keys, pa.binary()), count).tolist() == expected(list(keys), count)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [("21", -973932308), ("foobar", -790332482), ("a-little-bit-long-string", -985981536), ("abc", 479470107)],
)
def test_the_hashes_are_those_of_kafkas_own_tests(key: str, hashed: int) -> None:
    assert partitions_of(pa.array([key]), 1000).tolist() == [(hashed & 0x7FFFFFFF) % 1000]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view(), pa.binary()])
def test_strings_and_large_types_are_keys_like_others(kind: pa.DataType) -> None:
    keys = ["user-1", None, "", "Grüße", "x" * 70]
    column = pa.array(keys, pa.string()).cast(kind)
    assert partitions_of(column, 50).tolist() == expected([None if key is None else key.encode() for key in keys], 50)


def test_a_slice_has_the_partitions_of_its_rows() -> None:
    keys = [b"%d" % number * (number % 4) for number in range(100)]
    whole = pa.array(keys, pa.binary())
    assert partitions_of(whole.slice(30, 41), 7).tolist() == expected(list(keys[30:71]), 7)


def test_chunks_are_one_column() -> None:
    column = pa.chunked_array([[b"a", b"bc"], [None, b"def"]], pa.binary())
    assert partitions_of(column, 7).tolist() == expected([b"a", b"bc", None, b"def"], 7)


def test_bytes_under_a_null_do_not_count() -> None:
    hidden = pa.array([b"hidden", b"seen"], pa.binary())
    column = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *hidden.buffers()[1:]])
    assert column.to_pylist() == [None, b"seen"]
    assert partitions_of(column, 50).tolist() == expected([None, b"seen"], 50)


def test_a_long_key_among_many_short_ones() -> None:
    keys: list[bytes | None] = [b"%d" % number for number in range(2000)]
    keys[1000] = np.random.default_rng(1).bytes(1_000_003)
    assert partitions_of(pa.array(keys, pa.binary()), 7).tolist() == expected(keys, 7)


def test_many_long_keys_of_similar_lengths() -> None:
    keys: list[bytes | None] = [b"%d" % size * (size // 5) + b"." * (size % 5) for size in range(65_520, 65_550)]
    keys = keys[::2] + keys[1::2]
    assert partitions_of(pa.array(keys, pa.binary()), 1000).tolist() == expected(keys, 1000)


def test_an_empty_column_has_no_partitions() -> None:
    assert partitions_of(pa.array([], pa.binary()), 3).tolist() == []


def test_only_nulls() -> None:
    assert partitions_of(pa.nulls(3), 3).tolist() == [NO_PARTITION] * 3


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        partitions_of(pa.array([b"a"]), 0)
