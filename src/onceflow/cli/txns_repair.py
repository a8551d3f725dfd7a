"""`onceflow txns find-hanging` and `onceflow txns abort`: what is stuck, and how it ends."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from onceflow.cli.common import counted
from onceflow.cli.durations import in_words
from onceflow.cli.output import ask, new_table, print_json, print_table, say
from onceflow.cli.txn_words import now_ms, what_next, word
from onceflow.client.cluster import Cluster
from onceflow.client.connection import NoAnswer
from onceflow.client.problems import ClientError
from onceflow.client.transactions import (
    HangingTransaction,
    OpenTransaction,
    TransactionNotHangingError,
    abort_hanging,
    describe_transaction,
    fence_producer,
    find_hanging,
    max_timeout_ms,
    open_transaction_at,
)
from onceflow.errors import ConfigError

__all__ = ["abort", "find_hanging_ones"]

OUTCOMES = {"CompleteAbort": True, "CompleteCommit": False}


def find_hanging_ones(cluster: Cluster, args: argparse.Namespace) -> int:
    older_than_ms = max_timeout_ms(cluster) if args.older_than is None else args.older_than
    leaders = cluster.leaders(None if args.topic is None else [args.topic])
    if args.partition is not None:
        _check_partition(args.topic, args.partition, len(leaders))
        leaders = {(args.topic, args.partition): leaders[args.topic, args.partition]}
    places = sorted(place for place, leader in leaders.items() if leader is not None)
    if len(places) < len(leaders):
        missed = counted(len(leaders) - len(places), "partition")
        say(f"onceflow: {missed} without a leader could not be looked at", err=True)
    found = find_hanging(cluster, places, older_than_ms=older_than_ms)
    now = now_ms()
    if args.json:
        return print_json([_hanging_as_json(each, now) for each in found])
    if not found:
        looked_at, age = counted(len(places), "partition"), in_words(older_than_ms)
        say(f"No transaction hangs: looked at {looked_at} for open ones without a write for {age}.", err=True)
        return 0
    _print_hanging(found, now)
    return 0


def _print_hanging(found: list[HangingTransaction], now: int) -> None:
    table = new_table(
        "topic",
        partition="right",
        start_offset="right",
        producer_id="right",
        epoch="right",
        last_write="right",
        what_the_coordinator_says="left",
    )
    for each in found:
        table.add_row(
            each.open.topic,
            str(each.open.partition),
            str(each.open.start_offset),
            str(each.open.producer_id),
            str(each.open.producer_epoch),
            f"{in_words(max(0, now - each.open.last_timestamp_ms))} ago",
            _hanging_because(each),
        )
    print_table(table)
    first = found[0].open
    command = f"--topic {first.topic} --partition {first.partition} --start-offset {first.start_offset}"
    say(f"End the first one with: onceflow txns abort {command}", err=True)


def _hanging_because(each: HangingTransaction) -> str:
    if each.transactional_id is None or each.state is None:
        return "no coordinator knows this producer id"
    return f"{each.transactional_id} is {word(each.state)}, without this partition"


def _hanging_as_json(each: HangingTransaction, now: int) -> dict[str, Any]:
    return {
        "topic": each.open.topic,
        "partition": each.open.partition,
        "start_offset": each.open.start_offset,
        "producer_id": each.open.producer_id,
        "producer_epoch": each.open.producer_epoch,
        "coordinator_epoch": each.open.coordinator_epoch,
        "last_timestamp_ms": each.open.last_timestamp_ms,
        "last_write_ago_ms": max(0, now - each.open.last_timestamp_ms),
        "transactional_id": each.transactional_id,
        "coordinator_state": each.state,
    }


def _check_partition(topic: str, partition: int, there: int) -> None:
    if partition >= there:
        raise ConfigError(f"topic {topic!r} has {counted(there, 'partition')}: there is no {partition}")


# --- abort


def abort(cluster: Cluster, args: argparse.Namespace) -> int:
    return _abort_by_id(cluster, args) if args.id is not None else _abort_by_place(cluster, args)


def _abort_by_id(cluster: Cluster, args: argparse.Namespace) -> int:
    found = describe_transaction(cluster, args.id)
    if found.state != "Ongoing":
        raise ClientError(f"nothing was done: {args.id!r} {what_next(found, now_ms())}")
    age = in_words(found.age_ms(now_ms()) or 0)
    about = f"the transaction of {args.id}, open for {age} on {counted(len(found.partitions), 'partition')}"
    if not _agreed(args, f"Abort {about}? Its producer will be fenced and fail at its next request."):
        return 1
    try:
        fenced = fence_producer(cluster, found)
    except NoAnswer as problem:
        raise ClientError(
            f"{problem}; the transaction may have been aborted or not: see onceflow txns describe {args.id}"
        ) from None
    aborted = fenced.ended == "CompleteAbort"
    if args.json:
        outcome = OUTCOMES.get(fenced.ended or "")
        print_json({"transactional_id": args.id, "aborted": outcome, "producer_fenced": True})
    elif aborted:
        say(f"Aborted {about}. Its producer is fenced.")
    if not aborted:
        committed = fenced.ended == "CompleteCommit"
        fate = "was committed before it could be aborted" if committed else "has ended, and how was not seen"
        say(f"onceflow: the transaction of {args.id!r} {fate}; its producer is fenced now", err=True)
    return 0 if aborted else 1


def _abort_by_place(cluster: Cluster, args: argparse.Namespace) -> int:
    _check_partition(args.topic, args.partition, len(cluster.leaders([args.topic])))
    found = open_transaction_at(cluster, (args.topic, args.partition), args.start_offset)
    if not _agreed(args, f"Abort {_about(found)}?"):
        return 1
    try:
        abort_hanging(cluster, found)
    except TransactionNotHangingError as problem:
        raise ClientError(
            f"{problem}. Nothing was done; to abort all of it: onceflow txns abort {problem.transactional_id}"
        ) from None
    except NoAnswer as problem:
        advice = "the marker may have been written or not: see onceflow txns find-hanging"
        raise ClientError(f"{problem}; {advice}") from None
    if args.json:
        place = {"topic": found.topic, "partition": found.partition, "start_offset": found.start_offset}
        return print_json(place | {"producer_id": found.producer_id, "aborted": True})
    say(f"Aborted {_about(found)}.")
    return 0


def _about(found: OpenTransaction) -> str:
    return (
        f"the hanging transaction at offset {found.start_offset} of {found.topic}-{found.partition} "
        f"(producer id {found.producer_id}, epoch {found.producer_epoch})"
    )


def _agreed(args: argparse.Namespace, question: str) -> bool:
    """Only a person at a terminal is asked; a script means what it says."""
    if args.yes or not sys.stdin.isatty():
        return True
    ask(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("Nothing was done.", err=True)
    return False
