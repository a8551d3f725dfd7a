"""One transactional producer, request by request, in either protocol.

Two kinds of methods. Those that end in `_once` send one request and return what the broker said, right or wrong. The
others do what a client does: they repeat what the broker asks to repeat, take over ids and epochs, and count sequences.

    producer = TransactionalProducer(wire, "orders", V2).init()
    producer.write("topic", "a", "b")
    producer.commit()

`commit` and `abort` also wait until the markers are written, which no client does; whoever tests the time in between
uses `end_once`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from onceflow.errors import ErrorCode
from onceflow.wire.batch import BatchHeader, batches
from onceflow.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from onceflow.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from onceflow.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from onceflow.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from onceflow.wire.messages.produce import PartitionProduceResponse
from onceflow.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from onceflow.wire.records import EndTxnMarker, Record, read_records
from tests.support.raw import READ_COMMITTED, Wire, batch
from tests.support.waiting import eventually

__all__ = [
    "GROUP",
    "TRANSACTION",
    "V1",
    "V2",
    "Marker",
    "TransactionProtocol",
    "TransactionalProducer",
    "committed",
    "describe",
    "find_coordinator",
    "markers",
]

GROUP, TRANSACTION = 0, 1
NOBODY = (-1, -1)

_TRY_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


class TransactionProtocol(NamedTuple):
    """The versions that a client uses inside a transaction."""

    name: str
    produce: int
    offset_commit: int
    end: int

    @property
    def is_v2(self) -> bool:
        return self.name == "V2"


V1 = TransactionProtocol("V1", produce=11, offset_commit=4, end=4)
V2 = TransactionProtocol("V2", produce=12, offset_commit=5, end=5)

Identity = tuple[int, int]


def _unless_to_repeat(answer: Any) -> Any:
    return None if answer.error_code in _TRY_AGAIN else answer


def _until_taken(ask: Callable[[], ErrorCode], what: str) -> None:
    def taken() -> bool:
        code = ask()
        assert code == ErrorCode.NONE or code in _TRY_AGAIN, code.name
        return code == ErrorCode.NONE

    eventually(taken, what)


def find_coordinator(wire: Wire, key: str, key_type: int = TRANSACTION) -> Coordinator:
    """Apache Kafka creates the topic behind a coordinator when somebody asks for it first."""

    def ask() -> Coordinator | None:
        [found] = wire.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])).coordinators
        return _unless_to_repeat(found)

    return eventually(ask, f"there is a coordinator for {key}", timeout_s=30)


def describe(wire: Wire, transactional_id: str) -> TransactionState:
    [state] = wire.ask(DescribeTransactionsRequest(transactional_ids=[transactional_id])).transaction_states
    return state


class TransactionalProducer:
    """A transactional id and who holds it: `id` and `epoch` are what the broker handed out last."""

    def __init__(
        self, wire: Wire, transactional_id: str, protocol: TransactionProtocol, *, timeout_ms: int = 60_000
    ) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.timeout_ms = timeout_ms
        self.id, self.epoch = NOBODY
        self._sequences: dict[tuple[str, int], int] = {}

    @property
    def identity(self) -> Identity:
        return self.id, self.epoch

    @property
    def state(self) -> str:
        return describe(self.wire, self.transactional_id).transaction_state

    def on(self, wire: Wire) -> TransactionalProducer:
        """The same producer, with the same id and epoch, on another connection."""
        other = TransactionalProducer(wire, self.transactional_id, self.protocol, timeout_ms=self.timeout_ms)
        other.id, other.epoch = self.identity
        return other

    # --- one request each

    def init_once(
        self, *, identity: Identity = NOBODY, timeout_ms: int | None = None, version: int | None = None
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms if timeout_ms is None else timeout_ms,
            producer_id=identity[0],
            producer_epoch=identity[1],
        )
        return self.wire.ask(request, version)

    def add_once(
        self, partitions: Mapping[str, Iterable[int]], *, identity: Identity | None = None, version: int = 3
    ) -> dict[tuple[str, int], ErrorCode]:
        """AddPartitionsToTxn; an answer per partition."""
        producer_id, epoch = identity or self.identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=list(wanted)) for name, wanted in partitions.items()
            ],
        )
        return {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in self.wire.ask(request, version).results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }

    def produce_once(
        self,
        topic: str | UUID,
        *values: str,
        partition: int = 0,
        sequence: int = 0,
        identity: Identity | None = None,
        version: int | None = None,
    ) -> PartitionProduceResponse:
        """One batch, with any sequence; nothing is counted."""
        records = batch(*values, producer=identity or self.identity, sequence=sequence, transactional=True)
        return self.wire.produce(
            topic,
            records,
            partition=partition,
            version=self.protocol.produce if version is None else version,
            transactional_id=self.transactional_id,
        )

    def add_offsets_once(self, group: str, *, identity: Identity | None = None, version: int = 4) -> ErrorCode:
        producer_id, epoch = identity or self.identity
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
        )
        return ErrorCode(self.wire.ask(request, version).error_code)

    def commit_offset_once(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        metadata: str | None = "",
        leader_epoch: int = -1,
        member: tuple[str, int] = ("", -1),
        identity: Identity | None = None,
        version: int | None = None,
    ) -> ErrorCode:
        """TxnOffsetCommit of one partition; `member` is (member id, generation)."""
        producer_id, epoch = identity or self.identity
        position = TxnOffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=leader_epoch,
            committed_metadata=metadata,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            member_id=member[0],
            generation_id=member[1],
            topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[position])],
        )
        answer = self.wire.ask(request, self.protocol.offset_commit if version is None else version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def end_once(
        self, committed: bool, *, identity: Identity | None = None, version: int | None = None
    ) -> EndTxnResponse:
        producer_id, epoch = identity or self.identity
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        return self.wire.ask(request, self.protocol.end if version is None else version)

    # --- what a client makes of them

    def meet_coordinator(self) -> None:
        """Wait until the coordinator has read its log and has producer ids to give."""
        find_coordinator(self.wire, self.transactional_id)
        eventually(
            lambda: _unless_to_repeat(describe(self.wire, self.transactional_id)),
            f"the coordinator of {self.transactional_id} has read its log",
        )
        self.wire.new_producer()

    def init(self, *, identity: Identity = NOBODY) -> TransactionalProducer:
        find_coordinator(self.wire, self.transactional_id)
        answer = eventually(lambda: _unless_to_repeat(self.init_once(identity=identity)), "there is a producer id")
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        self._become((answer.producer_id, answer.producer_epoch))
        return self

    def add(self, topic: str, *partitions: int) -> None:
        """What V1 does before it writes; V2 has no such request."""
        wanted = {topic: partitions or (0,)}

        def ask() -> ErrorCode:
            [code] = set(self.add_once(wanted).values())
            return code

        _until_taken(ask, f"{topic} is part of the transaction")

    def write(self, topic: str, *values: str, partition: int = 0) -> int:
        """Appends one batch as the next one, and returns its offset."""
        if not self.protocol.is_v2:
            self.add(topic, partition)
        sequence = self._sequences.get((topic, partition), 0)
        answer = eventually(
            lambda: _unless_to_repeat(self.produce_once(topic, *values, partition=partition, sequence=sequence)),
            f"{topic}-{partition} takes a batch",
        )
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        self._sequences[topic, partition] = sequence + len(values)
        return answer.base_offset

    def commit_offset(self, group: str, topic: str, offset: int, **settings: Any) -> None:
        """Puts one offset of a group into the transaction."""
        find_coordinator(self.wire, group, GROUP)
        if not self.protocol.is_v2:
            _until_taken(lambda: self.add_offsets_once(group), f"{group} is part of the transaction")
        _until_taken(
            lambda: self.commit_offset_once(group, topic, offset, **settings),
            f"the transaction takes an offset of {group}",
        )

    def commit(self) -> None:
        self._end(True)

    def abort(self) -> None:
        self._end(False)

    def end_patiently(self, committed: bool) -> EndTxnResponse:
        """The answer to EndTxn after all those that ask to repeat it, right or wrong."""
        return eventually(lambda: _unless_to_repeat(self.end_once(committed)), "there is a final answer")

    def settle(self) -> str:
        """Wait until nothing is being written for this transactional id, and say in which state it is then."""

        def settled() -> str:
            state = self.state
            return "" if state.startswith("Prepare") else state

        return eventually(settled, f"the transaction of {self.transactional_id} is complete")

    def _end(self, committed: bool) -> None:
        answer = self.end_patiently(committed)
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
        if self.protocol.is_v2:
            self._become((answer.producer_id, answer.producer_epoch))
        self.settle()

    def _become(self, identity: Identity) -> None:
        """A new epoch counts its sequences anew."""
        self.id, self.epoch = identity
        self._sequences.clear()


# --- what readers see


class Marker(NamedTuple):
    """The end of a transaction as it stands in a partition."""

    offset: int
    producer: Identity
    is_commit: bool


def _fetched(wire: Wire, topic: str, offset: int, partition: int) -> tuple[Any, list[tuple[BatchHeader, list[Record]]]]:
    answer = wire.fetch(topic, offset, partition=partition, max_wait_ms=0, isolation_level=READ_COMMITTED)
    assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code).name
    return answer, [(header, list(read_records(each))) for header, each in batches(answer.records or b"")]


def markers(wire: Wire, topic: str, partition: int = 0) -> list[Marker]:
    """The ends of transactions up to the last stable offset."""
    return [
        Marker(header.base_offset, (header.producer_id, header.producer_epoch), EndTxnMarker.read(records[0]).commit)
        for header, records in _fetched(wire, topic, 0, partition)[1]
        if header.is_control
    ]


def committed(wire: Wire, topic: str, offset: int = 0, *, partition: int = 0) -> list[str]:
    """The values that a read_committed consumer gives its program, sorted out as consumers do it.

    The broker sends aborted batches too, with the list of who aborted from which offset on; a producer's abort marker
    ends its entry.
    """
    answer, found = _fetched(wire, topic, offset, partition)
    waiting = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    aborting: set[int] = set()
    values: list[str] = []
    for header, records in found:
        while waiting and waiting[0][0] <= header.last_offset:
            aborting.add(waiting.pop(0)[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [(record.value or b"").decode() for record in records if record.offset >= offset]
    return values
