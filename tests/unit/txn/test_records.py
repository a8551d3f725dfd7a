"""The transaction log's records: Kafka's bytes, and what is not one of them is not taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.errors import CorruptLog
from onceflow.txn.records import TransactionLogValue, read_key, read_value, write_key, write_value
from onceflow.txn.states import State
from onceflow.txn.transaction import Transaction
from onceflow.wire.codec import decode, encode
from tests.support.effort import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(min_size=1, max_size=20), st.integers(0, 2**31 - 1)), max_size=5)


@examples(30, soak=10_000)
@given(
    st.text(),
    st.builds(
        Transaction,
        producer_id=INT64,
        epoch=st.integers(-1, 2**15 - 1),
        state=st.sampled_from([state for state in State if state is not State.EMPTY]),
        timeout_ms=st.integers(0, 2**31 - 1),
        partitions=PARTITIONS,
        started_ms=INT64,
        updated_ms=INT64,
        previous_producer_id=INT64,
        next_producer_id=INT64,
        version=st.integers(0, 2),
    ),
)
def test_what_was_written_is_read(transactional_id: str, transaction: Transaction) -> None:
    assert read_key(write_key(transactional_id)) == transactional_id
    written = write_value(transaction)
    assert read_value(written) == transaction
    assert encode(decode(TransactionLogValue, 1, written, 2), 1) == written[2:], "not as the codec writes it"


def test_every_field_stands_where_kafkas_schema_has_it() -> None:
    """Version 1 of TransactionLogValue, tagged fields last. That Kafka's tools agree is tested with Kafka's tools."""
    transaction = Transaction(
        producer_id=4,
        epoch=1,
        state=State.ONGOING,
        timeout_ms=60_000,
        partitions=frozenset({("t", 0)}),
        started_ms=1_700_000_000_001,
        updated_ms=1_700_000_000_002,
        previous_producer_id=4,
        version=2,
    )
    assert write_value(transaction).hex() == (
        "0001" "0000000000000004" "0001" "0000ea60" "01" "02" "0274" "02" "00000000" "00"
        "0000018bcfe56802" "0000018bcfe56801" "02" "00080000000000000004" "02020002"
    )  # fmt: skip
    assert write_key("app").hex() == "0000" "0003617070"  # fmt: skip


def test_an_empty_transaction_has_no_partitions() -> None:
    transaction = Transaction(producer_id=4, epoch=0, timeout_ms=1, updated_ms=2)
    assert read_value(write_value(transaction)) == transaction


def test_a_kind_of_record_that_is_not_known_is_passed_over() -> None:
    assert read_key(b"\0\x07rest") is None


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x02" + bytes(40), b"\0\x01" + bytes(10), b"\xff\xff"])
def test_damage_is_recognised(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_value(data)


def test_a_state_that_does_not_exist_is_damage() -> None:
    good = bytearray(write_value(Transaction(producer_id=4, epoch=0, timeout_ms=1, updated_ms=2)))
    good[16] = 99
    with pytest.raises(CorruptLog, match="99"):
        read_value(bytes(good))
