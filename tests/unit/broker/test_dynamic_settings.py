"""Settings on disk: what a restart, a crash, a full disk and a damaged file leave of them; and topics that follow."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from onceflow.broker.dynamic_settings import DynamicSettings, changed
from onceflow.broker.node import Node
from onceflow.broker.topics import Topic
from onceflow.clock import ManualClock
from onceflow.config import BROKER_SETTINGS, DYNAMIC, BrokerConfig, Source
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.memory_files import MemoryFileSystem, SimulatedCrash

DIRECTORY = Path("/data")
FILE = DIRECTORY / "broker-settings.json"
AT_START = BrokerConfig(given={"log.retention.ms": "1000", "num.partitions": "3"})
RETENTION = "log.retention.ms"


@pytest.fixture
def files() -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(DIRECTORY)
    return files


def node_on(files: MemoryFileSystem, config: BrokerConfig = AT_START) -> Node:
    return Node(files, DIRECTORY, config, ManualClock())


def change(node: Node, settings: Mapping[str, str], *, for_all: bool = False) -> None:
    for _ in node.configure(changed(node.config, settings, for_all=for_all)):
        pass


def retention(node: Node, topic: str) -> set[int]:
    return {partition.log.config.retention_ms for partition in node.topics.named(topic).partitions}


def refusal(settings: Mapping[str, str], *, for_all: bool = False) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        changed(AT_START, settings, for_all=for_all)
    return refused.value


# --- on disk


def test_a_new_directory_has_no_settings_and_no_file(files: MemoryFileSystem) -> None:
    assert DynamicSettings(files, DIRECTORY).load(AT_START) == AT_START
    assert not files.exists(FILE)


def test_settings_are_there_after_a_restart_and_go_before_those_of_the_start(files: MemoryFileSystem) -> None:
    node = node_on(files)
    node.topics.create("t", 2, {})
    change(node, {RETENTION: "3000"}, for_all=True)
    change(node, {"log.segment.bytes": "2000"})
    disk = files.kill()
    again = node_on(disk)
    assert (
        again.config
        == node.config
        == replace(AT_START, for_all_brokers={RETENTION: "3000"}, for_this_broker={"log.segment.bytes": "2000"})
    )
    assert retention(again, "t") == {3000}
    assert again.config[RETENTION] == 3000
    change(again, {}, for_all=True)
    assert node_on(disk.kill()).config[RETENTION] == 1000


def test_what_is_given_at_start_without_effect_is_said(
    files: MemoryFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_on(files)
    change(node, {RETENTION: "3000"})
    change(node, {"log.segment.bytes": "2000"}, for_all=True)
    assert caplog.text == ""
    node_on(files.kill())
    [said] = caplog.messages
    assert said == "log.retention.ms is 3000, as a client has set it, and not 1000, as given at start."


def test_a_crash_at_any_step_leaves_the_old_settings_or_the_new_ones(files: MemoryFileSystem) -> None:
    store = DynamicSettings(files, DIRECTORY)
    old, new = (changed(AT_START, {RETENTION: value}, for_all=False) for value in ("1", "2"))
    store.save(old)
    outcomes = set()
    for step in range(10):
        for seed in range(10):
            disk = files.kill()
            disk.steps_until_crash = step
            try:
                DynamicSettings(disk, DIRECTORY).save(new)
            except SimulatedCrash:
                found = DynamicSettings(disk.crash(random.Random(seed)), DIRECTORY).load(AT_START)
                outcomes.add(found.text(RETENTION))
            else:
                assert DynamicSettings(disk.crash(random.Random(seed)), DIRECTORY).load(AT_START) == new
    assert outcomes == {"1", "2"}


def test_where_the_disk_refuses_nothing_changes(files: MemoryFileSystem) -> None:
    node = node_on(files)
    node.topics.create("t", 1, {})
    files.write_failure = (0, 3)
    with pytest.raises(StorageError):
        change(node, {RETENTION: "5"})
    assert node.config == AT_START
    assert retention(node, "t") == {1000}
    files.write_failure = None
    assert node_on(files.kill()).config == AT_START


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"version": 1}',
        b'{"version": 1, "this broker": {}}',
        b'{"version": 2, "this broker": {}, "all brokers": {}}',
        b'{"version": 1, "this broker": [], "all brokers": {}}',
        b'{"version": 1, "this broker": {}, "all brokers": {"log.retention.ms": 5}}',
        b'{"version": 1, "this broker": {}, "all brokers": {"log.retention.ms": "soon"}}',
        b'{"version": 1, "this broker": {"node.id": "5"}, "all brokers": {}}',
        b'{"version": 1, "this broker": {"no.such": "5"}, "all brokers": {}}',
        b'{"version": 1, "this broker": {"max.connections.per.ip.overrides": "bad"}, "all brokers": {}}',
    ],
)
def test_a_damaged_file_is_no_settings(files: MemoryFileSystem, damage: bytes) -> None:
    files.replace(FILE, damage)
    with pytest.raises(CorruptLog, match=r"broker-settings\.json is damaged"):
        node_on(files)


# --- what may be changed


def test_what_can_be_changed_are_settings_of_the_broker() -> None:
    assert set(BROKER_SETTINGS) >= DYNAMIC
    assert not any(BROKER_SETTINGS[name].sensitive for name in DYNAMIC)


@pytest.mark.parametrize("name", sorted(DYNAMIC))
def test_each_can_have_the_value_that_it_has(name: str) -> None:
    value = AT_START.text(name)
    for for_all, source in ((False, Source.DYNAMIC_BROKER), (True, Source.DYNAMIC_DEFAULT_BROKER)):
        config = changed(AT_START, {name: value}, for_all=for_all)
        assert config.in_effect(name) == (value, source)
        assert config.topic({}) == AT_START.topic({})


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize("name", sorted(set(BROKER_SETTINGS) - DYNAMIC))
def test_nothing_else_can_be_changed(name: str, for_all: bool) -> None:
    refused = refusal({RETENTION: "5", name: AT_START.text(name)}, for_all=for_all)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert str(refused.message).startswith(f"Cannot update these configs dynamically: [{name}]")


def test_a_setting_that_does_not_exist_is_refused_with_what_may_have_been_meant() -> None:
    refused = refusal({"log.retention.mss": "5"})
    assert (refused.code, refused.message) == (
        ErrorCode.INVALID_CONFIG,
        "Unknown setting log.retention.mss. Did you mean log.retention.ms?",
    )


@pytest.mark.parametrize("for_all", [False, True])
@pytest.mark.parametrize(
    ("name", "value"), [(RETENTION, "soon"), ("max.connections", "-1"), ("max.connections.per.ip.overrides", "bad")]
)
def test_a_value_that_cannot_be_is_refused_also_where_another_one_is_in_effect(
    name: str, value: str, for_all: bool
) -> None:
    good = {RETENTION: "5", "max.connections": "5", "max.connections.per.ip.overrides": "::1:5"}
    config = changed(AT_START, good, for_all=not for_all)
    with pytest.raises(ProtocolError) as refused:
        changed(config, {name: value}, for_all=for_all)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


# --- topics follow


def test_topics_follow_unless_they_have_their_own(files: MemoryFileSystem) -> None:
    node = node_on(files)
    node.topics.create("plain", 2, {})
    node.topics.create("own", 1, {"retention.ms": "77"})
    node.topics.create("other", 1, {"segment.bytes": "5000"})
    change(node, {RETENTION: "5"})
    assert {name: retention(node, name) for name in ("plain", "own", "other")} == {
        "plain": {5},
        "own": {77},
        "other": {5},
    }
    assert node.topics.named("other").partitions[0].log.config.segment_bytes == 5000
    node.topics.create("later", 1, {})
    assert retention(node, "later") == {5}


def test_of_two_changes_at_the_same_time_the_later_one_holds_for_all_topics(files: MemoryFileSystem) -> None:
    node = node_on(files)
    for name in "abcd":
        node.topics.create(name, 1, {})
    first = node.configure(changed(node.config, {RETENTION: "5"}, for_all=False))
    next(first)
    next(first)
    second = node.configure(changed(node.config, {RETENTION: "6"}, for_all=False))
    next(second)
    for steps in (first, second):
        for _ in steps:
            pass
    assert {name: retention(node, name) for name in "abcd"} == {name: {6} for name in "abcd"}


def test_topics_follow_also_if_the_client_goes_away_in_the_middle(files: MemoryFileSystem) -> None:
    node = node_on(files)
    made: list[Topic] = [node.topics.create(name, 1, {}) for name in "abcd"]
    steps = node.configure(changed(node.config, {RETENTION: "5"}, for_all=False))
    next(steps)
    node.topics.delete(made[3])
    steps.close()
    assert {name: retention(node, name) for name in "abc"} == {name: {5} for name in "abc"}
