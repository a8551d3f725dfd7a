"""The records of `__transaction_state`, in Kafka's own format: `kafka-dump-log --transaction-log-decoder` reads them.

key      int16 0, then the transactional id
value    int16 version (1 is written, 0 is read too), then the transaction; none for an id that was forgotten
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Final

from onceflow.errors import CorruptLog, MalformedMessage
from onceflow.txn.states import State
from onceflow.txn.transaction import NO_ID, Transaction
from onceflow.wire.codec import decode, encode
from onceflow.wire.primitives import varint
from onceflow.wire.schema import Message, field

__all__ = ["read_key", "read_value", "write_key", "write_value"]

_VERSION: Final = struct.Struct(">h")
_VALUE_HEAD: Final = struct.Struct(">hqhib")
_TIMES: Final = struct.Struct(">qq")
_INT64: Final = struct.Struct(">q")
_KEY_TYPE: Final = 0
_VALUE_VERSION: Final = 1


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: str = field("string", "0+")


class PartitionsSchema(Message, flexible=1):
    topic: str = field("string", "0+")
    partition_ids: list[int] = field(["int32"], "0+")


class TransactionLogValue(Message, versions=(0, 1), flexible=1):
    producer_id: int = field("int64", "0+")
    previous_producer_id: int = field("int64", "1+", default=-1, tag=0)
    next_producer_id: int = field("int64", "1+", default=-1, tag=1)
    producer_epoch: int = field("int16", "0+")
    transaction_timeout_ms: int = field("int32", "0+")
    transaction_status: int = field("int8", "0+")
    transaction_partitions: list[PartitionsSchema] | None = field([PartitionsSchema], "0+", null="0+")
    transaction_last_update_timestamp_ms: int = field("int64", "0+")
    transaction_start_timestamp_ms: int = field("int64", "0+")
    client_transaction_version: int = field("int16", "1+", tag=2)
    next_producer_epoch: int = field("int16", "1+", default=-1, tag=3)


def write_key(transactional_id: str) -> bytes:
    return _VERSION.pack(_KEY_TYPE) + encode(TransactionLogKey(transactional_id=transactional_id), 0)


def read_key(data: bytes) -> str | None:
    """The transactional id; None for a kind of record that we do not know."""
    kind, body = _split(data)
    if kind != _KEY_TYPE:
        return None
    try:
        return decode(TransactionLogKey, 0, body).transactional_id
    except MalformedMessage as error:
        raise CorruptLog(f"A key of the transaction log is damaged: {error}") from error


def write_value(transaction: Transaction) -> bytes:
    """`TransactionLogValue`, packed by hand: three are written for every transaction."""
    head = _VALUE_HEAD.pack(
        _VALUE_VERSION, transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state
    )
    times = _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    return head + _write_partitions(transaction) + times + _write_tags(transaction)


def _write_partitions(transaction: Transaction) -> bytes:
    if transaction.state is State.EMPTY:
        return b"\0"  # null
    topics = [
        _written_topic(topic, [index for _, index in entries])
        for topic, entries in groupby(sorted(transaction.partitions), key=lambda entry: entry[0])
    ]
    return varint(len(topics) + 1) + b"".join(topics)


def _written_topic(topic: str, indexes: list[int]) -> bytes:
    name = topic.encode()
    ids = struct.pack(f">{len(indexes)}i", *indexes)
    return varint(len(name) + 1) + name + varint(len(indexes) + 1) + ids + b"\0"


def _write_tags(transaction: Transaction) -> bytes:
    tags = []
    if transaction.previous_producer_id != NO_ID:
        tags.append(b"\0\x08" + _INT64.pack(transaction.previous_producer_id))
    if transaction.next_producer_id != NO_ID:
        tags.append(b"\1\x08" + _INT64.pack(transaction.next_producer_id))
    if transaction.version:
        tags.append(b"\2\x02" + _VERSION.pack(transaction.version))
    return varint(len(tags)) + b"".join(tags)


def read_value(data: bytes) -> Transaction:
    version, body = _split(data)
    if not 0 <= version <= _VALUE_VERSION:
        raise CorruptLog(f"A value of the transaction log has version {version}; {_VALUE_VERSION} is known.")
    try:
        value = decode(TransactionLogValue, version, body)
        state = State(value.transaction_status)
    except (MalformedMessage, ValueError) as error:
        raise CorruptLog(f"A value of the transaction log is damaged: {error}") from error
    return Transaction(
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        state=state,
        timeout_ms=value.transaction_timeout_ms,
        partitions=frozenset(
            (entry.topic, index) for entry in value.transaction_partitions or () for index in entry.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        version=value.client_transaction_version,
    )


def _split(data: bytes) -> tuple[int, bytes]:
    if len(data) < _VERSION.size:
        raise CorruptLog("A record of the transaction log is cut short.")
    return _VERSION.unpack_from(data)[0], data[_VERSION.size :]
