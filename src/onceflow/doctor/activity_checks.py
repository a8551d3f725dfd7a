"""Checks of what goes on in a cluster: transactions that do not end, and groups that have lost records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from onceflow.client.transactions import Transaction
from onceflow.doctor.facts import Case, ClusterFacts, GroupFacts
from onceflow.doctor.findings import Finding, fault, note, some, warning
from onceflow.doctor.registry import cluster_check

__all__: list[str] = []

LATE_MS: Final = 60_000
"""How long after its timeout a transaction may still be there: coordinators look every ten seconds."""
LONG_SHARE: Final = 0.8  # of its timeout
LAG_TO_MENTION: Final = 100_000


@cluster_check(
    "transactions.hanging",
    "Hanging transactions",
    why="No coordinator is going to end them, so read_committed consumers of the partition wait there for ever.",
    needs=("hanging",),
)
def hanging(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for each in cluster.hanging:
        place = f"--topic {each.open.topic} --partition {each.open.partition} --start-offset {each.open.start_offset}"
        yield fault(
            f"{each.open.topic}-{each.open.partition} from offset {each.open.start_offset} on, "
            f"of {each.transactional_id or f'producer id {each.open.producer_id}'}",
            f"onceflow txns abort {place}",
        )


@cluster_check(
    "transactions.stuck",
    "Transactions end",
    why="read_committed consumers see nothing beyond the first record of a transaction that has not ended.",
    needs=("transactions",),
)
def stuck(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for each in cluster.transactions:
        age = each.age_ms(cluster.now_ms)
        if age is not None:
            yield from _judged(each, age)


def _judged(each: Transaction, age_ms: int) -> Iterator[Finding]:
    found = f"{each.transactional_id}: {each.state} for {age_ms // 1000} s, timeout {each.timeout_ms // 1000} s"
    abort = f"onceflow txns abort {each.transactional_id}"
    if each.state == "Ongoing" and age_ms > each.timeout_ms + LATE_MS:
        yield fault(f"{found}: its coordinator does not abort it", abort)
    elif each.state != "Ongoing" and age_ms > LATE_MS + each.timeout_ms:
        places = [f"{topic}-{partition}" for topic, partition in each.partitions]
        yield fault(f"{found}: markers are missing in {some(places)}", "see to the leaders of these partitions")
    elif each.state == "Ongoing" and age_ms > max(LATE_MS, LONG_SHARE * each.timeout_ms):
        yield warning(f"{found}: it is about to be aborted", f"smaller transactions, or a longer timeout; {abort}")


@cluster_check(
    "groups.lost",
    "Groups go on where they stopped",
    why="A committed offset that the partition does not have means that records were lost, or will be repeated.",
    needs=("groups",),
)
def lost(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for group in cluster.groups:
        if before := _places(group, cluster.starts, lambda committed, start: committed < start):
            yield fault(
                f"{group.id}: what it has not read is deleted already: {some(before)}",
                "raise retention.ms; see what was lost; then: onceflow groups reset-offsets, to say where it goes on",
            )
        if beyond := _places(group, cluster.ends, lambda committed, end: committed > end):
            yield fault(
                f"{group.id}: it has committed beyond the end: {some(beyond)}",
                "was the topic made anew? Say where it goes on: onceflow groups reset-offsets",
            )


def _places(group: GroupFacts, bounds: Mapping[tuple[str, int], int], is_so: Callable[[int, int], bool]) -> list[str]:
    return [
        f"{place[0]}-{place[1]} (committed {committed}, the partition's {bounds[place]})"
        for place, committed in group.committed.items()
        if place in bounds and is_so(committed, bounds[place])
    ]


@cluster_check(
    "groups.lag",
    "Groups keep up",
    why="What is not read before retention deletes it is lost for the group.",
    needs=("groups",),
)
def lag(cluster: ClusterFacts, case: Case) -> Iterator[Finding]:
    for group in cluster.groups:
        known = [(cluster.stable[place], at) for place, at in group.committed.items() if place in cluster.stable]
        behind = sum(max(0, stable - at) for stable, at in known)
        if behind >= LAG_TO_MENTION:
            who = "" if group.has_members else ", and has no members"
            yield note(f"{group.id}: {behind:,} offsets behind{who}", f"onceflow groups describe {group.id}")
