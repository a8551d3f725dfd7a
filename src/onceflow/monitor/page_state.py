"""A snapshot as the page gets it: plain lists and dictionaries for JSON, bounded, the interesting things first.

What there can be thousands of (partitions, producers, offsets of groups) is sent as rows without names, in the order
that `Watcher.state` documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onceflow.monitor.history import quantile
from onceflow.monitor.snapshot import Group, Partition, Producer, Snapshot, Timing, Transaction

__all__ = ["described"]

EVENTS: Final = 100
TRANSACTIONS: Final = 500
TRANSACTION_PARTITIONS: Final = 2_500
"""Of all transactions together; of each at least a few."""
PRODUCERS: Final = 500
GROUPS: Final = 200
GROUP_PARTITIONS: Final = 4_000
FEW: Final = 10
MICRO_BATCHES: Final = 200

Json = dict[str, Any]


def described(snapshot: Snapshot, seconds: float, timings: Mapping[str, Timing]) -> Json:
    """Everything but the history and the alerts; `timings` are of the last `seconds`."""
    return {
        "now_ms": snapshot.at_ms,
        "cluster": _cluster(snapshot),
        "totals": _totals(snapshot),
        "transactions": _transactions(snapshot),
        "ended": [_plain(each) for each in reversed(snapshot.ended[-EVENTS:])],
        "fencings": [_plain(each) for each in reversed(snapshot.fencings[-EVENTS:])],
        "topics": _topics(snapshot.partitions),
        "producers": _producers(snapshot.producers),
        "groups": _groups(snapshot.groups),
        "micro_batches": [_plain(each) for each in snapshot.micro_batches[-MICRO_BATCHES:]],
        "coordinators": [_plain(each) for each in snapshot.coordinators],
        "consumers": dict(snapshot.consumers),
        "requests": _requests(seconds, timings),
    }


def _plain(value: Any) -> Json:
    """As `dataclasses.asdict`, which copies deeply and takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def _cluster(snapshot: Snapshot) -> Json:
    return {
        "id": snapshot.cluster_id,
        "software": snapshot.software,
        "brokers": list(snapshot.brokers),
        "started_ms": snapshot.started_ms,
        "connections_open": snapshot.connections_open,
        "truncated": snapshot.truncated,
        "notes": [*snapshot.notes, *snapshot.remarks],
    }


def _totals(snapshot: Snapshot) -> Json:
    """Who looks from outside (and so does not know when it was started) counts ends of transactions, and no more."""
    totals = _plain(snapshot.counters)
    if snapshot.started_ms is not None:
        return totals
    return {name: value if value or name in ("commits", "aborts") else None for name, value in totals.items()}


def _transactions(snapshot: Snapshot) -> Json:
    states: dict[str, int] = {}
    for each in snapshot.transactions:
        states[each.state] = states.get(each.state, 0) + 1
    # Open ones first, the oldest on top; then whoever moved last.
    rows = sorted(snapshot.transactions, key=lambda t: (not t.is_open, t.started_ms or 0, -(t.updated_ms or 0)))
    shown = rows[:TRANSACTIONS]
    share = _share(TRANSACTION_PARTITIONS, len(shown))
    return {"states": states, "rows": [_transaction(each, share) for each in shown]}


def _share(total: int, shown: int) -> int:
    return max(FEW, total // max(1, shown))


def _transaction(it: Transaction, share: int) -> Json:
    return {
        "id": it.transactional_id,
        "producer_id": it.producer_id,
        "epoch": it.epoch,
        "state": it.state,
        "is_open": it.is_open,
        "timeout_ms": it.timeout_ms,
        "started_ms": it.started_ms,
        "updated_ms": it.updated_ms,
        "partition_count": len(it.partitions),
        "partitions": it.partitions[:share],
    }


def _topics(partitions: tuple[Partition, ...]) -> list[list[Any]]:
    topics: dict[str, list[Any]] = {}
    for p in partitions:
        row = (p.partition, p.start, p.last_stable, p.end, p.size_bytes, p.leader, p.replicas, p.in_sync)
        topics.setdefault(p.topic, []).append(row)
    return [[name, sorted(rows, key=lambda row: row[0])] for name, rows in sorted(topics.items())]


def _producers(producers: tuple[Producer, ...]) -> Json:
    rows = sorted(producers, key=lambda p: (p.transaction_start is None, -p.last_write_ms))
    return {
        "count": len(rows),
        "rows": [
            (p.topic, p.partition, p.producer_id, p.epoch, p.last_sequence, p.last_write_ms, p.transaction_start)
            for p in rows[:PRODUCERS]
        ],
    }


def _groups(groups: tuple[Group, ...]) -> Json:
    rows = sorted(groups, key=lambda group: (-group.lag, group.group_id))
    shown = rows[:GROUPS]
    share = _share(GROUP_PARTITIONS, len(shown))
    return {"count": len(rows), "rows": [_group(each, share) for each in shown]}


def _group(group: Group, share: int) -> Json:
    rows = sorted(group.partitions, key=lambda p: (-(p.lag or 0), p.topic, p.partition))
    return {
        "id": group.group_id,
        "state": group.state,
        "protocol": group.protocol,
        "members": group.members,
        "lag": group.lag,
        "partition_count": len(rows),
        "partitions": [(p.topic, p.partition, p.committed, p.lag) for p in rows[:share]],
    }


def _requests(seconds: float, timings: Mapping[str, Timing]) -> list[Json]:
    rows = [
        {
            "name": name,
            "per_s": round(timing.count / seconds, 3) if seconds else None,
            "mean_ms": round(timing.total_s / timing.count * 1000, 3),
            "p50_ms": _ms(quantile(timing, 0.5)),
            "p99_ms": _ms(quantile(timing, 0.99)),
        }
        for name, timing in timings.items()
        if timing.count
    ]
    return sorted(rows, key=lambda row: -(row["per_s"] or 0))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
