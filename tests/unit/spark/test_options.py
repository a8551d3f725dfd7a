from __future__ import annotations

import logging
import pickle

import pytest

from onceflow.client.offsets import EARLIEST, LATEST
from onceflow.errors import ConfigError
from onceflow.spark.options import Committed, Everywhere, Offsets, SourceOptions, Timestamps

ADDRESS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
ORDERS = {**ADDRESS, "subscribe": "orders"}


def options(given: dict[str, str] | None = None, **more: str) -> SourceOptions:
    return SourceOptions.of({**ORDERS, **(given or {}), **more})


def refused(given: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.of(given)
    return str(caught.value)


# --- names


def test_names_are_case_insensitive() -> None:
    found = SourceOptions.of({"KAFKA.Bootstrap.Servers": "a:1", "SubScribe": "orders", "MAXOFFSETSPERTRIGGER": "5"})
    assert found.settings.bootstrap == "a:1"
    assert found.subscription.topics == ("orders",)
    assert found.records_per_trigger_max == 5


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxoffsetpertrigger", "maxOffsetsPerTrigger"),
        ("subscribePatern", "subscribePattern"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.isolation.levl", "kafka.isolation.level"),
        ("failOnDataLos", "failOnDataLoss"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_right_one(wrong: str, right: str) -> None:
    assert refused({**ORDERS, wrong: "1"}) == f"there is no option {wrong.lower()!r}: did you mean {right!r}?"


def test_an_unknown_option_that_resembles_none_is_refused_with_all_of_them() -> None:
    message = refused({**ORDERS, "zzz": "1"})
    assert message.startswith("there is no option 'zzz'; there are subscribe, ")


def test_a_kafka_setting_without_its_prefix_is_refused_with_the_prefix() -> None:
    assert refused({"bootstrap.servers": "a:1", "subscribe": "orders"}).endswith(
        "this one is 'kafka.bootstrap.servers'"
    )
    assert refused({**ORDERS, "sasl.username": "me"}).endswith("this one is 'kafka.sasl.username'")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.enable.auto.commit", "checkpoint"),
        ("kafka.key.deserializer", "bytes"),
        ("kafka.value.deserializer", "bytes"),
        ("kafka.interceptor.classes", "Java classes"),
        ("topic", "subscribe"),
        ("path", "subscribe"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(name: str, reason: str) -> None:
    message = refused({**ORDERS, name: "x"})
    assert message.startswith(f"option {name!r} is not taken: ")
    assert reason in message


def test_tuning_of_a_java_consumer_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options({"kafka.max.poll.records": "10", "groupIdPrefix": "mine"})
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "option 'groupidprefix' has no effect",
        "option 'kafka.max.poll.records' has no effect",
    ]


# --- what to read


def test_subscribe_takes_several_topics() -> None:
    assert options(subscribe=" orders, payments ,orders,").subscription.topics == ("orders", "payments")


def test_assign_takes_partitions_as_json() -> None:
    found = SourceOptions.of({**ADDRESS, "assign": '{"orders": [1, 0], "payments": [2]}'})
    assert found.subscription.partitions == (("orders", 0), ("orders", 1), ("payments", 2))


def test_a_pattern_is_kept_as_it_is() -> None:
    assert SourceOptions.of({**ADDRESS, "subscribePattern": "orders-.*"}).subscription.pattern == "orders-.*"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of subscribe, subscribePattern, assign must say what to read; there is none of them"),
        (
            {"subscribe": "a", "assign": '{"a": [0]}'},
            "exactly one of subscribe, subscribePattern, assign must say what to read; there is subscribe and assign",
        ),
        ({"subscribe": " "}, "subscribe is empty: it must say what to read"),
        ({"subscribe": " , "}, "subscribe must name topics with commas between, not ','"),
        ({"assign": "orders"}, "assign must be JSON such as {\"orders\": [0, 1]}, not 'orders'"),
        ({"assign": '{"orders": 0}'}, 'assign must be JSON such as {"orders": [0, 1]}, not \'{"orders": 0}\''),
        ({"assign": '{"orders": [-1]}'}, 'assign must be JSON such as {"orders": [0, 1]}, not \'{"orders": [-1]}\''),
        ({"assign": "{}"}, "assign must be JSON such as {\"orders\": [0, 1]}, not '{}'"),
    ],
)
def test_exactly_one_subscription_must_be_there_and_make_sense(given: dict[str, str], message: str) -> None:
    assert refused({**ADDRESS, **given}) == message


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    assert refused({**ADDRESS, "subscribePattern": "orders-("}).startswith(
        "subscribePattern 'orders-(' is not a regular expression: "
    )


def test_the_address_must_be_there() -> None:
    assert refused({"subscribe": "a"}).startswith("option 'kafka.bootstrap.servers' is missing")


# --- where to start and end


def test_without_words_a_stream_starts_at_the_end_and_a_batch_query_reads_everything() -> None:
    assert options().for_stream() == Everywhere(LATEST)
    assert options().for_batch() == (Everywhere(EARLIEST), Everywhere(LATEST))


def test_offsets_are_words_or_json() -> None:
    assert options(startingOffsets="Earliest").for_stream() == Everywhere(EARLIEST)
    assert options(startingOffsets='{"orders": {"0": 23, "1": -2}}').for_stream() == Offsets(
        {("orders", 0): 23, ("orders", 1): EARLIEST}
    )


def test_a_timestamp_wins_over_timestamps_and_these_over_offsets() -> None:
    given = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders": {"0": 5}}'}
    assert options(given).for_stream() == Timestamps(None, {("orders", 0): 5}, False)
    assert options({**given, "startingTimestamp": "7"}).for_stream() == Timestamps(7, {}, False)


def test_a_strategy_says_what_to_do_where_no_record_is_new_enough() -> None:
    found = options(startingTimestamp="7", startingOffsetsByTimestampStrategy="Latest")
    assert found.for_stream() == Timestamps(7, {}, True)
    assert "must be error or latest" in refused(
        {**ORDERS, "startingOffsetsByTimestampStrategy": "x", "startingTimestamp": "7"}
    )


def test_the_end_of_a_batch_query_by_timestamp_is_the_end_of_the_log_where_no_record_is_new_enough() -> None:
    assert options(endingTimestamp="7").for_batch()[1] == Timestamps(7, {}, True)


def test_committed_needs_the_app_id() -> None:
    assert options({"startingOffsets": "committed", "kafka.group.id": "app"}).for_stream() == Committed("app")
    assert "needs kafka.group.id" in refused({**ORDERS, "startingOffsets": "committed"})


@pytest.mark.parametrize(
    "text", ['{"orders": {"0": -3}}', '{"orders": {"x": 1}}', '{"orders": [0]}', "[]", "soon", "{}"]
)
def test_offsets_that_are_none_are_refused_with_an_example(text: str) -> None:
    message = refused({**ORDERS, "startingOffsets": text})
    assert message.startswith('startingOffsets must be JSON such as {"orders": {"0": 23, "1": -2}}, or earliest, ')


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_refuses_an_end(name: str) -> None:
    found = options({name: "latest" if name == "endingOffsets" else "5"})
    with pytest.raises(ConfigError, match=f"^{name} is for batch queries: a stream has no end$"):
        found.for_stream()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": "committed", "kafka.group.id": "app"}, "startingOffsets=committed is for streams"),
    ],
)
def test_a_batch_query_refuses_what_would_read_nothing(given: dict[str, str], message: str) -> None:
    found = options(given)
    with pytest.raises(ConfigError, match=f"^{message}"):
        found.for_batch()


def test_a_batch_query_says_that_limits_per_trigger_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options(maxOffsetsPerTrigger="5").for_batch()
    assert [each.getMessage() for each in caplog.records] == ["maxOffsetsPerTrigger has no effect in a batch query"]


# --- values


def test_defaults() -> None:
    found = options()
    assert found.read_committed
    assert found.fail_on_data_loss
    assert not found.include_headers
    assert found.trigger_delay_ms_max == 15 * 60 * 1000
    assert found.partitions_min is None
    assert (found.patience_s, found.read_patience_s) == (60, 60)


def test_a_poll_timeout_is_for_the_tasks_only() -> None:
    found = options({"kafkaConsumer.pollTimeoutMs": "500", "kafka.default.api.timeout.ms": "20000"})
    assert (found.patience_s, found.read_patience_s) == (20, 0.5)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2 min", 120_000), ("1H", 3_600_000)],
)
def test_durations_are_read_as_spark_reads_them(text: str, ms: int) -> None:
    assert options(maxTriggerDelay=text).trigger_delay_ms_max == ms


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("maxOffsetsPerTrigger", "0", "a whole number from 1 on"),
        ("minPartitions", "two", "a whole number from 1 on"),
        ("failOnDataLoss", "no", "true or false"),
        ("includeHeaders", "1", "true or false"),
        ("maxTriggerDelay", "soon", "a time such as 30s, 15m or 1h"),
        ("maxTriggerDelay", "3 fortnights", "a time such as 30s, 15m or 1h"),
        ("startingTimestamp", "-5", "a whole number from 0 on"),
        ("kafka.request.timeout.ms", "1s", "a whole number from 1 on"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_must_be(name: str, value: str, expected: str) -> None:
    assert refused({**ORDERS, name: value}) == f"{name} must be {expected}, not {value!r}"


def test_the_least_per_trigger_may_not_be_above_the_most() -> None:
    message = refused({**ORDERS, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"})
    assert message == "minOffsetsPerTrigger=10 is more than maxOffsetsPerTrigger=5"


def test_isolation_is_read_committed_or_as_told() -> None:
    assert not options({"kafka.isolation.level": "READ_UNCOMMITTED"}).read_committed
    assert "must be read_committed or read_uncommitted" in refused({**ORDERS, "kafka.isolation.level": "serializable"})


def test_the_smaller_limit_of_a_fetch_counts() -> None:
    given = {"kafka.fetch.max.bytes": "1000000", "kafka.max.partition.fetch.bytes": "5000"}
    assert options(given).fetch_bytes == 5000


# --- security


def test_security_settings_reach_the_client() -> None:
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "secret",
        "client.id": "reports",
    }
    found = options({f"kafka.{name}": value for name, value in security.items()})
    assert found.settings.extra == security


def test_wrong_security_settings_are_refused_at_once() -> None:
    assert "SASL_PLAIN" in refused({**ORDERS, "kafka.security.protocol": "SASL_PLAIN"})


def test_passwords_are_not_shown_and_everything_travels_to_executors() -> None:
    found = options(
        {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "me",
            "kafka.sasl.password": "top-secret",
        }
    )
    assert "top-secret" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
