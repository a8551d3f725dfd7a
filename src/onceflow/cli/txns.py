"""`onceflow txns`: list and describe; `txns_repair` finds hanging ones and aborts.

States are shown in words; `--json` has Kafka's own names too. All times are the broker's, compared with this
machine's clock: where the two differ, so do the durations.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from onceflow.cli.common import add_connection, connection, whole_number
from onceflow.cli.durations import duration_ms, in_words, moment
from onceflow.cli.output import new_table, print_json, print_table, say
from onceflow.cli.txn_words import WORDS, left_ms, now_ms, timeout, what_next, word
from onceflow.cli.txns_repair import abort, find_hanging_ones
from onceflow.client.cluster import Cluster
from onceflow.client.transactions import (
    Transaction,
    describe_transaction,
    describe_transactions,
    list_transactions,
)
from onceflow.errors import ConfigError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  onceflow txns list                                  all transactional ids and what they are doing
  onceflow txns list --state open --older-than 5m
  onceflow txns describe orders-app                   partitions, time left, what happens next
  onceflow txns abort orders-app                      abort its open transaction; its producer is fenced
  onceflow txns find-hanging                          open on a partition, and no coordinator will end it
  onceflow txns abort --topic orders --partition 0 --start-offset 1234

A state may be given in Kafka's words or in ours: Empty (idle), Ongoing (open), PrepareCommit (committing),
PrepareAbort (aborting), CompleteCommit (committed), CompleteAbort (aborted), PrepareEpochFence (fencing), Dead
(expiring). With --json, times are milliseconds since 1970.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "txns",
        help="list, describe and abort transactions",
        description="List, describe and abort transactions, and find those that hang.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    added = (_add_list(actions), _add_describe(actions), _add_find_hanging(actions), _add_abort(actions))
    for action in added:
        action.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_connection(action)


def _add_list(actions: Any) -> argparse.ArgumentParser:
    listing: argparse.ArgumentParser = actions.add_parser(
        "list",
        help="transactional ids and what they are doing",
        description="List the transactional ids of all coordinators, and how long their transactions have been open.",
    )
    listing.add_argument(
        "--state",
        metavar="STATE",
        type=_state,
        action="append",
        default=[],
        help="only those in this state, for example Ongoing or open; may be repeated",
    )
    listing.add_argument(
        "--older-than", metavar="DURATION", type=duration_ms, help="only those open for longer, for example 90s or 5m"
    )
    listing.add_argument(
        "--id-pattern", metavar="REGEX", type=_pattern, help="only ids that match as a whole, for example 'orders-.*'"
    )
    return listing


def _add_describe(actions: Any) -> argparse.ArgumentParser:
    describing: argparse.ArgumentParser = actions.add_parser(
        "describe",
        help="everything about one transactional id",
        description="Show a transactional id's state, producer, partitions and time left, and what happens next.",
    )
    describing.add_argument("id", metavar="ID")
    return describing


def _add_find_hanging(actions: Any) -> argparse.ArgumentParser:
    finding: argparse.ArgumentParser = actions.add_parser(
        "find-hanging",
        help="open on a partition, and no coordinator will end it",
        description="Find transactions that are open on a partition although no coordinator is going to end them. "
        "Readers of committed messages wait behind them for ever.",
    )
    finding.add_argument("--topic", metavar="TOPIC", help="look at this one only (default: all, internal ones too)")
    finding.add_argument("--partition", metavar="N", type=whole_number(0), help="look at this one of the topic only")
    finding.add_argument(
        "--older-than",
        metavar="DURATION",
        type=duration_ms,
        help="without a write for longer than this, going by record timestamps (default: the broker's "
        "transaction.max.timeout.ms)",
    )
    return finding


def _add_abort(actions: Any) -> argparse.ArgumentParser:
    aborting: argparse.ArgumentParser = actions.add_parser(
        "abort",
        help="an open or a hanging transaction",
        description="Abort the open transaction of a transactional id, by fencing its producer: that one fails at its "
        "next request and has to start anew. Or, with --topic, --partition and --start-offset as find-hanging shows "
        "them, end a hanging transaction on a partition.",
    )
    aborting.add_argument("id", metavar="ID", nargs="?")
    aborting.add_argument("--topic", metavar="TOPIC", help="of a hanging transaction")
    aborting.add_argument("--partition", metavar="N", type=whole_number(0), help="of a hanging transaction")
    aborting.add_argument("--start-offset", metavar="N", type=whole_number(0), help="of a hanging transaction")
    aborting.add_argument("--yes", action="store_true", help="do not ask (at a terminal)")
    return aborting


def run(args: argparse.Namespace) -> int:
    if args.action == "abort":
        _check_abort(args)
    if args.action == "find-hanging" and args.partition is not None and args.topic is None:
        raise ConfigError("--partition needs a --topic")
    actions = {"list": _list, "describe": _describe, "find-hanging": find_hanging_ones, "abort": abort}
    with Cluster(connection(args)) as cluster:
        return actions[args.action](cluster, args)


def _state(text: str) -> str:
    known = {name.lower(): state for state, ours in WORDS.items() for name in (state, ours)}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is not a state; there are {', '.join(WORDS)}")
    return known[text.lower()]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as problem:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {problem}") from None


def _check_abort(args: argparse.Namespace) -> None:
    place = [args.topic, args.partition, args.start_offset]
    if args.id is not None and place != [None, None, None]:
        raise ConfigError("give either a transactional id, or --topic, --partition and --start-offset, not both")
    if args.id is None and None in place:
        raise ConfigError("what to abort? Give a transactional id, or --topic, --partition and --start-offset")


def _list(cluster: Cluster, args: argparse.Namespace) -> int:
    listed = list_transactions(cluster, states=args.state, older_than_ms=args.older_than)
    ids = [each.transactional_id for each in listed]
    if args.id_pattern is not None:
        ids = [each for each in ids if args.id_pattern.fullmatch(each)]
    now = now_ms()
    found = [each for each in describe_transactions(cluster, ids).values() if _is_wanted(each, args, now)]
    found.sort(key=lambda each: each.transactional_id)
    if args.json:
        return print_json([_as_json(each, now) for each in found])
    if not found:
        filtered = args.state or args.older_than is not None or args.id_pattern is not None
        say("No transactional id fits." if filtered else "There are no transactional ids yet.", err=True)
        return 0
    _print_list(found, now)
    return 0


def _is_wanted(each: Transaction, args: argparse.Namespace, now: int) -> bool:
    """Once more, on what the coordinator said last: it may have moved on, and old brokers cannot filter by time."""
    age = each.age_ms(now)
    return (not args.state or each.state in args.state) and (
        args.older_than is None or (age is not None and age > args.older_than)
    )


def _print_list(found: list[Transaction], now: int) -> None:
    table = new_table(
        "transactional id",
        state="left",
        producer_id="right",
        epoch="right",
        open_for="right",
        timeout="right",
        coordinator="right",
    )
    for each in found:
        age = each.age_ms(now)
        table.add_row(
            each.transactional_id,
            word(each.state),
            str(each.producer_id),
            str(each.producer_epoch),
            "-" if age is None else in_words(age),
            timeout(each),
            str(each.coordinator.id),
        )
    print_table(table)


def _describe(cluster: Cluster, args: argparse.Namespace) -> int:
    found = describe_transaction(cluster, args.id)
    now = now_ms()
    if args.json:
        return print_json(_as_json(found, now))
    say(f"{found.transactional_id}  {word(found.state)}")
    say(f"  next         {what_next(found, now)}")
    age = found.age_ms(now)
    if age is not None and found.started_ms is not None:
        say(f"  began        {moment(found.started_ms)}, {in_words(age)} ago")
    left = left_ms(found, now)
    say(f"  timeout      {timeout(found)}" + (f", {in_words(left)} left" if left else ""))
    say(f"  producer     id {found.producer_id}, epoch {found.producer_epoch}")
    say(f"  coordinator  {found.coordinator}")
    if found.partitions:
        say()
        table = new_table("topic", partition="right")
        for topic, partition in found.partitions:
            table.add_row(topic, str(partition))
        print_table(table)
    return 0


def _as_json(each: Transaction, now: int) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "state_in_words": word(each.state),
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "started_ms": each.started_ms if each.is_unfinished else None,
        "open_for_ms": each.age_ms(now),
        "timeout_ms": each.timeout_ms,
        "timeout_left_ms": left_ms(each, now),
        "next": what_next(each, now),
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in each.partitions],
        "coordinator": {"id": each.coordinator.id, "address": str(each.coordinator.address)},
    }
