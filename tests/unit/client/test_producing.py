"""Batches to leaders: what is sent again, what is given up at once, and what when time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.client import producing as module
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.producing import DeliveryTimedOut, Producing, WriteRefused
from onceflow.errors import ErrorCode
from onceflow.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from onceflow.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.raw import batch
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent

ORDERS = ("orders", 0)
DATA = batch("a", producer=(7, 0), transactional=True)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics["orders"] = 2
        yield broker


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(broker.settings(timeout_s=10.0)) as cluster:
        yield cluster


def producing(cluster: Cluster, *, timeout_s: float = 10, version_max: int = 12) -> Producing:
    return Producing(cluster, transactional_id="app", version_max=version_max, delivery_timeout_s=timeout_s)


def acknowledged(request: ProduceRequest, code: int = 0, offset: int = 5) -> ProduceResponse:
    """The same answer for every partition."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=each.index, error_code=code, base_offset=-1 if code else offset)
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


class Script:
    """One answer after the other: a code, or what is raised instead; success when there is none left."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)

    def __call__(self, request: ProduceRequest) -> ProduceResponse:
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, Exception):
            raise answer
        return acknowledged(request, answer)


def test_batches_go_out_as_they_are_and_their_offsets_come_back(broker: FakeBroker, cluster: Cluster) -> None:
    broker.on(ProduceRequest, Script())
    sent = {ORDERS: DATA, ("orders", 1): batch("b")}
    assert producing(cluster, version_max=11).send(sent) == {ORDERS: 5, ("orders", 1): 5}
    [(request, version)] = [each for each in broker.seen if isinstance(each[0], ProduceRequest)]
    assert (version, request.transactional_id, request.acks) == (11, "app", -1)
    assert [bytes(each.records) for each in request.topic_data[0].partition_data] == list(sent.values())


@pytest.mark.parametrize(
    "answer",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        HangUp(),
    ],
    ids=str,
)
def test_the_same_bytes_are_sent_again_while_the_outcome_is_not_known(
    broker: FakeBroker, cluster: Cluster, answer: int | Exception
) -> None:
    broker.on(ProduceRequest, Script(answer, answer, answer))
    assert producing(cluster).send({ORDERS: DATA}) == {ORDERS: 5}
    sent = [bytes(each.topic_data[0].partition_data[0].records) for each in broker.requests(ProduceRequest)]
    assert sent == [DATA] * 4


def test_only_what_was_not_acknowledged_is_sent_again(broker: FakeBroker, cluster: Cluster) -> None:
    def first_refuses_one(request: ProduceRequest) -> ProduceResponse:
        answer = acknowledged(request)
        if len(request.topic_data[0].partition_data) == 1:
            return answer
        good, bad = answer.responses[0].partition_responses
        again = PartitionProduceResponse(index=bad.index, error_code=ErrorCode.NOT_ENOUGH_REPLICAS, base_offset=-1)
        return ProduceResponse(responses=[TopicProduceResponse(name="orders", partition_responses=[good, again])])

    broker.on(ProduceRequest, first_refuses_one)
    assert producing(cluster).send({ORDERS: DATA, ("orders", 1): DATA}) == {ORDERS: 5, ("orders", 1): 5}
    sent = [[each.index for each in one.topic_data[0].partition_data] for one in broker.requests(ProduceRequest)]
    assert sent == [[0, 1], [1]]


def test_a_batch_follows_its_partition_to_the_new_leader(broker: FakeBroker, cluster: Cluster) -> None:
    with FakeBroker() as other:
        leader = 1

        def metadata(request: MetadataRequest) -> MetadataResponse:
            return MetadataResponse(
                brokers=[
                    MetadataResponseBroker(node_id=number, host=each.address.host, port=each.address.port)
                    for number, each in ((1, broker), (2, other))
                ],
                topics=[
                    MetadataResponseTopic(
                        name=topic.name, partitions=[MetadataResponsePartition(partition_index=0, leader_id=leader)]
                    )
                    for topic in request.topics or ()
                ],
            )

        def moved(request: ProduceRequest) -> ProduceResponse:
            nonlocal leader
            leader = 2
            return acknowledged(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

        broker.on(MetadataRequest, metadata)
        other.on(MetadataRequest, metadata)
        broker.on(ProduceRequest, moved)
        other.on(ProduceRequest, Script())
        assert producing(cluster).send({ORDERS: DATA}) == {ORDERS: 5}
        [request] = other.requests(ProduceRequest)
        assert bytes(request.topic_data[0].partition_data[0].records) == DATA
        assert len(broker.requests(ProduceRequest)) == 1
        cluster.close()


def test_a_partition_without_a_leader_is_waited_for(broker: FakeBroker, cluster: Cluster) -> None:
    metadata = broker._metadata
    asked = 0

    def without_leader_at_first(request: MetadataRequest) -> MetadataResponse:
        nonlocal asked
        asked += 1
        answer = metadata(request)
        assert isinstance(answer, MetadataResponse)
        if asked > 2:
            return answer
        partitions = [MetadataResponsePartition(partition_index=index, leader_id=-1) for index in (0, 1)]
        return MetadataResponse(
            brokers=answer.brokers, topics=[MetadataResponseTopic(name="orders", partitions=partitions)]
        )

    broker.on(MetadataRequest, without_leader_at_first)
    broker.on(ProduceRequest, Script())
    assert producing(cluster).send({ORDERS: DATA}) == {ORDERS: 5}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        12345,
    ],
    ids=str,
)
def test_what_cannot_succeed_is_refused_at_once(broker: FakeBroker, cluster: Cluster, code: int) -> None:
    broker.on(ProduceRequest, Script(code))
    with pytest.raises(WriteRefused, match="partition 0 of 'orders'") as refused:
        producing(cluster).send({ORDERS: DATA})
    assert (refused.value.topic, refused.value.partition, refused.value.code) == (*ORDERS, code)
    assert len(broker.requests(ProduceRequest)) == 1


@pytest.mark.parametrize("answer", [ErrorCode.NOT_ENOUGH_REPLICAS, HangUp(), KeepSilent()], ids=str)
def test_what_is_not_acknowledged_in_time_is_given_up(
    broker: FakeBroker, cluster: Cluster, answer: int | Exception
) -> None:
    broker.on(ProduceRequest, Script(*[answer] * 1000))
    with pytest.raises(DeliveryTimedOut, match=r"partition 0 of 'orders' .* within 0\.2 s"):
        producing(cluster, timeout_s=0.2).send({ORDERS: DATA})


def test_brokers_that_are_gone_are_waited_for_until_time_is_over(broker: FakeBroker, cluster: Cluster) -> None:
    writer = producing(cluster, timeout_s=0.2)
    assert writer.partition_counts(["orders"]) == [2]
    cluster.close()
    broker._server.shutdown()
    broker._server.server_close()
    with pytest.raises(DeliveryTimedOut, match="cannot reach"):
        writer.send({ORDERS: DATA})


def test_a_topic_that_is_missing_is_refused_after_a_moment(
    broker: FakeBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MISSING_PATIENCE_S", 0.05)
    with pytest.raises(TopicMissingError):
        producing(cluster).send({("nowhere", 0): DATA})
    with pytest.raises(WriteRefused) as refused:
        producing(cluster).send({("orders", 2): DATA})
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.requests(ProduceRequest) == []


def test_a_topic_that_a_broker_has_not_heard_of_yet_is_looked_for_again(broker: FakeBroker, cluster: Cluster) -> None:
    del broker.topics["orders"]
    broker.on(ProduceRequest, Script())
    metadata: Callable[[MetadataRequest], object] = broker._metadata

    def known_from_the_third_time_on(request: MetadataRequest) -> object:
        if len(broker.requests(MetadataRequest)) > 2:
            broker.topics["orders"] = 1
        return metadata(request)

    broker.on(MetadataRequest, known_from_the_third_time_on)  # type: ignore[arg-type]
    assert producing(cluster).send({ORDERS: DATA}) == {ORDERS: 5}


def test_a_look_up_that_is_not_allowed_is_refused_at_once(broker: FakeBroker, cluster: Cluster) -> None:
    denied = MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name="orders")
    broker.on(MetadataRequest, lambda _: MetadataResponse(topics=[denied]))
    with pytest.raises(Refused) as refused:
        producing(cluster).send({ORDERS: DATA})
    assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_an_answer_about_something_else_acknowledges_nothing(broker: FakeBroker, cluster: Cluster) -> None:
    other = TopicProduceResponse(name="others", partition_responses=[PartitionProduceResponse(index=0, base_offset=1)])
    broker.on(ProduceRequest, lambda _: ProduceResponse(responses=[other]))
    with pytest.raises(DeliveryTimedOut):
        producing(cluster, timeout_s=0.1).send({ORDERS: DATA})


def test_the_number_of_partitions_is_asked_for_once(broker: FakeBroker, cluster: Cluster) -> None:
    writer = producing(cluster)
    assert [writer.partition_counts(["orders"]) for _ in range(3)] == [[2], [2], [2]]
    assert len(broker.requests(MetadataRequest)) == 1
