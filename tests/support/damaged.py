"""A data directory with one of everything, all that clients can be told of it, and every way to damage its files.

Everything is in memory: a case is a copy of the directory, one damage, a start and all questions, in some milliseconds.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onceflow.broker.dynamic_settings import changed
from onceflow.broker.users import Change, Credential
from onceflow.clock import ManualClock
from onceflow.config import STANDARD_AUTHORIZER
from onceflow.errors import CorruptLog, ErrorCode, OnceflowError
from onceflow.log.checksums import Checksums
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.partition import PartitionLog
from onceflow.log.segment import CHECKSUMS_SUFFIX, LOG_SUFFIX
from onceflow.wire.acls import Acl, Operation, Pattern, Permission, Resource
from onceflow.wire.batch import batches
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from onceflow.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from onceflow.wire.messages.describe_groups import DescribeGroupsRequest
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest
from onceflow.wire.messages.list_groups import ListGroupsRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from onceflow.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.support.at_once import at_once
from tests.support.memory_broker import DIRECTORY, MemoryBroker
from tests.support.memory_transactions import MemoryProducer
from tests.support.raw import batch, produce_request
from tests.unit.group.memory_members import MemoryMember, send_commit

__all__ = ["Answers", "Damage", "Directory", "Refused", "damages", "directory", "start", "told"]

SETTINGS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "offsets.topic.segment.bytes": "600",
    "transaction.state.log.segment.bytes": "500",
}
TOPICS: Final = {
    "plain": {"segment.bytes": "400", "index.interval.bytes": "100"},
    "compacted": {"segment.bytes": "400", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    "txns": {"segment.bytes": "500", "index.interval.bytes": "0"},
}
GROUPS: Final = ("classic", "consumer", "simple")
CREDENTIAL: Final = Credential(
    mechanism="SCRAM-SHA-256", salt=b"salt" * 6, iterations=4096, stored_key=b"s" * 32, server_key=b"k" * 32
)
ACL: Final = Acl(Resource.TOPIC, "plain", Pattern.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)


@dataclass
class Directory:
    """The files, and what clients are told of them."""

    files: MemoryFileSystem
    clock: ManualClock
    answers: Answers


Refused = str
"""A sentence."""
Answers = dict[tuple[object, ...], object]


def directory(*, clean: bool) -> Directory:
    """After a clean stop, or after `kill -9` with more behind the last checkpoint."""
    broker = MemoryBroker(clock=ManualClock(), settings=SETTINGS)
    _furnish(broker)
    broker.checkpoint()
    _compact(broker)
    _write_more(broker)
    if clean:
        for partition in broker.node.topics.partitions():
            partition.log.close()
    files = broker.files.kill()
    settled = start(files, broker.clock)  # what a start writes anew is no damage
    settled.settle()
    if clean:
        for partition in settled.node.topics.partitions():
            partition.log.close()
    files = settled.files.kill()
    return Directory(files, broker.clock, told(start(files.kill(), broker.clock), None))


def start(files: MemoryFileSystem, clock: ManualClock) -> MemoryBroker:
    return MemoryBroker(files, clock=clock, settings=SETTINGS)


# What there is


def _make_topic(broker: MemoryBroker, name: str, config: dict[str, str], partitions: int = 1) -> None:
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
    [made] = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7).topics
    assert made.error_code == ErrorCode.NONE, made.error_message


def _produce(broker: MemoryBroker, topic: str, *values: str, partition: int = 0, **rest: Any) -> None:
    broker.clock.advance(1000)
    stamps = [broker.clock.now_ms()] * len(values)
    request = produce_request(topic, batch(*values, timestamps=stamps, **rest), partition=partition)
    [[done]] = [each.partition_responses for each in broker.ask(request, 9).responses]
    assert done.error_code == ErrorCode.NONE, ErrorCode(done.error_code)


def _furnish(broker: MemoryBroker) -> None:
    for name, config in TOPICS.items():
        _make_topic(broker, name, config, partitions=2 if name == "plain" else 1)
    for number in range(12):
        _produce(broker, "plain", f"first {number}", f"second {number}", producer=(900, 0), sequence=2 * number)
        _produce(broker, "plain", "x" * 60, partition=1)
        _produce(broker, "compacted", f"version {number}", key=b"key %d" % (number % 3))
    deleted = DeleteRecordsTopic(name="plain", partitions=[DeleteRecordsPartition(partition_index=1, offset=4)])
    broker.ask(DeleteRecordsRequest(topics=[deleted], timeout_ms=1000), 2)
    _transactions(broker, 1)
    MemoryMember(broker, "classic").join().sync()
    for offset in range(6):
        send_commit(broker, "simple", offset, topic="plain")
        broker.settle()
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id=str(uuid.UUID(int=1)),
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["plain"],
        topic_partitions=[],
    )
    assert broker.ask(heartbeat, 1).error_code == ErrorCode.NONE
    node = broker.node
    node.users.apply([Change(user="alice", mechanism="SCRAM-SHA-256", credential=CREDENTIAL)])
    assert node.authorizer is not None
    node.authorizer.acls.add([ACL])
    node.features.apply({"group.version": 1, "transaction.version": 1})
    at_once(node.configure(changed(node.config, {"log.retention.ms": "777000000"}, for_all=True)))


def _transactions(broker: MemoryBroker, round_: int) -> None:
    """Committed, aborted and open ones; with offsets."""
    open_one = MemoryProducer(broker, f"open {round_}").init()
    open_one.send("txns", 0, f"open {round_}")
    broker.settle()
    for number in range(4):
        producer = MemoryProducer(broker, f"id {round_}").init()
        for part in range(2):
            producer.send("txns", 0, f"{round_} {number} {part}")
            broker.settle()
        producer.send_offset("simple", "txns", 0, number)
        broker.settle()
        producer.send_end(commit=number % 2 == 0)
        broker.settle()
    if round_ == 1:
        open_one.send_end(commit=False)
        broker.settle()


def _compact(broker: MemoryBroker) -> None:
    cleaner, now_ms = broker.node.cleaner, broker.clock.now_ms()
    due = cleaner.due([partition.log for partition in broker.node.topics.partitions()], now_ms)
    assert any("compacted" in str(log.directory) for log in due)
    for log in due:
        for step in cleaner.clean(log, now_ms):
            step()


def _write_more(broker: MemoryBroker) -> None:
    for number in range(4):
        _produce(broker, "plain", f"late {number}", producer=(900, 0), sequence=24 + number)
        _produce(broker, "compacted", f"late {number}", key=b"key %d" % number)
    _transactions(broker, 2)
    send_commit(broker, "simple", 77, topic="plain")
    broker.settle()


# What clients are told


def told(broker: MemoryBroker, expected: Answers | None) -> Answers:
    """The answer to every question, or the sentence of a refusal; the same questions as those of `expected`."""
    node = broker.node
    answers: Answers = {
        ("cluster",): node.cluster_id,
        ("settings",): (dict(node.config.for_this_broker), dict(node.config.for_all_brokers)),
        ("features",): (node.features.levels, node.features.epoch),
        ("users",): {user: dict(node.users.credentials(user)) for user in node.users},
        ("nobody",): node.users.to_check("nobody", "SCRAM-SHA-256"),
        ("acls",): list(node.authorizer.acls) if node.authorizer else None,
        ("topics",): {topic.name: (topic.id, len(topic.partitions), topic.overrides) for topic in node.topics},
        ("producer id",): node.new_producer_id(),
    }
    for name, request, version in _requests(broker):
        answers["ask", name] = broker.ask(request, version)
    for partition in node.topics.partitions():
        where = (partition.topic, partition.index)
        log = partition.log
        answers["ends", *where] = (log.start_offset, log.last_stable_offset, log.high_watermark)
        answers["producers", *where] = {
            id: (each.epoch, each.batches, each.transaction_first_offset) for id, each in log.producers
        }
        _read_all(log, where, answers, expected)
    return answers


def _requests(broker: MemoryBroker) -> Iterator[tuple[str, Any, int]]:
    for group in GROUPS:
        yield f"offsets of {group}", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group)]), 8
    yield "groups", ListGroupsRequest(), 5
    yield "classic group", DescribeGroupsRequest(groups=["classic"]), 5
    yield "consumer group", ConsumerGroupDescribeRequest(group_ids=["consumer"]), 0
    yield "transactions", ListTransactionsRequest(), 0
    ids = [f"{kind} {round_}" for kind in ("id", "open") for round_ in (1, 2)]
    yield "each transaction", DescribeTransactionsRequest(transactional_ids=ids), 0
    asked = [TopicRequest(name=name, partition_indexes=[0]) for name in TOPICS]
    yield "active producers", DescribeProducersRequest(topics=asked), 0


def _read_all(log: PartitionLog, where: tuple[str, int], answers: Answers, expected: Answers | None) -> None:
    """Every batch, from its own offset; what a read_committed reader is told besides; and where each time is."""
    for committed in (False, True):
        offset = log.start_offset
        while offset <= log.high_watermark:
            question = ("read", *where, committed, offset)
            try:
                found = log.slice(offset, 1, committed=committed)
                data = b"" if found is None else found.read()
                aborted = [] if found is None else log.aborted_in(offset, found)
                if not data:
                    answers[question] = (data, False)
                    break
                [(header, _)] = batches(data)
                # As a client goes by them. There may be more, about others, as the index is exact.
                skipped = any(
                    each.producer_id == header.producer_id and each.first_offset <= header.base_offset
                    for each in aborted
                )
                answers[question] = (data, committed and skipped and not header.is_control)
                offset = header.last_offset + 1
            except OnceflowError as error:
                answers[question] = _refusal(error)
                if expected is None:
                    raise
                later = [key[4] for key in expected if key[:4] == question[:4] and key[4] > offset]  # type: ignore[operator]
                if not later:
                    break
                offset = min(later)  # type: ignore[type-var,assignment]
    times = [key[3] for key in expected if key[:3] == ("time", *where)] if expected is not None else _times(log)
    for time in times:
        try:
            answers["time", *where, time] = at_once(log.first_offset_at(time) if time else log.offset_of_newest())  # type: ignore[arg-type]
        except OnceflowError as error:
            answers["time", *where, time] = _refusal(error)


def _times(log: PartitionLog) -> list[int]:
    return [0, *sorted({header.max_timestamp for header, _ in log.batches()})]


def _refusal(error: OnceflowError) -> Refused:
    assert isinstance(error, CorruptLog), error
    return f"refused: {error}"


# What may happen to a file


@dataclass(frozen=True)
class Damage:
    path: Path
    kind: str
    content: bytes | None
    """What is in the file then; None if it is gone."""
    at: int
    """The first position of which something is different."""

    def do(self, files: MemoryFileSystem) -> None:
        if self.content is None:
            files.remove(self.path)
        else:
            files.replace(self.path, self.content)

    def __str__(self) -> str:
        return f"{self.path.relative_to(DIRECTORY)} {self.kind}"


def damages(files: MemoryFileSystem, dice: random.Random) -> Iterator[Damage]:
    """One file at a time: each byte with one bit flipped, cut, emptied, longer, gone."""
    for path in files_of(files):
        data = files.read_bytes(path)
        size = len(data)
        for at in range(size):
            bit = dice.randrange(8)
            changed = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            yield Damage(path, f"with bit {bit} of byte {at} flipped", changed, at)
        for left in sorted({0, 1, size // 2, size - 1, *dice.choices(range(size + 1), k=4)} & set(range(size))):
            yield Damage(path, f"cut to {left} of {size} bytes", data[:left], left)
        for name, more in (
            ("a zero", bytes(1)),
            ("zeros", bytes(5000)),
            ("garbage", dice.randbytes(200)),
            ("itself", data),
            ("a part of itself", data[-62:]),
        ):
            if more:
                yield Damage(path, f"with {name} behind it", data + more, size)
        yield Damage(path, "zeroed", bytes(size), 0)
        yield Damage(path, "gone", None, 0)


def files_of(files: MemoryFileSystem) -> list[Path]:
    found: list[Path] = []
    for name in files.list(DIRECTORY):
        inside = files.list(DIRECTORY / name)
        found += [DIRECTORY / name / each for each in inside] if inside else [DIRECTORY / name]
    return [path for path in found if path.suffix]


def is_unvouched(damage: Damage, files: MemoryFileSystem) -> bool:
    """Whether it is in what was written after the last checkpoint, which a crash may have left like that."""
    if damage.path.suffix != LOG_SUFFIX:
        return False
    sums = damage.path.with_suffix(CHECKSUMS_SUFFIX)
    if not files.exists(sums):
        return True
    known = Checksums.from_bytes(files.read_bytes(sums), int(damage.path.stem))
    return known is not None and damage.at >= known.size
