"""A shared transaction against a scripted coordinator: what is asked again, and what each answer means."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.client import shared_transaction as module
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.connection import NoAnswer
from onceflow.client.problems import NoBrokerReachable
from onceflow.client.shared_transaction import (
    Fenced,
    MustAbort,
    OutcomeUnknown,
    SharedTransaction,
    Ticket,
    TransactionsMissing,
)
from onceflow.errors import ErrorCode
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from onceflow.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from onceflow.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from onceflow.wire.messages.produce import ProduceRequest
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from onceflow.wire.schema import Message
from tests.unit.client.fake_broker import FakeBroker, HangUp, KeepSilent, impatient_with

ORDERS = ("orders", 0)
V1, V2 = 1, 2
Reply = int | Exception


class Coordinator:
    """Hands out producer id 7 and epochs; `next` scripts what comes before that: codes, or what is raised."""

    def __init__(self, broker: FakeBroker) -> None:
        self.epoch = -1
        self.next: dict[type[Message], list[Reply]] = {}
        broker.features["transaction.version"] = 2
        broker.on(InitProducerIdRequest, self._init)
        broker.on(EndTxnRequest, self._end)
        broker.on(AddPartitionsToTxnRequest, self._add)
        broker.on(AddOffsetsToTxnRequest, lambda _: AddOffsetsToTxnResponse(error_code=self._code(_)))
        broker.on(TxnOffsetCommitRequest, self._offsets)

    def script(self, request: type[Message], *replies: Reply) -> None:
        self.next[request] = list(replies)

    def _code(self, request: Message) -> int:
        replies = self.next.get(type(request), [])
        reply = replies.pop(0) if replies else 0
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _init(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        if code := self._code(request):
            return InitProducerIdResponse(error_code=code)
        self.epoch += 1
        return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)

    def _end(self, request: EndTxnRequest) -> EndTxnResponse:
        if code := self._code(request):
            return EndTxnResponse(error_code=code)
        return EndTxnResponse(producer_id=7, producer_epoch=request.producer_epoch + 1)

    def _add(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, partition_error_code=self._code(request)
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in request.v3_and_below_topics
            ]
        )

    def _offsets(self, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=each.partition_index, error_code=self._code(request)
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def coordinator(broker: FakeBroker) -> Coordinator:
    return Coordinator(broker)


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(broker.settings()) as cluster:
        yield cluster


def owner(cluster: Cluster, version: int | None = None, *, patience_s: float = 5) -> SharedTransaction:
    return SharedTransaction(cluster, "app", timeout_ms=1000, patience_s=patience_s, version=version)


@pytest.fixture
def first(cluster: Cluster, coordinator: Coordinator) -> SharedTransaction:
    """Of the classic protocol."""
    transaction = owner(cluster, V1)
    transaction.fence()
    return transaction


@pytest.fixture
def second(cluster: Cluster, coordinator: Coordinator) -> SharedTransaction:
    """Of the protocol of KIP-890."""
    transaction = owner(cluster)
    transaction.fence()
    return transaction


def versions(broker: FakeBroker, request: type[Message]) -> list[int]:
    return [version for each, version in broker.seen if isinstance(each, request)]


# --- which protocol


def test_a_cluster_with_the_second_protocol_gets_it(second: SharedTransaction) -> None:
    assert second.ticket == Ticket("app", 7, 0, V2)
    assert second.ticket.produce_version_max == 12


@pytest.mark.parametrize("missing", ["feature", EndTxnRequest, ProduceRequest, TxnOffsetCommitRequest], ids=str)
def test_a_cluster_without_all_of_the_second_protocol_gets_the_first(
    broker: FakeBroker, coordinator: Coordinator, cluster: Cluster, missing: str | type[Message]
) -> None:
    newest: dict[object, int] = {EndTxnRequest: 4, ProduceRequest: 11, TxnOffsetCommitRequest: 4}
    if isinstance(missing, str):
        broker.features["transaction.version"] = 1
    else:
        assert missing.API_KEY is not None
        broker.versions[missing.API_KEY] = (0, newest[missing])
    ticket = owner(cluster).fence()
    assert (ticket.version, ticket.produce_version_max) == (V1, 11)


@pytest.mark.parametrize(
    "missing", [InitProducerIdRequest, EndTxnRequest, AddPartitionsToTxnRequest, TxnOffsetCommitRequest]
)
def test_a_broker_without_transactions_is_named(
    broker: FakeBroker, coordinator: Coordinator, cluster: Cluster, missing: type[Message]
) -> None:
    assert missing.API_KEY is not None
    del broker.versions[missing.API_KEY]
    with pytest.raises(TransactionsMissing, match=f"broker at {broker.address} has no transactions"):
        owner(cluster).fence()
    assert broker.requests(InitProducerIdRequest) == []


def test_each_protocol_uses_its_own_versions(
    broker: FakeBroker, first: SharedTransaction, second: SharedTransaction
) -> None:
    for transaction in (first, second):
        transaction.add_partitions([ORDERS])
        transaction.commit_offsets("app", {ORDERS: 1})
        transaction.commit()
    assert versions(broker, EndTxnRequest) == [4, 5]
    assert versions(broker, TxnOffsetCommitRequest) == [4, 5]
    assert versions(broker, AddPartitionsToTxnRequest) == [3]
    assert len(broker.requests(AddOffsetsToTxnRequest)) == 1


# --- fencing


def test_only_the_fence_asks_without_saying_who_we_are(broker: FakeBroker, first: SharedTransaction) -> None:
    first.add_partitions([ORDERS])
    first.commit()
    first.renew()
    asked = [(each.producer_id, each.producer_epoch) for each in broker.requests(InitProducerIdRequest)]
    assert asked == [(-1, -1), (7, 0)]
    assert first.ticket.epoch == 1


@pytest.mark.parametrize(
    "reply",
    [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, HangUp(), KeepSilent()],
    ids=str,
)
def test_a_fence_waits_while_the_former_transaction_ends(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator, reply: Reply
) -> None:
    coordinator.script(InitProducerIdRequest, reply, reply)
    times = 2 if isinstance(reply, KeepSilent) else 0
    with impatient_with(broker, InitProducerIdRequest, times=times):
        assert owner(cluster, patience_s=30).fence().epoch == 0


def test_a_fence_waits_for_a_broker_that_restarts(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = cluster.any_broker, iter(range(100))

    def gone_at_first() -> object:
        if next(calls) < 3:
            raise NoBrokerReachable("cannot reach a broker at any address")
        return real()

    monkeypatch.setattr(cluster, "any_broker", gone_at_first)
    assert owner(cluster).fence().epoch == 0


def test_a_moved_coordinator_is_looked_up_again(
    broker: FakeBroker, second: SharedTransaction, coordinator: Coordinator
) -> None:
    before = len(broker.requests(FindCoordinatorRequest))
    coordinator.script(EndTxnRequest, ErrorCode.NOT_COORDINATOR)
    second.commit()
    assert len(broker.requests(FindCoordinatorRequest)) == before + 1


# --- ends


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_that_is_not_answered_is_asked_again_with_the_same_epoch(
    broker: FakeBroker, second: SharedTransaction, coordinator: Coordinator, end: str
) -> None:
    coordinator.script(EndTxnRequest, HangUp(), ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR)
    getattr(second, end)()
    asked = [(each.producer_id, each.producer_epoch, each.committed) for each in broker.requests(EndTxnRequest)]
    assert asked == [(7, 0, end == "commit")] * 4
    assert second.ticket.epoch == 1


@pytest.mark.parametrize(
    "reply",
    [HangUp(), ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR],
    ids=str,
)
def test_a_commit_that_is_not_answered_clearly_in_time_has_an_unknown_outcome(
    cluster: Cluster, coordinator: Coordinator, reply: Reply
) -> None:
    transaction = owner(cluster, patience_s=0.1)
    transaction.fence()
    coordinator.script(EndTxnRequest, *[reply] * 1000)
    with pytest.raises(OutcomeUnknown):
        transaction.commit()


def test_a_coordinator_that_cannot_be_reached_leaves_the_outcome_unknown(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator
) -> None:
    transaction = owner(cluster, patience_s=0.1)
    transaction.fence()
    cluster.close()
    broker._server.shutdown()
    broker._server.server_close()
    with pytest.raises(OutcomeUnknown, match="cannot reach"):
        transaction.commit()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    ],
)
def test_a_commit_that_is_refused_at_once_was_not_done(
    broker: FakeBroker, second: SharedTransaction, coordinator: Coordinator, code: int
) -> None:
    coordinator.script(EndTxnRequest, code)
    with pytest.raises(Fenced) as refused:
        second.commit()
    assert refused.value.code == code
    assert len(broker.requests(EndTxnRequest)) == 1


@pytest.mark.parametrize("doubt", [HangUp(), ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR], ids=str)
def test_a_commit_that_may_have_been_done_is_not_called_refused(
    second: SharedTransaction, coordinator: Coordinator, doubt: Reply
) -> None:
    coordinator.script(EndTxnRequest, doubt, ErrorCode.PRODUCER_FENCED)
    with pytest.raises(OutcomeUnknown):
        second.commit()


def test_a_commit_that_certainly_was_not_begun_is_fenced_even_if_it_was_repeated(
    second: SharedTransaction, coordinator: Coordinator
) -> None:
    coordinator.script(EndTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED)
    with pytest.raises(Fenced):
        second.commit()


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_end_that_asks_for_an_abort_is_no_fence(second: SharedTransaction, coordinator: Coordinator, end: str) -> None:
    coordinator.script(EndTxnRequest, ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(MustAbort, match="asks to abort the transaction"):
        getattr(second, end)()
    second.abort()
    assert second.ticket.epoch == 1


def test_commit_that_may_have_been_done_is_not_called_abortable(
    second: SharedTransaction, coordinator: Coordinator
) -> None:
    coordinator.script(EndTxnRequest, HangUp(), ErrorCode.TRANSACTION_ABORTABLE)
    with pytest.raises(OutcomeUnknown):
        second.commit()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.PRODUCER_FENCED, "belongs to somebody else or is over"),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, "transactional.id.expiration.ms"),
        (ErrorCode.UNKNOWN_PRODUCER_ID, "producer.id.expiration.ms"),
        (ErrorCode.INVALID_TXN_STATE, "there is no transaction in which that could be done"),
    ],
)
def test_each_way_for_a_transaction_to_be_over_has_a_sentence(
    second: SharedTransaction, coordinator: Coordinator, code: ErrorCode, words: str
) -> None:
    coordinator.script(TxnOffsetCommitRequest, code)
    with pytest.raises(Fenced, match=words) as refused:
        second.commit_offsets("app", {ORDERS: 1})
    assert refused.value.code == code


def test_owner_that_was_refused_reclaims_the_id_as_itself(
    broker: FakeBroker, second: SharedTransaction, coordinator: Coordinator
) -> None:
    assert second.reclaim().epoch == 1
    coordinator.script(InitProducerIdRequest, ErrorCode.PRODUCER_FENCED)
    with pytest.raises(Fenced):
        second.reclaim()
    asked = [(each.producer_id, each.producer_epoch) for each in broker.requests(InitProducerIdRequest)]
    assert asked == [(-1, -1), (7, 0), (7, 1)]


def test_other_refusals_of_a_commit_are_refusals(second: SharedTransaction, coordinator: Coordinator) -> None:
    coordinator.script(EndTxnRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(Refused) as refused:
        second.commit()
    assert refused.value.code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_commit_that_was_done_does_not_fail_for_want_of_the_next_epoch(
    cluster: Cluster, coordinator: Coordinator
) -> None:
    """Whoever is told that a commit failed writes the batch again."""
    transaction = owner(cluster, V1, patience_s=0.05)
    transaction.fence()
    transaction.add_partitions([ORDERS])
    coordinator.script(InitProducerIdRequest, *[HangUp()] * 1000)
    transaction.commit()
    with pytest.raises(NoAnswer):
        _ = transaction.ticket
    coordinator.script(InitProducerIdRequest)
    assert transaction.ticket.epoch == 1


def test_an_abort_between_a_commit_and_the_next_epoch_ends_nothing(
    broker: FakeBroker, first: SharedTransaction
) -> None:
    first.add_partitions([ORDERS])
    first.commit()
    first.abort()
    assert [each.committed for each in broker.requests(EndTxnRequest)] == [True]


def test_the_abort_of_a_classic_transaction_that_nobody_began_asks_for_the_next_epoch_only(
    broker: FakeBroker, first: SharedTransaction
) -> None:
    first.abort()
    assert first.ticket.epoch == 1
    assert broker.requests(EndTxnRequest) == []


def test_the_abort_after_an_unanswered_add_ends_the_transaction_if_there_is_one(
    broker: FakeBroker, cluster: Cluster, coordinator: Coordinator
) -> None:
    transaction = owner(cluster, V1, patience_s=0.05)
    transaction.fence()
    coordinator.script(AddPartitionsToTxnRequest, *[HangUp()] * 1000)
    with pytest.raises(NoAnswer):
        transaction.add_partitions([ORDERS])
    coordinator.script(EndTxnRequest, ErrorCode.INVALID_TXN_STATE)  # there was none
    transaction.abort()
    assert [each.committed for each in broker.requests(EndTxnRequest)] == [False]
    assert transaction.ticket.epoch == 1


# --- adding


def test_partitions_are_added_once_per_transaction(broker: FakeBroker, first: SharedTransaction) -> None:
    for _ in range(2):
        first.add_partitions([ORDERS])
        first.add_partitions([ORDERS, ("orders", 1)])
        first.abort()
    added = [
        (each.v3_and_below_producer_epoch, each.v3_and_below_topics[0].partitions)
        for each in broker.requests(AddPartitionsToTxnRequest)
    ]
    assert added == [(0, [0]), (0, [1]), (1, [0]), (1, [1])]


def test_the_reason_is_told_and_not_that_others_were_not_attempted(
    first: SharedTransaction, coordinator: Coordinator
) -> None:
    coordinator.script(
        AddPartitionsToTxnRequest, ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    with pytest.raises(Refused, match="partition 1 of 'orders'") as refused:
        first.add_partitions([ORDERS, ("orders", 1)])
    assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_partition_that_is_news_to_the_coordinator_is_added_when_it_has_heard_of_it(
    first: SharedTransaction, coordinator: Coordinator
) -> None:
    coordinator.script(AddPartitionsToTxnRequest, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    first.add_partitions([ORDERS])


def test_a_partition_that_stays_unknown_is_refused_before_patience_is_over(
    first: SharedTransaction, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MISSING_PATIENCE_S", 0.05)
    coordinator.script(AddPartitionsToTxnRequest, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
    with pytest.raises(Refused) as refused:
        first.add_partitions([ORDERS])
    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_whoever_comes_with_the_ticket_of_an_ended_transaction_begins_nothing(
    broker: FakeBroker, first: SharedTransaction, second: SharedTransaction
) -> None:
    for transaction in (first, second):
        old = transaction.ticket
        transaction.abort()
        with pytest.raises(Fenced):
            transaction.add_partitions([ORDERS], ticket=old)
        transaction.add_partitions([ORDERS], ticket=transaction.ticket)
    assert len(broker.requests(AddPartitionsToTxnRequest)) == 1


# --- offsets


def test_each_group_has_its_own_coordinator(broker: FakeBroker, second: SharedTransaction) -> None:
    for group in ("a", "b", "a"):
        second.commit_offsets(group, {ORDERS: 1})
    keys = [key for each in broker.requests(FindCoordinatorRequest) for key in each.coordinator_keys]
    assert keys == ["app", "a", "b"]


def test_no_offsets_are_no_request(broker: FakeBroker, second: SharedTransaction) -> None:
    second.commit_offsets("a", {})
    assert broker.requests(TxnOffsetCommitRequest) == []


@pytest.mark.parametrize("version", [V1, V2])
def test_offsets_of_an_owner_that_was_fenced_are_refused(
    cluster: Cluster, coordinator: Coordinator, version: int
) -> None:
    transaction = owner(cluster, version)
    transaction.fence()
    coordinator.script(TxnOffsetCommitRequest, ErrorCode.INVALID_PRODUCER_EPOCH)
    with pytest.raises(Fenced):
        transaction.commit_offsets("app", {ORDERS: 1})


def test_a_ticket_before_the_fence_is_a_mistake(cluster: Cluster) -> None:
    attempts: list[Callable[[], object]] = [lambda: owner(cluster).ticket, owner(cluster).commit, owner(cluster).renew]
    for attempt in attempts:
        with pytest.raises(AssertionError, match="fence comes first"):
            attempt()
