"""`onceflow groups`: list, describe, reset-offsets, delete."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from onceflow.cli.common import add_connection, connection, counted, whole_number
from onceflow.cli.durations import duration_ms, moment_ms
from onceflow.cli.groups_reset import reset_offsets
from onceflow.cli.output import new_table, print_json, print_table, say
from onceflow.client.groups import Group, GroupAdmin, GroupMissingError, GroupPartition, Member
from onceflow.client.problems import ClientError
from onceflow.digits import INT32_MAX, whole_number_of

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  onceflow groups list
  onceflow groups describe billing                              members, offsets and lag
  onceflow groups describe billing --json | jq '[.partitions[].lag] | add'
  onceflow groups reset-offsets billing --topic orders --to-earliest            shows what it would do
  onceflow groups reset-offsets billing --topic orders --to-earliest --execute  does it
  onceflow groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
  onceflow groups reset-offsets billing --all-topics --by-duration 2h
  onceflow groups delete billing
"""

WORDS = {
    "Stable": "stable",
    "Empty": "empty",
    "Dead": "gone",
    "PreparingRebalance": "rebalancing",
    "CompletingRebalance": "rebalancing",
    "Unknown": "rebalancing",
}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "groups",
        help="consumer groups: members, lag, offsets",
        description="List and describe consumer groups, move their offsets, and delete them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for action in (_add_list(actions), _add_describe(actions), _add_reset(actions), _add_delete(actions)):
        action.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_connection(action)


def _add_list(actions: Any) -> argparse.ArgumentParser:
    listing: argparse.ArgumentParser = actions.add_parser(
        "list", help="all consumer groups", description="List all consumer groups."
    )
    listing.add_argument(
        "--state",
        metavar="STATE",
        type=_state,
        action="append",
        default=[],
        help="only those that are stable, empty or rebalancing (Kafka's words do too); may be repeated",
    )
    return listing


def _add_describe(actions: Any) -> argparse.ArgumentParser:
    describing: argparse.ArgumentParser = actions.add_parser(
        "describe",
        help="members, offsets and lag",
        description="Show the members of a group, its offsets, and how far it is behind. The lag counts offsets: "
        "transactions and compaction leave gaps, so there may be fewer messages.",
    )
    describing.add_argument("group", metavar="GROUP")
    describing.add_argument(
        "--isolation",
        choices=["read_committed", "read_uncommitted"],
        default="read_uncommitted",
        help="with read_committed, the end is where the first open transaction begins (default: read_uncommitted)",
    )
    return describing


def _add_reset(actions: Any) -> argparse.ArgumentParser:
    resetting: argparse.ArgumentParser = actions.add_parser(
        "reset-offsets",
        help="where a group goes on reading",
        description="Move the offsets of a group that has no members. Shows what it would do, and does it with "
        "--execute. An offset outside of what is there becomes the nearest that is.",
    )
    resetting.add_argument("group", metavar="GROUP")
    scope = resetting.add_argument_group("which partitions").add_mutually_exclusive_group(required=True)
    scope.add_argument(
        "--topic",
        metavar="TOPIC[:N,N...]",
        type=_topic,
        action="append",
        help="all partitions of a topic, or only these; may be repeated",
    )
    scope.add_argument("--all-topics", action="store_true", help="all for which the group has committed an offset")
    where = resetting.add_argument_group("where to").add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="the first offset that is there")
    where.add_argument("--to-latest", action="store_true", help="the end")
    where.add_argument("--to-offset", metavar="N", type=whole_number(0), help="this offset")
    where.add_argument("--shift-by", metavar="N", type=int, help="so many ahead, or back if negative")
    where.add_argument(
        "--to-datetime",
        metavar="TIME",
        type=moment_ms,
        help="the first message from this time on, for example 2026-01-31T12:00:00Z; without a time zone: local time",
    )
    where.add_argument(
        "--by-duration", metavar="DURATION", type=duration_ms, help="as with the time so long ago: 2h, 1h30m or PT2H"
    )
    doing = resetting.add_mutually_exclusive_group()
    doing.add_argument("--execute", action="store_true", help="do it")
    doing.add_argument("--dry-run", action="store_true", help="only show what would be done (default)")
    return resetting


def _add_delete(actions: Any) -> argparse.ArgumentParser:
    deleting: argparse.ArgumentParser = actions.add_parser(
        "delete",
        help="groups and their offsets",
        description="Delete groups that have no members, and all their offsets, for good.",
    )
    deleting.add_argument("groups", metavar="GROUP", nargs="+")
    deleting.add_argument("--if-exists", action="store_true", help="succeed if a group is not there")
    return deleting


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "describe": _describe,
        "reset-offsets": reset_offsets,
        "delete": _delete,
    }
    return actions[args.action](args)


def _state(text: str) -> str:
    known = {name.lower(): word for state, word in WORDS.items() for name in (state, word)}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a state; there are {', '.join(dict.fromkeys(WORDS.values()))}"
        )
    return known[text.lower()]


def _topic(text: str) -> tuple[str, tuple[int, ...] | None]:
    """`orders` or `orders:0,2`. No topic has a colon in its name."""
    name, colon, numbers = text.partition(":")
    partitions = [whole_number_of(each, INT32_MAX) for each in numbers.split(",")] if colon else []
    if not name or None in partitions:
        raise argparse.ArgumentTypeError(f"{text!r} should look like TOPIC or TOPIC:0,1")
    return name, tuple(each for each in partitions if each is not None) if colon else None


def _list(args: argparse.Namespace) -> int:
    admin = GroupAdmin(connection(args))
    groups = [group for group in admin.groups(admin.group_ids()) if not args.state or WORDS[group.state] in args.state]
    if args.json:
        return print_json([_summary(group) for group in groups])
    if not groups:
        say("No group is in such a state." if args.state else "There are no consumer groups yet.", err=True)
        return 0
    table = new_table("group", protocol="left", state="left", members="right", coordinator="right")
    for group in groups:
        coordinator = "-" if group.coordinator is None else str(group.coordinator.id)
        table.add_row(group.id, group.protocol, WORDS[group.state], str(len(group.members)), coordinator)
    print_table(table)
    return 0


def _summary(group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "protocol": group.protocol,
        "state": group.state,
        "state_in_words": WORDS[group.state],
        "members": len(group.members),
        "coordinator": group.coordinator and {"id": group.coordinator.id, "address": str(group.coordinator.address)},
    }


def _describe(args: argparse.Namespace) -> int:
    admin = GroupAdmin(connection(args))
    group = admin.group(args.group)
    progress = admin.progress(group, read_committed=args.isolation == "read_committed")
    if args.json:
        return print_json(
            _summary(group)
            | {
                "assignor": group.assignor,
                "isolation": args.isolation,
                "members": [_member_as_json(member) for member in group.members],
                "partitions": [_partition_as_json(each) for each in progress],
            }
        )
    _print_group(group, progress)
    return 0


def _member_as_json(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions": [{"topic": topic, "partition": partition} for topic, partition in member.partitions],
    }


def _partition_as_json(each: GroupPartition) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "committed": each.committed,
        "earliest": each.earliest,
        "end": each.end,
        "lag": each.lag,
        "member_id": each.member.member_id if each.member else None,
    }


def _print_group(group: Group, progress: list[GroupPartition]) -> None:
    known = [each.lag for each in progress if each.lag is not None]
    lag = f"  lag {sum(known):,}" if known else ""
    say(f"{group.id}  {WORDS[group.state]}  {counted(len(group.members), 'member')}{lag}")
    say(f"  protocol     {group.protocol}" + (f", assignor {group.assignor}" if group.assignor else ""))
    say(f"  coordinator  {group.coordinator or 'none'}")
    if group.members:
        say()
        _print_members(group.members)
    say()
    if not progress:
        say("Nothing is committed and nothing is assigned.")
        return
    table = new_table("topic", partition="right", committed="right", end="right", lag="right", member="left")
    for each in progress:
        table.add_row(
            each.topic,
            str(each.partition),
            _number(each.committed),
            _number(each.end),
            _lag(each),
            f"{each.member.client_id} at {each.member.host}" if each.member else "nobody",
        )
    print_table(table)


def _print_members(members: tuple[Member, ...]) -> None:
    table = new_table("client id", host="left", static_id="left", partitions="left", member_id="left")
    for member in members:
        table.add_row(member.client_id, member.host, member.instance_id or "-", _assigned(member), member.member_id)
    print_table(table)


def _assigned(member: Member) -> str:
    """`orders:0,1 payments:2`, in the form that --topic takes."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in member.partitions:
        by_topic.setdefault(topic, []).append(str(partition))
    return " ".join(f"{topic}:{','.join(partitions)}" for topic, partitions in by_topic.items()) or "none"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _lag(each: GroupPartition) -> str:
    """The lag, and in words what is odd about it."""
    if each.end is None or each.earliest is None:
        return "the partition is gone"
    if each.committed is None:
        return f"nothing committed, {each.end - each.earliest} there"
    if each.committed < each.earliest:
        return f"{each.lag}, of which {each.earliest - each.committed} are gone"
    if each.committed > each.end:
        return f"committed {each.committed - each.end} beyond the end"
    return str(each.lag)


def _delete(args: argparse.Namespace) -> int:
    admin = GroupAdmin(connection(args))
    outcomes: list[dict[str, Any]] = []
    failed = False
    for group_id in dict.fromkeys(args.groups):
        outcome = {"group": group_id, "deleted": False}
        outcomes.append(outcome)
        try:
            admin.delete_group(group_id)
            outcome["deleted"] = True
        except ClientError as problem:
            if isinstance(problem, GroupMissingError) and args.if_exists:
                if not args.json:
                    say(f"There was no group {group_id}.")
                continue
            failed = True
            say(f"onceflow: {problem}", err=True)
        if outcome["deleted"] and not args.json:
            say(f"Deleted group {group_id}.")
    if args.json:
        print_json(outcomes)
    return 1 if failed else 0
