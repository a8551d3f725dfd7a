"""Transactions, as an administrator sees them: list, describe, find hanging ones, abort.

Two places know about a transaction. The *coordinator* of its transactional id knows its state, its timeout and its
partitions, and ends it sooner or later. The *leader* of each partition knows which producers have an open transaction
there, and holds back readers of committed messages until a marker ends it. A transaction **hangs** if a partition has
it open and no coordinator is going to write the marker: readers of that partition are held back for ever.

Whatever changes something is sent once. `NoAnswer` then means that it may have happened; the state can be asked for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from onceflow.client.cluster import NOT_YET, Cluster, Node, Refused, TopicPartition, patiently, refuse
from onceflow.client.problems import ClientError
from onceflow.digits import whole_number_of
from onceflow.errors import ConfigError, ErrorCode
from onceflow.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from onceflow.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.list_transactions import ListTransactionsRequest
from onceflow.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

__all__ = [
    "STATES",
    "Fenced",
    "HangingTransaction",
    "OpenTransaction",
    "Transaction",
    "TransactionListing",
    "TransactionMissingError",
    "TransactionNotHangingError",
    "abort_hanging",
    "describe_transaction",
    "describe_transactions",
    "fence_producer",
    "find_hanging",
    "list_transactions",
    "max_timeout_ms",
    "open_transaction_at",
    "open_transactions",
]

T = TypeVar("T")

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
"""Kafka's names, as they stand on the wire."""
ENDED: Final = ("CompleteCommit", "CompleteAbort")
UNFINISHED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")

PER_REQUEST: Final = 500  # partitions or ids, as Kafka's own tool does it: no request so long that it holds a broker up
BROKER_RESOURCE: Final = 4
MAX_TIMEOUT_NAME: Final = "transaction.max.timeout.ms"
DURATION_FILTER_FROM: Final = 1  # ListTransactions, KIP-994
FENCE_POLL_S: Final = 0.02
FENCE_MOMENT_S: Final = 1.0
FENCE_PATIENCE_S: Final = 30.0  # markers have to reach every partition of the transaction


class TransactionMissingError(ClientError):
    """No coordinator knows this transactional id, or no such transaction is open on a partition."""


class TransactionNotHangingError(ClientError):
    """The coordinator knows this transaction and will end it."""

    def __init__(self, message: str, transactional_id: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id


@dataclass(frozen=True, kw_only=True)
class TransactionListing:
    """What a coordinator tells about each of its transactional ids."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """Everything a coordinator knows about a transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    """Since 1970, by the coordinator's clock; None while no transaction has begun."""
    partitions: tuple[TopicPartition, ...]
    """Those that still wait for the outcome."""
    coordinator: Node

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED

    def age_ms(self, now_ms: int) -> int | None:
        """How long it has been going; None unless it is."""
        return max(0, now_ms - self.started_ms) if self.is_unfinished and self.started_ms is not None else None


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A transaction that a partition has open."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int
    """That of the producer's newest record, which the producer may have set to anything."""
    coordinator_epoch: int
    """That of the last marker of this producer; -1 if there has been none."""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def identity(self) -> tuple[str, int, int, int, int]:
        """What stays the same as long as it is this transaction."""
        return self.topic, self.partition, self.start_offset, self.producer_id, self.producer_epoch


@dataclass(frozen=True, kw_only=True)
class HangingTransaction:
    """A transaction that a partition has open and that no coordinator is going to end."""

    open: OpenTransaction
    transactional_id: str | None
    """Whose producer id it is now; None if no coordinator knows the producer id."""
    state: str | None
    """What the coordinator says of this transactional id."""


@dataclass(frozen=True, kw_only=True)
class Fenced:
    """The outcome of fencing a producer."""

    ended: str | None
    """How the transaction ended that was open then: `CompleteAbort` or `CompleteCommit`; None if that was not seen."""
    producer_id: int
    producer_epoch: int


def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    older_than_ms: int | None = None,
) -> list[TransactionListing]:
    """The transactional ids of all coordinators, by name. All filters have to fit.

    With `older_than_ms` there may be more than asked for: old brokers cannot filter by time, and new ones let pass
    what never began.
    """
    question = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=-1 if older_than_ms is None else older_than_ms,
    )
    found: list[TransactionListing] = []
    for node in cluster.nodes():
        found += patiently(lambda at=node: _list_at(cluster, at, question), cluster.timeout_s)  # type: ignore[misc]
    return sorted(found, key=lambda each: each.transactional_id)


def describe_transactions(cluster: Cluster, transactional_ids: Iterable[str]) -> dict[str, Transaction]:
    """What the coordinators know of these ids; one that none knows is left out."""
    wanted = list(dict.fromkeys(transactional_ids))
    if "" in wanted:
        raise ConfigError("a transactional id cannot be empty")
    found: dict[str, Transaction] = {}
    for some in _portions(wanted):
        found |= patiently(lambda ids=some: _describe(cluster, ids), cluster.timeout_s)  # type: ignore[misc]
    return found


def describe_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """One of them. Raises `TransactionMissingError`."""
    found = describe_transactions(cluster, [transactional_id]).get(transactional_id)
    if found is None:
        raise TransactionMissingError(f"there is no transactional id {transactional_id!r}")
    return found


def open_transactions(cluster: Cluster, places: Collection[TopicPartition]) -> list[OpenTransaction]:
    """The transactions that these partitions have open, as their leaders see it.

    Raises `TopicMissingError`, or `ClientError` for a partition that is not there or has no leader.
    """

    def ask() -> list[OpenTransaction]:
        by_leader = _by_leader(cluster, places)
        portions = [(leader, some) for leader, its in by_leader.items() for some in _portions(its)]
        return [found for leader, some in portions for found in _open_at(cluster, leader, some)]

    return patiently(ask, cluster.timeout_s) if places else []


def find_hanging(
    cluster: Cluster, places: Collection[TopicPartition], *, older_than_ms: int, now_ms: int | None = None
) -> list[HangingTransaction]:
    """The hanging transactions on these partitions whose producer wrote nothing for `older_than_ms`."""
    now_ms = _now_ms() if now_ms is None else now_ms
    candidates = [
        each for each in open_transactions(cluster, places) if now_ms - each.last_timestamp_ms > older_than_ms
    ]
    if not candidates:
        return []
    known = _by_producer_id(cluster, {each.producer_id for each in candidates})
    abandoned = [each for each in candidates if _is_abandoned(each, known.get(each.producer_id))]
    # One that ended between the two questions is not hanging: it must still be there after the coordinators spoke.
    still = {each.identity for each in open_transactions(cluster, {each.place for each in abandoned})}
    hanging = sorted((each for each in abandoned if each.identity in still), key=lambda each: each.identity)
    return [_hanging(each, known.get(each.producer_id)) for each in hanging]


def open_transaction_at(cluster: Cluster, place: TopicPartition, start_offset: int) -> OpenTransaction:
    """The transaction that begins at this offset of a partition. Raises `TransactionMissingError`."""
    for each in open_transactions(cluster, [place]):
        if each.start_offset == start_offset:
            return each
    topic, partition = place
    raise TransactionMissingError(f"no open transaction begins at offset {start_offset} of {topic}-{partition}")


def abort_hanging(cluster: Cluster, found: OpenTransaction) -> None:
    """Writes the marker that no coordinator is going to write.

    Raises `TransactionNotHangingError`, and writes nothing, if a coordinator knows the transaction: a marker behind
    its back would tear the transaction apart, since other partitions may still commit.
    """
    owner = _by_producer_id(cluster, {found.producer_id}).get(found.producer_id)
    if owner is not None and not _is_abandoned(found, owner):
        raise TransactionNotHangingError(
            f"the transaction at offset {found.start_offset} of {found.topic}-{found.partition} is not hanging: "
            f"it belongs to {owner.transactional_id!r}, and {owner.coordinator} knows it as {owner.state}",
            owner.transactional_id,
        )
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=found.topic, partition_indexes=[found.partition])],
        # A producer that never got a marker has none; 0 is not above the epoch of any coordinator.
        coordinator_epoch=max(0, found.coordinator_epoch),
    )
    (leader,) = _by_leader(cluster, [found.place])
    answer = cluster.node(leader).ask(WriteTxnMarkersRequest(markers=[marker]))
    codes = [part.error_code for each in answer.markers for topic in each.topics for part in topic.partitions]
    if not codes:
        raise ClientError(f"the broker did not say whether it wrote the marker to {found.topic}-{found.partition}")
    refuse(codes[0], f"writing the abort marker to {found.topic}-{found.partition}")


def fence_producer(cluster: Cluster, transaction: Transaction, *, patience_s: float = FENCE_PATIENCE_S) -> Fenced:
    """Takes the transactional id away from whoever has it, which aborts its open transaction.

    As `Admin.fenceProducers` of Kafka: InitProducerId in its name. The first one makes the coordinator abort what is
    open and answers 51 until that is done; then another one succeeds. In between the coordinator is asked what became
    of the transaction, since it may have been committing already and the last answer does not tell.
    """
    request = InitProducerIdRequest(
        transactional_id=transaction.transactional_id,
        transaction_timeout_ms=transaction.timeout_ms,  # the id keeps the timeout it had
    )
    deadline = time.monotonic() + patience_s
    ended: str | None = None
    while True:
        try:
            producer_id, producer_epoch = _init_producer_id(cluster, request)
            return Fenced(ended=ended, producer_id=producer_id, producer_epoch=producer_epoch)
        except Refused as refusal:
            retry = refusal.code == ErrorCode.CONCURRENT_TRANSACTIONS or refusal.code in NOT_YET
            if not retry or time.monotonic() > deadline:
                raise
        ended = _outcome(cluster, transaction.transactional_id, deadline)


def _outcome(cluster: Cluster, transactional_id: str, deadline: float) -> str | None:
    """How the transaction ended, once it has; None if there is no telling.

    One that still looks open gets a moment: a coordinator shows the next state when it is stored. If it stays open,
    it is the producer's next one, which the next InitProducerId will see to.
    """
    moment = min(deadline, time.monotonic() + FENCE_MOMENT_S)
    while True:
        time.sleep(FENCE_POLL_S)
        state = describe_transaction(cluster, transactional_id).state
        if state in ENDED:
            return state
        until = deadline if state in UNFINISHED and state != "Ongoing" else moment
        if state not in UNFINISHED or time.monotonic() > until:
            return None


def max_timeout_ms(cluster: Cluster) -> int:
    """The longest timeout that a transaction may have; an open one without a write for longer is suspicious."""
    node = cluster.nodes()[0]
    resource = DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node.id), configuration_keys=[MAX_TIMEOUT_NAME]
    )
    answer = cluster.node(node.id).ask(DescribeConfigsRequest(resources=[resource]))
    for result in answer.results:
        refuse(result.error_code, f"asking for {MAX_TIMEOUT_NAME}", result.error_message)
        for setting in result.configs:
            number = whole_number_of(setting.value or "") if setting.name == MAX_TIMEOUT_NAME else None
            if number is not None:
                return number
    raise ClientError(f"{node} does not tell its {MAX_TIMEOUT_NAME}; say how old is too old with --older-than")


def _list_at(cluster: Cluster, node: Node, question: ListTransactionsRequest) -> list[TransactionListing]:
    answer = cluster.node(node.id).ask(question)
    refuse(answer.error_code, f"listing the transactions of {node}")
    return [
        TransactionListing(
            transactional_id=each.transactional_id,
            state=each.transaction_state,
            producer_id=each.producer_id,
            coordinator=node.id,
        )
        for each in answer.transaction_states
    ]


def _describe(cluster: Cluster, transactional_ids: Sequence[str]) -> dict[str, Transaction]:
    coordinators = cluster.transaction_coordinators(transactional_ids)
    by_node: dict[Node, list[str]] = defaultdict(list)
    for transactional_id, node in coordinators.items():
        by_node[node].append(transactional_id)
    found: dict[str, Transaction] = {}
    for node, ids in by_node.items():
        answer = cluster.node(node.id).ask(DescribeTransactionsRequest(transactional_ids=ids))
        for each in answer.transaction_states:
            if each.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            refuse(each.error_code, f"describing the transaction of {each.transactional_id!r}")
            found[each.transactional_id] = _transaction(each, node)
    return found


def _transaction(state: TransactionState, coordinator: Node) -> Transaction:
    return Transaction(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        partitions=tuple(sorted((each.topic, partition) for each in state.topics for partition in each.partitions)),
        coordinator=coordinator,
    )


def _by_leader(cluster: Cluster, places: Collection[TopicPartition]) -> dict[int, list[TopicPartition]]:
    leaders = cluster.leaders(sorted({topic for topic, _ in places}))
    sorted_out: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic, partition in places:
        leader = leaders.get((topic, partition))
        if leader is None:
            reason = "has no leader just now" if (topic, partition) in leaders else "is not there"
            raise ClientError(f"partition {partition} of {topic!r} {reason}")
        sorted_out[leader].append((topic, partition))
    return sorted_out


def _open_at(cluster: Cluster, leader: int, places: Sequence[TopicPartition]) -> Iterator[OpenTransaction]:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    topics = [TopicRequest(name=topic, partition_indexes=partitions) for topic, partitions in by_topic.items()]
    answer: DescribeProducersResponse = cluster.node(leader).ask(DescribeProducersRequest(topics=topics))
    for each in answer.topics:
        for part in each.partitions:
            doing = f"asking for the producers of {each.name}-{part.partition_index}"
            refuse(part.error_code, doing, part.error_message)
            for producer in part.active_producers:
                if producer.current_txn_start_offset >= 0:
                    yield OpenTransaction(
                        topic=each.name,
                        partition=part.partition_index,
                        producer_id=producer.producer_id,
                        producer_epoch=producer.producer_epoch,
                        start_offset=producer.current_txn_start_offset,
                        last_timestamp_ms=producer.last_timestamp,
                        coordinator_epoch=producer.coordinator_epoch,
                    )


def _by_producer_id(cluster: Cluster, producer_ids: Collection[int]) -> dict[int, Transaction]:
    """What the coordinators know of the transactional ids that these producer ids belong to."""
    listings = list_transactions(cluster, producer_ids=producer_ids)
    described = describe_transactions(cluster, [each.transactional_id for each in listings])
    return {
        each.producer_id: described[each.transactional_id] for each in listings if each.transactional_id in described
    }


def _hanging(found: OpenTransaction, owner: Transaction | None) -> HangingTransaction:
    if owner is None:
        return HangingTransaction(open=found, transactional_id=None, state=None)
    return HangingTransaction(open=found, transactional_id=owner.transactional_id, state=owner.state)


def _is_abandoned(found: OpenTransaction, owner: Transaction | None) -> bool:
    """Whether no marker is to be expected: a coordinator lists every partition that still waits for one."""
    return owner is None or not owner.is_unfinished or found.place not in owner.partitions


def _init_producer_id(cluster: Cluster, request: InitProducerIdRequest) -> tuple[int, int]:
    assert request.transactional_id is not None
    coordinator = cluster.transaction_coordinator(request.transactional_id)
    answer = cluster.node(coordinator.id).ask(request)
    refuse(answer.error_code, f"fencing the producer of {request.transactional_id!r}")
    return answer.producer_id, answer.producer_epoch


def _portions(everything: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(everything), PER_REQUEST):
        yield everything[start : start + PER_REQUEST]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
