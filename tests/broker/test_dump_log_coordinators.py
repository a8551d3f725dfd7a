"""Apache Kafka's own tool decodes what our coordinators wrote: `__transaction_state` and `__consumer_offsets`.

A broker is killed after a commit, an abort and in an open transaction, and with a group of each protocol behind it. The
tool reads what another one has made of it.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import Record
from tests.support.clients.coordinated import CONSUMER, Membership
from tests.support.clients.coordinated.confluent import CoordinatedConfluentClient
from tests.support.kafka_jars import classpath, java
from tests.support.raw import Wire
from tests.support.raw_consumer_members import RawMember
from tests.support.raw_groups import GroupMember, subscription
from tests.support.raw_transactions import V2
from tests.support.raw_transactions import TransactionalProducer as RawProducer
from tests.support.waiting import eventually

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
OFFSET, CLASSIC_GROUP, CONSUMER_GROUP, MEMBER, ASSIGNMENT, TARGET, CURRENT = "1", "2", "3", "5", "6", "7", "8"
"""Kinds of records in `__consumer_offsets`, as the tool names them."""
DELETED = "<DELETE>"


@dataclass(frozen=True)
class Entry:
    """A record of an internal topic, decoded."""

    kind: str
    key: dict[str, Any]
    value: dict[str, Any] | None
    """None is a tombstone."""


@dataclass(frozen=True)
class Dumped:
    transactions: str
    offsets: str

    def entries(self, text: str) -> list[Entry]:
        found = []
        for key, payload in re.findall(r"^\| offset: .* key: (\{.*\}) payload: (.*)$", text, re.MULTILINE):
            decoded = json.loads(key)
            value = None if payload == DELETED else json.loads(payload)["data"]
            found.append(Entry(decoded["type"], decoded["data"], value))
        return found


def dump(data: Path, topic: str, decoder: str) -> str:
    files = [path for path in sorted(data.glob(f"{topic}-*/*")) if path.suffix in (".log", ".txnindex")]
    command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath()]
    command += ["org.apache.kafka.tools.DumpLogSegments", decoder, "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "isvalid: false" not in done.stdout
    return done.stdout


def live(client: CoordinatedConfluentClient) -> None:
    """Transactions with every outcome, and groups with every kind of record."""
    client.create_topic("orders", 2)
    producer = client.transactional("clerk", timeout_ms=30_000)
    readers = client.member("readers", [])
    for end, offset in ((producer.commit, 5), (producer.abort, 9)):
        producer.begin()
        producer.send("orders", [Record(value=b"order", partition=1)])
        producer.send_offsets(readers, {("orders", 0): offset})
        end()
    producer.close()
    classic = client.member("readers", ["orders"], Membership(reset="latest"))
    modern = client.member("modern", ["orders"], Membership(protocol=CONSUMER, assignor="uniform", reset="latest"))
    for member in (classic, modern):
        eventually(lambda member=member: member.poll(0.05) or len(member.assignment()) == 2, "it has all partitions")
    classic.commit({("orders", 1): 2})
    modern.close()
    classic.close()
    readers.close()


def migrate(wire: Wire, bootstrap: str) -> None:
    """A classic group that becomes a consumer group."""
    protocols = {"range": subscription("orders"), "sticky": b"its own bytes"}
    with GroupMember(bootstrap, "moving", protocols=protocols, session_timeout_ms=7_000) as member:
        member.join()
        member.sync()
        RawMember(wire, "moving").join("orders")


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Dumped:
    with BrokerProcess(tmp_path_factory.mktemp("coordinators") / "data") as broker:
        client = CoordinatedConfluentClient(broker.bootstrap)
        live(client)
        client.close()
        with Wire(broker.bootstrap) as wire:
            migrate(wire, broker.bootstrap)
            RawProducer(wire, "deserter", V2).init().write("orders", "never ended")
        broker.kill()
        broker.start()
        assert broker.stop() == 0
        return Dumped(
            dump(broker.data, "__transaction_state", "--transaction-log-decoder"),
            dump(broker.data, "__consumer_offsets", "--offsets-decoder"),
        )


@pytest.mark.tried("kafka-dump-log", "the log of transactions")
def test_kafka_decodes_every_step_of_the_transactions(dumped: Dumped) -> None:
    entries = dumped.entries(dumped.transactions)
    assert {entry.kind for entry in entries} == {"0"}
    steps: dict[str, list[int]] = {}
    for entry in entries:
        assert entry.value is not None
        taken = steps.setdefault(entry.key["transactionalId"], [])
        if not taken or taken[-1] != entry.value["transactionStatus"]:
            taken.append(entry.value["transactionStatus"])
    assert steps == {
        "clerk": [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING, PREPARE_ABORT, COMPLETE_ABORT],
        "deserter": [EMPTY, ONGOING],
    }


def test_kafka_reads_who_wrote_and_for_how_long_it_may(dumped: Dumped) -> None:
    producers = {
        (entry.key["transactionalId"], entry.value["producerId"], entry.value["transactionTimeoutMs"])
        for entry in dumped.entries(dumped.transactions)
        if entry.value is not None
    }
    assert producers == {("clerk", 0, 30_000), ("deserter", 1, 60_000)}


def test_kafka_sees_the_partitions_of_a_transaction(dumped: Dumped) -> None:
    [prepared] = [
        entry.value
        for entry in dumped.entries(dumped.transactions)
        if entry.value is not None and entry.value["transactionStatus"] == PREPARE_COMMIT
    ]
    partitions = {each["topic"]: each["partitionIds"] for each in prepared["transactionPartitions"]}
    assert partitions == {"orders": [1], "__consumer_offsets": [0]}


@pytest.mark.tried("kafka-dump-log", "offsets of groups")
def test_kafka_decodes_offsets_with_and_without_a_transaction(dumped: Dumped) -> None:
    offsets = [
        (entry.key["group"], entry.key["topic"], entry.key["partition"], entry.value["offset"])
        for entry in dumped.entries(dumped.offsets)
        if entry.kind == OFFSET and entry.value is not None
    ]
    assert offsets == [("readers", "orders", 0, 5), ("readers", "orders", 0, 9), ("readers", "orders", 1, 2)]
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: 0", dumped.offsets)
    assert markers == ["COMMIT", "ABORT"]
    assert re.search(r"^version: 0 producerId: \d+ firstOffset: 2 lastOffset: 3 ", dumped.offsets, re.MULTILINE)


def test_kafka_decodes_a_classic_group_while_it_lives_and_after(dumped: Dumped) -> None:
    entries = [entry for entry in dumped.entries(dumped.offsets) if entry.kind == CLASSIC_GROUP]
    lives = [entry.value for entry in entries if entry.key["group"] == "readers"]
    assert all(value is not None and value["protocolType"] == "consumer" for value in lives)
    occupied = [value for value in lives if value is not None and value["members"]]
    [member] = occupied[-1]["members"]
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert lives[-1] is not None
    assert (lives[-1]["members"], lives[-1]["protocol"], lives[-1]["leader"]) == ([], None, None)


def test_kafka_decodes_a_consumer_group_and_its_last_member_leaves_tombstones(dumped: Dumped) -> None:
    entries = [entry for entry in dumped.entries(dumped.offsets) if entry.key.get("groupId") == "modern"]
    assert {entry.kind for entry in entries} == {CONSUMER_GROUP, MEMBER, ASSIGNMENT, TARGET, CURRENT}
    [member] = [entry for entry in entries if entry.kind == MEMBER and entry.value is not None]
    assert (member.value["subscribedTopicNames"], member.value["serverAssignor"]) == (["orders"], "uniform")
    last = {entry.kind: entry.value for entry in entries}
    assert (last[MEMBER], last[TARGET], last[CURRENT]) == (None, None, None)
    epochs = [entry.value["epoch"] for entry in entries if entry.kind == CONSUMER_GROUP]
    assert epochs == sorted(epochs)


def test_kafka_decodes_the_classic_members_of_a_consumer_group(dumped: Dumped) -> None:
    entries = dumped.entries(dumped.offsets)
    [*_, last] = [entry for entry in entries if entry.kind == CLASSIC_GROUP and entry.key["group"] == "moving"]
    assert last.value is None
    members = [entry.value for entry in entries if entry.kind == MEMBER and entry.key["groupId"] == "moving"]
    told = [value["classicMemberMetadata"] for value in members if value is not None]
    [classic] = [metadata for metadata in told if metadata is not None]
    assert len(told) == 2
    assert classic["sessionTimeoutMs"] == 7_000
    protocols = {each["name"]: base64.b64decode(each["metadata"]) for each in classic["supportedProtocols"]}
    assert protocols == {"range": subscription("orders"), "sticky": b"its own bytes"}
