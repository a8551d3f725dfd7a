"""What coordinators and partitions say about transactions, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onceflow.client.cluster import Cluster, Refused
from onceflow.client.connection import NoAnswer
from onceflow.client.problems import ClientError
from onceflow.client.transactions import (
    PER_REQUEST,
    OpenTransaction,
    Transaction,
    TransactionMissingError,
    TransactionNotHangingError,
    abort_hanging,
    describe_transaction,
    describe_transactions,
    fence_producer,
    find_hanging,
    list_transactions,
    max_timeout_ms,
    open_transaction_at,
    open_transactions,
)
from onceflow.errors import ConfigError
from onceflow.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from onceflow.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
)
from onceflow.wire.messages.describe_transactions import TransactionState as Described
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.messages.list_transactions import TransactionState as Listed
from onceflow.wire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.unit.client.fake_broker import FakeBroker, HangUp

NOW_MS = 1_700_000_000_000


class World:
    """What the one broker knows, as a coordinator and as a leader."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.known: dict[str, Described] = {}
        self.open: dict[tuple[str, int], list[ProducerState]] = {}
        self.marker_code = 0
        broker.topics = {"t": 2}
        broker.on(ListTransactionsRequest, self._list)
        broker.on(DescribeTransactionsRequest, self._describe)
        broker.on(DescribeProducersRequest, self._producers)
        broker.on(WriteTxnMarkersRequest, self._markers)

    def knows(self, name: str, state: str = "Ongoing", *partitions: int, producer_id: int = 7, **more: Any) -> None:
        topics = [TopicData(topic="t", partitions=list(partitions))] if partitions else []
        self.known[name] = Described(
            transactional_id=name, transaction_state=state, producer_id=producer_id, topics=topics, **more
        )

    def has_open(self, partition: int = 0, producer_id: int = 7, at: int = 100, last_ms: int = 0) -> None:
        producer = ProducerState(
            producer_id=producer_id,
            producer_epoch=3,
            current_txn_start_offset=at,
            last_timestamp=last_ms,
            coordinator_epoch=-1,
        )
        self.open.setdefault(("t", partition), []).append(producer)

    def _list(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        return ListTransactionsResponse(
            transaction_states=[
                Listed(transactional_id=name, producer_id=each.producer_id, transaction_state=each.transaction_state)
                for name, each in self.known.items()
                if not request.producer_id_filters or each.producer_id in request.producer_id_filters
            ]
        )

    def _describe(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        missing = {name: Described(transactional_id=name, error_code=105) for name in request.transactional_ids}
        states = [(missing | self.known)[name] for name in request.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=states)

    def _producers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=topic.name,
                    partitions=[
                        PartitionResponse(
                            partition_index=index, active_producers=self.open.get((topic.name, index), [])
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _markers(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        (marker,) = request.markers
        (topic,) = marker.topics
        (index,) = topic.partition_indexes
        partitions = [WritableTxnMarkerPartitionResult(partition_index=index, error_code=self.marker_code)]
        topics = [WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)]
        return WriteTxnMarkersResponse(markers=[WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)])


@pytest.fixture
def world() -> Iterator[World]:
    with FakeBroker() as broker:
        yield World(broker)


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    with Cluster(world.broker.settings(timeout_s=10.0)) as cluster:
        yield cluster


def test_listing_sends_the_filters_and_sorts(world: World, cluster: Cluster) -> None:
    world.knows("b", producer_id=2)
    world.knows("a", "Empty", producer_id=1)
    found = list_transactions(cluster, states=["Ongoing"], producer_ids=[1, 2], older_than_ms=5)
    assert [(each.transactional_id, each.state, each.producer_id, each.coordinator) for each in found] == [
        ("a", "Empty", 1, 1),
        ("b", "Ongoing", 2, 1),
    ]
    assert world.broker.requests(ListTransactionsRequest) == [
        ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[1, 2], duration_filter=5)
    ]


def test_describing_tells_everything(world: World, cluster: Cluster) -> None:
    world.knows("a", "Ongoing", 1, 0, producer_epoch=4, transaction_timeout_ms=60_000, transaction_start_time_ms=NOW_MS)
    assert describe_transaction(cluster, "a") == Transaction(
        transactional_id="a",
        state="Ongoing",
        producer_id=7,
        producer_epoch=4,
        timeout_ms=60_000,
        started_ms=NOW_MS,
        partitions=(("t", 0), ("t", 1)),
        coordinator=cluster.nodes()[0],
    )


def test_an_unknown_id_is_left_out_or_an_error(world: World, cluster: Cluster) -> None:
    world.knows("a")
    assert list(describe_transactions(cluster, ["a", "nope"])) == ["a"]
    with pytest.raises(TransactionMissingError, match="there is no transactional id 'nope'"):
        describe_transaction(cluster, "nope")


def test_an_empty_id_is_refused_before_anything_is_asked(world: World, cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="cannot be empty"):
        describe_transaction(cluster, "")
    assert world.broker.seen == []


def test_many_ids_are_asked_for_in_portions(world: World, cluster: Cluster) -> None:
    names = [f"id-{number}" for number in range(PER_REQUEST + 1)]
    for name in names:
        world.knows(name)
    assert list(describe_transactions(cluster, names)) == names
    sizes = [len(request.transactional_ids) for request in world.broker.requests(DescribeTransactionsRequest)]
    assert sizes == [PER_REQUEST, 1]


@pytest.mark.parametrize(
    ("state", "age"), [("Ongoing", 500), ("PrepareCommit", 500), ("CompleteCommit", None), ("Empty", None)]
)
def test_only_an_unfinished_transaction_has_an_age(world: World, cluster: Cluster, state: str, age: int | None) -> None:
    world.knows("a", state, transaction_start_time_ms=NOW_MS - 500)
    assert describe_transaction(cluster, "a").age_ms(NOW_MS) == age


def test_open_transactions_are_those_with_a_start_offset(world: World, cluster: Cluster) -> None:
    world.has_open(0, at=100)
    world.has_open(1, at=-1)
    (found,) = open_transactions(cluster, [("t", 0), ("t", 1)])
    assert found == OpenTransaction(
        topic="t",
        partition=0,
        producer_id=7,
        producer_epoch=3,
        start_offset=100,
        last_timestamp_ms=0,
        coordinator_epoch=-1,
    )
    assert open_transaction_at(cluster, ("t", 0), 100) == found
    with pytest.raises(TransactionMissingError, match="no open transaction begins at offset 99 of t-0"):
        open_transaction_at(cluster, ("t", 0), 99)
    with pytest.raises(ClientError, match="partition 2 of 't' is not there"):
        open_transactions(cluster, [("t", 2)])


def hanging(cluster: Cluster, older_than_ms: int = 1000) -> list[tuple[int, str | None, str | None]]:
    found = find_hanging(cluster, [("t", 0), ("t", 1)], older_than_ms=older_than_ms, now_ms=NOW_MS)
    return [(each.open.partition, each.transactional_id, each.state) for each in found]


def test_a_transaction_of_a_producer_that_no_coordinator_knows_hangs(world: World, cluster: Cluster) -> None:
    world.has_open(1)
    assert hanging(cluster) == [(1, None, None)]


@pytest.mark.parametrize("state", ["Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"])
def test_a_transaction_that_the_coordinator_will_end_does_not_hang(world: World, cluster: Cluster, state: str) -> None:
    world.has_open(0)
    world.knows("a", state, 0)
    assert hanging(cluster) == []


def test_a_transaction_of_other_partitions_is_not_this_one(world: World, cluster: Cluster) -> None:
    world.has_open(0)
    world.knows("a", "Ongoing", 1)
    assert hanging(cluster) == [(0, "a", "Ongoing")]


@pytest.mark.parametrize("state", ["Empty", "CompleteCommit", "CompleteAbort", "Dead"])
def test_a_finished_transaction_ends_nothing_any_more(world: World, cluster: Cluster, state: str) -> None:
    world.has_open(0)
    world.knows("a", state, 0)
    assert hanging(cluster) == [(0, "a", state)]


def test_a_recent_write_is_no_reason_to_worry(world: World, cluster: Cluster) -> None:
    world.has_open(0, last_ms=NOW_MS - 1000)
    world.has_open(1, last_ms=NOW_MS - 1001, producer_id=8)
    assert hanging(cluster) == [(1, None, None)]


def test_one_that_ends_while_the_coordinators_are_asked_does_not_hang(world: World, cluster: Cluster) -> None:
    world.has_open(0)
    listed = world._list

    def end_meanwhile(request: ListTransactionsRequest) -> ListTransactionsResponse:
        world.open.clear()
        return listed(request)

    world.broker.on(ListTransactionsRequest, end_meanwhile)
    assert hanging(cluster) == []


def test_without_open_transactions_no_coordinator_is_asked(world: World, cluster: Cluster) -> None:
    assert hanging(cluster) == []
    assert world.broker.requests(ListTransactionsRequest) == []


def test_aborting_a_hanging_one_writes_one_abort_marker(world: World, cluster: Cluster) -> None:
    world.has_open(1, at=100)
    abort_hanging(cluster, open_transaction_at(cluster, ("t", 1), 100))
    (request,) = world.broker.requests(WriteTxnMarkersRequest)
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, False)
    assert marker.coordinator_epoch == 0, "the partition has seen none, which it says as -1"
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", [1])]


def test_one_that_the_coordinator_knows_is_not_torn_apart(world: World, cluster: Cluster) -> None:
    world.has_open(0, at=100)
    world.knows("a", "Ongoing", 0)
    with pytest.raises(TransactionNotHangingError, match=r"it belongs to 'a', and broker 1 at .* knows it as Ongoing"):
        abort_hanging(cluster, open_transaction_at(cluster, ("t", 0), 100))
    assert world.broker.requests(WriteTxnMarkersRequest) == []


@pytest.mark.parametrize("code", [6, 47, 52])
def test_a_refused_marker_is_an_error_and_not_sent_again(world: World, cluster: Cluster, code: int) -> None:
    world.has_open(0, at=100)
    world.marker_code = code
    with pytest.raises(Refused, match="writing the abort marker to t-0 failed") as refusal:
        abort_hanging(cluster, open_transaction_at(cluster, ("t", 0), 100))
    assert refusal.value.code == code
    assert len(world.broker.requests(WriteTxnMarkersRequest)) == 1


def test_a_marker_without_an_answer_is_not_sent_again(world: World, cluster: Cluster) -> None:
    world.has_open(0, at=100)

    def hang_up(_: Any) -> WriteTxnMarkersResponse:
        raise HangUp

    world.broker.on(WriteTxnMarkersRequest, hang_up)
    with pytest.raises(NoAnswer):
        abort_hanging(cluster, open_transaction_at(cluster, ("t", 0), 100))
    assert len(world.broker.requests(WriteTxnMarkersRequest)) == 1


def converse(world: World, *script: int | str) -> list[int | str]:
    """Answers InitProducerId with the numbers and DescribeTransactions with the states, which have to come in turn."""
    left = list(script)

    def take(kind: type) -> Any:
        assert isinstance(left[0], kind), f"the client asks for another thing than {left[0]!r}"
        return left.pop(0)

    def init(_: Any) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=take(int), producer_id=7, producer_epoch=5)

    def describe(request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        world.knows("a", take(str), transaction_timeout_ms=1234)
        return world._describe(request)

    world.broker.on(InitProducerIdRequest, init)
    world.broker.on(DescribeTransactionsRequest, describe)
    return left


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ([51, "Ongoing", "PrepareAbort", "CompleteAbort", 0], "CompleteAbort"),
        ([51, "PrepareEpochFence", "CompleteAbort", 51, "CompleteAbort", 16, "CompleteAbort", 0], "CompleteAbort"),
        ([51, "PrepareCommit", "CompleteCommit", 0], "CompleteCommit"),
        ([51, "CompleteCommit", 51, "PrepareAbort", "CompleteAbort", 0], "CompleteAbort"),
        ([51, "Empty", 0], None),
        ([0], None),
    ],
)
def test_fencing_goes_on_until_the_transaction_ended_and_says_how(
    world: World, cluster: Cluster, script: list[int | str], ended: str | None
) -> None:
    left = converse(world, "Ongoing", *script)
    fenced = fence_producer(cluster, describe_transaction(cluster, "a"))
    assert left == []
    assert (fenced.ended, fenced.producer_id, fenced.producer_epoch) == (ended, 7, 5)
    wish = InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=1234, producer_id=-1, producer_epoch=-1)
    asked = world.broker.requests(InitProducerIdRequest)
    assert all(request == wish for request in asked), "the id keeps its timeout, and nobody's epoch is claimed"


def test_fencing_gives_up_in_the_end(world: World, cluster: Cluster) -> None:
    world.knows("a", "PrepareAbort", 0, transaction_timeout_ms=1234)
    world.broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(error_code=51))
    with pytest.raises(Refused, match="concurrent transactions"):
        fence_producer(cluster, describe_transaction(cluster, "a"), patience_s=0.1)


def test_fencing_that_is_not_allowed_is_tried_once(world: World, cluster: Cluster) -> None:
    world.knows("a", "Ongoing", 0)
    world.broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(error_code=53))
    with pytest.raises(Refused, match="authorization failed"):
        fence_producer(cluster, describe_transaction(cluster, "a"))
    assert len(world.broker.requests(InitProducerIdRequest)) == 1


def configs(*settings: tuple[str, str | None]) -> DescribeConfigsResponse:
    shown = [DescribeConfigsResourceResult(name=name, value=value) for name, value in settings]
    return DescribeConfigsResponse(results=[DescribeConfigsResult(configs=shown)])


def test_the_longest_timeout_is_the_brokers_setting(world: World, cluster: Cluster) -> None:
    world.broker.on(DescribeConfigsRequest, lambda _: configs(("transaction.max.timeout.ms", "900000")))
    assert max_timeout_ms(cluster) == 900_000


@pytest.mark.parametrize("answer", [configs(), configs(("transaction.max.timeout.ms", None))])
def test_a_broker_that_does_not_tell_it_leads_to_the_option(
    world: World, cluster: Cluster, answer: DescribeConfigsResponse
) -> None:
    world.broker.on(DescribeConfigsRequest, lambda _: answer)
    with pytest.raises(ClientError, match="say how old is too old with --older-than"):
        max_timeout_ms(cluster)
