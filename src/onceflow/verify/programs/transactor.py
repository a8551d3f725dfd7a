"""A transactional producer: transactions of a few records over several partitions, most committed, some aborted.

What it may say about a commit:

- ok: `commit_transaction` returned.
- failed: it raised an error that asks for an abort, and the abort was confirmed. A transaction that had been committed
  after all cannot be aborted, the coordinator refuses that.
- unknown: everything else. A fenced producer may have been fenced after its commit was done and before it heard of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from onceflow.verify.history import Outcome, Record
from onceflow.verify.programs.life import Life

__all__ = ["Aborted", "end_transaction", "take"]

RECORDS_MAX = 20
REST_S_MAX = 0.06
ABORT_SHARE = 0.15
ASK_S = 20.0


class Aborted(Exception):
    """The transaction is over, nothing of it is there, and the producer can go on."""


def take(life: Life, producer: Any, transactional_id: str) -> None:
    """Become the owner of the transactional id."""
    op = life.record.begin("take", transactional_id=transactional_id)
    _patiently(producer.init_transactions)
    life.record.end(op, Outcome.OK)


def end_transaction(life: Life, producer: Any, name: str, **part_of_it: Any) -> None:
    """Commit, and record what came of it. Raises `Aborted`, or `KafkaException` if the producer is finished."""
    op = life.record.begin("commit", transaction=name, **part_of_it)
    try:
        _patiently(producer.commit_transaction)
    except KafkaException as problem:
        error: KafkaError = problem.args[0]
        if not error.txn_requires_abort():
            life.record.end(op, Outcome.UNKNOWN, error=error.name())
            raise
        try:
            _patiently(producer.abort_transaction)
        except KafkaException:
            life.record.end(op, Outcome.UNKNOWN, error=error.name())
            raise
        life.record.end(op, Outcome.FAILED, error=error.name())
        raise Aborted(str(error)) from None
    life.record.end(op, Outcome.OK)


def abort(life: Life, producer: Any, name: str) -> None:
    op = life.record.begin("abort", transaction=name)
    _patiently(producer.abort_transaction)
    life.record.end(op, Outcome.OK)


def _patiently(ask: Callable[[float], object]) -> None:
    """librdkafka says which errors may be answered by asking the same once more."""
    while True:
        try:
            ask(ASK_S)
            return
        except KafkaException as problem:
            if not problem.args[0].retriable():
                raise


class _Transactor:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._topics: dict[str, int] = life.settings["topics"]
        self._producer = Producer(
            life.client_config(
                transactional_id=life.settings["transactional_id"],
                transaction_timeout_ms=life.settings["transaction_timeout_ms"],
                linger_ms=life.chance.choice((0, 2, 5)),
                socket_timeout_ms=6000,
            )
        )

    def run(self) -> None:
        take(self._life, self._producer, self._life.settings["transactional_id"])
        while not self._life.is_over:
            self._one_transaction()
            self._life.rest(self._life.chance.uniform(0, REST_S_MAX))

    def _one_transaction(self) -> None:
        name = self._life.new_transaction()
        self._producer.begin_transaction()
        try:
            self._write(name)
            if self._life.chance.random() < ABORT_SHARE:
                abort(self._life, self._producer, name)
            else:
                end_transaction(self._life, self._producer, name)
        except Aborted:
            pass
        except KafkaException as problem:
            if not problem.args[0].txn_requires_abort():
                raise
            abort(self._life, self._producer, name)

    def _write(self, name: str) -> None:
        places = [self._place() for _ in range(self._life.chance.randint(1, RECORDS_MAX))]
        records = [(topic, partition, self._life.new_id()) for topic, partition in places]
        op = self._life.record.begin("write", transaction=name, records=records)
        written: list[tuple[str, int, int, str]] = []

        def delivered(id: str, error: KafkaError | None, message: Any) -> None:
            if error is None:
                written.append((message.topic(), message.partition(), message.offset(), id))

        for topic, partition, id in records:
            value = Record(id=id, transaction=name).to_bytes()
            self._producer.produce(topic, value, partition=partition, on_delivery=partial(delivered, id))
            self._producer.poll(0)
        self._producer.flush(ASK_S)
        outcome = Outcome.OK if len(written) == len(records) else Outcome.UNKNOWN
        self._life.record.end(op, outcome, written=written)

    def _place(self) -> tuple[str, int]:
        topic = self._life.chance.choice(list(self._topics))
        return topic, self._life.chance.randrange(self._topics[topic])


def main() -> int:
    life = Life.begin()
    try:
        _Transactor(life).run()
    except (KafkaException, SystemError) as problem:  # the latter where a fatal error comes out of a callback
        print(problem, file=sys.stderr)
        return 1  # fenced, most likely: the next life takes over
    return 0


if __name__ == "__main__":
    sys.exit(main())
