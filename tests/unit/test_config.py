"""Settings: names, values, and which of several places a value comes from."""

from __future__ import annotations

from typing import Any

import pytest

from onceflow.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Source,
    TopicConfig,
    Type,
    parse_assignments,
)
from onceflow.errors import ConfigError
from onceflow.wire.compression import LEVELS, Codec

DAY_MS = 86_400_000


def refusal(**given: str) -> str:
    """What a broker says to a setting; dots are written as underscores here."""
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(given={name.replace("_", "."): text for name, text in given.items()})
    return str(refused.value)


def topic_refusal(name: str, text: str | None) -> str:
    config = BrokerConfig()
    with pytest.raises(ConfigError) as refused:
        config.check_topic({name: text})
    return str(refused.value)


# Names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num.partition", "num.partitions"),
        ("log.retention.mss", "log.retention.ms"),
        ("auto.create.topic.enable", "auto.create.topics.enable"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_that_may_have_been_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(given={name: "1"})
    assert str(refused.value) == f"Unknown setting {name}. Did you mean {meant}?"


def test_a_setting_like_no_other_is_refused_without_a_guess() -> None:
    assert refusal(colour="green") == "Unknown setting colour."


def test_a_topic_has_its_own_names() -> None:
    assert topic_refusal("retention.mss", "1") == "Unknown topic config name retention.mss. Did you mean retention.ms?"
    assert topic_refusal("num.partitions", "1").startswith("Unknown topic config name num.partitions.")
    assert refusal(retention_ms="1").startswith("Unknown setting retention.ms.")


def test_a_topic_setting_without_value_is_refused() -> None:
    assert "Null value" in topic_refusal("retention.ms", None)


# Values


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("num.partitions", "many", "it must be a whole number of at least 1"),
        ("num.partitions", "0", "it must be a whole number of at least 1"),
        ("num.partitions", "1.5", "it must be a whole number of at least 1"),
        ("num.partitions", "", "it must be a whole number of at least 1"),
        ("num.partitions", str(2**31), "it must be a whole number of at least 1"),
        ("log.segment.bytes", "13", "it must be a whole number of at least 14"),
        ("auto.create.topics.enable", "yes", "it must be true or false"),
        ("log.cleanup.policy", "shred", "it must be one of delete, compact"),
        ("log.cleanup.policy", "compact,shred", "it must be one of delete, compact"),
        ("compression.type", "brotli", "it must be one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.message.timestamp.type", "createtime", "it must be one of CreateTime, LogAppendTime"),
        ("log.cleaner.min.cleanable.ratio", "1.1", "it must be a number from 0 to 1"),
        ("log.cleaner.min.cleanable.ratio", "half", "it must be a number from 0 to 1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(given={name: text})
    assert str(refused.value) == f"Invalid value {text} for configuration {name}: {says}."


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_no_ratio(text: str) -> None:
    assert "a number from 0 to 1" in topic_refusal("min.cleanable.dirty.ratio", text)


@pytest.mark.parametrize("text", ["1_000", "0x10", "1e3", "\u0661"])
def test_numbers_are_written_in_plain_digits(text: str) -> None:
    """Kafka refuses these; a topic that only we understand could not move to a cluster."""
    assert "a whole number" in topic_refusal("segment.bytes", text)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num.partitions", " 3 ", 3),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.retention.bytes", "-1", -1),
        ("advertised.listeners", "PLAINTEXT://a:1", "PLAINTEXT://a:1"),
        ("log.retention.ms", str(2**63 - 1), 2**63 - 1),
    ],
)
def test_values_have_the_type_of_their_setting(name: str, text: str, value: Any) -> None:
    assert BrokerConfig(given={name: text})[name] == value


def test_every_default_is_a_value_that_the_setting_may_have() -> None:
    config = BrokerConfig()
    for name, setting in BROKER_SETTINGS.items():
        if setting.default or setting.type in (Type.STRING, Type.LIST):
            assert setting.parse(setting.default) == config[name] or name.startswith("log.r")
    for setting in TOPIC_SETTINGS.values():
        setting.parse(setting.default)


def test_every_setting_can_be_read_even_where_nothing_was_given() -> None:
    config = BrokerConfig()
    unset = [name for name in BROKER_SETTINGS if config.text(name) == ""]
    assert unset == [
        "advertised.listeners",
        "authorizer.class.name",
        "super.users",
        "max.connections.per.ip.overrides",
        "ssl.keystore.location",
        "ssl.key.password",
        "ssl.truststore.location",
        "log.retention.minutes",
    ]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_every_level_that_a_topic_may_have_exists(codec: Codec) -> None:
    """What is accepted here is used for every batch; one that the codec refuses would make the topic unusable."""
    setting = TOPIC_SETTINGS[f"compression.{codec.name.lower()}.level"]
    for level in (-131073, -131072, -2, -1, 0, 1, 9, 10, 17, 18, 22, 23):
        try:
            accepted = setting.parse(str(level)) == level
        except ConfigError:
            accepted = False
        assert accepted == (level in LEVELS[codec] or level == int(setting.default)), level


def test_settings_of_replicas_are_accepted_and_say_that_they_do_nothing() -> None:
    BrokerConfig(given={"min.insync.replicas": "2", "default.replication.factor": "3"})
    assert "without effect" in BROKER_SETTINGS["min.insync.replicas"].doc


# Which value counts


def test_a_topics_own_value_counts_before_the_brokers_and_that_before_the_default() -> None:
    plain, told = BrokerConfig(), BrokerConfig(given={"log.segment.bytes": "2000"})
    assert plain.topic_text("segment.bytes", {}) == (str(2**30), Source.DEFAULT)
    assert told.topic_text("segment.bytes", {}) == ("2000", Source.STATIC_BROKER)
    assert told.topic_text("segment.bytes", {"segment.bytes": "3000"}) == ("3000", Source.TOPIC)
    assert told.topic({}).segment_bytes == 2000
    assert told.topic({"segment.bytes": "3000"}).segment_bytes == 3000


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [
        ({}, 7 * DAY_MS),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.ms": "-1", "log.retention.hours": "2"}, -1),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1", "log.retention.hours": "5"}, -1),
    ],
)
def test_the_finer_unit_of_retention_counts(given: dict[str, str], milliseconds: int) -> None:
    config = BrokerConfig(given=given)
    assert config["log.retention.ms"] == milliseconds
    assert config.topic({}).retention_ms == milliseconds
    expected = Source.STATIC_BROKER if given else Source.DEFAULT
    assert config.topic_text("retention.ms", {}) == (str(milliseconds), expected)
    assert config.topic({"retention.ms": "77"}).retention_ms == 77


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [({}, 7 * DAY_MS), ({"log.roll.hours": "1"}, 3_600_000), ({"log.roll.hours": "1", "log.roll.ms": "9"}, 9)],
)
def test_the_finer_unit_of_rolling_counts(given: dict[str, str], milliseconds: int) -> None:
    assert BrokerConfig(given=given).topic({}).segment_ms == milliseconds


def test_hours_that_do_not_fit_milliseconds_are_refused_at_once() -> None:
    """Not when the first topic is created."""
    config = BrokerConfig(given={"log.retention.hours": str(2**31 - 1)})
    assert config.topic({}).retention_ms == (2**31 - 1) * 3_600_000


# What the log goes by


def test_the_defaults_of_a_topic_are_those_of_the_settings() -> None:
    assert BrokerConfig().topic({}) == TopicConfig()


def test_every_topic_setting_can_be_given_by_its_broker_name() -> None:
    for setting in TOPIC_SETTINGS.values():
        assert setting.synonym in BROKER_SETTINGS
        synonym = BROKER_SETTINGS[setting.synonym]
        assert (synonym.type, synonym.low, synonym.high, synonym.choices) == (
            setting.type,
            setting.low,
            setting.high,
            setting.choices,
        )


@pytest.mark.parametrize(
    ("overrides", "field", "value"),
    [
        ({"cleanup.policy": "compact"}, "compact", True),
        ({"cleanup.policy": "compact"}, "delete", False),
        ({"cleanup.policy": "compact,delete"}, "delete", True),
        ({"message.timestamp.type": "LogAppendTime"}, "append_time", True),
        ({"message.timestamp.before.max.ms": "5"}, "timestamp_before_max_ms", 5),
        ({"message.timestamp.after.max.ms": "5"}, "timestamp_after_max_ms", 5),
        ({"max.message.bytes": "5"}, "max_message_bytes", 5),
        ({"compression.type": "zstd"}, "compression_type", "zstd"),
        ({"compression.zstd.level": "7"}, "compression_zstd_level", 7),
        ({"segment.jitter.ms": "5"}, "segment_jitter_ms", 5),
        ({"segment.index.bytes": "50"}, "segment_index_bytes", 50),
        ({"index.interval.bytes": "0"}, "index_interval_bytes", 0),
        ({"min.cleanable.dirty.ratio": "0"}, "min_cleanable_dirty_ratio", 0.0),
        ({"min.compaction.lag.ms": "5"}, "min_compaction_lag_ms", 5),
        ({"max.compaction.lag.ms": "5"}, "max_compaction_lag_ms", 5),
        ({"delete.retention.ms": "5"}, "delete_retention_ms", 5),
        ({"retention.bytes": "5"}, "retention_bytes", 5),
    ],
)
def test_what_a_topic_was_given_is_what_its_log_goes_by(overrides: dict[str, str], field: str, value: Any) -> None:
    config = BrokerConfig()
    config.check_topic(overrides)
    assert getattr(config.topic(overrides), field) == value


@pytest.mark.parametrize("given", [{}, {"log.flush.interval.messages": "1000"}])
def test_durability_decides_what_is_shown_as_the_flush_interval(given: dict[str, str]) -> None:
    synced, unsynced = BrokerConfig(given=given), BrokerConfig(given=given, fsync=False)
    assert synced.in_effect("log.flush.interval.messages") == ("1", Source.DEFAULT)
    assert unsynced.in_effect("log.flush.interval.messages") == (str(2**63 - 1), Source.STATIC_BROKER)


def test_any_other_setting_is_in_effect_as_it_was_given() -> None:
    config = BrokerConfig(given={"log.segment.bytes": "2000000"})
    assert config.in_effect("log.segment.bytes") == ("2000000", Source.STATIC_BROKER)
    assert config.in_effect("num.partitions") == ("1", Source.DEFAULT)


def test_settings_do_not_change() -> None:
    config = BrokerConfig()
    with pytest.raises(AttributeError):
        config.fsync = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        BROKER_SETTINGS["x"] = BROKER_SETTINGS["node.id"]  # type: ignore[index]


# The command line


def test_assignments_of_a_command_line() -> None:
    assert parse_assignments(["a=1", " b = 2=3 ", "c="]) == {"a": "1", "b": "2=3", "c": ""}
    assert parse_assignments([]) == {}


@pytest.mark.parametrize("pair", ["a", "=1", " = 1", ""])
def test_what_is_no_assignment_is_refused(pair: str) -> None:
    with pytest.raises(ConfigError, match="name=value"):
        parse_assignments([pair])
