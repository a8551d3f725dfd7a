"""Settings, partitions and deletions, in the ways that no client offers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.messages import alter_configs, incremental_alter_configs
from onceflow.wire.messages.alter_configs import AlterConfigsRequest
from onceflow.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from onceflow.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from onceflow.wire.messages.incremental_alter_configs import AlterableConfig, IncrementalAlterConfigsRequest
from onceflow.wire.messages.metadata import MetadataRequest
from tests.conformance.scenarios import TOPIC_DEFAULTS
from tests.support.raw import Wire, batch
from tests.support.raw_groups import commit
from tests.support.waiting import eventually

UNKNOWN, TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SET_FOR_TOPIC, GIVEN_TO_BROKER, DEFAULT, OF_A_LOGGER = 1, 4, 5, 6


def describe(
    wire: Wire, name: str, keys: list[str] | None = None, *, kind: int = TOPIC, **options: bool
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    [answer] = wire.ask(DescribeConfigsRequest(resources=[resource], **options)).results
    return answer


def setting(wire: Wire, topic: str, key: str, **options: bool) -> DescribeConfigsResourceResult:
    [found] = describe(wire, topic, [key], **options).configs
    return found


def node_id(wire: Wire) -> str:
    [node] = wire.ask(MetadataRequest(topics=[])).brokers
    return str(node.node_id)


def change(
    wire: Wire, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, **options: bool
) -> ErrorCode:
    """IncrementalAlterConfigs with (key, operation, value)."""
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes],
    )
    [answer] = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], **options)).responses
    return ErrorCode(answer.error_code)


# --- describing settings


@pytest.mark.parametrize("keys", [None, []], ids=["null", "empty"])
def test_no_keys_mean_all_keys(wire: Wire, topic: str, keys: list[str] | None) -> None:
    described = describe(wire, topic, keys)
    assert {each.name for each in described.configs} >= set(TOPIC_DEFAULTS)


def test_only_the_keys_asked_for_are_described(wire: Wire, topic: str) -> None:
    described = describe(wire, topic, ["retention.ms", "no.such.setting", "segment.ms"])
    assert {each.name for each in described.configs} == {"retention.ms", "segment.ms"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nobody-made-this", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "not a name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (BROKER, "seven", ErrorCode.INVALID_REQUEST),
        (UNKNOWN, "x", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
        (LOGGER, "77", ErrorCode.INVALID_REQUEST),
        (LOGGER, "", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
    ],
    ids=[
        "unknown-topic",
        "bad-topic",
        "unknown-broker",
        "bad-broker",
        "no-kind",
        "bad-kind",
        "unknown-loggers",
        "no-loggers",
        "no-subscription",
        "no-group",
    ],
)
def test_what_is_not_there_cannot_be_described(wire: Wire, kind: int, name: str, code: ErrorCode) -> None:
    described = describe(wire, name, kind=kind)
    assert (described.error_code, described.configs) == (code, [])
    assert (described.resource_type, described.resource_name) == (kind, name)


def test_synonyms_tell_where_a_value_comes_from(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, retention_ms="1234")
    given = setting(wire, topic, "retention.ms", include_synonyms=True)
    assert (given.config_source, given.read_only, given.is_sensitive) == (SET_FOR_TOPIC, False, False)
    assert (given.synonyms[0].name, given.synonyms[0].value, given.synonyms[0].source) == ("retention.ms", "1234", 1)
    default = setting(wire, topic, "max.message.bytes", include_synonyms=True)
    assert default.config_source == DEFAULT
    assert [(each.name, each.source) for each in default.synonyms] == [("message.max.bytes", DEFAULT)]
    assert setting(wire, topic, "retention.ms").synonyms == []


def test_a_resource_is_described_as_often_as_it_is_named(wire: Wire, new_name: Callable[[], str]) -> None:
    plain, other = new_name(), new_name()
    wire.create_topic(plain)
    wire.create_topic(other, retention_ms="1234")
    asked = [(plain, ["retention.ms"]), (other, ["segment.ms", "retention.ms"]), (plain, ["segment.ms"] * 2)]
    answers = wire.ask(
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=keys)
                for name, keys in (*asked, (plain, None), (other, None), (plain, ["retention.ms"]))
            ]
        )
    ).results
    found = [{each.name: (each.value, each.config_source) for each in answer.configs} for answer in answers]
    assert [answer.resource_name for answer in answers] == [plain, other, plain, plain, other, plain]
    week = TOPIC_DEFAULTS["retention.ms"]
    assert found[:3] == [
        {"retention.ms": (week, DEFAULT)},
        {"segment.ms": (TOPIC_DEFAULTS["segment.ms"], DEFAULT), "retention.ms": ("1234", SET_FOR_TOPIC)},
        {"segment.ms": (TOPIC_DEFAULTS["segment.ms"], DEFAULT)},
    ]
    assert (found[3]["retention.ms"], found[4]["retention.ms"]) == ((week, DEFAULT), ("1234", SET_FOR_TOPIC))
    assert found[5] == found[0]


def test_documentation_is_given_on_request(wire: Wire, topic: str) -> None:
    assert setting(wire, topic, "retention.ms").documentation is None
    assert setting(wire, topic, "retention.ms", include_documentation=True).documentation


def test_a_broker_describes_its_own_settings(wire: Wire) -> None:
    described = {each.name: each for each in describe(wire, node_id(wire), kind=BROKER).configs}
    assert {name: described[name].value for name in ("num.partitions", "auto.create.topics.enable")} == {
        "num.partitions": "1",
        "auto.create.topics.enable": "true",
    }
    assert described["message.max.bytes"].value == TOPIC_DEFAULTS["max.message.bytes"]
    assert described["node.id"].value == node_id(wire)
    assert described["node.id"].read_only


# --- the topics of the broker's own


def create_internal(wire: Wire, name: str) -> ErrorCode:
    topic = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
    [result] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
    return ErrorCode(result.error_code)


def test_the_offsets_topic_that_is_there_is_not_made_again(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    commit(wire, new_name(), topic, 1)
    assert create_internal(wire, "__consumer_offsets") == ErrorCode.TOPIC_ALREADY_EXISTS


def test_nobody_makes_the_topic_of_the_controller(wire: Wire) -> None:
    assert create_internal(wire, "__cluster_metadata") == ErrorCode.INVALID_REQUEST


def test_a_group_that_nobody_has_set_up_has_the_settings_of_the_broker(wire: Wire, new_name: Callable[[], str]) -> None:
    described = describe(
        wire, new_name(), ["consumer.session.timeout.ms", "no.such"], kind=GROUP, include_synonyms=True
    )
    assert described.error_code == ErrorCode.NONE
    [timeout] = described.configs
    assert (timeout.value, timeout.config_source) == ("12000", GIVEN_TO_BROKER)
    name = "group.consumer.session.timeout.ms"
    assert [(each.name, each.value, each.source) for each in timeout.synonyms] == [
        (name, "12000", GIVEN_TO_BROKER),
        (name, "45000", DEFAULT),
    ]


def test_loggers_are_described_with_their_levels(wire: Wire) -> None:
    described = {each.name: each for each in describe(wire, node_id(wire), kind=LOGGER).configs}
    assert described["root"].value in {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}
    assert {(each.config_source, each.is_sensitive) for each in described.values()} == {(OF_A_LOGGER, False)}
    assert len(described) > 1
    assert [each.name for each in describe(wire, node_id(wire), ["root"], kind=LOGGER).configs] == ["root"]


# --- changing settings


def test_validating_a_change_does_not_make_it(wire: Wire, topic: str) -> None:
    assert change(wire, topic, ("segment.ms", SET, "777"), validate_only=True) == ErrorCode.NONE
    assert change(wire, topic, ("segment.ms", SET, "soon"), validate_only=True) == ErrorCode.INVALID_CONFIG
    assert setting(wire, topic, "segment.ms").config_source == DEFAULT


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("segment.ms", SET, "1"), ("segment.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("segment.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("segment.ms", SUBTRACT, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such.setting", SET, "1")], ErrorCode.INVALID_CONFIG),
    ],
    ids=["twice", "null", "append-to-number", "subtract-from-number", "unknown"],
)
def test_a_change_that_makes_no_sense_is_refused(
    wire: Wire, topic: str, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert change(wire, topic, ("retention.ms", SET, "1000"), *changes) == code
    assert setting(wire, topic, "retention.ms").config_source == DEFAULT


@pytest.mark.parametrize("key", ["segment.ms", "no.such.setting"])
def test_what_is_not_set_may_be_put_back(wire: Wire, topic: str, key: str) -> None:
    assert change(wire, topic, (key, DELETE, None)) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (BROKER, "leader.replication.throttled.rate"),
        (BROKER, "log.retention.ms"),
        (BROKER, "no.such.setting"),
        (GROUP, "consumer.session.timeout.ms"),
        (CLIENT_METRICS, "interval.ms"),
    ],
)
def test_what_was_never_set_elsewhere_may_be_put_back_too(
    wire: Wire, new_name: Callable[[], str], kind: int, key: str
) -> None:
    for name in (node_id(wire), "") if kind == BROKER else (new_name(),):
        for validate_only in (True, False):
            assert change(wire, name, (key, DELETE, None), kind=kind, validate_only=validate_only) == ErrorCode.NONE
    name = "77" if kind == BROKER else ""
    assert change(wire, name, (key, DELETE, None), kind=kind) == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("kind", [UNKNOWN, 64])
def test_only_what_has_settings_can_be_changed(wire: Wire, kind: int) -> None:
    assert change(wire, "x", ("key", DELETE, None), kind=kind) == ErrorCode.INVALID_REQUEST


def test_the_broker_cannot_be_given_settings_that_do_not_exist(wire: Wire) -> None:
    assert change(wire, node_id(wire), ("node.id", SET, "2"), kind=BROKER) == ErrorCode.INVALID_REQUEST


def test_appending_twice_is_appending_once(wire: Wire, topic: str) -> None:
    def policy_becomes(value: str) -> None:
        eventually(lambda: setting(wire, topic, "cleanup.policy").value == value, f"the policy is {value!r}")

    for _ in range(2):
        assert change(wire, topic, ("cleanup.policy", APPEND, "compact")) == ErrorCode.NONE
        policy_becomes("delete,compact")
    for _ in range(2):
        assert change(wire, topic, ("cleanup.policy", SUBTRACT, "delete")) == ErrorCode.NONE
        policy_becomes("compact")
    assert change(wire, topic, ("cleanup.policy", SUBTRACT, "compact")) == ErrorCode.NONE
    policy_becomes("")


def test_a_bad_name_is_told_apart_from_an_unknown_one(wire: Wire, new_name: Callable[[], str]) -> None:
    assert change(wire, new_name(), ("segment.ms", SET, "1")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert change(wire, "not a name", ("segment.ms", SET, "1")) == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_one_request_cannot_change_a_topic_twice(wire: Wire, topic: str) -> None:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[AlterableConfig(name="segment.ms", config_operation=SET, value="777")],
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource, resource]))
    assert {each.error_code for each in answer.responses} == {ErrorCode.INVALID_REQUEST}
    assert setting(wire, topic, "segment.ms").config_source == DEFAULT


def replace(wire: Wire, topic: str, settings: dict[str, str | None], **options: bool) -> ErrorCode:
    """AlterConfigs: these settings and no others."""
    resource = alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=topic,
        configs=[alter_configs.AlterableConfig(name=key, value=value) for key, value in settings.items()],
    )
    [answer] = wire.ask(AlterConfigsRequest(resources=[resource], **options)).responses
    return ErrorCode(answer.error_code)


def test_old_alter_configs_replaces_all_settings(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, segment_ms="1000")
    assert replace(wire, topic, {"retention.ms": "5000"}, validate_only=True) == ErrorCode.NONE
    assert replace(wire, topic, {"retention.ms": None}) == ErrorCode.INVALID_REQUEST
    assert replace(wire, topic, {"retention.ms": "soon"}) == ErrorCode.INVALID_CONFIG
    assert setting(wire, topic, "segment.ms").value == "1000"
    assert replace(wire, topic, {"retention.ms": "5000"}) == ErrorCode.NONE
    eventually(lambda: setting(wire, topic, "retention.ms").value == "5000", "the setting is there")
    assert setting(wire, topic, "segment.ms").config_source == DEFAULT


# --- partitions


def add_partitions(wire: Wire, *wanted: CreatePartitionsTopic, validate_only: bool = False) -> list[ErrorCode]:
    request = CreatePartitionsRequest(topics=list(wanted), timeout_ms=5000, validate_only=validate_only)
    return [ErrorCode(each.error_code) for each in wire.ask(request).results]


def test_validating_partitions_does_not_add_them(wire: Wire, topic: str) -> None:
    wanted = CreatePartitionsTopic(name=topic, count=4, assignments=None)
    assert add_partitions(wire, wanted, validate_only=True) == [ErrorCode.NONE]
    assert len(wire.metadata(name=topic).partitions) == 1


@pytest.mark.parametrize(
    ("count", "nodes"), [(3, [None]), (2, [77])], ids=["fewer-assignments-than-partitions", "unknown-node"]
)
def test_new_partitions_must_be_possible(wire: Wire, topic: str, count: int, nodes: list[int | None]) -> None:
    layout = [CreatePartitionsAssignment(broker_ids=[node or int(node_id(wire))]) for node in nodes]
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=layout)
    assert add_partitions(wire, wanted) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_new_partitions_may_be_laid_out_by_hand(wire: Wire, topic: str) -> None:
    layout = [CreatePartitionsAssignment(broker_ids=[int(node_id(wire))])]
    assert add_partitions(wire, CreatePartitionsTopic(name=topic, count=2, assignments=layout)) == [ErrorCode.NONE]
    eventually(lambda: len(wire.metadata(name=topic).partitions) == 2, "there are two partitions")


def test_too_many_partitions_are_against_the_rules(wire: Wire, new_name: Callable[[], str]) -> None:
    for validate_only in (True, False):
        topic = CreatableTopic(name=new_name(), num_partitions=10_001, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only)
        [result] = wire.ask(request).topics
        assert result.error_code == ErrorCode.POLICY_VIOLATION


def test_one_request_cannot_add_partitions_twice(wire: Wire, topic: str) -> None:
    wanted = [CreatePartitionsTopic(name=topic, count=count, assignments=None) for count in (2, 3)]
    assert set(add_partitions(wire, *wanted)) == {ErrorCode.INVALID_REQUEST}


# --- deleting records


def delete_before(
    wire: Wire, topic: str, offset: int, *, partition: int = 0, version: int | None = None
) -> tuple[int, int]:
    at = DeleteRecordsPartition(partition_index=partition, offset=offset)
    topics = [DeleteRecordsTopic(name=topic, partitions=[at])]
    answer = wire.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5000), version).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_the_log_begins_inside_a_batch_whose_first_records_were_deleted(wire: Wire, topic: str, version: int) -> None:
    wire.produce(topic, batch("a", "b", "c"))
    assert delete_before(wire, topic, 2, version=version) == (ErrorCode.NONE, 2)
    assert wire.fetch(topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    answer = wire.fetch(topic, 2)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.NONE, 2)
    # The batch is served whole; a client skips what it did not ask for.
    assert [header.base_offset for header in wire.headers(topic, 2)] == [0]
    assert wire.produce(topic, batch("d")).log_start_offset == 2


def test_times_are_not_found_in_deleted_records(wire: Wire, topic: str) -> None:
    wire.produce(topic, batch("a", "b", "c", timestamps=[1000, 2000, 3000]))
    wire.produce(topic, batch("d", timestamps=[4000]))
    assert wire.list_offset(topic, 1500).offset == 1
    delete_before(wire, topic, 3)
    assert wire.list_offset(topic, 1500).offset == 3


@pytest.mark.parametrize("offset", [-2, 4])
def test_offsets_outside_the_log_cannot_be_deleted(wire: Wire, topic: str, offset: int) -> None:
    wire.produce(topic, batch("a", "b", "c"))
    assert delete_before(wire, topic, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_records_of_the_unknown_cannot_be_deleted(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert delete_before(wire, new_name(), 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete_before(wire, topic, 0, partition=7) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
