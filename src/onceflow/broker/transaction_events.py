"""What those who watch are told of transactions: which ones ended and how, and who came too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.monitor.meters import Meters
from onceflow.monitor.snapshot import EndedTransaction, Fencing
from onceflow.txn.states import State
from onceflow.txn.transaction import TopicPartition, Transaction

if TYPE_CHECKING:
    from onceflow.broker.node import Node
    from onceflow.log.producers import Producer

__all__ = ["count_end", "count_fencing"]

UNKNOWN_EPOCH = -1


def count_end(meters: Meters, transactional_id: str, transaction: Transaction, reason: str) -> None:
    """The outcome is on disk. What has written nothing is no transaction."""
    if not transaction.partitions:
        return
    meters.ended(
        EndedTransaction(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            epoch=transaction.last_epoch if transaction.has_bumped_epoch else transaction.epoch,
            committed=transaction.state is State.PREPARE_COMMIT,
            started_ms=transaction.started_ms,
            ended_ms=transaction.updated_ms,
            partitions=len(transaction.partitions),
            reason=reason,
        )
    )


def count_fencing(
    node: Node,
    identity: tuple[int, int],
    transactional_id: str | None,
    current: Transaction | Producer | None,
    place: TopicPartition | None = None,
) -> None:
    """Somebody was refused, by the coordinator or on a partition. `identity` is the producer id and epoch it came with;
    `current` is who has taken over."""
    node.meters.fenced(
        Fencing(
            at_ms=node.clock.now_ms(),
            producer_id=identity[0],
            epoch=identity[1],
            current_epoch=UNKNOWN_EPOCH if current is None else current.epoch,
            transactional_id=transactional_id,
            place=place,
        )
    )
