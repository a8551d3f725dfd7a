"""`onceflow topics`: list, describe, create, delete."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onceflow.cli.common import add_connection, connection, counted, name_and_value, whole_number
from onceflow.cli.output import new_table, print_json, print_table, say

if TYPE_CHECKING:
    from onceflow.client.admin import TopicDescription

__all__ = ["add_parser", "run"]

PARTITIONS_MAX = 100_000
REPLICAS_MAX = 10_000
"""What librdkafka takes."""
EXAMPLES = """\
examples:
  onceflow topics create orders --partitions 3 --config retention.ms=86400000
  onceflow topics list
  onceflow topics describe orders
  onceflow topics describe --json | jq '.[].partitions[].latest'
  onceflow topics delete orders --if-exists
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "topics",
        help="list, describe, create and delete topics",
        description="List, describe, create and delete the topics of a broker.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)

    listing = actions.add_parser("list", help="all topics", description="List all topics.")
    listing.add_argument("--internal", action="store_true", help="the broker's own topics too (names starting with __)")

    describing = actions.add_parser(
        "describe",
        help="partitions, offsets and settings",
        description="Show the partitions, offsets and settings of topics; of all topics, if none is named. "
        "The number of records is an estimate: transactions and compaction leave gaps between the offsets.",
    )
    describing.add_argument("topics", metavar="TOPIC", nargs="*")
    describing.add_argument("--internal", action="store_true", help="the broker's own topics too, if none is named")

    creating = actions.add_parser("create", help="a new topic", description="Create a topic.")
    creating.add_argument("topic", metavar="TOPIC")
    creating.add_argument(
        "--partitions", metavar="N", type=whole_number(1, PARTITIONS_MAX), help="default: the broker decides, mostly 1"
    )
    creating.add_argument(
        "--replication-factor", metavar="N", type=whole_number(1, REPLICAS_MAX), default=1, help="default: 1"
    )
    creating.add_argument(
        "--config",
        metavar="NAME=VALUE",
        type=name_and_value,
        action="append",
        default=[],
        help="a topic setting, for example cleanup.policy=compact; may be repeated",
    )
    creating.add_argument("--if-not-exists", action="store_true", help="succeed if the topic is already there")

    deleting = actions.add_parser(
        "delete",
        help="topics and all their messages",
        description="Delete topics and everything in them, for good.",
    )
    deleting.add_argument("topics", metavar="TOPIC", nargs="+")
    deleting.add_argument("--if-exists", action="store_true", help="succeed if a topic is not there")

    for action in (listing, describing, creating, deleting):
        action.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_connection(action)


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "describe": _describe, "create": _create, "delete": _delete}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin

    topics = [t for t in Admin(connection(args)).topics() if args.internal or not t.internal]
    if args.json:
        return print_json(
            [
                {
                    "name": topic.name,
                    "partitions": len(topic.partitions),
                    "replication_factor": topic.replication_factor,
                    "internal": topic.internal,
                }
                for topic in topics
            ]
        )
    if not topics:
        say("There are no topics yet. Create one with: onceflow topics create NAME", err=True)
        return 0
    table = new_table("topic", partitions="right", replicas="right")
    for topic in topics:
        table.add_row(topic.name, str(len(topic.partitions)), str(topic.replication_factor))
    print_table(table)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin

    admin = Admin(connection(args))
    names = args.topics or [t.name for t in admin.topics() if args.internal or not t.internal]
    descriptions = admin.describe(dict.fromkeys(names))
    if args.json:
        return print_json([_as_json(description) for description in descriptions])
    if not descriptions:
        say("There are no topics yet. Create one with: onceflow topics create NAME", err=True)
    for position, description in enumerate(descriptions):
        if position:
            say()
        _print_description(description)
    return 0


def _create(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin, TopicExistsError

    admin = Admin(connection(args))
    created = True
    try:
        admin.create(
            args.topic,
            partitions=args.partitions or -1,
            replication_factor=args.replication_factor,
            configs=dict(args.config),
        )
    except TopicExistsError:
        if not args.if_not_exists:
            raise
        created = False
    if args.json:
        return print_json({"name": args.topic, "created": created})
    partitions = counted(len(admin.topic(args.topic).partitions), "partition")
    if created:
        say(f"Created topic {args.topic} with {partitions}.")
    else:
        say(f"Topic {args.topic} was already there with {partitions}; nothing was changed.")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from onceflow.client.admin import Admin, TopicMissingError
    from onceflow.client.problems import ClientError

    admin = Admin(connection(args))
    outcomes: list[dict[str, Any]] = []
    failed = False
    for name in dict.fromkeys(args.topics):
        outcome = {"name": name, "deleted": False}
        outcomes.append(outcome)
        try:
            admin.delete(name)
            outcome["deleted"] = True
        except TopicMissingError as problem:
            if not args.if_exists:
                failed = True
                say(f"onceflow: {problem}", err=True)
            elif not args.json:
                say(f"There was no topic {name}.")
        except ClientError as problem:
            failed = True
            say(f"onceflow: {problem}", err=True)
        if outcome["deleted"] and not args.json:
            say(f"Deleted topic {name}.")
    if args.json:
        print_json(outcomes)
    return 1 if failed else 0


def _as_json(description: TopicDescription) -> dict[str, Any]:
    partitions = [asdict(p) | {"records_estimate": p.records_estimate} for p in description.partitions]
    return {
        "name": description.name,
        "id": description.id,
        "internal": description.internal,
        "partitions": partitions,
        "configs": dict(description.configs),
    }


def _print_description(description: TopicDescription) -> None:
    records = sum(p.records_estimate for p in description.partitions)
    say(f"{description.name}  id {description.id}  about {counted(records, 'record')}")
    for name, value in description.configs.items():
        say(f"  {name}={value}")
    table = new_table("partition", leader="right", replicas="left", earliest="right", latest="right", records="right")
    for p in description.partitions:
        table.add_row(
            str(p.partition),
            "none" if p.leader is None else str(p.leader),
            ",".join(map(str, p.replicas)),
            str(p.earliest),
            str(p.latest),
            str(p.records_estimate),
        )
    print_table(table)
