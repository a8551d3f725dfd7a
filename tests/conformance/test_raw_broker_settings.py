"""Settings of the broker that are changed while it runs: for this broker, and as the default of all brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages import alter_configs, incremental_alter_configs
from onceflow.wire.messages.alter_configs import AlterConfigsRequest
from onceflow.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from onceflow.wire.messages.incremental_alter_configs import AlterableConfig, IncrementalAlterConfigsRequest
from tests.support.raw import Wire, batch
from tests.support.waiting import eventually

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_THE_TOPIC, OF_THIS_BROKER, OF_ALL_BROKERS, GIVEN_AT_START, DEFAULT = range(1, 6)
THIS, ALL = "1", ""
CHANGED = (
    "compression.type",
    "log.cleaner.backoff.ms",
    "log.cleanup.policy",
    "log.retention.ms",
    "log.segment.bytes",
    "message.max.bytes",
)
"""By the tests. All are taken back after each."""
KEPT = "min.insync.replicas"
"""Kafka's clusters begin with it, set for all brokers, and refuse to let go of it."""
Synonyms = list[tuple[str, str | None, int]]


class Settings:
    """Those of one broker, for it alone and for all."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def change(
        self, whose: str, *changes: tuple[str, int, str | None], validate_only: bool = False
    ) -> tuple[ErrorCode, str]:
        configs = [AlterableConfig(name=name, config_operation=how, value=value) for name, how, value in changes]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=BROKER, resource_name=whose, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        [answer] = self._wire.ask(request).responses
        return ErrorCode(answer.error_code), answer.error_message or ""

    def set(self, whose: str, name: str, value: str) -> None:
        assert self.change(whose, (name, SET, value)) == (ErrorCode.NONE, "")

    def replace(self, whose: str, settings: dict[str, str | None], *, validate_only: bool = False) -> ErrorCode:
        if whose == ALL and self.value(ALL, KEPT) is not None:
            settings = {KEPT: "1", **settings}
        configs = [alter_configs.AlterableConfig(name=name, value=value) for name, value in settings.items()]
        resource = alter_configs.AlterConfigsResource(resource_type=BROKER, resource_name=whose, configs=configs)
        [answer] = self._wire.ask(AlterConfigsRequest(resources=[resource], validate_only=validate_only)).responses
        return ErrorCode(answer.error_code)

    def of(self, whose: str, kind: int = BROKER) -> dict[str, DescribeConfigsResourceResult]:
        asked = DescribeConfigsResource(resource_type=kind, resource_name=whose, configuration_keys=None)
        [answer] = self._wire.ask(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results
        assert answer.error_code == ErrorCode.NONE
        return {each.name: each for each in answer.configs}

    def value(self, whose: str, name: str, kind: int = BROKER) -> tuple[str | None, int] | None:
        """The value and where it comes from; None if there is none."""
        found = self.of(whose, kind).get(name)
        return None if found is None else (found.value, found.config_source)

    def synonyms(self, whose: str, name: str, kind: int = BROKER) -> Synonyms:
        return [(each.name, each.value, each.source) for each in self.of(whose, kind)[name].synonyms]

    def becomes(self, whose: str, name: str, value: tuple[str | None, int] | None, kind: int = BROKER) -> None:
        eventually(lambda: self.value(whose, name, kind) == value, f"{name} is {value}")


@pytest.fixture
def settings(wire: Wire) -> Iterator[Settings]:
    settings = Settings(wire)
    yield settings
    for whose in (THIS, ALL):
        assert settings.change(whose, *((name, DELETE, None) for name in CHANGED)) == (ErrorCode.NONE, "")
    eventually(
        lambda: not any(settings.of(THIS)[name].config_source < GIVEN_AT_START for name in CHANGED), "all is as before"
    )


# --- precedence


def test_what_this_broker_was_given_goes_before_what_all_were_given(settings: Settings) -> None:
    name = "log.cleaner.backoff.ms"
    at_start: Synonyms = [(name, "500", GIVEN_AT_START), (name, "15000", DEFAULT)]
    assert settings.synonyms(THIS, name) == at_start
    assert settings.value(ALL, name) is None
    settings.set(ALL, name, "700")
    settings.becomes(THIS, name, ("700", OF_ALL_BROKERS))
    assert settings.synonyms(THIS, name) == [(name, "700", OF_ALL_BROKERS), *at_start]
    assert settings.synonyms(ALL, name) == [(name, "700", OF_ALL_BROKERS)]
    settings.set(THIS, name, "600")
    settings.becomes(THIS, name, ("600", OF_THIS_BROKER))
    assert settings.synonyms(THIS, name) == [
        (name, "600", OF_THIS_BROKER),
        (name, "700", OF_ALL_BROKERS),
        *at_start,
    ]
    assert settings.value(ALL, name) == ("700", OF_ALL_BROKERS)
    assert settings.change(THIS, (name, DELETE, None))[0] == ErrorCode.NONE
    settings.becomes(THIS, name, ("700", OF_ALL_BROKERS))
    assert settings.change(ALL, (name, DELETE, None))[0] == ErrorCode.NONE
    settings.becomes(THIS, name, ("500", GIVEN_AT_START))
    assert settings.value(ALL, name) is None


def test_a_topic_has_what_the_broker_was_given_unless_it_has_its_own(
    wire: Wire, settings: Settings, new_name: Callable[[], str]
) -> None:
    plain, own = new_name(), new_name()
    wire.create_topic(plain)
    wire.create_topic(own, retention_ms="77")
    settings.set(ALL, "log.retention.ms", "5000")
    settings.becomes(plain, "retention.ms", ("5000", OF_ALL_BROKERS), TOPIC)
    settings.set(THIS, "log.retention.ms", "6000")
    settings.becomes(plain, "retention.ms", ("6000", OF_THIS_BROKER), TOPIC)
    from_broker: Synonyms = [
        ("log.retention.ms", "6000", OF_THIS_BROKER),
        ("log.retention.ms", "5000", OF_ALL_BROKERS),
        ("log.retention.hours", "168", DEFAULT),
    ]
    assert settings.synonyms(plain, "retention.ms", TOPIC) == from_broker
    assert settings.synonyms(THIS, "log.retention.ms") == from_broker
    assert settings.synonyms(own, "retention.ms", TOPIC) == [("retention.ms", "77", OF_THE_TOPIC), *from_broker]


def test_a_topic_that_is_created_is_described_with_the_settings_of_the_broker(
    wire: Wire, settings: Settings, new_name: Callable[[], str]
) -> None:
    settings.set(THIS, "compression.type", "zstd")
    settings.becomes(THIS, "compression.type", ("zstd", OF_THIS_BROKER))
    asked = CreateTopicsRequest(
        topics=[CreatableTopic(name=new_name(), num_partitions=1, replication_factor=1)], timeout_ms=10_000
    )

    def created() -> tuple[str | None, int] | None:
        asked.topics[0].name = new_name()
        [topic] = wire.ask(asked).topics
        assert topic.error_code == ErrorCode.NONE
        assert topic.configs is not None
        return next((each.value, each.config_source) for each in topic.configs if each.name == "compression.type")

    eventually(lambda: created() == ("zstd", OF_THIS_BROKER), "the broker's setting is the topic's")


# --- they hold


def test_the_largest_batch_follows_the_broker_at_once(wire: Wire, settings: Settings, topic: str) -> None:
    large = batch(b"x" * 5000)
    assert wire.produce(topic, large).error_code == ErrorCode.NONE
    settings.set(ALL, "message.max.bytes", "3000")
    eventually(lambda: wire.produce(topic, large).error_code == ErrorCode.MESSAGE_TOO_LARGE, "it is too large")
    settings.set(THIS, "message.max.bytes", "10000")
    eventually(lambda: wire.produce(topic, large).error_code == ErrorCode.NONE, "it is taken")


def test_the_codec_of_stored_batches_follows_the_broker(wire: Wire, settings: Settings, topic: str) -> None:
    settings.set(THIS, "compression.type", "gzip")

    def codec() -> int:
        offset = wire.produce(topic, batch("a" * 500)).base_offset
        return wire.headers(topic, offset)[0].attributes & 7

    eventually(lambda: codec() == 1, "batches are stored with gzip")


# --- changing


@pytest.mark.parametrize("whose", [THIS, ALL], ids=["this", "all"])
def test_validating_a_change_does_not_make_it(settings: Settings, whose: str) -> None:
    name = "log.retention.ms"
    assert settings.change(whose, (name, SET, "777"), validate_only=True) == (ErrorCode.NONE, "")
    assert settings.replace(whose, {name: "777"}, validate_only=True) == ErrorCode.NONE
    code, message = settings.change(whose, (name, SET, "soon"), validate_only=True)
    assert code == ErrorCode.INVALID_REQUEST
    assert "Invalid value soon for configuration log.retention.ms" in message
    settings.set(whose, "log.segment.bytes", "2000000")
    settings.becomes(THIS, "log.segment.bytes", ("2000000", OF_THIS_BROKER if whose else OF_ALL_BROKERS))
    assert settings.of(THIS)[name].config_source == DEFAULT


READ_ONLY = (
    "node.id",
    "num.partitions",
    "auto.create.topics.enable",
    "log.retention.hours",
    "log.retention.check.interval.ms",
    "log.cleaner.enable",
    "authorizer.class.name",
    "connections.max.idle.ms",
    "group.consumer.session.timeout.ms",
    "transaction.max.timeout.ms",
    "offsets.retention.minutes",
)


@pytest.mark.parametrize("whose", [THIS, ALL], ids=["this", "all"])
@pytest.mark.parametrize("name", READ_ONLY)
def test_what_is_given_at_start_cannot_be_changed(settings: Settings, whose: str, name: str) -> None:
    assert settings.of(THIS)[name].read_only
    value = settings.of(THIS)[name].value or "1"
    code, message = settings.change(whose, ("log.retention.ms", SET, "777"), (name, SET, value))
    assert code == ErrorCode.INVALID_REQUEST
    assert message.startswith(f"Cannot update these configs dynamically: [{name}]")
    assert settings.replace(whose, {name: value}) == ErrorCode.INVALID_REQUEST
    assert settings.of(THIS)["log.retention.ms"].config_source == DEFAULT


@pytest.mark.parametrize("whose", [THIS, ALL], ids=["this", "all"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("log.segment.bytes", SET, "2000001"), ("log.segment.bytes", SET, "2000002")], ErrorCode.INVALID_REQUEST),
        ([("log.segment.bytes", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("log.segment.bytes", SET, "13")], ErrorCode.INVALID_REQUEST),
        ([("log.segment.bytes", 9, "2000000")], ErrorCode.INVALID_REQUEST),
        ([("log.cleanup.policy", SET, "forget")], ErrorCode.INVALID_REQUEST),
        ([("compression.type", SET, "best")], ErrorCode.INVALID_REQUEST),
        ([("log.segment.bytes", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("log.segment.bytes", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
    ],
    ids=["twice", "null", "too-small", "bad-operation", "bad-word", "bad-codec", "append", "subtract"],
)
def test_a_change_that_makes_no_sense_is_refused(
    settings: Settings, whose: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert settings.change(whose, ("log.retention.ms", SET, "1000"), *changes)[0] == code
    assert settings.of(THIS)["log.retention.ms"].config_source == DEFAULT


@pytest.mark.parametrize("whose", [THIS, ALL], ids=["this", "all"])
def test_a_list_is_added_to_and_taken_from(settings: Settings, whose: str) -> None:
    name, source = "log.cleanup.policy", OF_THIS_BROKER if whose else OF_ALL_BROKERS
    for how, word, after in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        assert settings.change(whose, (name, how, word))[0] == ErrorCode.NONE
        settings.becomes(whose, name, (after, source))


@pytest.mark.parametrize("whose", [THIS, ALL], ids=["this", "all"])
def test_old_alter_configs_replaces_all_settings(settings: Settings, whose: str) -> None:
    settings.set(whose, "compression.type", "lz4")
    source = OF_THIS_BROKER if whose else OF_ALL_BROKERS
    settings.becomes(whose, "compression.type", ("lz4", source))
    assert settings.replace(whose, {"log.retention.ms": None}) == ErrorCode.INVALID_REQUEST
    assert settings.replace(whose, {"log.retention.ms": "soon"}) == ErrorCode.INVALID_REQUEST
    assert settings.value(whose, "compression.type") == ("lz4", source)
    assert settings.replace(whose, {"log.retention.ms": "5000"}) == ErrorCode.NONE
    settings.becomes(whose, "log.retention.ms", ("5000", source))
    settings.becomes(THIS, "compression.type", ("producer", DEFAULT))


def test_only_this_broker_has_settings(settings: Settings) -> None:
    for whose in ("77", "x"):
        assert settings.change(whose, ("log.retention.ms", SET, "1"))[0] == ErrorCode.INVALID_REQUEST
        assert settings.replace(whose, {"log.retention.ms": "1"}) == ErrorCode.INVALID_REQUEST


@pytest.mark.onceflow_differs("A setting of the broker that does not exist is refused, where Kafka keeps any name")
def test_settings_that_nobody_knows_are_kept(settings: Settings) -> None:
    assert settings.change(THIS, ("no.such.setting", SET, "1"), validate_only=True)[0] == ErrorCode.NONE


def test_what_can_be_changed_is_not_read_only(settings: Settings) -> None:
    described = settings.of(THIS)
    assert not any(described[name].read_only for name in CHANGED)
    settings.set(ALL, "log.retention.ms", "5000")
    settings.becomes(ALL, "log.retention.ms", ("5000", OF_ALL_BROKERS))
    assert not settings.of(ALL)["log.retention.ms"].read_only
