"""How to write: settings that are refused before anything starts, and what a DataFrame must look like."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceflow.errors import ConfigError
from onceflow.spark.progress import PROGRESS_TOPIC
from onceflow.spark.writing import WriteSettings, check_columns
from onceflow.wire.compression import Codec

TEXT, BYTES, INT, LONG, TIME = StringType(), BinaryType(), IntegerType(), LongType(), TimestampType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))


def settings(**given: Any) -> WriteSettings:
    return WriteSettings(**{"bootstrap_servers": "localhost:9092", "topic": "out", **given})


def test_the_defaults_are_exactly_once_and_kafkas_partitioner() -> None:
    made = settings()
    assert made.is_exactly_once
    assert (made.partitioning, made.codec) == ("kafka", Codec.NONE)


def test_client_settings_carry_the_address_and_kafkas_own_names_and_can_travel() -> None:
    made = settings(kafka={"security.protocol": "SASL_SSL", "sasl.password": "secret"})
    travelled = pickle.loads(pickle.dumps(made.client))
    assert travelled == made.client
    assert (travelled.bootstrap, travelled.extra["sasl.password"]) == ("localhost:9092", "secret")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"guarantee": "exactly-once"}, "did you mean 'exactly_once'"),
        ({"guarantee": "never"}, "'exactly_once', 'at_least_once'"),
        ({"partitioning": "tasks"}, "did you mean 'task'"),
        ({"compression": "lz5"}, "did you mean 'lz4'"),
        ({"batch_bytes": 10}, "batch_bytes=10 .* from 1024 on"),
        ({"batch_bytes": "1000000"}, "batch_bytes='1000000'"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"transaction_timeout_ms": 999}, "transaction_timeout_ms=999 .* from 1000 on"),
        ({"transaction_timeout_ms": True}, "transaction_timeout_ms=True"),
        ({"delivery_timeout_ms": 1.5}, "delivery_timeout_ms=1.5"),
        ({"retries": -1}, "retries=-1 .* from 0 on"),
        ({"driver_port": -1}, "driver_port"),
        ({"compression": "snappy", "compression_level": 3}, "compression_level=3 does not exist for snappy"),
        ({"compression": "gzip", "compression_level": 10}, "compression_level=10 does not exist for gzip"),
        ({"topic": PROGRESS_TOPIC}, "where progress is kept"),
        ({"topic": ""}, "leave it out"),
        ({"kafka": {"kafka.security.protocol": "SSL"}}, "write 'security.protocol'"),
        ({"kafka": {"transactional.id": "x"}}, "transactional.id.* cannot be set"),
        ({"kafka": {"acks": "1"}}, "acks.* cannot be set"),
        ({"bootstrap_servers": "localhost:x"}, "localhost:x"),
        ({"bootstrap_servers": ""}, "address"),
        ({"batch_header": ""}, "batch_header='' is no name"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_an_error_that_names_it(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"retries": 0, "driver_port": 7077, "batch_bytes": 1024},
        {"compression": "zstd", "compression_level": 3},
        {"compression": "gzip", "compression_level": 9},
        {"topic": None, "guarantee": "at_least_once", "partitioning": "task"},
        {"kafka": {"client.id": "orders"}},
    ],
    ids=str,
)
def test_right_settings_are_taken(given: dict[str, Any]) -> None:
    made = settings(**given)
    assert {name: getattr(made, name) for name in given} == given


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        {"value": BYTES},
        {"value": TEXT, "key": TEXT},
        {"key": BYTES, "value": BYTES, "partition": INT, "timestamp": TIME, "topic": TEXT},
        {"value": TEXT, "headers": HEADERS},
    ],
    ids=" ".join,
)
def test_a_frame_with_kafkas_columns_can_be_written(columns: dict[str, DataType]) -> None:
    check_columns(schema(**columns), "out")


def test_without_a_topic_of_the_sink_the_rows_need_one() -> None:
    check_columns(schema(value=TEXT, topic=TEXT), None)
    with pytest.raises(ConfigError, match="where to"):
        check_columns(schema(value=TEXT), None)


def test_a_batch_header_and_headers_of_rows_exclude_each_other() -> None:
    columns = {"value": TEXT, "headers": ArrayType(StructType([StructField("key", TEXT), StructField("value", BYTES)]))}
    check_columns(schema(**columns), "out")
    with pytest.raises(ConfigError, match="cannot have a batch_header as well"):
        check_columns(schema(**columns), "out", "batch")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": TEXT}, "no column 'value'"),
        ({"value": TEXT, "valeu": TEXT}, "column 'valeu' .* Did you mean 'value'"),
        ({"value": TEXT, "customer": TEXT}, "column 'customer' .* drop it"),
        ({"value": LONG}, "column 'value' is bigint; it must be string or binary"),
        ({"value": TEXT, "key": INT}, "column 'key' is int"),
        ({"value": TEXT, "partition": LONG}, "column 'partition' is bigint; it must be int"),
        ({"value": TEXT, "timestamp": TimestampNTZType()}, "column 'timestamp' is timestamp_ntz"),
        ({"value": TEXT, "headers": MapType(TEXT, BYTES)}, "column 'headers' is map"),
    ],
    ids=str,
)
def test_a_frame_with_other_columns_is_refused_with_what_to_do(columns: dict[str, DataType], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_columns(schema(**columns), "out")
