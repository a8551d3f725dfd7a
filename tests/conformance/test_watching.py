"""How a cluster looks to somebody who asks, on both brokers: what each test has opened, ended or left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.client import watch_progress, watching
from onceflow.client.fetching import Fetched, fetch
from onceflow.client.settings import ClientSettings
from onceflow.client.watch_questions import Questions
from onceflow.client.watching import ClusterWatch
from onceflow.errors import ErrorCode
from onceflow.monitor.micro_batches import PROGRESS_TOPIC
from onceflow.monitor.snapshot import EndedTransaction, Group, MicroBatch, Partition, Producer, Snapshot, Transaction
from onceflow.spark import sink as sink_module
from onceflow.spark.progress import Progress
from onceflow.spark.query import MicroBatch as RunningBatch
from onceflow.spark.sink import KafkaSink
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.conformance.conftest import RunningBroker, started
from tests.conformance.test_batch_writer import Frame
from tests.conformance.test_cli_txns import hang
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.raw import Wire, batch, now_ms
from tests.support.raw_consumer_members import RawMember, kept_alive, settle
from tests.support.raw_groups import commit, joined_alone
from tests.support.raw_transactions import GROUP, V1, TransactionalProducer, find_coordinator
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import eventually

NewName = Callable[[], str]


class Look:
    """A snapshot, and what of it belongs to a test: other tests use the same broker."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def partitions(self, topic: str) -> list[Partition]:
        return [each for each in self.snapshot.partitions if each.topic == topic]

    def producers(self, topic: str) -> list[Producer]:
        return [each for each in self.snapshot.producers if each.topic == topic]

    def transaction(self, transactional_id: str) -> Transaction:
        [found] = [each for each in self.snapshot.transactions if each.transactional_id == transactional_id]
        return found

    def ended(self, transactional_id: str) -> list[EndedTransaction]:
        return [each for each in self.snapshot.ended if each.transactional_id == transactional_id]

    def group(self, group_id: str) -> Group:
        [found] = [each for each in self.snapshot.groups if each.group_id == group_id]
        return found

    def micro_batches(self, app_id: str) -> list[MicroBatch]:
        return [each for each in self.snapshot.micro_batches if each.app_id == app_id]


class Watch(ClusterWatch):
    def look(self) -> Look:
        return Look(self.take())


@pytest.fixture
def watch(broker: RunningBroker, new_name: NewName, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """It sees the transactional ids of its test only: what others have left open ends when its time is up, and would
    be counted."""
    real, ours = watching.transactions_of, new_name().rpartition("-")[0]

    def own_transactions(asking: Questions) -> tuple[Transaction, ...]:
        return tuple(each for each in real(asking) if each.transactional_id.startswith(ours))

    monkeypatch.setattr(watching, "transactions_of", own_transactions)
    watch = Watch(ClientSettings(bootstrap=broker.bootstrap))
    yield watch
    watch.close()


@pytest.fixture
def topic(wire: Wire, new_name: NewName) -> str:
    name = new_name()
    wire.create_topic(name, 2)
    return name


# --- transactions


def test_an_open_transaction_is_seen_by_its_coordinator_its_partitions_and_its_readers(
    watch: Watch, wire: Wire, topic: str, producer: TransactionalProducer
) -> None:
    assert wire.produce(topic, batch("before")).error_code == 0
    producer.write(topic, "a", "b")
    look = watch.look()
    open_one = look.transaction(producer.transactional_id)
    assert (open_one.state, open_one.is_open, open_one.timeout_ms) == ("Ongoing", True, 60_000)
    assert (open_one.producer_id, open_one.epoch) == producer.identity
    assert open_one.partitions == ((topic, 0),)
    assert open_one.started_ms is not None
    assert 0 <= now_ms() - open_one.started_ms < 60_000
    first, second = look.partitions(topic)
    assert (first.start, first.last_stable, first.end, first.lso_lag) == (0, 1, 3, 2)
    assert (second.start, second.last_stable, second.end) == (0, 0, 0)
    assert first.size_bytes is not None
    assert first.size_bytes > 0
    assert (first.leader, first.replicas, first.in_sync) == (1, 1, 1)
    [writer] = [each for each in look.producers(topic) if each.producer_id == producer.id]
    assert (writer.partition, writer.epoch, writer.last_sequence) == (0, producer.epoch, 1)
    assert writer.transaction_start == 1
    assert abs(now_ms() - writer.last_write_ms) < 60_000

    producer.commit()
    look = watch.look()
    assert look.partitions(topic)[0].lso_lag == 0
    idle = look.transaction(producer.transactional_id)
    assert (idle.is_open, idle.started_ms, idle.partitions) == (False, None, ())
    assert [each.transaction_start for each in look.producers(topic) if each.producer_id == producer.id] == [None]


def test_how_a_transaction_ended_is_told_by_the_next_look_and_counted_once(
    watch: Watch, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    before = watch.look()
    assert before.ended(producer.transactional_id) == []
    producer.commit()
    [committed] = watch.look().ended(producer.transactional_id)
    assert (committed.committed, committed.partitions) == (True, 1)
    assert committed.started_ms == before.transaction(producer.transactional_id).started_ms
    assert committed.started_ms <= committed.ended_ms
    producer.write(topic, "b")
    producer.abort()
    look = watch.look()
    assert [each.committed for each in look.ended(producer.transactional_id)] == [True, False]
    again = watch.look()
    assert again.ended(producer.transactional_id) == look.ended(producer.transactional_id)
    counters, counted = before.snapshot.counters, again.snapshot.counters
    assert (counted.commits - counters.commits, counted.aborts - counters.aborts) == (1, 1)


def test_epochs_tell_how_many_ended_between_two_looks(watch: Watch, topic: str, bumping: TransactionalProducer) -> None:
    bumping.write(topic, "a")
    bumping.commit()
    before = watch.look().snapshot.counters
    for outcome in (bumping.commit, bumping.abort, bumping.commit):
        bumping.write(topic, "x")
        outcome()
    after = watch.look().snapshot.counters
    assert (after.commits - before.commits, after.aborts - before.aborts) == (3, 0), "only the last outcome is known"


def test_in_the_first_protocol_only_the_last_of_several_ends_is_seen(
    watch: Watch, topic: str, classic: TransactionalProducer
) -> None:
    classic.write(topic, "a")
    classic.commit()
    before = watch.look().snapshot.counters
    for _ in range(2):
        classic.write(topic, "x")
        classic.commit()
    assert watch.look().snapshot.counters.commits - before.commits == 1


def test_a_producer_that_only_starts_anew_has_ended_nothing(
    watch: Watch, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(topic, "a")
    producer.commit()
    before = watch.look()
    producer.init()
    after = watch.look()
    assert after.transaction(producer.transactional_id).epoch > before.transaction(producer.transactional_id).epoch
    assert after.snapshot.counters == before.snapshot.counters
    assert after.transaction(producer.transactional_id).updated_ms == after.snapshot.at_ms


@pytest.mark.faults
def test_a_hanging_transaction_is_one_that_a_partition_has_and_its_coordinator_has_not(
    request: pytest.FixtureRequest, new_name: NewName
) -> None:
    if request.config.getoption("broker", default=None) == "onceflow":
        pytest.skip("Onceflow always asks its coordinator: there is no way to make a transaction hang")
    careless = {"transaction.partition.verification.enable": "false"}
    with (
        started(lambda: ApacheKafka(careless, jvm_options=QUICK_JVM_OPTIONS)) as kafka,
        Wire(kafka.bootstrap) as wire,
    ):
        topic, transactional_id = new_name(), new_name()
        wire.create_topic(topic)
        find_coordinator(wire, transactional_id)
        producer_id, epoch = hang(wire, topic, transactional_id)
        watch = Watch(ClientSettings(bootstrap=kafka.bootstrap))
        look = watch.look()
        watch.close()
    assert [(each.producer_id, each.epoch, each.transaction_start) for each in look.producers(topic)] == [
        (producer_id, epoch, 0)
    ]
    assert look.partitions(topic)[0].lso_lag == 1
    assert not look.transaction(transactional_id).is_open


# --- groups


def test_groups_of_both_protocols_are_behind_the_last_stable_offset(
    watch: Watch, wire: Wire, broker: RunningBroker, topic: str, new_name: NewName, bumping: TransactionalProducer
) -> None:
    assert wire.produce(topic, batch("a", "b", "c", "d")).error_code == 0
    bumping.write(topic, "not yet", "to be read")
    classic, consumer, without_members = new_name(), new_name(), new_name()
    find_coordinator(wire, consumer, GROUP)
    member = RawMember(wire, consumer).join(topic)
    settle(member)
    commit(wire, consumer, topic, 1, member_id=member.id, generation=member.epoch)
    commit(wire, without_members, topic, 4)
    with joined_alone(broker.bootstrap, classic) as joined, kept_alive(member, broker.bootstrap):
        assert joined.commit(topic, 3) == 0
        look = watch.look()
    member.leave()
    assert [(each.protocol, each.state, each.members) for each in map(look.group, (classic, consumer))] == [
        ("classic", "Stable", 1),
        ("consumer", "Stable", 1),
    ]
    [place] = look.group(classic).partitions
    assert (place.topic, place.partition, place.committed, place.lag) == (topic, 0, 3, 1)
    assert (look.group(consumer).lag, look.group(without_members).lag) == (3, 0)
    assert (look.group(without_members).state, look.group(without_members).members) == ("Empty", 0)
    bumping.commit()
    assert watch.look().group(classic).lag == 4, "two records and a marker more"


# --- the cluster


def test_the_cluster_says_who_it_is_and_how_its_coordinators_are(
    watch: Watch, wire: Wire, broker: RunningBroker, topic: str, classic: TransactionalProducer, new_name: NewName
) -> None:
    commit(wire, new_name(), topic, 0)
    snapshot = watch.take()
    assert snapshot.cluster_id
    assert snapshot.brokers == (broker.bootstrap,)
    assert snapshot.software == {"onceflow": "onceflow", "kafka": "Apache Kafka"}[broker.name]
    assert [(each.kind, each.state) for each in snapshot.coordinators] == [
        ("transaction", "active"),
        ("group", "active"),
    ]
    assert all(each.partitions > 0 for each in snapshot.coordinators)
    assert (snapshot.notes, snapshot.truncated) == ((), False)


def test_a_topic_that_vanishes_while_one_looks_is_left_out(
    watch: Watch, wire: Wire, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = watching.log_sizes

    def delete_first(asking: Questions) -> object:
        states = [DeleteTopicState(name=topic)]
        assert wire.ask(DeleteTopicsRequest(topics=states, timeout_ms=5000)).responses[0].error_code == 0
        eventually(lambda: wire.metadata(name=topic).error_code != 0, "the topic is gone")
        return real(asking)

    assert len(watch.look().partitions(topic)) == 2
    monkeypatch.setattr(watching, "log_sizes", delete_first)
    look = watch.look()
    assert (look.partitions(topic), look.producers(topic), look.snapshot.notes) == ([], [], ())


@pytest.mark.faults
def test_whoever_may_see_topics_only_sees_topics_and_is_told_what_is_missing(
    request: pytest.FixtureRequest, new_name: NewName
) -> None:
    if request.config.getoption("broker", default=None) == "onceflow":
        pytest.skip("needs an Apache Kafka with ACLs")
    with started(SecuredKafka) as kafka:
        topic, listener = new_name(), "SASL_PLAINTEXT"
        with Wire(kafka.bootstraps["PLAINTEXT"]) as wire:
            for name in (topic, PROGRESS_TOPIC):
                wire.create_topic(name)
                assert wire.produce(name, batch("a")).error_code == 0
        settings = ClientSettings(bootstrap=kafka.bootstraps[listener], extra=kafka.client(listener, "alice"))
        watch = Watch(settings)
        assert watch.look().partitions(topic) == []
        for name in (topic, PROGRESS_TOPIC):
            kafka.allow("alice", "topic", name, "describe")
        eventually(lambda: len(watch.look().snapshot.partitions) == 2, "the rights are known")
        look = watch.look()
        watch.close()
    [partition] = look.partitions(topic)
    assert (partition.end, partition.last_stable, partition.size_bytes) == (1, 1, None)
    assert sorted(note.partition(" are left out")[0] for note in look.snapshot.notes) == [
        "micro-batches",
        f"the producers of {min(topic, PROGRESS_TOPIC)} and 1 more",
        "the sizes of partitions",
    ]
    assert all("authorization failed" in note for note in look.snapshot.notes)
    assert (look.snapshot.groups, look.snapshot.transactions, look.snapshot.producers) == ((), (), ())


# --- micro-batches


@pytest.fixture
def sink(
    broker: RunningBroker, topic: str, new_name: NewName, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], str]]:
    """Writes micro-batches; returns its app id."""
    monkeypatch.setattr(sink_module, "check_columns", lambda *_: None)
    monkeypatch.setattr(sink_module, "claim", lambda *_: None)
    monkeypatch.setattr(
        sink_module,
        "running_batch",
        lambda _, number: RunningBatch(query_id="q", run_id="r", batch_id=number, entry=str(number)),
    )
    sink = KafkaSink(app_id=new_name(), bootstrap_servers=broker.bootstrap, topic=topic)

    def write(batch_id: int) -> str:
        sink(Frame(), batch_id)
        return sink.app_id

    yield write
    sink.close()


def test_micro_batches_are_seen_when_committed_and_complete_when_the_next_one_is(
    watch: Watch, sink: Callable[[int], str]
) -> None:
    begun = now_ms()
    app_id = sink(0)

    def with_marker() -> MicroBatch | None:  # the end is answered before the marker is written
        [found] = watch.look().micro_batches(app_id) or [None]
        return found if found is not None and found.committed_ms is not None else None

    first = eventually(with_marker, "the first micro-batch is committed")
    assert (first.batch_id, first.rows, first.transaction_ms) == (0, None, None)
    assert first.started_ms is not None
    assert begun <= first.started_ms <= first.recorded_ms <= first.committed_ms <= now_ms()
    sink(1)
    eventually(lambda: len(watch.look().micro_batches(app_id)) == 2, "the second micro-batch is committed")
    first, second = watch.look().micro_batches(app_id)
    assert (first.batch_id, first.rows, second.batch_id, second.rows) == (0, 0, 1, None)
    assert first.transaction_ms is not None
    assert first.started_ms is not None
    assert first.committed_ms is not None
    assert 0 < first.transaction_ms <= first.committed_ms - first.started_ms + 1


def test_a_micro_batch_is_shown_when_its_own_transaction_is_committed(
    watch: Watch, sink: Callable[[int], str], wire: Wire, new_name: NewName
) -> None:
    app_id = sink(0)  # which creates the topic
    eventually(lambda: len(watch.look().micro_batches(app_id)) == 1, "the first micro-batch is committed")
    slow, aborted = (TransactionalProducer(wire, new_name(), V1).init() for _ in range(2))
    for producer in (slow, aborted):
        progress = Progress(app_id=producer.transactional_id, query_id="q", batch_id=7, at_ms=now_ms())
        producer.add(PROGRESS_TOPIC)
        records = progress.to_batch(producer_id=producer.id, epoch=producer.epoch, sequence=0)
        answer = wire.produce(PROGRESS_TOPIC, records, version=11, transactional_id=producer.transactional_id)
        assert answer.error_code == ErrorCode.NONE
    sink(1)
    eventually(lambda: len(watch.look().micro_batches(app_id)) == 2, "shown, though others are open before it")
    assert watch.look().micro_batches(slow.transactional_id) == []
    aborted.abort()
    slow.commit()
    [found] = eventually(lambda: watch.look().micro_batches(slow.transactional_id), "it is committed")
    assert (found.batch_id, found.committed_ms is None) == (7, False)
    assert watch.look().micro_batches(aborted.transactional_id) == []


def test_progress_that_was_read_is_not_read_again(
    watch: Watch, sink: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets: list[int] = []

    def counted(*args: object, **settings: object) -> Fetched:
        offsets.append(args[3])
        return fetch(*args, **settings)

    monkeypatch.setattr(watch_progress, "fetch", counted)
    app_id = sink(0)
    eventually(
        lambda: [each.committed_ms is not None for each in watch.look().micro_batches(app_id)] == [True],
        "the micro-batch is there with its marker",
    )
    offsets.clear()
    assert len(watch.look().micro_batches(app_id)) == 1
    assert offsets == []
    sink(1)
    eventually(lambda: len(watch.look().micro_batches(app_id)) == 2, "there is another one")
    assert len(offsets) == len(set(offsets)) >= 1


def test_a_record_that_is_no_progress_is_passed_over_by_who_watches_and_by_the_sinks_of_others(
    watch: Watch, sink: Callable[[int], str], wire: Wire
) -> None:
    app_id = sink(0)
    for value in (b"[" * 100_000, b'{"query": "q", "batch": 1e999}'):
        assert wire.produce(PROGRESS_TOPIC, batch(value, key=b"hostile")).error_code == ErrorCode.NONE
    sink(1)
    eventually(lambda: len(watch.look().micro_batches(app_id)) == 2, "both micro-batches are seen")
    look = watch.look()
    assert [each.batch_id for each in look.micro_batches(app_id)] == [0, 1]
    assert [remark for remark in look.snapshot.remarks if "is passed over" in remark]
