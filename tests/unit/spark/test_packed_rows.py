"""Rows in, one piece of binary data, the same rows out."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.spark import columns
from onceflow.spark.columns import binary_of_list
from onceflow.spark.packed_rows import pack_rows, unpack_rows

PAYLOADS = st.none() | st.binary(max_size=20)
TOPICS = st.dictionaries(st.text(min_size=1, max_size=8), st.lists(st.tuples(PAYLOADS, PAYLOADS), max_size=30))


def column(*pieces: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(pieces, pa.binary())], names=["packed"])


@given(st.lists(TOPICS, max_size=4))
def test_what_was_packed_comes_out_as_it_was(pieces: list[dict[str, list[tuple[bytes | None, bytes | None]]]]) -> None:
    packed = [
        pack_rows({topic: ([key for key, _ in rows], [value for _, value in rows]) for topic, rows in topics.items()})
        for topics in pieces
    ]
    found = [tuple(row.values()) for each in unpack_rows([column(*packed)]) for row in each.to_pylist()]
    assert found == [(topic, *row) for topics in pieces for topic, rows in topics.items() for row in rows]


def test_what_is_not_packed_stays_as_it_is() -> None:
    plain = pa.RecordBatch.from_pydict({"value": ["a"], "topic": ["t"]})
    assert list(unpack_rows([plain])) == [plain]


@given(st.lists(PAYLOADS, max_size=50))
def test_a_list_of_bytes_is_the_column_that_arrow_makes(values: list[bytes | None]) -> None:
    found = binary_of_list(values)
    found.validate(full=True)
    assert found.equals(pa.array(values, pa.binary()))


def test_more_than_a_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BINARY_MAX", 10)
    assert binary_of_list([b"12345", b"67890"]).to_pylist() == [b"12345", b"67890"]
    with pytest.raises(ValueError, match="2 values of 11 bytes in all are too much for one column"):
        binary_of_list([b"12345", b"678901"])
