"""The progress of an application: one record in the transaction of the data, found again whoever else writes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from onceflow.client.cluster import Cluster, TopicPartition
from onceflow.client.producing import Producing
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import SharedTransaction
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.spark.progress import (
    PROGRESS_TOPIC,
    TOPIC_SETTINGS,
    Progress,
    committed_start,
    ensure_topic,
    read_progress,
)
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tests.support.brokers import RunningBroker
from tests.support.raw import Wire, batch, produce_request
from tests.support.raw_transactions import find_coordinator
from tests.support.waiting import eventually

NewName = Callable[[], str]
V1, V2 = 1, 2
TOPIC_RESOURCE = 2


@pytest.fixture
def cluster(broker: RunningBroker) -> Iterator[Cluster]:
    with Cluster(ClientSettings(bootstrap=broker.bootstrap, timeout_s=5.0)) as cluster:
        yield cluster


@pytest.fixture
def place(wire: Wire, new_name: NewName) -> str:
    """A topic for progress that only this test uses."""
    name = new_name()
    wire.create_topic(name, cleanup_policy="compact")
    return name


class App:
    """Writes its progress as the sink does, without any rows."""

    def __init__(self, cluster: Cluster, wire: Wire, app_id: str, place: str, version: int | None = None) -> None:
        find_coordinator(wire, app_id)
        self.app_id = app_id
        self.place = (place, 0)
        self.transaction = SharedTransaction(cluster, app_id, timeout_ms=60_000, version=version)
        self.transaction.fence()
        self._cluster = cluster

    def record(self, batch_id: int, offsets: dict[TopicPartition, int] | None = None) -> None:
        progress = Progress(app_id=self.app_id, query_id="q", batch_id=batch_id, offsets=offsets or {}, at_ms=1_000)
        self.transaction.add_partitions([self.place])
        ticket = self.transaction.ticket
        self.send(progress.to_batch(producer_id=ticket.producer_id, epoch=ticket.epoch, sequence=0))

    def send(self, data: bytes) -> None:
        ticket = self.transaction.ticket
        Producing(
            self._cluster,
            transactional_id=ticket.transactional_id,
            version_max=ticket.produce_version_max,
            delivery_timeout_s=10,
        ).send({self.place: data})

    def commit(self, batch_id: int) -> None:
        self.record(batch_id)
        self.transaction.commit()

    def next_driver(self) -> App:
        """The same application in another process: it fences first."""
        self.transaction.fence()
        return self


@pytest.fixture(params=[V1, V2], ids=["V1", "V2"])
def app(request: pytest.FixtureRequest, cluster: Cluster, wire: Wire, place: str, new_name: NewName) -> App:
    return App(cluster, wire, new_name(), place, request.param)


def found(cluster: Cluster, app: App) -> int | None:
    progress = read_progress(cluster, app.app_id, app.place[0])
    return None if progress is None else progress.batch_id


def test_progress_is_what_was_committed_last(cluster: Cluster, app: App) -> None:
    assert found(cluster, app.next_driver()) is None
    app.commit(0)
    assert found(cluster, app.next_driver()) == 0
    for number in range(1, 4):
        app.commit(number)
    assert found(cluster, app.next_driver()) == 3


def test_progress_that_was_aborted_is_not_seen(cluster: Cluster, app: App) -> None:
    app.commit(0)
    app.record(1)
    app.transaction.abort()
    assert found(cluster, app.next_driver()) == 0


def test_progress_that_a_dead_driver_left_open_is_not_seen(cluster: Cluster, app: App) -> None:
    app.commit(0)
    app.record(1)
    assert found(cluster, app.next_driver()) == 0


def test_progress_keeps_all_that_was_recorded(cluster: Cluster, app: App) -> None:
    offsets = {("orders", 0): 5, ("orders", 11): 7, ("other", 0): 0}
    app.record(7, offsets)
    app.transaction.commit()
    app.next_driver()
    assert read_progress(cluster, app.app_id, app.place[0]) == Progress(
        app_id=app.app_id, query_id="q", batch_id=7, offsets=offsets, at_ms=1_000
    )


def test_a_topic_that_does_not_exist_holds_no_progress(cluster: Cluster, new_name: NewName) -> None:
    assert read_progress(cluster, "app", new_name()) is None


def test_an_open_transaction_of_another_application_neither_hides_progress_nor_holds_it_up(
    cluster: Cluster, wire: Wire, app: App, new_name: NewName
) -> None:
    app.commit(0)
    other = App(cluster, wire, new_name(), app.place[0])
    other.record(99)
    app.commit(1)
    app.record(2)
    app.transaction.abort()
    began = time.monotonic()
    assert found(cluster, app.next_driver()) == 1
    assert time.monotonic() - began < 20, "it did not wait for the end of the other's transaction"
    assert found(cluster, other) is None
    other.transaction.commit()
    assert found(cluster, other.next_driver()) == 99
    assert found(cluster, app) == 1


def test_applications_whose_names_begin_alike_are_told_apart(cluster: Cluster, wire: Wire, app: App) -> None:
    longer = App(cluster, wire, f"{app.app_id}-2", app.place[0])
    app.commit(1)
    longer.commit(2)
    assert (found(cluster, app.next_driver()), found(cluster, longer.next_driver())) == (1, 2)


def test_an_abort_marker_without_a_record_takes_nothing_back(cluster: Cluster, app: App) -> None:
    """The driver died after the partition was added and before the record was written."""
    app.commit(0)
    app.transaction.add_partitions([app.place])
    assert found(cluster, app.next_driver()) == 0


def test_a_tombstone_forgets_the_application_until_it_commits_again(cluster: Cluster, wire: Wire, app: App) -> None:
    app.commit(5)
    assert wire.produce(app.place[0], batch(None, key=app.app_id.encode())).error_code == ErrorCode.NONE
    assert found(cluster, app.next_driver()) is None
    app.commit(0)
    assert found(cluster, app.next_driver()) == 0


def test_a_record_that_is_not_progress_is_refused_with_its_offset(cluster: Cluster, wire: Wire, app: App) -> None:
    at = wire.produce(app.place[0], batch("nonsense", key=app.app_id.encode())).base_offset
    with pytest.raises(OnceflowError, match=rf"offset {at} .* not a progress record"):
        read_progress(cluster, app.app_id, app.place[0])
    app.commit(1)
    assert found(cluster, app.next_driver()) == 1


def test_progress_of_a_former_producer_id_counts(cluster: Cluster, wire: Wire, place: str, new_name: NewName) -> None:
    """A transactional id that was forgotten and made anew, or whose epochs were used up, has another producer id."""
    first, second = (App(cluster, wire, new_name(), place) for _ in range(2))
    second.app_id = first.app_id
    first.commit(0)
    second.commit(1)
    assert found(cluster, second.next_driver()) == 1
    second.record(2)
    second.transaction.abort()
    assert found(cluster, second.next_driver()) == 1
    first.commit(3)
    assert found(cluster, first.next_driver()) == 3


def test_thousands_of_records_are_read_quickly(cluster: Cluster, wire: Wire, place: str, new_name: NewName) -> None:
    others = [batch("x" * 200, key=f"other-{number}".encode()) for number in range(1000)]
    app, blocker = (App(cluster, wire, new_name(), place) for _ in range(2))
    app.commit(0)
    _produce_all(wire, place, others)
    blocker.record(1)  # from here on markers decide
    _produce_all(wire, place, others)
    app.commit(1)
    app.next_driver()
    began = time.process_time()
    assert found(cluster, app) == 1
    assert time.process_time() - began < 1.0
    blocker.transaction.abort()


def _produce_all(wire: Wire, topic: str, batches: list[bytes]) -> None:
    for each in batches:
        wire.send(produce_request(topic, each), 9)
    for each in batches:
        _, answer = wire.receive(produce_request(topic, each), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


# --- the topic


def test_the_topic_is_made_once_with_its_settings(cluster: Cluster, wire: Wire, new_name: NewName) -> None:
    name = new_name()
    for _ in range(2):
        ensure_topic(cluster, name)
    assert len(wire.metadata(name=name).partitions) == 1
    resource = DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    [answer] = wire.ask(DescribeConfigsRequest(resources=[resource])).results
    settings = {each.name: each.value for each in answer.configs}
    assert {name: settings[name] for name in TOPIC_SETTINGS} == TOPIC_SETTINGS


# --- where an application goes on


def test_an_application_goes_on_where_its_progress_says(cluster: Cluster, wire: Wire, new_name: NewName) -> None:
    ensure_topic(cluster)
    app = App(cluster, wire, new_name(), PROGRESS_TOPIC)
    app.record(3, {("orders", 0): 5})
    app.transaction.commit()
    assert committed_start(cluster, app.app_id)[0] == {("orders", 0): 5}
    app.next_driver().record(4, {("orders", 0): 9})
    assert committed_start(cluster, app.app_id)[0] == {("orders", 0): 5}


def test_an_application_without_progress_goes_on_where_its_group_stands(
    cluster: Cluster, wire: Wire, topic: str, new_name: NewName
) -> None:
    ensure_topic(cluster)
    app = App(cluster, wire, new_name(), PROGRESS_TOPIC)
    assert committed_start(cluster, app.app_id)[0] == {}
    app.next_driver().transaction.commit_offsets(app.app_id, {(topic, 0): 4})
    app.transaction.commit()
    eventually(lambda: committed_start(cluster, app.app_id)[0] == {(topic, 0): 4}, "the group has its offset")
