"""Consumer groups (KIP-848) on a real disk: what crashes and failing disks leave, and what Kafka's tool reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onceflow.errors import ErrorCode
from tests.support.broker_process import BrokerProcess, FaultyDisk
from tests.support.kafka_jars import classpath, java
from tests.support.raw import Wire
from tests.support.raw_consumer_members import RawMember, delete_group, describe_group, refusal, settle

SETTINGS = {"offsets.topic.num.partitions": 1, "group.consumer.session.timeout.ms": 30_000}
GROUP = "readers"
TOPIC = "orders"


@pytest.fixture
def faults(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path / "faults")


@pytest.fixture
def broker(tmp_path: Path, faults: FaultyDisk) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS, environment=faults.environment) as broker:
        yield broker


def test_members_go_on_after_a_crash_as_if_nothing_had_happened(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(TOPIC, 4)
        members = [RawMember(wire, GROUP, instance=name).join(TOPIC, regex="ord.*") for name in ("one", "two")]
        settle(*members)
        before = describe_group(wire, GROUP)
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert describe_group(wire, GROUP) == before
        for member in members:
            member.wire = wire
            answer = member.beat()
            assert (answer.member_epoch, answer.assignment) == (member.epoch, None)


def test_a_handover_that_a_crash_interrupts_is_finished(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        id = wire.create_topic(TOPIC, 2)
        first, second = RawMember(wire, GROUP).join(TOPIC), RawMember(wire, GROUP).join(TOPIC)
        first.take(first.send())
        assert (first.owned, second.owned) == ({id: [0]}, {})
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        first.wire = second.wire = wire
        second.beat()
        assert second.owned == {}, "nobody has given anything back"
        first.beat()
        second.beat()
        assert second.owned == {id: [1]}


def test_a_group_that_was_deleted_stays_deleted(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(TOPIC)
        RawMember(wire, GROUP).join(TOPIC).leave()
        assert delete_group(wire, GROUP) == ErrorCode.NONE
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert describe_group(wire, GROUP).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_hears_of_nothing_that_is_not_on_disk(broker: BrokerProcess, faults: FaultyDisk) -> None:
    with Wire(broker.bootstrap) as wire, Wire(broker.bootstrap) as other:
        wire.create_topic(TOPIC)
        RawMember(wire, GROUP).join(TOPIC)
        faults.fail_one_sync("__consumer_offsets")
        late = RawMember(other, GROUP)
        assert refusal(late.try_join(TOPIC)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        described = describe_group(wire, GROUP)
        assert (described.group_epoch, len(described.members)) == (2, 1), "the group is what is on disk"
        late.join(TOPIC)
        assert len(describe_group(wire, GROUP).members) == 2


class Decoded(NamedTuple):
    kind: int
    key: dict[str, Any]
    value: dict[str, Any] | None


def decoded(folder: Path) -> list[Decoded]:
    """Every record of a partition of the offsets topic, as Kafka's own decoder shows it."""
    command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath()]
    command += ["org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files"]
    command.append(",".join(str(path) for path in sorted(folder.glob("*.log"))))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    records = []
    for line in done.stdout.splitlines():
        if " key: " in line:
            key, _, payload = line.partition(" key: ")[2].partition(" payload: ")
            shown = None if payload.strip() in ("<DELETE>", "null") else json.loads(payload)
            records.append(Decoded(int(json.loads(key)["type"]), json.loads(key)["data"], shown and shown["data"]))
    return records


def test_kafkas_own_tool_decodes_every_record(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic(TOPIC, 2)
        member = RawMember(wire, GROUP, instance="one").join(TOPIC, regex="ord.*", rack_id="rack")
        settle(member)
        member.leave(-2)
        heir = RawMember(wire, GROUP, instance="one").join(TOPIC)
        heir.leave()
        delete_group(wire, GROUP)
    assert broker.stop() == 0
    records = decoded(broker.data / "__consumer_offsets-0")
    assert {record.kind for record in records} == {3, 4, 5, 6, 7, 8, 16}
    assert {record.key["groupId"] for record in records} == {GROUP}
    last = {record.kind: record.value for record in records if record.value is not None}
    assert last[5] == {
        "instanceId": "one",
        "rackId": "rack",
        "clientId": "raw",
        "clientHost": "/127.0.0.1",
        "subscribedTopicNames": [TOPIC],
        "subscribedTopicRegex": "ord.*",
        "rebalanceTimeoutMs": 60_000,
        "serverAssignor": None,
        "classicMemberMetadata": None,
    }
    assert (last[8]["memberEpoch"], last[8]["state"]) == (heir.epoch, 0)
    [topic] = last[8]["assignedPartitions"]
    assert (topic["partitions"], len(topic["assignmentEpochs"])) == ([0, 1], 2)
    assert [each["partitions"] for each in last[7]["topicPartitions"]] == [[0, 1]]
    assert last[16]["topics"] == [TOPIC]
    assert last[6]["assignmentEpoch"] == heir.epoch
