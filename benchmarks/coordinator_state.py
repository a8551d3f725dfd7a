"""Transactional ids and groups by the thousand, made with raw requests under way by the hundred.

Every id has committed one transaction with one record; every group has committed an offset for each partition of a
topic. A client for each of them would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from tests.support.raw import batch, produce_request
from tests.support.raw_client import RawClient
from tests.support.raw_groups import fetch_once
from tests.support.raw_transactions import GROUP, TRANSACTION, find_coordinator
from tests.support.waiting import eventually

from onceflow.errors import ErrorCode
from onceflow.wire.messages.end_txn import EndTxnRequest
from onceflow.wire.messages.init_producer_id import InitProducerIdRequest
from onceflow.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from onceflow.wire.schema import Message

CONNECTIONS = 4  # Apache Kafka works on one request of a connection at a time
WINDOW = 500
TIMEOUT_MS = 60_000
COMMITTED_OFFSET = 7
INIT_VERSION, PRODUCE_VERSION, END_VERSION, OFFSET_VERSION = 5, 12, 5, 9
TRY_AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}

Errors = Callable[[Any], set[int]]


def make_transactional_ids(bootstrap: str, topic: str, count: int, partitions: int) -> dict[str, int]:
    """Each commits a transaction; returns their producer ids."""
    producer_ids: dict[str, int] = {}
    with _Connections(bootstrap) as connections:
        connections.meet("bench", TRANSACTION)
        for first in range(0, count, WINDOW):
            names = [f"bench-{number}" for number in range(first, min(first + WINDOW, count))]
            producer_ids |= _commit_once(connections, names, topic, partitions)
    return producer_ids


def _commit_once(connections: _Connections, names: Sequence[str], topic: str, partitions: int) -> dict[str, int]:
    inits = connections.ask([_init(name) for name in names], INIT_VERSION, _error)
    producers = [(answer.producer_id, answer.producer_epoch) for answer in inits]
    writes = [
        produce_request(
            topic,
            batch(b"record", producer=producer, transactional=True),
            partition=producer[0] % partitions,
            transactional_id=name,
        )
        for name, producer in zip(names, producers, strict=True)
    ]
    connections.ask(writes, PRODUCE_VERSION, _produce_errors)
    ends = [
        EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
        for name, (producer_id, epoch) in zip(names, producers, strict=True)
    ]
    connections.ask(ends, END_VERSION, _error)
    return {name: producer_id for name, (producer_id, _) in zip(names, producers, strict=True)}


def make_groups(bootstrap: str, topic: str, count: int, partitions: int) -> list[str]:
    """Each commits an offset for every partition of the topic; returns their names."""
    names = [f"bench-{number}" for number in range(count)]
    with _Connections(bootstrap) as connections:
        connections.meet("bench", GROUP)
        for first in range(0, count, WINDOW):
            commits = [_offset_commit(name, topic, partitions) for name in names[first : first + WINDOW]]
            connections.ask(commits, OFFSET_VERSION, _offset_errors)
    return names


def wait_until_known(
    bootstrap: str, transactional_id: str, producer_id: int, group: str, topic: str, timeout_s: float = 120
) -> None:
    """Ask for a transactional id and for an offset of a group until both answers say what was there before."""
    with closing(RawClient(bootstrap)) as wire:

        def is_known() -> bool:
            answer = wire.ask(_init(transactional_id), INIT_VERSION)
            _refuse_other_than(answer.error_code)
            assert answer.error_code or answer.producer_id == producer_id, "The transactional id has been forgotten."
            return not answer.error_code

        def is_committed() -> bool:
            answer = fetch_once(wire, group, {topic: [0]}, version=OFFSET_VERSION)
            _refuse_other_than(answer.error_code)
            if answer.error_code:
                return False
            assert answer.topics[0].partitions[0].committed_offset == COMMITTED_OFFSET, "The offset has been forgotten."
            return True

        eventually(is_known, f"{transactional_id} is known", timeout_s=timeout_s, every_s=0.005)
        eventually(is_committed, f"the offsets of {group} are known", timeout_s=timeout_s, every_s=0.005)


class _Connections:
    """A few connections that share the requests."""

    def __init__(self, bootstrap: str) -> None:
        self._wires = [RawClient(bootstrap, timeout_s=60) for _ in range(CONNECTIONS)]

    def __enter__(self) -> _Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.close()

    def meet(self, key: str, key_type: int) -> None:
        """Apache Kafka makes the coordinator's topic when somebody asks for it first."""
        find_coordinator(self._wires[0], key, key_type)

    def ask(self, requests: Sequence[Message], version: int, errors: Errors) -> list[Any]:
        """The answers, in order, once all are successes."""
        answers: dict[int, Any] = {}

        def ask_the_rest() -> bool:
            left = [at for at in range(len(requests)) if at not in answers]
            for at, answer in self._ask_once(requests, left, version):
                codes = errors(answer) - {0}
                _refuse_other_than(*codes)
                if not codes:
                    answers[at] = answer
            return len(answers) == len(requests)

        eventually(ask_the_rest, f"{len(requests)} of {type(requests[0]).__name__} succeed", timeout_s=60)
        return [answers[at] for at in range(len(requests))]

    def _ask_once(self, requests: Sequence[Message], which: list[int], version: int) -> Iterator[tuple[int, Any]]:
        for number, wire in enumerate(self._wires):
            wire.send_all([requests[at] for at in which[number::CONNECTIONS]], version)
        for number, wire in enumerate(self._wires):
            for at in which[number::CONNECTIONS]:
                yield at, wire.receive_next()


def _refuse_other_than(*codes: int) -> None:
    for code in codes:
        if code and code not in TRY_AGAIN:
            raise RuntimeError(f"The broker answered {ErrorCode(code).name}.")


def _init(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)


def _offset_commit(group: str, topic: str, partitions: int) -> OffsetCommitRequest:
    offsets = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=COMMITTED_OFFSET)
        for index in range(partitions)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=offsets)])


def _error(answer: Any) -> set[int]:
    return {answer.error_code}


def _produce_errors(answer: Any) -> set[int]:
    return {each.error_code for topic in answer.responses for each in topic.partition_responses}


def _offset_errors(answer: Any) -> set[int]:
    return {each.error_code for topic in answer.topics for each in topic.partitions}
