"""What every client with transactions must be able to do, written once.

`test_transactions.py` subclasses `TransactionScenarios` for each client and provides the fixture `client`. A client
that cannot do one thing sets that scenario to None and says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from onceflow.errors import ErrorCode
from tests.conformance.scenarios import numbered, values
from tests.support.clients import TIMEOUT_S, Received, Record, read, refused
from tests.support.clients.coordinated import (
    CoordinatedClient,
    Member,
    Membership,
    TransactionalProducer,
)
from tests.support.raw import Wire
from tests.support.waiting import eventually

StartProducer = Callable[..., TransactionalProducer]
Join = Callable[..., Member]
NewTopic = Callable[..., str]

TIMEOUT_MS = 1000
"""Of transactions that are meant to run into it; librdkafka allows no shorter one."""
BATCH = 4
"""Records of one transaction in the consume-transform-produce loop."""


def texts(received: Sequence[Received]) -> list[str]:
    return [(each.value or b"").decode() for each in received]


def committed(client: CoordinatedClient, topic: str, count: int, partition: int = 0) -> list[str]:
    """What read_committed lets through of a partition, which is to be `count` records."""
    received: list[Received] = []
    with client.committed_reader(topic, partition) as reader:
        # A poll may come back early with nothing: behind aborted records there is progress, too.
        eventually(
            lambda: received.extend(reader.poll(1.0)) or len(received) >= count,
            f"{count} committed records arrive in partition {partition} of {topic}",
            timeout_s=TIMEOUT_S,
        )
    return texts(received)


class Coordinated:
    """Fixtures of the scenarios with producers and members, which are closed whatever state a test leaves them in."""

    @pytest.fixture
    def new_topic(self, wire: Wire, new_name: Callable[[], str]) -> NewTopic:
        def create(partitions: int = 1) -> str:
            name = new_name()
            wire.create_topic(name, partitions)
            return name

        return create

    @pytest.fixture
    def topic(self, new_topic: NewTopic) -> str:
        return new_topic()

    @pytest.fixture
    def open_clients(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    @pytest.fixture
    def start_producer(
        self, client: CoordinatedClient, open_clients: ExitStack, new_name: Callable[[], str]
    ) -> StartProducer:
        """Starts a transactional producer, which fences those with the same id."""

        def start(transactional_id: str | None = None, *, timeout_ms: int = 60_000) -> TransactionalProducer:
            producer = client.transactional(transactional_id or new_name(), timeout_ms=timeout_ms)
            open_clients.callback(producer.close)
            return producer

        return start

    @pytest.fixture
    def join(self, client: CoordinatedClient, open_clients: ExitStack) -> Join:
        """Starts a member of a group, which is closed after the test if the test has not done it."""

        def start(group: str, *topics: str, membership: Membership | None = None) -> Closing:
            member = Closing(client.member(group, topics, membership or Membership()))
            open_clients.callback(member.close)
            return member

        return start


class Closing:
    """A member that may be closed twice."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._closed = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._member, name)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._member.close()


class TransactionScenarios(Coordinated):
    too_late = ErrorCode.PRODUCER_FENCED
    """What the commit of a transaction is told that took too long."""

    # --- commit and abort

    def test_committed_records_are_visible_to_everybody(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        producer = start_producer()
        producer.begin()
        producer.send(topic, numbered(5))
        producer.commit()
        assert committed(client, topic, 5) == list("01234")
        assert texts(read(client, topic, 5)) == list("01234")
        # The marker takes an offset.
        assert client.latest(topic) == 6

    def test_aborted_records_are_hidden_from_who_reads_committed(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("a", "b"))
        producer.abort()
        eventually(lambda: client.latest(topic) == 3, "the marker is there")
        client.produce(topic, values("behind"))
        assert committed(client, topic, 1) == ["behind"]
        assert texts(read(client, topic, 3)) == ["a", "b", "behind"]

    def test_an_open_transaction_holds_back_what_is_behind_it(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        client.produce(topic, values("before"))
        producer = start_producer()
        producer.begin()
        producer.send(topic, values("inside"))
        client.produce(topic, values("behind"))
        with client.committed_reader(topic) as reader:
            assert texts(reader.poll(TIMEOUT_S)) == ["before"]
            assert reader.poll(0.3) == []
            assert texts(read(client, topic, 3)) == ["before", "inside", "behind"]
            producer.commit()
            received: list[Received] = []
            eventually(lambda: received.extend(reader.poll(0.1)) or len(received) == 2, "the rest arrives")
        assert texts(received) == ["inside", "behind"]

    @pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
    def test_a_transaction_over_many_partitions_and_topics_is_all_or_nothing(
        self, client: CoordinatedClient, start_producer: StartProducer, new_topic: NewTopic, commits: bool
    ) -> None:
        topics = [new_topic(partitions=3), new_topic(partitions=3)]
        producer = start_producer()
        producer.begin()
        for topic in topics:
            producer.send(topic, [record for number in range(3) for record in values("in", "it", partition=number)])
        producer.commit() if commits else producer.abort()
        expected = ["in", "it", "behind"] if commits else ["behind"]
        for topic in topics:
            for number in range(3):
                eventually(lambda topic=topic, number=number: client.latest(topic, number) == 3, "all are ended")
            client.produce(topic, [record for number in range(3) for record in values("behind", partition=number)])
            assert [committed(client, topic, len(expected), number) for number in range(3)] == [expected] * 3

    @pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
    def test_an_empty_transaction_leaves_no_trace(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str, commits: bool
    ) -> None:
        producer = start_producer()
        for _ in range(2):
            producer.begin()
            producer.commit() if commits else producer.abort()
        producer.begin()
        producer.send(topic, values("first"))
        producer.commit()
        assert committed(client, topic, 1) == ["first"]
        assert client.latest(topic) == 2

    def test_each_of_many_transactions_has_its_own_outcome(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        producer = start_producer()
        for number in range(12):
            producer.begin()
            producer.send(topic, values(f"{number}a", f"{number}b"))
            producer.abort() if number % 3 == 1 else producer.commit()
        kept = [f"{number}{letter}" for number in range(12) if number % 3 != 1 for letter in "ab"]
        assert committed(client, topic, len(kept)) == kept
        assert client.latest(topic) == 12 * 3

    def test_transactions_of_two_producers_in_one_partition_do_not_mix(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        keeps, drops = start_producer(), start_producer()
        keeps.begin()
        drops.begin()
        for number in range(3):
            keeps.send(topic, values(f"kept {number}"))
            drops.send(topic, values(f"dropped {number}"))
        drops.abort()
        keeps.commit()
        assert committed(client, topic, 3) == ["kept 0", "kept 1", "kept 2"]

    def test_a_producer_that_comes_back_goes_on_with_new_transactions(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str, new_name: Callable[[], str]
    ) -> None:
        name = new_name()
        for number in range(3):
            producer = start_producer(name)
            producer.begin()
            producer.send(topic, values(f"life {number}"))
            producer.commit()
        assert committed(client, topic, 3) == ["life 0", "life 1", "life 2"]

    # --- fencing and timeouts

    def test_a_newer_instance_aborts_what_the_older_left_open_and_fences_its_commit(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str, new_name: Callable[[], str]
    ) -> None:
        name = new_name()
        older = start_producer(name)
        older.begin()
        older.send(topic, values("of the older"))
        newer = start_producer(name)
        with refused(ErrorCode.PRODUCER_FENCED):
            older.commit()
        newer.begin()
        newer.send(topic, values("of the newer"))
        newer.commit()
        assert committed(client, topic, 1) == ["of the newer"]

    def test_an_older_instance_cannot_write_any_more(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str, new_name: Callable[[], str]
    ) -> None:
        name = new_name()
        older = start_producer(name)
        older.begin()
        older.send(topic, values("in time"))
        older.commit()
        start_producer(name)
        older.begin()
        with refused(ErrorCode.PRODUCER_FENCED):
            # Some clients take the records and say only at the end that they were never written.
            older.send(topic, values("too late"))
            older.commit()
        assert committed(client, topic, 1) == ["in time"]
        assert client.latest(topic) == 2

    def test_a_transaction_that_takes_too_long_is_aborted(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str
    ) -> None:
        producer = start_producer(timeout_ms=TIMEOUT_MS)
        producer.begin()
        producer.send(topic, values("slow"))
        client.produce(topic, values("behind"))
        assert committed(client, topic, 1) == ["behind"]
        with refused(self.too_late):
            producer.commit()
        assert client.latest(topic) == 3

    def test_a_timeout_above_the_limit_is_refused(self, start_producer: StartProducer) -> None:
        with refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT):
            start_producer(timeout_ms=900_001)

    # --- offsets in the transaction

    @pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
    def test_offsets_move_with_the_transaction_or_not_at_all(
        self,
        client: CoordinatedClient,
        start_producer: StartProducer,
        join: Join,
        new_topic: NewTopic,
        new_name: Callable[[], str],
        commits: bool,
    ) -> None:
        group, topic = new_name(), new_topic(partitions=2)
        producer, member = start_producer(), join(group)
        for offsets in ({(topic, 0): 3}, {(topic, 0): 7}, {(topic, 1): 1}):
            producer.begin()
            producer.send_offsets(member, offsets)
            producer.commit() if commits or offsets != {(topic, 0): 7} else producer.abort()
        # A transaction begins when the one before it has ended everywhere.
        eventually(lambda: member.committed((topic, 1)) == 1, "the last transaction has ended")
        assert member.committed((topic, 0)) == (7 if commits else 3)
        assert client.group_offsets(group) == {(topic, 0): 7 if commits else 3, (topic, 1): 1}

    def test_offsets_wait_for_the_end_of_the_transaction(
        self,
        client: CoordinatedClient,
        start_producer: StartProducer,
        join: Join,
        topic: str,
        new_name: Callable[[], str],
    ) -> None:
        group = new_name()
        client.produce(topic, numbered(10))
        producer, member = start_producer(), join(group)
        producer.begin()
        producer.send_offsets(member, {(topic, 0): 5})
        assert client.group_offsets(group) == {}
        producer.commit()
        eventually(lambda: client.group_offsets(group) == {(topic, 0): 5}, "the offset is committed")

    def test_consume_transform_produce_is_exactly_once_in_spite_of_crashes(
        self,
        client: CoordinatedClient,
        start_producer: StartProducer,
        join: Join,
        new_topic: NewTopic,
        new_name: Callable[[], str],
    ) -> None:
        source, sink, group = new_topic(partitions=2), new_topic(partitions=2), new_name()
        inputs = {partition: [f"{partition}-{number}" for number in range(20)] for partition in (0, 1)}
        for partition, lines in inputs.items():
            client.produce(source, values(*lines, partition=partition))
        # Each life dies at another step of its third transaction, and with it its producer.
        for dies_after in ("begin", "send", "offsets", None):
            member = join(group, source, membership=Membership(committed_only=True))
            producer = start_producer(f"{group}-transformer")
            transform(client, producer, member, source, sink, dies_after=dies_after)
            member.close()
        for partition, lines in inputs.items():
            assert committed(client, sink, len(lines), partition) == [f"{line}!" for line in lines]
        assert client.group_offsets(group) == {(source, 0): 20, (source, 1): 20}


def transform(
    client: CoordinatedClient,
    producer: TransactionalProducer,
    member: Member,
    source: str,
    sink: str,
    *,
    dies_after: str | None,
) -> None:
    """Reads, adds a mark and writes, to the end of the source or to a certain step of the third transaction."""
    left = sum(20 - (member.committed((source, partition)) or 0) for partition in (0, 1))
    waiting: list[Received] = []
    transactions = 0
    while left:
        if not waiting:
            waiting = eventually(lambda: client.poll_each([member]), "there is something to read")
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        transactions += 1
        dying = dies_after if transactions == 3 else None
        if not transform_batch(producer, member, batch, source, sink, dies_after=dying):
            return
        left -= len(batch)


def transform_batch(
    producer: TransactionalProducer,
    member: Member,
    batch: Sequence[Received],
    source: str,
    sink: str,
    *,
    dies_after: str | None,
) -> bool:
    by_partition: dict[int, list[Received]] = defaultdict(list)
    for each in batch:
        by_partition[each.record.partition].append(each)
    producer.begin()
    if dies_after == "begin":
        return False
    for partition, records in by_partition.items():
        producer.send(sink, [Record(value=(each.value or b"") + b"!", partition=partition) for each in records])
    if dies_after == "send":
        return False
    producer.send_offsets(
        member, {(source, partition): records[-1].offset + 1 for partition, records in by_partition.items()}
    )
    if dies_after == "offsets":
        return False
    producer.commit()
    return True
