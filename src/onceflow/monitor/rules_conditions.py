"""The conditions of the rules, over snapshots.

A condition is shown every snapshot and answers with what it finds wrong now, or with None: what it needs is not known
here. That a condition has to hold for some time is not its business (`rules.py`), except where looking back is the
condition. Each keeps what it needs of the past and no snapshots, and forgets what is no longer there.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from onceflow.monitor.history import merged, quantile
from onceflow.monitor.rules_thresholds import Thresholds
from onceflow.monitor.rules_windows import STEPS, Growth, SteadyTime, Trend, in_words
from onceflow.monitor.snapshot import EndedTransaction, Group, Partition, Producer, Snapshot, Timing, Transaction

__all__ = [
    "SUBJECTS_MAX",
    "AbortRate",
    "AuthenticationFailures",
    "Coordinators",
    "Fenced",
    "Finding",
    "IdleProducers",
    "Lag",
    "Latency",
    "OpenTransactions",
    "StuckPartitions",
]

SUBJECTS_MAX: Final = 50
"""Of one rule. Where a thousand partitions are stuck, nobody reads the last 950."""
INTERNAL: Final = "__"
"""How Kafka's own topics begin. Nobody waits for their last stable offset."""


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    summary: str
    weight: float = 0.0
    """Of many, the heaviest are told."""


Findings = Sequence[Finding] | None


def is_from_within(snapshot: Snapshot) -> bool:
    """Made by a broker of itself: then nothing counted means that nothing happened."""
    return snapshot.started_ms is not None


def knows(snapshot: Snapshot, found: Sequence[object]) -> bool:
    """Whether nothing found means that there is nothing: who asks from outside may have been refused, and notes it."""
    return bool(found) or is_from_within(snapshot) or not snapshot.notes


class AbortRate:
    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._ends = Growth(limits.window_ms)

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not knows(snapshot, snapshot.transactions):
            return None
        limits, counters = self._limits, snapshot.counters
        self._ends.see(time.now_ms, (counters.commits, counters.aborts))
        commits, aborts = self._ends.increase
        if aborts < limits.aborts_min or aborts <= limits.abort_share * commits:
            return []
        share = f"{aborts / commits:.0%} of" if commits else "beside"
        summary = f"{aborts:,} aborts, {share} {commits:,} commits, in the last {in_words(limits.window_ms)}"
        return [Finding("", summary + _who_aborts(snapshot.ended))]


def _who_aborts(ended: Sequence[EndedTransaction]) -> str:
    aborted = [each for each in ended if not each.committed]
    if not aborted:
        return ""
    (name, _), *_ = Counter(each.transactional_id for each in aborted).most_common(1)
    (reason, _), *_ = Counter(each.reason for each in aborted).most_common(1)
    return f"; lately most of them by {name}, reason: {reason}"


class Coordinators:
    def __init__(self, limits: Thresholds) -> None:
        pass

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not snapshot.coordinators:
            return None
        return [
            Finding(each.kind, f"the {each.kind} coordinator is {each.state}" + (f": {each.note}" if each.note else ""))
            for each in snapshot.coordinators
            if each.state != "active"
        ]


class IdleProducers:
    """Who holds a transaction open, at its coordinator or only on a partition, and has done nothing for long."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not knows(snapshot, snapshot.transactions):
            return None
        open_ones = [each for each in snapshot.transactions if each.is_open]
        writes = dict.fromkeys((each.producer_id for each in open_ones), 0)
        alone = []
        for producer in snapshot.producers:
            if producer.producer_id in writes:
                writes[producer.producer_id] = max(producer.last_write_ms, writes[producer.producer_id])
            elif producer.transaction_start is not None:
                alone.append(self._on_partition(producer, producer.transaction_start, time))
        found = [self._at_coordinator(each, writes[each.producer_id], time) for each in open_ones] + alone
        return [each for each in found if each is not None]

    def _at_coordinator(self, it: Transaction, wrote_ms: int, time: SteadyTime) -> Finding | None:
        # The coordinator hears of a partition once. Who goes on writing there is seen on the partition only.
        known = [at for at in (it.updated_ms, it.started_ms, wrote_ms) if at]
        idle_ms = time.age_ms(max(known)) if known else 0
        if idle_ms <= self._limits.idle_ms:
            return None
        who = f"producer {it.producer_id}, epoch {it.epoch}"
        what = f"{it.transactional_id} ({who}) holds a transaction open and has done nothing for {in_words(idle_ms)}"
        return Finding(it.transactional_id, what, idle_ms)

    def _on_partition(self, it: Producer, start: int, time: SteadyTime) -> Finding | None:
        idle_ms = time.age_ms(it.last_write_ms)
        if idle_ms <= self._limits.idle_ms or it.topic.startswith(INTERNAL):
            return None
        place = f"{it.topic}-{it.partition}"
        what = (
            f"producer {it.producer_id}, epoch {it.epoch}, has a transaction open on {place} from offset "
            f"{start:,}, which no coordinator knows, and last wrote {in_words(idle_ms)} ago"
        )
        return Finding(place, what, idle_ms)


class Fenced:
    """Who was refused again and again lately, for an epoch that is past: the rule asks for how long that goes on."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not snapshot.fencings and not is_from_within(snapshot):
            return None
        times: Counter[str] = Counter()
        latest = {}
        for each in snapshot.fencings:
            if time.age_ms(each.at_ms) <= self._limits.fencing_pause_ms:
                subject = each.transactional_id or f"producer {each.producer_id}"
                times[subject] += 1
                latest[subject] = each
        return [
            Finding(
                subject,
                f"{subject} comes with epoch {last.epoch}, which is past (now {last.current_epoch}): refused "
                f"{times[subject]:,} times in the last {in_words(self._limits.fencing_pause_ms)}",
                times[subject],
            )
            for subject, last in latest.items()
            if times[subject] >= self._limits.fencings_min
        ]


class OpenTransactions:
    """Open for long; or, if `overdue`, for longer than the coordinator should have let them."""

    def __init__(self, limits: Thresholds, *, overdue: bool = False) -> None:
        self._limits = limits
        self._overdue = overdue

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        return list(self._found(snapshot, time)) if knows(snapshot, snapshot.transactions) else None

    def _found(self, snapshot: Snapshot, time: SteadyTime) -> Iterator[Finding]:
        limits = self._limits
        for each in snapshot.transactions:
            if each.started_ms is None or not each.is_open:
                continue
            age_ms = time.age_ms(each.started_ms)
            is_overdue = each.timeout_ms is not None and age_ms > each.timeout_ms + limits.overdue_ms
            is_long = age_ms > limits.open_ms or (
                each.timeout_ms is not None and age_ms > limits.open_share * each.timeout_ms
            )
            if is_overdue if self._overdue else is_long and not is_overdue:
                timeout = "" if each.timeout_ms is None else f"; its timeout is {in_words(each.timeout_ms)}"
                what = f"{each.transactional_id} has been {each.state} for {in_words(age_ms)}{timeout}"
                yield Finding(each.transactional_id, what, age_ms)


class StuckPartitions:
    """The last stable offset stays where it is, and there are records behind it.

    Remembered are only partitions with such records: where their last stable offset is, and since when.
    """

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._since: dict[tuple[str, int], tuple[int, int]] = {}

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not knows(snapshot, snapshot.partitions):
            return None
        behind = [each for each in snapshot.partitions if each.last_stable < each.end]
        self._since = {(each.topic, each.partition): self._stands(each, time) for each in behind}
        if behind and time.looks == 1:
            self._believe(behind, _Holders(snapshot), time)
        stuck = [(time.now_ms - self._since[each.topic, each.partition][1], each) for each in behind]
        stuck = [it for it in stuck if it[0] >= self._limits.lso_stuck_ms and not it[1].topic.startswith(INTERNAL)]
        if not stuck:
            return []
        holders = _Holders(snapshot)
        longest = heapq.nlargest(SUBJECTS_MAX, stuck, key=itemgetter(0))
        return [Finding(f"{p.topic}-{p.partition}", _told_stuck(p, ms, holders), ms) for ms, p in longest]

    def _stands(self, it: Partition, time: SteadyTime) -> tuple[int, int]:
        last = self._since.get((it.topic, it.partition))
        return last if last is not None and last[0] == it.last_stable else (it.last_stable, time.now_ms)

    def _believe(self, behind: Sequence[Partition], holders: _Holders, time: SteadyTime) -> None:
        """At the first look nobody knows since when it is so, except by who holds it."""
        for each in behind:
            held_ms = holders.held_ms(each, time)
            self._since[each.topic, each.partition] = (each.last_stable, time.now_ms - held_ms)


class _Holders:
    """Whose transaction begins where a last stable offset is."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._producers = {
            (each.topic, each.partition, each.transaction_start): each
            for each in snapshot.producers
            if each.transaction_start is not None
        }
        self._transactions = {each.producer_id: each for each in snapshot.transactions if each.is_open}

    def of(self, it: Partition) -> tuple[Producer | None, Transaction | None]:
        """None for what is not known."""
        producer = self._producers.get((it.topic, it.partition, it.last_stable))
        return producer, self._transactions.get(producer.producer_id) if producer is not None else None

    def held_ms(self, it: Partition, time: SteadyTime) -> int:
        producer, transaction = self.of(it)
        if transaction is not None and transaction.started_ms is not None:
            return time.age_ms(transaction.started_ms)
        return time.age_ms(producer.last_write_ms) if producer is not None else 0


def _told_stuck(partition: Partition, held_ms: int, holders: _Holders) -> str:
    producer, transaction = holders.of(partition)
    if transaction is not None:
        who = f"the transaction of {transaction.transactional_id} (producer {transaction.producer_id})"
    elif producer is not None:
        who = f"producer {producer.producer_id}, whose transaction no coordinator knows: it hangs"
    else:
        who = "an open transaction"
    return (
        f"readers of committed records have waited at offset {partition.last_stable:,} for {in_words(held_ms)}, with "
        f"{partition.lso_lag:,} more behind it; held by {who}"
    )


class Lag:
    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._trends: dict[str, Trend] = {}

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not knows(snapshot, snapshot.groups):
            return None
        bucket = time.now_ms // max(1, self._limits.lag_window_ms // STEPS)
        trends, found = {}, []
        for group in snapshot.groups:
            trend = trends[group.group_id] = self._trends.get(group.group_id) or Trend()
            lag = group.lag
            trend.see(bucket, lag)
            if lag > self._limits.lag_min and trend.grows():
                found.append(Finding(group.group_id, self._told(group, lag, trend), lag))
        self._trends = trends
        return found

    def _told(self, group: Group, lag: int, trend: Trend) -> str:
        members = "nobody reads" if not group.members else f"{group.members} read"
        window = in_words(self._limits.lag_window_ms)
        return f"{group.group_id} is {lag:,} records behind, {trend.grown_from():,} {window} ago; {members}"


class Latency:
    """The 99th percentile of what was timed in the window."""

    def __init__(self, limits: Thresholds, what: str, names: tuple[str, ...], p99_ms: int, count_min: int) -> None:
        self._limits = limits
        self._what, self._names, self._p99_ms, self._count_min = what, names, p99_ms, count_min
        self._timed = Growth(limits.window_ms)

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        now = merged(snapshot.timings, self._names)
        if now is None:
            return [] if is_from_within(snapshot) else None
        self._timed.see(time.now_ms, now.counts)
        recent = Timing(bounds=now.bounds, counts=self._timed.increase, total_s=0.0)
        p99_s = quantile(recent, 0.99)
        if p99_s is None or recent.count < self._count_min or p99_s * 1000 <= self._p99_ms:
            return []
        return [
            Finding(
                "",
                f"1 of 100 {self._what} takes {in_words(p99_s * 1000)} or longer "
                f"({recent.count:,} in the last {in_words(self._limits.window_ms)})",
            )
        ]


class AuthenticationFailures:
    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._failed = Growth(limits.window_ms)

    def __call__(self, snapshot: Snapshot, time: SteadyTime) -> Findings:
        if not is_from_within(snapshot):
            return None
        failed = snapshot.counters.failed_authentications
        self._failed.see(time.now_ms, (sum(failed.values()),))
        (failures,) = self._failed.increase
        if failures < self._limits.authentication_failures_min:
            return []
        mechanisms = ", ".join(sorted(failed))
        window = in_words(self._limits.window_ms)
        return [Finding("", f"{failures:,} failed logins in the last {window} ({mechanisms})")]
