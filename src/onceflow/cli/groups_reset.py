"""`onceflow groups reset-offsets`: plan where a group goes on, show it, and do it if told to.

As Kafka's own tool: a group with members is refused, one that does not exist yet is made, an offset outside of what is
there is moved to the nearest that is, and a time after the last message means the end.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from onceflow.cli.common import connection, counted
from onceflow.cli.output import new_table, print_json, print_table, say
from onceflow.client.cluster import TopicPartition
from onceflow.client.groups import GroupActiveError, GroupAdmin, GroupPartition
from onceflow.client.problems import ClientError
from onceflow.errors import ConfigError

__all__ = ["Step", "plan", "reset_offsets"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One partition's part of the plan."""

    topic: str
    partition: int
    before: int | None
    after: int
    note: str = ""

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition


def reset_offsets(args: argparse.Namespace) -> int:
    admin = GroupAdmin(connection(args))
    (group,) = admin.groups([args.group])
    if group.is_active:
        members = counted(len(group.members), "member")
        raise GroupActiveError(
            f"group {args.group!r} has {members}, and its offsets can only be moved while it has none: "
            f"stop its consumers first"
        )
    now = admin.progress_in(group, _places(admin, args))
    if not now:
        raise ClientError(f"group {args.group!r} has not committed anything: name a --topic")
    steps = plan(args, now, _by_time(admin, args, [each.place for each in now]))
    refused = admin.move(args.group, {step.place: step.after for step in steps}) if args.execute else {}
    if args.json:
        print_json({"group": args.group, "executed": bool(args.execute), "partitions": _as_json(steps, refused)})
    else:
        _print_plan(args, steps, refused)
    for (topic, partition), reason in refused.items():
        say(f"onceflow: the offset of {topic}-{partition} was not moved: {reason}", err=True)
    return 1 if refused else 0


def plan(args: argparse.Namespace, now: list[GroupPartition], by_time: dict[TopicPartition, int | None]) -> list[Step]:
    """Where each partition goes. Raises `ClientError` if one cannot: then none does."""
    steps = []
    for each in now:
        if each.earliest is None or each.end is None:
            raise ClientError(f"{each.topic}-{each.partition} is gone: nothing can be read from it")
        wish = _wish(args, each, by_time)
        after = min(max(wish, each.earliest), each.end)
        note = "" if after == wish else f"{wish} is {'before the first' if wish < after else 'beyond the end'}"
        steps.append(Step(topic=each.topic, partition=each.partition, before=each.committed, after=after, note=note))
    return steps


def _wish(args: argparse.Namespace, each: GroupPartition, by_time: dict[TopicPartition, int | None]) -> int:
    assert each.earliest is not None
    assert each.end is not None
    if args.to_earliest:
        return each.earliest
    if args.to_latest:
        return each.end
    if args.to_offset is not None:
        return int(args.to_offset)
    if args.shift_by is None:
        found = by_time[each.place]
        return each.end if found is None else found
    if each.committed is None:
        raise ClientError(f"nothing is committed for {each.topic}-{each.partition}, so there is nothing to shift")
    return each.committed + int(args.shift_by)


def _places(admin: GroupAdmin, args: argparse.Namespace) -> list[TopicPartition]:
    if args.all_topics:
        return sorted(admin.committed(args.group))
    places: list[TopicPartition] = []
    for name, wanted in args.topic:
        there = admin.topic(name).partitions
        for partition in there if wanted is None else wanted:
            if partition not in there:
                raise ConfigError(f"topic {name!r} has {counted(len(there), 'partition')}: there is no {partition}")
            places.append((name, partition))
    return places


def _by_time(
    admin: GroupAdmin, args: argparse.Namespace, places: list[TopicPartition]
) -> dict[TopicPartition, int | None]:
    if args.to_datetime is not None:
        return admin.offsets_at(places, args.to_datetime)
    if args.by_duration is not None:
        return admin.offsets_at(places, time.time_ns() // 1_000_000 - args.by_duration)
    return {}


def _as_json(steps: list[Step], refused: dict[TopicPartition, str]) -> list[dict[str, Any]]:
    return [
        {
            "topic": step.topic,
            "partition": step.partition,
            "before": step.before,
            "after": step.after,
            "error": refused.get(step.place),
        }
        for step in steps
    ]


def _print_plan(args: argparse.Namespace, steps: list[Step], refused: dict[TopicPartition, str]) -> None:
    table = new_table("topic", partition="right", before="right", after="right", change="right", note="left")
    for step in steps:
        change = "-" if step.before is None else f"{step.after - step.before:+d}"
        before = "-" if step.before is None else str(step.before)
        note = "not moved" if step.place in refused else step.note
        table.add_row(step.topic, str(step.partition), before, str(step.after), change, note)
    print_table(table)
    if args.execute:
        say(f"Moved {counted(len(steps) - len(refused), 'offset')} of group {args.group}.", err=True)
    else:
        say("Nothing was changed: this is the plan, and --execute carries it out.", err=True)
