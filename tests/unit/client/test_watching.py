"""Looking at a cluster: how few questions it takes, and what is left out when one of them is not answered."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from onceflow.client.problems import ClientError
from onceflow.client.settings import ClientSettings
from onceflow.client.watch_transactions import EndedTransactions
from onceflow.client.watching import ClusterWatch
from onceflow.errors import ErrorCode
from onceflow.monitor.micro_batches import PROGRESS_TOPIC
from onceflow.monitor.snapshot import Transaction
from onceflow.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from onceflow.wire.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from onceflow.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from onceflow.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from onceflow.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicResponse,
)
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from onceflow.wire.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from onceflow.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.messages.list_transactions import TransactionState as Listed
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from onceflow.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent, impatient_with

GROUPS = {"old": "classic", "new": "consumer", "shared": "share"}
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class Cluster(FakeBroker):
    """One broker with a topic of 1,000 partitions, all at offset 10; and another one that is named, if it is."""

    def __init__(self) -> None:
        super().__init__()
        self.topics = {"wide": 1000}
        self.away: int | None = None
        self.on(MetadataRequest, self._all_metadata)
        self.on(ListOffsetsRequest, self._offsets)
        self.on(DescribeLogDirsRequest, lambda _: DescribeLogDirsResponse(results=[]))
        self.on(DescribeProducersRequest, self._producers)
        self.on(ListTransactionsRequest, self._listed)
        self.on(DescribeTransactionsRequest, self._transactions)
        self.on(ListGroupsRequest, self._groups)
        self.on(DescribeGroupsRequest, self._classic)
        self.on(ConsumerGroupDescribeRequest, self._consumer)
        self.on(OffsetFetchRequest, self._committed)

    def _all_metadata(self, request: MetadataRequest) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=1, host=self.address.host, port=self.address.port)]
        if self.away is not None:
            brokers.append(MetadataResponseBroker(node_id=2, host="127.0.0.1", port=self.away))
        names = self.topics if request.topics is None else []
        return MetadataResponse(
            cluster_id="fake",
            brokers=brokers,
            topics=[
                MetadataResponseTopic(name=name, partitions=[_led(each) for each in range(self.topics[name])])
                for name in names
            ],
        )

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=each.partition_index, offset=0 if each.timestamp == -2 else 10
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _producers(self, request: DescribeProducersRequest) -> DescribeProducersResponse:
        return DescribeProducersResponse(
            topics=[
                TopicResponse(
                    name=each.name, partitions=[PartitionResponse(partition_index=n) for n in each.partition_indexes]
                )
                for each in request.topics
            ]
        )

    def _listed(self, _: Any) -> ListTransactionsResponse:
        ids = [f"t{number}" for number in range(600)]
        states = [Listed(transactional_id=each, producer_id=1, transaction_state="Empty") for each in ids]
        return ListTransactionsResponse(transaction_states=states)

    def _transactions(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(transactional_id=each, transaction_state="Empty", transaction_start_time_ms=-1)
                for each in request.transactional_ids
            ]
        )

    def _groups(self, _: Any) -> ListGroupsResponse:
        return ListGroupsResponse(
            groups=[
                ListedGroup(group_id=name, protocol_type="consumer", group_type=kind) for name, kind in GROUPS.items()
            ]
        )

    def _classic(self, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[DescribedGroup(group_id=each, group_state="Empty") for each in request.groups]
        )

    def _consumer(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        return ConsumerGroupDescribeResponse(
            groups=[ConsumerGroup(group_id=each, group_state="Empty") for each in request.group_ids]
        )

    def _committed(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=each.group_id) for each in request.groups])


def _led(index: int) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1], isr_nodes=[1])


@pytest.fixture
def broker() -> Iterator[Cluster]:
    with Cluster() as broker:
        yield broker


@pytest.fixture
def watch(broker: Cluster) -> Iterator[ClusterWatch]:
    with closing(ClusterWatch(broker.settings(timeout_s=10))) as watch:
        yield watch


# --- questions


def test_a_thousand_partitions_take_a_handful_of_requests(broker: Cluster, watch: ClusterWatch) -> None:
    snapshot = watch.take()
    assert len(snapshot.partitions) == 1000
    assert len(snapshot.transactions) == 600
    assert {each.group_id: each.protocol for each in snapshot.groups} == {"old": "classic", "new": "consumer"}
    asked = Counter(type(request).__name__.removesuffix("Request") for request, _ in broker.seen)
    assert asked == {
        "Metadata": 2,
        "ListOffsets": 3,
        "DescribeLogDirs": 1,
        "DescribeProducers": 2,
        "ListTransactions": 1,
        "DescribeTransactions": 2,
        "ListGroups": 1,
        "DescribeGroups": 1,
        "ConsumerGroupDescribe": 1,
        "OffsetFetch": 1,
    }
    assert (snapshot.notes, snapshot.truncated) == ((), False)


def test_what_is_too_much_is_left_out_and_said_to_be(broker: Cluster, watch: ClusterWatch) -> None:
    broker.topics = {"wide": 5001}
    snapshot = watch.take()
    assert (len(snapshot.partitions), snapshot.truncated) == (5000, True)


@pytest.mark.parametrize(
    ("request_class", "refusal", "left_out"),
    [
        (DescribeLogDirsRequest, DescribeLogDirsResponse(error_code=DENIED), "the sizes of partitions are left out"),
        (ListTransactionsRequest, ListTransactionsResponse(error_code=DENIED), "transactions are left out"),
        (ListGroupsRequest, ListGroupsResponse(error_code=DENIED), "groups are left out"),
    ],
)
def test_what_is_not_allowed_is_left_out_with_a_note(
    broker: Cluster, watch: ClusterWatch, request_class: Any, refusal: Any, left_out: str
) -> None:
    broker.on(request_class, lambda _: refusal)
    snapshot = watch.take()
    [note] = snapshot.notes
    assert note.startswith(left_out)
    assert "cluster authorization failed" in note
    assert len(snapshot.partitions) == 1000


def test_refusals_of_many_topics_are_one_note(broker: Cluster, watch: ClusterWatch) -> None:
    broker.topics = {f"t{number}": 2 for number in range(30)}

    def deny(request: DescribeProducersRequest) -> DescribeProducersResponse:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return DescribeProducersResponse(
            topics=[
                TopicResponse(name=each.name, partitions=[PartitionResponse(partition_index=0, error_code=code)])
                for each in request.topics
            ]
        )

    broker.on(DescribeProducersRequest, deny)
    assert watch.take().notes == (
        "the producers of t0 and 29 more are left out: topic authorization failed (error 29)",
    )


def test_an_api_that_an_old_broker_lacks_is_left_out_with_a_note(broker: Cluster, watch: ClusterWatch) -> None:
    for request in (DescribeProducersRequest, ListTransactionsRequest):
        assert request.API_KEY is not None
        del broker.versions[request.API_KEY]
    snapshot = watch.take()
    assert [note.partition(" are left out: ")[0] for note in snapshot.notes] == ["producers", "transactions"]
    assert len(snapshot.groups) == 2


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading"),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, "unavailable"),
    ],
)
def test_a_coordinator_in_trouble_says_which(broker: Cluster, watch: ClusterWatch, code: ErrorCode, state: str) -> None:
    broker.on(ListTransactionsRequest, lambda _: ListTransactionsResponse(error_code=code))
    assert [each.state for each in watch.take().coordinators] == [state, "active"]


def test_a_coordinator_whose_topic_has_no_leader_is_unavailable(broker: Cluster, watch: ClusterWatch) -> None:
    def without_leader(request: MetadataRequest) -> MetadataResponse:
        answer = broker._all_metadata(request)
        lost = [_led(0), MetadataResponsePartition(partition_index=1, leader_id=-1)]
        answer.topics.append(MetadataResponseTopic(name="__transaction_state", is_internal=True, partitions=lost))
        return answer

    broker.on(MetadataRequest, without_leader)
    snapshot = watch.take()
    transaction = snapshot.coordinators[0]
    assert (transaction.state, transaction.partitions) == ("unavailable", 2)
    assert transaction.note.startswith("1 of the 2 partitions")
    assert snapshot.notes == ("1 partitions have no leader, and are left out",)


def test_one_broker_that_is_away_is_asked_once_and_left_out(
    broker: Cluster, watch: ClusterWatch, unused_port: int
) -> None:
    broker.away = unused_port
    snapshot = watch.take()
    [note] = snapshot.notes
    assert note.startswith("broker 2 is left out: cannot reach the broker at")
    assert len(snapshot.partitions) == 1000


@pytest.fixture
def unused_port() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def test_a_cluster_that_is_away_is_an_error(unused_port: int) -> None:
    watch = ClusterWatch(ClientSettings(bootstrap=f"127.0.0.1:{unused_port}"))
    with closing(watch), pytest.raises(ClientError, match="nobody listens there"):
        watch.take()


@pytest.mark.parametrize("request_class", [MetadataRequest, ListGroupsRequest])
def test_a_connection_that_ended_between_two_looks_is_made_anew(
    broker: Cluster, watch: ClusterWatch, request_class: Any
) -> None:
    before = watch.take()
    answer, ends = broker._answers[request_class], iter([True])

    def hang_up_once(request: Any) -> Any:
        if next(ends, False):
            raise HangUp
        return answer(request)

    broker.on(request_class, hang_up_once)
    after = watch.take()
    assert (after.partitions, after.groups, after.notes) == (before.partitions, before.groups, ())


def test_a_broker_that_keeps_silent_is_not_asked_for_the_rest(broker: Cluster) -> None:
    def keep_silent(_: Any) -> Any:
        raise KeepSilent

    broker.on(ListTransactionsRequest, keep_silent)
    with impatient_with(broker, ListTransactionsRequest), closing(ClusterWatch(broker.settings())) as watch:
        snapshot = watch.take()
    assert snapshot.notes == (f"broker 1 is left out: the broker at {broker.address} did not answer within 0.2 s",)
    assert (len(snapshot.partitions), snapshot.groups, broker.requests(ListGroupsRequest)) == (1000, (), [])


# --- progress


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (PartitionData(records=b"x" * 100), "some micro-batches are left out: "),
        (PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), "micro-batches are left out: "),
        (None, "micro-batches are left out: "),  # so a broker answers whose quota for us is used up
    ],
)
def test_progress_that_cannot_be_read_is_left_out_and_the_broker_is_not(
    broker: Cluster, watch: ClusterWatch, answer: PartitionData | None, note: str
) -> None:
    broker.topics = {PROGRESS_TOPIC: 1, "__transaction_state": 1}
    answers = [] if answer is None else [FetchableTopicResponse(topic=PROGRESS_TOPIC, partitions=[answer])]
    broker.on(FetchRequest, lambda _: FetchResponse(responses=answers))
    snapshot = watch.take()
    [said] = snapshot.notes
    assert said.startswith(note)
    assert [each.state for each in snapshot.coordinators] == ["active", "active"]


# --- ends


def transaction(state: str, epoch: int = 0, started_ms: int | None = 1, producer_id: int = 7) -> Transaction:
    return Transaction(transactional_id="t", producer_id=producer_id, epoch=epoch, state=state, started_ms=started_ms)


def counted(*takes: Transaction, v2: bool) -> tuple[int, int]:
    ended = EndedTransactions()
    for number, each in enumerate(takes):
        ended.compare([each], 1000 + number, each_end_bumps=v2)
    return ended.commits, ended.aborts


@pytest.mark.parametrize(
    ("takes", "v2", "expected"),
    [
        ([transaction("CompleteCommit")], True, (0, 0)),
        ([transaction("CompleteCommit"), transaction("CompleteCommit")], True, (0, 0)),
        ([transaction("Ongoing"), transaction("CompleteCommit")], False, (1, 0)),
        ([transaction("Ongoing"), transaction("CompleteAbort", 1)], True, (0, 1)),
        ([transaction("Ongoing"), transaction("PrepareCommit", 1), transaction("CompleteCommit", 1)], True, (1, 0)),
        ([transaction("Ongoing"), transaction("Ongoing")], True, (0, 0)),
        ([transaction("Ongoing"), transaction("Ongoing", started_ms=2)], False, (1, 0)),
        ([transaction("CompleteCommit"), transaction("CompleteCommit", started_ms=2)], False, (1, 0)),
        ([transaction("CompleteCommit"), transaction("CompleteAbort", 5, 2)], True, (4, 1)),
        ([transaction("CompleteCommit"), transaction("Ongoing", 3, 2)], True, (3, 0)),
        ([transaction("CompleteCommit"), transaction("Ongoing", 0, 2)], False, (0, 0)),
        ([transaction("CompleteCommit"), transaction("PrepareAbort", 2, 2)], True, (1, 0)),
        ([transaction("PrepareCommit", 1), transaction("CompleteCommit", 3, 2)], True, (3, 0)),
        ([transaction("CompleteCommit"), transaction("Empty", 1, None)], True, (0, 0)),
        ([transaction("CompleteCommit", 9), transaction("CompleteCommit", 0, 2, 8)], True, (1, 0)),
    ],
)
def test_ends_are_counted_by_comparing(takes: list[Transaction], v2: bool, expected: tuple[int, int]) -> None:
    assert counted(*takes, v2=v2) == expected


def test_a_transactional_id_that_is_new_since_the_last_look_counts() -> None:
    ended = EndedTransactions()
    ended.compare([], 1000, each_end_bumps=True)
    ended.compare([transaction("CompleteAbort")], 1001, each_end_bumps=True)
    assert (ended.commits, ended.aborts) == (0, 1)


def test_when_a_transactional_id_changed_is_known_from_the_second_look_on() -> None:
    ended = EndedTransactions()
    looks = [transaction("Empty"), transaction("Ongoing"), transaction("Ongoing")]
    found = [ended.compare([each], 1000 + n, each_end_bumps=True)[0].updated_ms for n, each in enumerate(looks)]
    assert found == [None, 1001, 1001]
