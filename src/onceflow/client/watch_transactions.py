"""Transactional ids as their coordinators know them, and the transactions that ended while somebody was watching.

A coordinator tells what is, not what was. Ends are found by comparing one take with the next:

- It ended by now, and had not at the last take (or it is another one, by its start): one end, whose outcome is told.
- In V2 (KIP-890) every end raises the producer's epoch by one, so the difference tells how many there were; the outcome
  of all but the last is not known, and they count as committed. So with several ends between two takes, aborts are
  counted too low, never too high.

What this misses: in V1 all but the last of several ends between two takes; an end after which the producer started anew
before we looked (its state is Empty then). What it counts too much: in V2, a producer that starts anew and begins a
transaction between two takes is one end more. Nobody says why a transaction was aborted, or who was fenced: a raised
epoch may be a new instance, a timeout or an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from onceflow.client.cluster import refuse
from onceflow.client.transactions import ENDED, UNFINISHED
from onceflow.client.watch_questions import Questions, portions
from onceflow.errors import ErrorCode
from onceflow.monitor.snapshot import EndedTransaction, Transaction
from onceflow.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from onceflow.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from onceflow.wire.messages.list_transactions import TransactionState as Listed

__all__ = ["EndedTransactions", "transactions_of"]

TRANSACTIONS_MAX: Final = 2000
PER_REQUEST: Final = 500
LAST_ENDED: Final = 200
WHO: Final = "transactions"


# --- what is


def transactions_of(asking: Questions) -> tuple[Transaction, ...]:
    """By name; open ones are the last that a bound leaves out."""
    listed = [(broker, each) for broker in asking.brokers for each in _listed(asking, broker)]
    listed.sort(key=lambda found: (found[1].transaction_state not in UNFINISHED, found[1].transactional_id))
    chosen = asking.bounded(listed, TRANSACTIONS_MAX)
    found: list[Transaction] = []
    for broker in asking.brokers:
        ids = [each.transactional_id for at, each in chosen if at == broker]
        for some in portions(ids, PER_REQUEST):
            found += _described(asking, broker, some)
    return tuple(sorted(found, key=lambda each: each.transactional_id))


def _listed(asking: Questions, broker: int) -> list[Listed]:
    def ask() -> list[Listed]:
        answer: ListTransactionsResponse = asking.cluster.node(broker).ask(ListTransactionsRequest())
        asking.coordinator_said("transaction", answer.error_code)
        refuse(answer.error_code, f"listing the transactions of broker {broker}")
        return list(answer.transaction_states)

    return asking.ask(broker, WHO, ask) or []


def _described(asking: Questions, broker: int, ids: Sequence[str]) -> Iterator[Transaction]:
    question = DescribeTransactionsRequest(transactional_ids=list(ids))
    answer: DescribeTransactionsResponse | None = asking.ask(
        broker, WHO, lambda: asking.cluster.node(broker).ask(question)
    )
    for each in answer.transaction_states if answer is not None else ():
        if each.error_code == ErrorCode.NONE:  # otherwise it expired, or moved to another coordinator, just now
            yield _transaction(each)


def _transaction(told: TransactionState) -> Transaction:
    return Transaction(
        transactional_id=told.transactional_id,
        producer_id=told.producer_id,
        epoch=told.producer_epoch,
        state=told.transaction_state,
        timeout_ms=told.transaction_timeout_ms,
        # Of a transaction that has ended it is the start, too: that is how one is told from the next.
        started_ms=told.transaction_start_time_ms if told.transaction_start_time_ms >= 0 else None,
        partitions=tuple(sorted((each.topic, partition) for each in told.topics for partition in each.partitions)),
    )


# --- what has changed


class EndedTransactions:
    """Shown one take after the other; counts from the second on."""

    def __init__(self) -> None:
        self.commits = self.aborts = 0
        self._before: dict[str, Transaction] | None = None
        self._ended: deque[EndedTransaction] = deque(maxlen=LAST_ENDED)

    @property
    def last(self) -> tuple[EndedTransaction, ...]:
        return tuple(self._ended)

    def compare(
        self, transactions: Sequence[Transaction], now_ms: int, *, each_end_bumps: bool
    ) -> tuple[Transaction, ...]:
        """The same transactions; `updated_ms` is when a change was seen, and `started_ms` only of open ones."""
        seen: dict[str, Transaction] = {}
        for each in transactions:
            before = None if self._before is None else self._before.get(each.transactional_id)
            seen[each.transactional_id] = replace(each, updated_ms=self._updated(before, each, now_ms))
            if self._before is not None:
                self._count(before, each, now_ms, each_end_bumps)
        self._before = seen
        return tuple(each if each.is_open else replace(each, started_ms=None) for each in seen.values())

    def _updated(self, before: Transaction | None, now: Transaction, now_ms: int) -> int | None:
        if self._before is None:
            return None
        return now_ms if before is None or replace(before, updated_ms=None) != now else before.updated_ms

    def _count(self, before: Transaction | None, now: Transaction, now_ms: int, each_end_bumps: bool) -> None:
        ends = _ends_between(before, now, each_end_bumps=each_end_bumps)
        if not ends:
            return
        if now.state not in ENDED:
            self.commits += ends
            return
        committed = now.state == "CompleteCommit"
        self.commits += ends if committed else ends - 1
        self.aborts += not committed
        same = before is not None and before.started_ms == now.started_ms
        self._ended.append(
            EndedTransaction(
                transactional_id=now.transactional_id,
                producer_id=now.producer_id,
                epoch=now.epoch,
                committed=committed,
                started_ms=now_ms if now.started_ms is None else now.started_ms,
                ended_ms=now_ms,
                partitions=len(before.partitions) if before is not None and same else 0,
                reason="unknown",
            )
        )


def _ends_between(before: Transaction | None, now: Transaction, *, each_end_bumps: bool) -> int:
    """How many transactions have ended, as far as can be told."""
    has_ended = now.state in ENDED
    if before is None or before.producer_id != now.producer_id:
        return int(has_ended)
    if now.state not in (*ENDED, *UNFINISHED):  # Empty: the producer has started anew, whatever was before
        return 0
    bumps = _ended_epochs(now) - _ended_epochs(before) if each_end_bumps else 0
    was_open, is_another = before.state in UNFINISHED, before.started_ms != now.started_ms
    if has_ended:
        is_news = was_open or is_another or before.epoch != now.epoch
        return max(1, bumps) if is_news else 0
    return max(int(was_open and is_another), bumps, 0)


def _ended_epochs(of: Transaction) -> int:
    """In V2 the epoch is raised when the end is decided, and the transaction has ended when the markers are written."""
    return of.epoch - 1 if of.state in ("PrepareCommit", "PrepareAbort") else of.epoch
