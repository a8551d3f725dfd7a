"""The values of the metrics, as far as a snapshot knows them: one small function for each that is not a plain figure.

A sample is a tuple of label values and a number, or a `Timing` for a histogram. What is not known yields nothing: a
series that is absent can be told from one that is 0. A total of 0 is known of our own broker, which counts from its
start; of another Kafka it may as well mean that nobody could tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onceflow.monitor.history import merged
from onceflow.monitor.rates import Minute
from onceflow.monitor.rules import Alert
from onceflow.monitor.snapshot import Counters, Partition, Snapshot, Timing, TopicTraffic, Transaction

__all__ = ["Sample", "View"]

PRODUCER_SERIES_MAX: Final = 200
STATES: Final = ("active", "loading", "unavailable")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "SSL")
RESOURCES: Final = ("topic", "group", "transactional_id", "cluster")
OFFSET_COMMITS: Final = ("OffsetCommit", "TxnOffsetCommit")
NOT_REQUESTS: Final = ("fsync", "fetch wait")


@dataclass(frozen=True, slots=True)
class View:
    """What is to be exposed."""

    snapshot: Snapshot
    minute: Minute
    alerts: Sequence[Alert]
    version: str

    @property
    def counts_from_start(self) -> bool:
        return self.snapshot.started_ms is not None


Value = float | Timing
Sample = tuple[tuple[str, ...], Value]
Samples = Callable[[View], Iterable[Sample]]


def one(value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield (), value


# Totals


def total(name: str) -> Samples:
    """A counter of `Counters`."""

    def samples(view: View) -> Iterator[Sample]:
        value: int = getattr(view.snapshot.counters, name)
        if value or view.counts_from_start:
            yield (), value

    return samples


def totals(name: str, always: Sequence[str] = ()) -> Samples:
    """A mapping of `Counters`. What is `always` there begins with 0: a rule does not see a counter that begins with its
    first event."""

    def samples(view: View) -> Iterator[Sample]:
        found: Mapping[str, int] = getattr(view.snapshot.counters, name)
        names = dict.fromkeys(always) if view.counts_from_start else {}
        for label in names | dict.fromkeys(found):
            yield (label,), found.get(label, 0)

    return samples


def aborts(view: View) -> Iterator[Sample]:
    counters: Counters = view.snapshot.counters
    by_client = counters.aborts - counters.timeouts - counters.fenced_aborts
    for reason, count in (("client", by_client), ("timeout", counters.timeouts), ("fenced", counters.fenced_aborts)):
        if count or view.counts_from_start:
            yield (reason,), count


def traffic(value: Callable[[TopicTraffic], int]) -> Samples:
    return lambda view: (((topic,), value(each)) for topic, each in view.snapshot.traffic.items())


def rate(name: str) -> Samples:
    return lambda view: one(view.minute.per_second(name))


def counted_rate(name: str) -> Samples:
    """A rate that another Kafka does not tell."""
    return lambda view: one(view.minute.per_second(name) if view.counts_from_start else None)


# Times


def timing(name: str) -> Samples:
    return lambda view: (((), view.snapshot.timings[name]),) if name in view.snapshot.timings else ()


def offset_commits(view: View) -> Iterator[Sample]:
    found = merged(view.snapshot.timings, OFFSET_COMMITS)
    if found is not None:
        yield (), found


def requests(view: View) -> Iterator[Sample]:
    for name, each in view.snapshot.timings.items():
        if name not in NOT_REQUESTS:
            yield (name,), each


def request_rates(view: View) -> Iterator[Sample]:
    for name, per_second in view.minute.requests_per_second().items():
        if name not in NOT_REQUESTS:
            yield (name,), per_second


def request_p99(view: View) -> Iterator[Sample]:
    for name in view.minute.timings():
        p99_ms = view.minute.p99_ms(name)
        if name not in NOT_REQUESTS and p99_ms is not None:
            yield (name,), p99_ms


# Transactions


def transaction_states(view: View) -> Iterator[Sample]:
    states = Counter(each.state for each in view.snapshot.transactions)
    for state, count in states.items():
        yield (state,), count


def _open(view: View) -> list[Transaction]:
    return [each for each in view.snapshot.transactions if each.is_open]


def open_transactions(view: View) -> Iterator[Sample]:
    """Without a coordinator that could be asked, nobody knows."""
    if view.snapshot.coordinators or view.snapshot.transactions:
        yield (), len(_open(view))


def oldest_open(view: View) -> Iterator[Sample]:
    if view.snapshot.coordinators or view.snapshot.transactions:
        starts = [each.started_ms for each in _open(view) if each.started_ms is not None]
        yield (), max(0.0, (view.snapshot.at_ms - min(starts)) / 1000) if starts else 0.0


def open_seconds(view: View) -> Iterator[Sample]:
    for each in _open(view):
        if each.started_ms is not None:
            yield (each.transactional_id,), max(0.0, (view.snapshot.at_ms - each.started_ms) / 1000)


def timeout_seconds(view: View) -> Iterator[Sample]:
    for each in _open(view):
        if each.timeout_ms is not None:
            yield (each.transactional_id,), each.timeout_ms / 1000


def producer_ages(view: View) -> Iterator[Sample]:
    """Open ones first, then who did something last; a bounded number of series."""
    wrote_ms: dict[int, int] = {}
    for producer in view.snapshot.producers:
        wrote_ms[producer.producer_id] = max(wrote_ms.get(producer.producer_id, 0), producer.last_write_ms)
    known = [each for each in view.snapshot.transactions if each.updated_ms is not None]
    known.sort(key=lambda each: (not each.is_open, -(each.updated_ms or 0)))
    for each in known[:PRODUCER_SERIES_MAX]:
        last_ms = max(each.updated_ms or 0, wrote_ms.get(each.producer_id, 0))
        yield (each.transactional_id,), max(0, view.snapshot.at_ms - last_ms)


def coordinator_states(view: View) -> Iterator[Sample]:
    for each in view.snapshot.coordinators:
        for state in STATES:
            yield (each.kind, state), int(each.state == state)


def load_times(view: View) -> Iterator[Sample]:
    for each in view.snapshot.coordinators:
        if each.load_ms is not None:
            yield (each.kind,), each.load_ms


# Topics


def partitions(value: Callable[[Partition], float | None]) -> Samples:
    def samples(view: View) -> Iterator[Sample]:
        for each in view.snapshot.partitions:
            figure = value(each)
            if figure is not None:
                yield (each.topic, str(each.partition)), figure

    return samples


def partition_counts(view: View) -> Iterator[Sample]:
    for topic, count in Counter(each.topic for each in view.snapshot.partitions).items():
        yield (topic,), count


# Consumers


def group_members(view: View) -> Iterator[Sample]:
    for group in view.snapshot.groups:
        yield (group.group_id,), group.members


def group_offsets(view: View) -> Iterator[Sample]:
    for group in view.snapshot.groups:
        for each in group.partitions:
            if each.committed is not None:
                yield (group.group_id, each.topic, str(each.partition)), each.committed


def group_lags(view: View) -> Iterator[Sample]:
    for group in view.snapshot.groups:
        for each in group.partitions:
            if each.lag is not None:
                yield (group.group_id, each.topic, str(each.partition)), each.lag


def group_lag_sums(view: View) -> Iterator[Sample]:
    for group in view.snapshot.groups:
        lags: Counter[str] = Counter()
        for each in group.partitions:
            if each.lag is not None:
                lags[each.topic] += each.lag
        for topic, lag in lags.items():
            yield (group.group_id, topic), lag


def consumers(view: View) -> Iterator[Sample]:
    for level, count in view.snapshot.consumers.items():
        yield (level,), count


# Micro-batches


def last_batches(view: View) -> Iterator[Sample]:
    latest = {each.app_id: each.batch_id for each in view.snapshot.micro_batches}
    for app_id, batch_id in latest.items():
        yield (app_id,), batch_id


def last_batch_ages(view: View) -> Iterator[Sample]:
    latest = {each.app_id: each.committed_ms or each.recorded_ms for each in view.snapshot.micro_batches}
    for app_id, at_ms in latest.items():
        yield (app_id,), max(0.0, (view.snapshot.at_ms - at_ms) / 1000)


# The rest


def firing(view: View) -> Iterator[Sample]:
    yield from Counter((alert.rule, alert.severity) for alert in view.alerts if alert.firing).items()


def build(view: View) -> Iterator[Sample]:
    yield (view.version, view.snapshot.software), 1
