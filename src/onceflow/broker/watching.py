"""Our broker as a snapshot, from within; and the page and the metrics on their socket.

A snapshot is taken on the broker's own loop, so it is cheap: values that did not change since the last one are used
again, no record is opened but those of the progress topic that are new, and of everything there is a bounded number
(the interesting ones, and `truncated` says that there are more).
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final

from onceflow import __version__
from onceflow.broker.chores import every
from onceflow.broker.partition import Partition
from onceflow.broker.progress_reading import ProgressReader
from onceflow.group.base import Group, GroupType
from onceflow.group.classic import ClassicGroup
from onceflow.group.consumer_group import ConsumerGroup
from onceflow.group.offsets import Offsets
from onceflow.log.producers import Producer
from onceflow.monitor import http
from onceflow.monitor import snapshot as looks
from onceflow.monitor.snapshot import Coordinator, Counters, GroupPartition, Snapshot, Timing, Transaction
from onceflow.monitor.watcher import Watcher
from onceflow.txn.states import State
from onceflow.txn.transaction import Transaction as Kept
from onceflow.wire.messages import REQUESTS

if TYPE_CHECKING:
    from onceflow.broker.connection import Connection
    from onceflow.broker.node import Node

__all__ = ["Snapshots", "snapshot", "watched"]

EVERY_S: Final = 2.0
CONSUMER_ACTIVE_S: Final = 30.0
PARTITIONS_MAX: Final = 5_000
PRODUCERS_MAX: Final = 1_000
TRANSACTIONS_MAX: Final = 1_000
GROUPS_MAX: Final = 1_000
GROUP_PARTITIONS_MAX: Final = 20_000

Connections = Iterable["Connection"]
_OPEN: Final = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE)


@asynccontextmanager
async def watched(node: Node, connections: Connections, page: socket.socket, host: str) -> AsyncIterator[None]:
    """Serve the page for as long as a `with` lasts, on a socket that listens. `host` is what it was told to listen on:
    a name, perhaps, under which people ask for the page."""
    watcher = Watcher(Snapshots(node, connections).take)
    async with http.serving(page, watcher, names=[host]):
        looking = asyncio.ensure_future(every(EVERY_S, "A snapshot", watcher.look, at_once=True))
        try:
            yield
        finally:
            looking.cancel()


def snapshot(node: Node, connections: Connections) -> Snapshot:
    """As of now, for who looks once."""
    return Snapshots(node, connections).take()


class Snapshots:
    """One snapshot after the other of a broker."""

    def __init__(self, node: Node, connections: Connections) -> None:
        self._node = node
        self._connections = connections
        self._partitions: dict[Partition, looks.Partition] = {}
        self._producers: dict[tuple[str, int, int], looks.Producer] = {}
        self._group_partitions: dict[tuple[str, str, int], GroupPartition] = {}
        self._progress = ProgressReader()
        self._truncated = False

    def take(self) -> Snapshot:
        node, meters = self._node, self._node.meters
        self._truncated = False
        partitions = self._look_at_partitions()
        return Snapshot(
            at_ms=node.clock.now_ms(),
            cluster_id=node.cluster_id,
            software=f"onceflow {__version__}",
            brokers=(f"{node.host}:{node.port}",),
            started_ms=node.started_ms,
            partitions=partitions,
            producers=self._look_at_producers(),
            transactions=self._look_at_transactions(),
            ended=tuple(meters.last_ended),
            fencings=tuple(meters.last_fencings),
            groups=self._look_at_groups(),
            micro_batches=self._progress.read(node.topics),
            coordinators=tuple(_coordinators(node)),
            counters=_counters(node),
            traffic={topic.name: topic.traffic.totals() for topic in node.topics if not topic.is_internal},
            timings=_timings(node),
            consumers=_consumers(self._connections),
            connections_open=sum(1 for _ in self._connections),
            truncated=self._truncated,
            remarks=self._progress.remarks,
        )

    # Partitions

    def _look_at_partitions(self) -> tuple[looks.Partition, ...]:
        before, self._partitions = self._partitions, {}
        for partition in self._node.topics.partitions():
            self._partitions[partition] = self._look_at_partition(partition, before.get(partition))
        found = self._partitions.values()
        if len(found) <= PARTITIONS_MAX:
            return tuple(found)
        self._truncated = True
        return tuple(nsmallest(PARTITIONS_MAX, found, key=lambda each: (-each.lso_lag, each.topic, each.partition)))

    def _look_at_partition(self, partition: Partition, before: looks.Partition | None) -> looks.Partition:
        log = partition.log
        start, stable, end, size = log.start_offset, log.last_stable_offset, log.high_watermark, log.size
        if (
            before is not None
            and before.end == end
            and before.last_stable == stable
            and before.start == start
            and before.size_bytes == size
        ):
            return before
        return looks.Partition(
            topic=partition.topic,
            partition=partition.index,
            start=start,
            last_stable=stable,
            end=end,
            size_bytes=size,
            leader=self._node.node_id,
        )

    # Producers

    def _look_at_producers(self) -> tuple[looks.Producer, ...]:
        """Those in a transaction first, then those that came last, each partition in its turn."""
        before, self._producers = self._producers, {}
        topics = [topic for topic in self._node.topics if not topic.is_internal]
        logs = [each for topic in topics for each in topic.partitions if len(each.log.producers)]
        for place, producer_id, producer in islice(_producers(logs), PRODUCERS_MAX + 1):
            if len(self._producers) == PRODUCERS_MAX:
                self._truncated = True
                break
            name = (place.topic, place.index, producer_id)
            known = before.get(name)
            if known is None or not _is_same(known, producer):
                known = _producer(*name, producer)
            self._producers[name] = known
        return tuple(self._producers.values())

    # Transactions

    def _look_at_transactions(self) -> tuple[Transaction, ...]:
        coordinator = self._node.transactions.coordinator
        if len(coordinator) <= TRANSACTIONS_MAX:
            return tuple(_transaction(*each) for each in coordinator)
        self._truncated = True
        chosen = nsmallest(
            TRANSACTIONS_MAX, coordinator, key=lambda each: (each[1].state not in _OPEN, -each[1].updated_ms)
        )
        return tuple(_transaction(*each) for each in chosen)

    # Groups

    def _look_at_groups(self) -> tuple[looks.Group, ...]:
        before, self._group_partitions = self._group_partitions, {}
        groups = [(group, each.offsets) for each in self._node.groups.coordinators for group in each.groups.values()]
        if len(groups) > GROUPS_MAX:
            self._truncated = True
            groups = nsmallest(GROUPS_MAX, groups, key=lambda each: each[0].is_empty)
        return tuple(self._look_at_group(group, offsets, before) for group, offsets in groups)

    def _look_at_group(
        self, group: Group, offsets: Offsets, before: dict[tuple[str, str, int], GroupPartition]
    ) -> looks.Group:
        partitions = []
        for topic, by_partition in offsets.of_group(group.id).items():
            for index, committed in by_partition.items():
                if len(self._group_partitions) == GROUP_PARTITIONS_MAX:
                    self._truncated = True
                    break
                name = (group.id, topic, index)
                partitions.append(self._offset(name, committed.offset, before.get(name)))
        return looks.Group(
            group_id=group.id,
            state=group.state_name,
            protocol="consumer" if group.type is GroupType.CONSUMER else "classic",
            members=_members(group),
            partitions=tuple(partitions),
        )

    def _offset(self, name: tuple[str, str, int], committed: int, before: GroupPartition | None) -> GroupPartition:
        partition = self._node.topics.partition(name[1], name[2])
        known = self._partitions.get(partition) if partition is not None else None
        lag = None
        if known is not None:
            lag = known.last_stable - (committed if committed > known.start else known.start)
            lag = lag if lag > 0 else 0
        if before is None or before.committed != committed or before.lag != lag:
            before = GroupPartition(topic=name[1], partition=name[2], committed=committed, lag=lag)
        self._group_partitions[name] = before
        return before


def _producers(partitions: list[Partition]) -> Iterator[tuple[Partition, int, Producer]]:
    for partition in partitions:
        for producer_id, producer in partition.log.producers.in_transactions():
            yield partition, producer_id, producer
    for partition in partitions:
        for producer_id, producer in partition.log.producers.newest():
            if not producer.is_in_transaction:
                yield partition, producer_id, producer


def _is_same(known: looks.Producer, producer: Producer) -> bool:
    """Whatever a producer does, it is seen at another time, or at the next sequence or epoch, or both."""
    first = producer.transaction_first_offset
    return (
        known.last_write_ms == producer.seen_ms
        and known.epoch == producer.epoch
        and known.transaction_start == (first if first >= 0 else None)
        and known.last_sequence == producer.last_sequence
    )


def _producer(topic: str, index: int, producer_id: int, producer: Producer) -> looks.Producer:
    return looks.Producer(
        topic=topic,
        partition=index,
        producer_id=producer_id,
        epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_write_ms=producer.seen_ms,
        transaction_start=producer.transaction_first_offset if producer.is_in_transaction else None,
    )


def _transaction(transactional_id: str, kept: Kept) -> Transaction:
    return Transaction(
        transactional_id=transactional_id,
        producer_id=kept.producer_id,
        epoch=kept.epoch,
        state=kept.state.label,
        timeout_ms=kept.timeout_ms,
        started_ms=kept.started_ms if kept.state in _OPEN else None,
        updated_ms=kept.updated_ms,
        partitions=tuple(sorted(kept.partitions)),
    )


def _members(group: Group) -> int:
    return len(group.members) if isinstance(group, ClassicGroup | ConsumerGroup) else 0


def _coordinators(node: Node) -> Iterator[Coordinator]:
    transactions, groups = node.transactions, node.groups
    trouble = transactions.log.trouble
    stuck = transactions.stuck_ids
    if stuck and not trouble:
        trouble = f"The markers of {', '.join(sorted(stuck)[:3])} cannot be written at present."
    yield _coordinator("transaction", trouble, transactions.load_ms, len(transactions.log.partitions))
    yield _coordinator("group", groups.log.trouble, groups.load_ms, len(groups.log.partitions))


def _coordinator(kind: str, trouble: str, load_ms: float, partitions: int) -> Coordinator:
    """Never seen while it loads: that is done before the broker listens, and in one step."""
    state = "unavailable" if trouble else "active"
    return Coordinator(kind=kind, state=state, load_ms=load_ms, partitions=partitions, note=trouble)


def _counters(node: Node) -> Counters:
    meters = node.meters
    return Counters(
        commits=meters.commits,
        aborts=meters.aborts,
        timeouts=meters.timeouts,
        fenced_aborts=meters.fenced_aborts,
        fencings=meters.fencings,
        duplicates=meters.duplicates,
        out_of_order=meters.out_of_order,
        connections=meters.connections,
        connections_refused=dict(meters.connections_refused),
        failed_authentications=dict(meters.failed_authentications),
        successful_authentications=dict(meters.successful_authentications),
        denied=dict(meters.denied),
        errors=dict(meters.produce_errors),
    )


def _timings(node: Node) -> dict[str, Timing]:
    meters = node.meters
    timings = {"fsync": meters.fsync.timing(), "fetch wait": meters.fetch_wait.timing()}
    for api_key, stopwatch in tuple(meters.requests.items()):
        timings[_name(api_key)] = stopwatch.timing()
    return timings


def _name(api_key: int) -> str:
    return REQUESTS[api_key].request.removesuffix("Request")


def _consumers(connections: Connections) -> dict[str, int]:
    """By connection: a consumer fetches from one broker over one."""
    since = time.monotonic() - CONSUMER_ACTIVE_S
    levels = {"read_committed": 0, "read_uncommitted": 0}
    for connection in connections:
        reader = connection.reader
        if reader.active_until >= since:
            levels["read_committed" if reader.read_committed else "read_uncommitted"] += 1
    return levels
