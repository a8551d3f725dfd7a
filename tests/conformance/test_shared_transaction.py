"""A transaction that one process owns and others write into, as the Spark sink does it, below Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster, Refused, TopicPartition
from onceflow.client.connection import Connection
from onceflow.client.offsets import committed_offsets
from onceflow.client.producing import DeliveryTimedOut, Producing, WriteRefused
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import Fenced, OutcomeUnknown, SharedTransaction, Ticket
from onceflow.errors import ErrorCode
from onceflow.spark.sequencer import Door, Refusal, Run, Sequencer, TaskReport, Turns
from onceflow.verify.lossy_proxy import PASS, Action, Fate, Frame, Hooks, LossyProxy
from onceflow.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire, batch
from tests.support.raw_groups import ready
from tests.support.raw_transactions import V1 as TRANSACTIONS_V1
from tests.support.raw_transactions import TransactionalProducer, committed, describe
from tests.support.waiting import eventually

NewName = Callable[[], str]
WRITERS, PARTITIONS = 4, 3
PRODUCE, END_TXN = 0, 26
V1, V2 = 1, 2


def settings(broker: RunningBroker) -> ClientSettings:
    return ClientSettings(bootstrap=broker.bootstrap, timeout_s=5.0)


@pytest.fixture
def cluster(broker: RunningBroker) -> Iterator[Cluster]:
    with Cluster(settings(broker)) as cluster:
        yield cluster


@pytest.fixture(params=[V1, V2], ids=["V1", "V2"])
def version(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def meet_coordinator(wire: Wire, name: str) -> None:
    """Apache Kafka reads a partition of the coordinator's topic first, and says so meanwhile: some have no patience."""
    TransactionalProducer(wire, name, TRANSACTIONS_V1).meet_coordinator()


@pytest.fixture
def new_owner(wire: Wire, cluster: Cluster, version: int) -> Callable[..., SharedTransaction]:
    def make(name: str, *, over: Cluster | None = None, timeout_ms: int = 60_000, **more: float) -> SharedTransaction:
        meet_coordinator(wire, name)
        return SharedTransaction(over or cluster, name, timeout_ms=timeout_ms, version=version, **more)

    return make


@pytest.fixture
def transaction(new_owner: Callable[..., SharedTransaction], new_name: NewName, version: int) -> SharedTransaction:
    owner = new_owner(new_name(), patience_s=10)
    assert owner.fence().version == version
    return owner


def producing(cluster: Cluster, ticket: Ticket, *, delivery_timeout_s: float = 10) -> Producing:
    return Producing(
        cluster,
        transactional_id=ticket.transactional_id,
        version_max=ticket.produce_version_max,
        delivery_timeout_s=delivery_timeout_s,
    )


def sealed(ticket: Ticket, sequence: int, *values: str) -> bytes:
    return batch(*values, producer=(ticket.producer_id, ticket.epoch), sequence=sequence, transactional=True)


def write(cluster: Cluster, transaction: SharedTransaction, topic: str, *values: str, sequence: int = 0) -> None:
    transaction.add_partitions([(topic, 0)])
    ticket = transaction.ticket
    producing(cluster, ticket).send({(topic, 0): sealed(ticket, sequence, *values)})


# --- many writers


class Writer:
    """What a task does: its own connections, a turn at a time, one batch per turn."""

    def __init__(self, broker: RunningBroker, ticket: Ticket, door: Door, task: int, attempt: str) -> None:
        self._cluster = Cluster(settings(broker))
        self._ticket = ticket
        self._producing = producing(self._cluster, ticket)
        self.turns = Turns(door, task, attempt, timeout_s=5)

    def close(self) -> None:
        self._cluster.close()

    def write(self, left: dict[TopicPartition, list[str]]) -> int:
        """The first value of each partition, then the second, and so on. How many that were."""
        written = 0
        while left:
            for where, sequence in self.turns.take(list(left)).items():
                value = left[where].pop(0)
                self._producing.send({where: sealed(self._ticket, sequence, value)})
                self.turns.now_at(where, sequence + 1)
                written += 1
            left = {where: values for where, values in left.items() if values}
        return written


@contextmanager
def running(transaction: SharedTransaction, *, patience_s: float = 20) -> Iterator[tuple[Run, Door]]:
    ticket = transaction.ticket
    run = Run(prepare=partial(transaction.add_partitions, ticket=ticket), patience_s=patience_s)
    sequencer = Sequencer("127.0.0.1")
    try:
        yield run, sequencer.open(run)
    finally:
        sequencer.close()


def last_sequences(wire: Wire, topic: str, ticket: Ticket) -> list[int]:
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=list(range(PARTITIONS)))])
    found = wire.ask(request).topics[0].partitions
    return [
        each.last_sequence
        for partition in sorted(found, key=lambda one: one.partition_index)
        for each in partition.active_producers
        if (each.producer_id, each.producer_epoch) == (ticket.producer_id, ticket.epoch)
    ]


@pytest.fixture
def wide(wire: Wire, new_name: NewName) -> str:
    name = new_name()
    wire.create_topic(name, partitions=PARTITIONS)
    return name


def test_writers_that_contend_for_partitions_write_everything_once_and_in_order(
    broker: RunningBroker, wire: Wire, wide: str, transaction: SharedTransaction
) -> None:
    each_writes = 12
    start = threading.Barrier(WRITERS)
    ticket = transaction.ticket

    def task(number: int, door: Door) -> None:
        writer = Writer(broker, ticket, door, number, f"attempt {number}")
        values = [f"{number}/{at}" for at in range(each_writes)]
        start.wait(timeout=10)
        rows = writer.write({(wide, partition): list(values) for partition in range(PARTITIONS)})
        writer.turns.leave(TaskReport(rows=rows))
        writer.close()

    with running(transaction) as (run, door), ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(partial(task, door=door), range(WRITERS)))
        reports, counts = run.close()
    total = WRITERS * each_writes
    assert counts == {(wide, partition): total for partition in range(PARTITIONS)}
    assert {task: report.rows for task, report in reports.items()} == dict.fromkeys(
        range(WRITERS), each_writes * PARTITIONS
    )
    assert last_sequences(wire, wide, ticket) == [total - 1] * PARTITIONS
    transaction.commit()
    for partition in range(PARTITIONS):
        values = eventually(partial(committed, wire, wide, partition=partition), "the markers are written")
        assert len(values) == total
        for number in range(WRITERS):
            assert [value for value in values if value.startswith(f"{number}/")] == [
                f"{number}/{at}" for at in range(each_writes)
            ]


def test_a_writer_that_dies_in_the_middle_spoils_the_run_and_nothing_is_visible(
    broker: RunningBroker, wire: Wire, wide: str, transaction: SharedTransaction
) -> None:
    with running(transaction) as (run, door):
        dying = Writer(broker, transaction.ticket, door, 0, "a")
        other = Writer(broker, transaction.ticket, door, 1, "b")
        other.write({(wide, 1): ["of the other"]})
        dying.write({(wide, 0): ["half of it"]})
        dying.turns._connected.close()
        eventually(lambda: run.failure, "the driver notices")
        with pytest.raises(Refusal, match="lost or killed"):
            other.write({(wide, 2): ["never"]})
        with pytest.raises(Refusal):
            Writer(broker, transaction.ticket, door, 2, "c")
        with pytest.raises(Refusal):
            run.close()
        other.turns.fail("task", "gave up")
        for writer in (dying, other):
            writer.close()
    transaction.abort()
    write(transaction._cluster, transaction, wide, "of the next attempt")
    transaction.commit()
    eventually(lambda: committed(wire, wide) == ["of the next attempt"], "only the next attempt is visible")
    assert committed(wire, wide, partition=1) == committed(wire, wide, partition=2) == []


def test_a_writer_that_comes_after_the_end_is_refused_by_the_broker_too(
    cluster: Cluster, wire: Wire, topic: str, transaction: SharedTransaction
) -> None:
    """A zombie that had its turn before the run was spoiled."""
    old = transaction.ticket
    write(cluster, transaction, topic, "aborted")
    transaction.abort()
    write(cluster, transaction, topic, "of the next")
    with pytest.raises(WriteRefused) as refused:
        producing(cluster, old).send({(topic, 0): sealed(old, 1, "zombie")})
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    transaction.commit()
    eventually(lambda: committed(wire, topic) == ["of the next"], "the markers are written")


def test_partitions_cannot_be_added_to_a_transaction_that_is_over(
    cluster: Cluster, wire: Wire, topic: str, transaction: SharedTransaction
) -> None:
    old = transaction.ticket
    write(cluster, transaction, topic, "a")
    transaction.abort()
    with pytest.raises(Fenced, match="over"):
        transaction.add_partitions([(topic, 0)], ticket=old)
    assert transaction.ticket.epoch == old.epoch + 1
    eventually(lambda: describe(wire, transaction.transactional_id).transaction_state != "PrepareAbort", "it is over")
    assert describe(wire, transaction.transactional_id).transaction_state in ("CompleteAbort", "Empty")


# --- ends


def test_every_end_is_followed_by_an_epoch_of_its_own(
    cluster: Cluster, wire: Wire, topic: str, transaction: SharedTransaction
) -> None:
    epochs = [transaction.ticket.epoch]
    for end, value in ((transaction.commit, "a"), (transaction.abort, "b"), (transaction.commit, "c")):
        write(cluster, transaction, topic, value)
        end()
        epochs.append(transaction.ticket.epoch)
    assert [after - before for before, after in itertools.pairwise(epochs)] == [1, 1, 1]
    eventually(lambda: committed(wire, topic) == ["a", "c"], "the markers are written")


def test_a_transaction_that_nobody_wrote_into_can_be_aborted_and_the_next_one_used(
    cluster: Cluster, wire: Wire, topic: str, transaction: SharedTransaction
) -> None:
    before = transaction.ticket
    transaction.abort()
    assert transaction.ticket.epoch > before.epoch
    write(cluster, transaction, topic, "a")
    transaction.commit()
    eventually(lambda: committed(wire, topic) == ["a"], "the markers are written")


def test_a_commit_of_nothing_is_refused(transaction: SharedTransaction) -> None:
    with pytest.raises(Fenced) as refused:
        transaction.commit()
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


def test_renewing_takes_the_next_epoch_and_keeps_the_producer(transaction: SharedTransaction) -> None:
    before = transaction.ticket
    after = transaction.renew()
    assert after == transaction.ticket
    assert (after.producer_id, after.epoch) == (before.producer_id, before.epoch + 1)


# --- lost answers


class ThroughProxy(Cluster):
    """All brokers are reached at the proxy's address, whatever they advertise."""

    def __init__(self, proxy: LossyProxy, *, timeout_s: float = 2.0) -> None:
        super().__init__(ClientSettings(bootstrap=proxy.address, timeout_s=timeout_s))

    def _connection(self, address: Address) -> Connection:
        return super()._connection(self._settings.addresses[0])


@pytest.fixture
def proxy(broker: RunningBroker) -> Iterator[LossyProxy]:
    host, _, port = broker.bootstrap.rpartition(":")
    with LossyProxy((host, int(port))) as proxy:
        yield proxy


@pytest.fixture
def lossy(proxy: LossyProxy) -> Iterator[Cluster]:
    with ThroughProxy(proxy) as cluster:
        yield cluster


class Loses:
    """The first answers to a kind of request."""

    def __init__(self, api_key: int, count: int) -> None:
        self._api_key = api_key
        self._left = count

    def __call__(self, frame: Frame) -> Action:
        if frame.api_key != self._api_key or not self._left:
            return PASS
        self._left -= 1
        return Action(Fate.SWALLOW)


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_an_end_whose_answer_is_lost_is_asked_again_and_done_once(
    cluster: Cluster,
    proxy: LossyProxy,
    lossy: Cluster,
    wire: Wire,
    topic: str,
    new_name: NewName,
    new_owner: Callable[..., SharedTransaction],
    is_commit: bool,
) -> None:
    owner = new_owner(new_name(), over=lossy)
    before = owner.fence()
    write(cluster, owner, topic, "a")
    proxy.plan = Hooks(response=Loses(END_TXN, 2))
    owner.commit() if is_commit else owner.abort()
    assert proxy.counters.responses_swallowed == 2
    assert (owner.ticket.producer_id, owner.ticket.epoch) == (before.producer_id, before.epoch + 1)
    write(cluster, owner, topic, "b")
    owner.commit()
    expected = ["a", "b"] if is_commit else ["b"]
    eventually(lambda: committed(wire, topic) == expected, "the markers are written")


def test_the_outcome_of_a_commit_that_is_never_answered_is_unknown_and_the_next_owner_finds_it_done(
    cluster: Cluster,
    proxy: LossyProxy,
    lossy: Cluster,
    wire: Wire,
    topic: str,
    new_name: NewName,
    new_owner: Callable[..., SharedTransaction],
) -> None:
    name = new_name()
    owner = new_owner(name, over=lossy, patience_s=0.3)
    owner.fence()
    write(cluster, owner, topic, "a")
    proxy.plan = Hooks(response=Loses(END_TXN, 1_000_000))
    with pytest.raises(OutcomeUnknown):
        owner.commit()
    new_owner(name).fence()
    assert committed(wire, topic) == ["a"]


def test_a_commit_that_was_done_and_whose_repetition_is_fenced_is_not_called_fenced(
    cluster: Cluster,
    proxy: LossyProxy,
    lossy: Cluster,
    wire: Wire,
    topic: str,
    new_name: NewName,
    new_owner: Callable[..., SharedTransaction],
) -> None:
    """The next owner took over between the commit, whose answer was lost, and its repetition."""
    name = new_name()
    owner = new_owner(name, over=lossy)
    owner.fence()
    write(cluster, owner, topic, "a")
    successor = new_owner(name)

    def take_over(frame: Frame) -> Action:
        if frame.api_key != END_TXN or successor._ticket is not None:
            return PASS
        successor.fence()
        successor.renew()  # else V2 still recognises the repetition
        return Action(Fate.SWALLOW)

    proxy.plan = Hooks(response=take_over)
    with pytest.raises(OutcomeUnknown):
        owner.commit()
    assert committed(wire, topic) == ["a"]


def test_a_batch_whose_acknowledgement_is_lost_is_stored_once(
    proxy: LossyProxy, lossy: Cluster, wire: Wire, topic: str, transaction: SharedTransaction
) -> None:
    ticket = transaction.ticket
    transaction.add_partitions([(topic, 0)])
    writer = producing(lossy, ticket)
    assert writer.partition_counts([topic]) == [1]
    for sequence in range(3):
        proxy.plan = Hooks(response=Loses(PRODUCE, 2))
        offsets = writer.send({(topic, 0): sealed(ticket, sequence, f"{sequence}")})
        assert offsets == {(topic, 0): sequence}
    assert proxy.counters.acks_lost >= 3
    transaction.commit()
    eventually(lambda: committed(wire, topic) == ["0", "1", "2"], "the markers are written")


def test_a_batch_that_is_never_acknowledged_times_out(
    proxy: LossyProxy, lossy: Cluster, topic: str, transaction: SharedTransaction
) -> None:
    ticket = transaction.ticket
    transaction.add_partitions([(topic, 0)])
    proxy.plan = Hooks(response=Loses(PRODUCE, 1_000_000))
    with pytest.raises(DeliveryTimedOut, match=r"within 0\.3 s"):
        producing(lossy, ticket, delivery_timeout_s=0.3).send({(topic, 0): sealed(ticket, 0, "a")})
    transaction.abort()


def test_a_batch_that_is_too_large_is_refused_at_once(
    cluster: Cluster, wire: Wire, new_name: NewName, transaction: SharedTransaction
) -> None:
    narrow = new_name()
    wire.create_topic(narrow, max_message_bytes="1000")
    with pytest.raises(WriteRefused) as refused:
        write(cluster, transaction, narrow, "x" * 2000)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    transaction.abort()


# --- who owns it


def test_the_second_owner_fences_the_first_which_never_fences_back(
    cluster: Cluster, wire: Wire, topic: str, new_name: NewName, new_owner: Callable[..., SharedTransaction]
) -> None:
    name = new_name()
    first, second = new_owner(name), new_owner(name)
    old = first.fence()
    write(cluster, first, topic, "of the first")
    current = second.fence()
    with pytest.raises(WriteRefused) as refused:
        producing(cluster, old).send({(topic, 0): sealed(old, 1, "zombie")})
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    for attempt in (
        lambda: first.commit_offsets(name, {(topic, 0): 1}),
        first.commit,
        first.abort,
        first.renew,
    ):
        with pytest.raises(Fenced):
            attempt()
    write(cluster, second, topic, "of the second")
    assert second.ticket == current
    second.commit()
    eventually(lambda: committed(wire, topic) == ["of the second"], "the markers are written")


def test_an_owner_whose_transaction_timed_out_is_fenced(
    cluster: Cluster,
    wire: Wire,
    topic: str,
    new_name: NewName,
    new_owner: Callable[..., SharedTransaction],
    version: int,
) -> None:
    owner = new_owner(new_name(), timeout_ms=1_000)
    old = owner.fence()
    write(cluster, owner, topic, "too slow")
    eventually(lambda: describe(wire, owner.transactional_id).transaction_state == "CompleteAbort", "it times out")
    with pytest.raises(WriteRefused) as refused:
        producing(cluster, old).send({(topic, 0): sealed(old, 1, "later")})
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(Fenced):
        owner.commit()
    if version == V1:
        with pytest.raises(Fenced):
            owner.abort()
        owner.fence()
    else:
        owner.abort()  # which Kafka takes for the repetition of an abort, and hands out the next epoch
    assert owner.ticket.epoch > old.epoch
    write(cluster, owner, topic, "again")
    owner.commit()
    eventually(lambda: committed(wire, topic) == ["again"], "the markers are written")


def test_a_timeout_above_the_brokers_maximum_is_refused(
    new_owner: Callable[..., SharedTransaction], new_name: NewName
) -> None:
    with pytest.raises(Refused) as refused:
        new_owner(new_name(), timeout_ms=16 * 60 * 1000).fence()
    assert refused.value.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


# --- offsets


def test_offsets_of_groups_are_visible_after_the_commit_and_not_after_an_abort(
    cluster: Cluster, topic: str, wide: str, new_name: NewName, transaction: SharedTransaction
) -> None:
    groups = [new_name(), new_name()]
    for offset, end in ((5, transaction.commit), (7, transaction.abort)):
        for group in groups:
            transaction.commit_offsets(group, {(topic, 0): offset, (wide, 2): offset + 1})
        end()
    for group in groups:
        places = [(topic, 0), (wide, 2)]
        assert committed_offsets(cluster, group, places) == {(topic, 0): 5, (wide, 2): 6}


def test_offsets_of_a_topic_that_does_not_exist_are_refused_by_name(
    wire: Wire, new_name: NewName, new_owner: Callable[..., SharedTransaction]
) -> None:
    owner = new_owner(new_name(), patience_s=0.2)
    owner.fence()
    missing, group = new_name(), ready(wire, new_name())
    with pytest.raises(Refused, match=missing) as refused:
        owner.commit_offsets(group, {(missing, 0): 1})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    owner.abort()


def test_one_partition_that_does_not_exist_is_named_among_those_that_were_not_attempted(
    cluster: Cluster, wire: Wire, topic: str, new_name: NewName
) -> None:
    owner = SharedTransaction(cluster, new_name(), timeout_ms=60_000, version=V1, patience_s=0.2)
    meet_coordinator(wire, owner.transactional_id)
    owner.fence()
    missing = new_name()
    with pytest.raises(Refused, match=missing) as refused:
        owner.add_partitions([(topic, 0), (missing, 0)])
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    owner.abort()  # nothing was added, which V1 calls an error and we do not
    assert owner.ticket.epoch == 1
