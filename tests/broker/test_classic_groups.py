"""Classic groups and offsets of a broker that is killed, and its files in the hands of Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.node import kafka_uuid
from onceflow.errors import ErrorCode
from tests.support.broker_process import BrokerProcess
from tests.support.offsets_dump import decoded
from tests.support.raw import Wire
from tests.support.raw_groups import GroupMember, commit, committed, describe_group, joined_alone, list_group
from tests.support.raw_transactions import V2, TransactionalProducer

OFFSET, GROUP = 1, 2


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def test_kafkas_own_tool_decodes_every_record(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        topic_id = wire.create_topic("t")
        with joined_alone(broker.bootstrap, "g", instance_id="one", client_id="someone") as member:
            assert member.commit("t", 7, metadata="seven", leader_epoch=0) == ErrorCode.NONE
            member.leave_once()
        commit(wire, "old", "t", 8, retention_ms=60_000, version=2)
        producer = TransactionalProducer(wire, "app", V2).init()
        producer.commit_offset("g", "t", 9)
        producer.commit()
    assert broker.stop() == 0
    records = decoded(broker.data / "__consumer_offsets-0")
    offsets = [record for record in records if record.kind == OFFSET]
    assert [(each.key["group"], each.key["topic"], each.key["partition"]) for each in offsets] == [
        ("g", "t", 0),
        ("old", "t", 0),
        ("g", "t", 0),
    ]
    values = [each.value or {} for each in offsets]
    assert [value["offset"] for value in values] == [7, 8, 9]
    assert (values[0]["metadata"], values[0]["leaderEpoch"]) == ("seven", 0)
    assert values[0]["topicId"] == kafka_uuid(topic_id)
    assert values[1]["expireTimestamp"] == values[1]["commitTimestamp"] + 60_000
    groups = [record.value for record in records if record.kind == GROUP and record.value is not None]
    assert [(each["generation"], each["protocolType"], len(each["members"])) for each in groups] == [
        (0, "", 0),
        (1, "consumer", 1),
        (2, "consumer", 0),
    ]
    [shown] = groups[1]["members"]
    assert (shown["groupInstanceId"], shown["clientId"], shown["clientHost"]) == ("one", "someone", "/127.0.0.1")


def test_a_killed_broker_comes_back_with_its_groups(broker: BrokerProcess) -> None:
    with Wire(broker.bootstrap) as wire:
        wire.create_topic("t")
        commit(wire, "simple", "t", 3)
        with GroupMember(broker.bootstrap, "g") as member:
            member.join()
            member.sync({member.id: b"all"})
            assert member.commit("t", 7) == ErrorCode.NONE
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire, GroupMember(broker.bootstrap, "g") as again:
        assert committed(wire, "simple", "t") == 3
        assert committed(wire, "g", "t") == 7
        assert list_group(wire, "simple") is not None
        assert describe_group(wire, "g").group_state == "Stable"
        again.id, again.generation, again.protocol = member.id, member.generation, member.protocol
        assert again.heartbeat() == ErrorCode.NONE
        assert again.sync() == b"all"
        assert again.commit("t", 8) == ErrorCode.NONE
