"""What coordinators of Apache Kafka have written is read by ours: `__consumer_offsets` and `__transaction_state`.

A real Apache Kafka is killed with groups of both protocols, offsets, and transactions with every outcome. Our broker
starts on its partitions, as they lie there, and says the same of all of them; the open transaction goes on.

The other way round, what ours write and Kafka's tool reads: test_dump_log_coordinators.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onceflow.errors import ErrorCode
from onceflow.log.small_files import to_json
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.broker_process import BrokerProcess
from tests.support.brokers import started
from tests.support.raw import Wire
from tests.support.raw_consumer_members import RawMember
from tests.support.raw_consumer_members import describe_group as describe_consumer_group
from tests.support.raw_groups import GroupMember, commit, committed, describe_group, fetch_once, subscription
from tests.support.raw_transactions import V1, V2, TransactionalProducer, TransactionProtocol, describe
from tests.support.raw_transactions import committed as committed_records

TOPIC = "orders"
STATE_TOPICS = ("__consumer_offsets", "__transaction_state")
LONG_MS = 120_000
"""Nobody is put out and nothing times out, however busy the machine is."""
SETTINGS = {
    "group.consumer.session.timeout.ms": LONG_MS,
    "group.consumer.max.session.timeout.ms": LONG_MS,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.initial.rebalance.delay.ms": 0,
}
ONE_PARTITION = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
CONSUMER_GROUPS, CLASSIC_GROUPS = ("modern", "moving"), ("readers", "gone")
ENDED = tuple(f"{protocol.name}-{end}" for protocol in (V1, V2) for end in ("commit", "abort"))
OFFSETS = {("simple", 0): 7, ("readers", 1): 3, **{(f"of-{name}", 0): 5 if "commit" in name else -1 for name in ENDED}}


@dataclass(frozen=True)
class Seen:
    """What a broker says of its groups, offsets and transactions."""

    offsets: dict[tuple[str, int], int]
    transactions: dict[str, tuple[Any, ...]]
    classic: dict[str, tuple[Any, ...]]
    consumer: dict[str, tuple[Any, ...]]


def see(wire: Wire) -> Seen:
    return Seen(
        offsets={(group, partition): committed(wire, group, TOPIC, partition) for group, partition in OFFSETS},
        transactions={name: _transaction(wire, name) for name in (*ENDED, "deserter")},
        classic={name: _classic_group(wire, name) for name in CLASSIC_GROUPS},
        consumer={name: _consumer_group(wire, name) for name in CONSUMER_GROUPS},
    )


def _transaction(wire: Wire, name: str) -> tuple[Any, ...]:
    state = describe(wire, name)
    topics = {each.topic: sorted(each.partitions) for each in state.topics}
    return (state.transaction_state, state.producer_id, state.producer_epoch, state.transaction_timeout_ms, topics)


def _classic_group(wire: Wire, name: str) -> tuple[Any, ...]:
    group = describe_group(wire, name)
    members = [(each.member_id, each.client_id, each.member_metadata, each.member_assignment) for each in group.members]
    return (group.group_state, group.protocol_type, group.protocol_data, sorted(members))


def _consumer_group(wire: Wire, name: str) -> tuple[Any, ...]:
    group = describe_consumer_group(wire, name)
    members = [
        (
            each.member_id,
            each.member_epoch,
            each.client_id,
            tuple(each.subscribed_topic_names or ()),
            str(each.assignment),
            str(each.target_assignment),
            each.member_type,
        )
        for each in group.members
    ]
    return (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name, sorted(members))


def live(wire: Wire, bootstrap: str) -> tuple[TransactionalProducer, RawMember]:
    """Returns the producer whose transaction is open, and the member of a consumer group."""
    commit(wire, "simple", TOPIC, 7)
    reader = GroupMember(bootstrap, "readers", protocols={"range": subscription(TOPIC)}, session_timeout_ms=LONG_MS)
    with reader:
        reader.join()
        reader.sync({reader.id: b"its partitions"})
        assert reader.commit(TOPIC, 3, partition=1) == ErrorCode.NONE
    gone = GroupMember(bootstrap, "gone", protocols={"range": subscription(TOPIC)})
    with gone:
        gone.join()
        gone.sync()
        gone.leave_once()
    modern = RawMember(wire, "modern").join(TOPIC)
    modern.beat_until_it_has({_topic_id(wire): [0, 1]})
    moving = GroupMember(bootstrap, "moving", protocols={"range": subscription(TOPIC)}, session_timeout_ms=LONG_MS)
    with moving:
        moving.join()
        moving.sync()
        RawMember(wire, "moving").join(TOPIC)
    for protocol in (V1, V2):
        for end in ("commit", "abort"):
            producer = _in_transaction(wire, f"{protocol.name}-{end}", protocol, 5)
            getattr(producer, end)()
    return _in_transaction(wire, "deserter", V2, 9), modern


def _in_transaction(wire: Wire, name: str, protocol: TransactionProtocol, offset: int) -> TransactionalProducer:
    producer = TransactionalProducer(wire, name, protocol, timeout_ms=LONG_MS).init()
    producer.write(TOPIC, name, partition=0)
    producer.commit_offset(f"of-{name}", TOPIC, offset)
    return producer


def _topic_id(wire: Wire) -> UUID:
    found = wire.metadata(name=TOPIC).topic_id
    assert found is not None
    return found


def take_over(kafka: Path, data: Path, ids: dict[str, UUID]) -> None:
    """A data directory of ours with Kafka's partitions in it, as they are."""
    with BrokerProcess(data) as new:
        new.stop()
    for topic, id in ids.items():
        folders = sorted(kafka.glob(f"{topic}-*"))
        for folder in folders:
            shutil.copytree(folder, data / folder.name)
        config = {"cleanup.policy": "compact"} if topic in STATE_TOPICS else {}
        content = {"id": str(id), "partitions": len(folders), "config": config}
        (data / "topics" / f"{topic}.json").write_bytes(to_json(content))


@dataclass(frozen=True)
class Moved:
    by_kafka: Seen
    ours: BrokerProcess
    open: TransactionalProducer
    member: RawMember


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    data = tmp_path_factory.mktemp("taken-over") / "data"
    with started(lambda: ApacheKafka({**SETTINGS, **ONE_PARTITION}, jvm_options=QUICK_JVM_OPTIONS)) as kafka:
        with Wire(kafka.bootstrap) as wire:
            wire.create_topic(TOPIC, 2)
            producer, member = live(wire, kafka.bootstrap)
            by_kafka = see(wire)
            ids = {topic: wire.metadata(name=topic).topic_id for topic in (TOPIC, *STATE_TOPICS)}
        kafka.kill()
        take_over(kafka.data_dir, data, {topic: id for topic, id in ids.items() if id is not None})
    ours = {name: value for name, value in SETTINGS.items() if ".max.session" not in name}
    with BrokerProcess(data, settings=ours) as broker:
        yield Moved(by_kafka, broker, producer, member)
        assert "Traceback" not in broker.reports


@pytest.fixture
def wire(moved: Moved) -> Iterator[Wire]:
    with Wire(moved.ours.bootstrap) as wire:
        yield wire


@pytest.fixture
def seen(wire: Wire) -> Seen:
    return see(wire)


def test_kafka_has_seen_what_was_to_be_seen(moved: Moved) -> None:
    assert moved.by_kafka.offsets == OFFSETS
    states = {name: found[0] for name, found in moved.by_kafka.transactions.items()}
    assert states == {
        **{name: "CompleteCommit" if "commit" in name else "CompleteAbort" for name in ENDED},
        "deserter": "Ongoing",
    }
    assert {name: (found[0], len(found[-1])) for name, found in moved.by_kafka.classic.items()} == {
        "readers": ("Stable", 1),
        "gone": ("Empty", 0),
    }
    assert {name: len(found[-1]) for name, found in moved.by_kafka.consumer.items()} == {"modern": 1, "moving": 2}


def test_offsets_are_those_that_kafka_had(moved: Moved, seen: Seen) -> None:
    assert seen.offsets == moved.by_kafka.offsets


def test_transactions_are_those_that_kafka_had(moved: Moved, seen: Seen) -> None:
    assert seen.transactions == moved.by_kafka.transactions


def test_classic_groups_are_those_that_kafka_had(moved: Moved, seen: Seen) -> None:
    assert seen.classic == moved.by_kafka.classic


def test_consumer_groups_are_those_that_kafka_had(moved: Moved, seen: Seen) -> None:
    assert seen.consumer == moved.by_kafka.consumer


def test_a_member_of_a_consumer_group_goes_on_with_its_partitions(moved: Moved, wire: Wire) -> None:
    """What its topics were like is looked at anew, which may raise the group's epoch; it takes nothing away."""
    member = RawMember(wire, "modern", member_id=moved.member.id)
    member.epoch, member.owned = moved.member.epoch, moved.member.owned
    for _ in range(3):
        member.beat()
        assert member.owned == moved.member.owned != {}
    assert describe_consumer_group(wire, "modern").group_state == "Stable"


def test_the_open_transaction_goes_on_and_is_committed(moved: Moved, wire: Wire) -> None:
    pending = fetch_once(wire, "of-deserter", {TOPIC: [0]}, require_stable=True).topics[0].partitions[0]
    assert pending.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    ended = [name for name in ENDED if "commit" in name]
    assert committed_records(wire, TOPIC) == ended
    moved.open.on(wire).commit()
    assert committed(wire, "of-deserter", TOPIC) == 9
    assert committed_records(wire, TOPIC) == [*ended, "deserter"]
