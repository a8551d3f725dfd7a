"""Batches made of columns, as brokers take them and clients read them; keys, where other producers put them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Message, Producer

from onceflow.errors import ErrorCode
from onceflow.spark.encoding import Packed, Rows, pack, pack_by_partition
from onceflow.spark.murmur2 import partitions_of
from onceflow.wire.compression import Codec
from tests.conformance.conftest import RunningBroker
from tests.support.clients import CODECS, TIMEOUT_S, Client, Record, read
from tests.support.clients.java import JavaClient
from tests.support.raw import Wire, now_ms

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = 7
COUNT = 500


def record(number: int, start_ms: int) -> Record:
    """Each a little different: lengths on both sides of where varints grow, nulls, empty ones, time that goes back."""
    headers = (("number", b"%d" % number), ("Grüße", None), ("", b""))
    return Record(
        key=None if number % 5 == 0 else b"key %d" % number * (number % 12),
        value=None if number % 7 == 0 else b"value " * (number % 30) * (300 if number == 17 else 1),
        headers=headers[: number % 4],
        timestamp_ms=start_ms + (number * 37) % 20_000,
    )


def rows_of(records: list[Record]) -> Rows:
    headers = [[{"key": key, "value": value} for key, value in each.headers] or None for each in records]
    return Rows(
        keys=pa.array([each.key for each in records], pa.binary()),
        values=pa.array([each.value for each in records], pa.binary()),
        headers=pa.array(headers, HEADERS),
        timestamps_ms=np.array([each.timestamp_ms for each in records], dtype=np.int64),
    )


def produce(wire: Wire, topic: str, batches: list[Packed]) -> None:
    """As an idempotent producer, which counts its records."""
    producer_id, epoch = wire.new_producer()
    sequence = 0
    for packed in batches:
        answer = wire.produce(topic, packed.sealed(producer_id, epoch, sequence, transactional=False))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, sequence)
        sequence += packed.count


@pytest.mark.parametrize("reader", ["confluent", "java"])
@pytest.mark.parametrize("codec", CODECS)
def test_clients_read_what_was_in_the_columns(
    request: pytest.FixtureRequest, wire: Wire, topic: str, codec: str, reader: str
) -> None:
    client: Client = request.getfixturevalue(reader)
    written = [record(number, now_ms()) for number in range(COUNT)]
    batches = list(pack(rows_of(written), codec=Codec[codec.upper()], batch_bytes_max=20_000, now_ms=0))
    assert len(batches) > 2
    produce(wire, topic, batches)
    received = read(client, topic, COUNT)
    assert [each.record for each in received] == written
    assert [each.offset for each in received] == list(range(COUNT))


def test_the_broker_finds_offsets_by_the_timestamps_of_the_batch(wire: Wire, topic: str, confluent: Client) -> None:
    start_ms = now_ms() - 10_000
    timestamps = start_ms + np.array([500, 0, 3000, 1000])
    rows = Rows(values=pa.array([b"a", b"b", b"c", b"d"]), timestamps_ms=timestamps)
    produce(wire, topic, list(pack(rows, now_ms=0)))
    assert confluent.offset_at(topic, start_ms + 600) == 2
    assert confluent.max_timestamp_offset(topic) == 2
    assert confluent.offset_at(topic, start_ms + 3001) is None


# --- partitions

KEYS = [
    "",
    *("k" * length for length in range(1, 40)),
    *(f"user-{number}" for number in range(200)),
    "Grüße",
    "x" * 5000,
]


def ours(keys: list[str]) -> list[int]:
    return [int(number) for number in partitions_of(pa.array(keys), PARTITIONS)]


def places(wire: Wire, topic: str) -> dict[bytes | None, int]:
    """Where each key is."""
    return {
        record.key: partition
        for partition in range(PARTITIONS)
        if wire.end(topic, partition)
        for record in wire.records(topic, partition=partition)
    }


@pytest.fixture
def wide_topic(wire: Wire, new_name: Callable[[], str]) -> str:
    name = new_name()
    wire.create_topic(name, PARTITIONS)
    return name


def test_keys_go_where_librdkafka_puts_them(broker: RunningBroker, wide_topic: str) -> None:
    found: dict[bytes, int] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        found[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in KEYS:
        producer.produce(wide_topic, key=key, value=b"v", on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    assert [found[key.encode()] for key in KEYS] == ours(KEYS)


def test_keys_go_where_java_puts_them(broker: RunningBroker, java: JavaClient, wire: Wire, wide_topic: str) -> None:
    java.tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", broker.bootstrap, "--topic", wide_topic),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
        feed="".join(f"{key}|v\n" for key in KEYS),
    )
    assert places(wire, wide_topic) == {
        key.encode(): partition for key, partition in zip(KEYS, ours(KEYS), strict=True)
    }


def test_rows_are_written_to_their_partitions(wire: Wire, wide_topic: str) -> None:
    rows = Rows(keys=pa.array(KEYS), values=pa.array(KEYS))
    for partition, packed in pack_by_partition(rows, partitions_of(rows.keys, PARTITIONS), now_ms=now_ms()):
        answer = wire.produce(wide_topic, packed.sealed(-1, -1, -1, transactional=False), partition=partition)
        assert answer.error_code == ErrorCode.NONE
    assert places(wire, wide_topic) == {
        key.encode(): partition for key, partition in zip(KEYS, ours(KEYS), strict=True)
    }
