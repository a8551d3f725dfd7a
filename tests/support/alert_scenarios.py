"""Things that go wrong, and things that only look like it: how a cluster looks meanwhile, and what has to fire when.

The one table is shown to both forms of the rules: as snapshots to Python's (`tests/unit/monitor/test_rules.py`), and as
scrapes of the same snapshots to Prometheus' (`tests/support/alert_cases.py`). Prometheus sees every 15 seconds only, so
what is expected is asked for some distance from where it changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from onceflow.monitor.meters import BOUNDS_S
from onceflow.monitor.snapshot import (
    Coordinator,
    Counters,
    Fencing,
    Group,
    GroupPartition,
    Partition,
    Producer,
    Snapshot,
    Timing,
    Transaction,
)

__all__ = ["SCENARIOS", "START_MS", "Expected", "Scenario", "healthy"]

START_MS: Final = 1_700_000_000_000
MINUTE: Final = 60
COORDINATORS: Final = tuple(Coordinator(kind=kind, state="active") for kind in ("transaction", "group"))
APP: Final = Transaction(transactional_id="app", producer_id=7, epoch=3, state="Ongoing", timeout_ms=900_000)

Expected = tuple[str, str, str]
"""Rule, severity, subject."""

LSO: Final = ("LsoStuck", "warning", "orders-0")
STALE: Final = ("StaleProducerEpoch", "warning", "app")
LONG: Final = ("LongTransaction", "warning", "app")
OVERDUE: Final = ("LongTransaction", "critical", "app")
ABORTS: Final = ("HighAbortRate", "warning", "")
COMMITS: Final = ("CommitLatencyHigh", "warning", "")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    at: Callable[[int], Snapshot]
    """How it looks after so many seconds; asked in their order."""
    fires: dict[int, set[Expected]]
    """After so many seconds, exactly these. The last of them is the end."""
    only_python: frozenset[Expected] = frozenset()
    """What no metric tells."""

    @property
    def lasts_s(self) -> int:
        return max(self.fires)


def ms(second: float) -> int:
    return START_MS + round(second * 1000)


def healthy(second: int, **changes: Any) -> Snapshot:
    """Our broker from within, so long after the beginning, with nothing to complain of."""
    values: dict[str, Any] = {"connections_open": 2, "coordinators": COORDINATORS, "started_ms": START_MS} | changes
    return Snapshot(at_ms=ms(second), cluster_id="c", software="onceflow", **values)


def between(second: float, begin: float, end: float) -> float:
    """How many of the seconds from `begin` to `end` are over."""
    return min(max(second - begin, 0), end - begin)


def orders(last_stable: int, end: int) -> Partition:
    return Partition(topic="orders", partition=0, start=0, last_stable=last_stable, end=end)


def transaction(started_s: float, **changes: Any) -> Transaction:
    values = {name: getattr(APP, name) for name in ("transactional_id", "producer_id", "epoch", "state", "timeout_ms")}
    values |= {"started_ms": ms(started_s), "updated_ms": ms(started_s)} | changes
    return Transaction(**values)


def wrote(second: float, start: int | None = 100) -> Producer:
    """The producer of `app`, on orders-0."""
    return Producer(
        topic="orders",
        partition=0,
        producer_id=APP.producer_id,
        epoch=APP.epoch,
        last_sequence=9,
        last_write_ms=ms(second),
        transaction_start=start,
    )


def timed(quick: int, slow: int, slow_s: float) -> Timing:
    """So many took 20 ms, so many took `slow_s`."""
    counts = [0] * (len(BOUNDS_S) + 1)
    for seconds, count in ((0.02, quick), (slow_s, slow)):
        counts[next(i for i, bound in enumerate((*BOUNDS_S, float("inf"))) if seconds <= bound)] += count
    return Timing(bounds=BOUNDS_S, counts=tuple(counts), total_s=quick * 0.02 + slow * slow_s)


def group(lag: float, members: int = 1) -> Group:
    part = GroupPartition(topic="orders", partition=0, committed=5, lag=round(lag))
    return Group(group_id="billing", state="Stable", protocol="classic", members=members, partitions=(part,))


# What goes wrong


def abandoned(second: int) -> Snapshot:
    """Its producer is gone; the coordinator does not get to abort it until an operator does."""
    if second >= 1000:
        done = transaction(0, state="CompleteAbort", started_ms=None, updated_ms=ms(1000))
        return healthy(second, transactions=(done,), partitions=(orders(131, 131),), producers=(wrote(0, None),))
    return healthy(second, transactions=(transaction(0),), partitions=(orders(100, 130),), producers=(wrote(0),))


def hanging(second: int) -> Snapshot:
    """Open on a partition, and no coordinator knows of it."""
    if second >= 420:
        return healthy(second, partitions=(orders(131 + second, 131 + second),), producers=(wrote(0, None),))
    return healthy(second, partitions=(orders(100, 130 + second),), producers=(wrote(0),))


def near_timeout(second: int) -> Snapshot:
    short = transaction(30, timeout_ms=60_000)
    return healthy(second, transactions=(short,) if 30 <= second < 105 else ())


def aborting(second: int) -> Snapshot:
    """One commit a second; for two minutes a fourth of that is aborted as well."""
    return healthy(second, counters=Counters(commits=second, aborts=int(between(second, 120, 240)) // 4))


def coordinator_away(second: int) -> Snapshot:
    states = {"transaction": "unavailable" if 60 <= second < 150 else "active", "group": "active"}
    return healthy(second, coordinators=tuple(Coordinator(kind=kind, state=it) for kind, it in states.items()))


def zombie(second: int) -> Snapshot:
    """Comes every thirty seconds with an epoch that is past."""
    times = range(60, min(second, 600) + 1, 30)
    events = tuple(
        Fencing(at_ms=ms(at), producer_id=7, epoch=2, current_epoch=3, transactional_id="app") for at in times
    )
    return healthy(second, fencings=events, counters=Counters(fencings=len(events)))


def falling_behind(second: int) -> Snapshot:
    """By 20 records a second, with commits every seven seconds; after ten minutes it catches up."""
    return healthy(second, groups=(group(max(0, 20 * second - 400 * between(second, 600, 660)) + 100 * (second % 7)),))


def slow_commits(second: int) -> Snapshot:
    slow = round(between(second, 120, 240))
    return healthy(second, timings={"OffsetCommit": timed(second - slow, slow, 0.4)})


def slow_disk(second: int) -> Snapshot:
    slow = round(between(second, 120, 240))
    return healthy(second, timings={"fsync": timed(second - slow, slow, 3.0)})


def guessing(second: int) -> Snapshot:
    return healthy(second, counters=Counters(failed_authentications={"PLAIN": round(between(second, 60, 120) / 2)}))


def aborting_after_restart(second: int) -> Snapshot:
    """Thousands had ended before it; since then every second one is aborted."""
    since = second - 120
    if since < 0:
        return healthy(second, counters=Counters(commits=9_000, aborts=400))
    return healthy(second, counters=Counters(commits=since // 4, aborts=int(between(since, 0, 120)) // 4))


# What only looks like it


def long_but_busy(second: int) -> Snapshot:
    """A transaction of six minutes that writes all the time: it hides what it wrote, and is not stale."""
    busy = (transaction(0),) if second < 400 else ()
    end = 130 + min(second, 400)
    place = orders(100 if busy else end, end)
    return healthy(second, transactions=busy, partitions=(place,), producers=(wrote(second, 100 if busy else None),))


def idle_producer(second: int) -> Snapshot:
    """It committed an hour ago, and has nothing to do since."""
    done = transaction(0, state="CompleteCommit", started_ms=None, updated_ms=ms(-3600))
    return healthy(second, transactions=(done,), partitions=(orders(100, 100),), producers=(wrote(-3600, None),))


def begins_after_rest(second: int) -> Snapshot:
    """The last stable offset has not moved for minutes, since nobody wrote; now a short transaction begins there."""
    if 300 <= second < 330:
        running = {"transactions": (transaction(300),), "producers": (wrote(300),)}
        return healthy(second, partitions=(orders(100, 140),), **running)
    everything = 100 if second < 300 else 140
    return healthy(second, partitions=(orders(everything, everything),))


def heap(second: int) -> Snapshot:
    """Fifty thousand records at once, which are worked off."""
    return healthy(second, groups=(group(max(0, 50_000 - 50 * (second - 120)) if second >= 120 else 0),))


def nobody_writes(second: int) -> Snapshot:
    return healthy(second, groups=(group(5_000, members=0),))


def hardly_behind(second: int) -> Snapshot:
    return healthy(second, groups=(group(second),))


def two_ends(second: int) -> Snapshot:
    """One committed and one aborted, in a quiet hour."""
    return healthy(second, counters=Counters(commits=int(second > 100), aborts=int(second > 200)))


def few_slow_commits(second: int) -> Snapshot:
    return healthy(second, timings={"OffsetCommit": timed(0, min(5, second // 60), 5.0)})


def fenced_once(second: int) -> Snapshot:
    event = Fencing(at_ms=ms(60), producer_id=7, epoch=2, current_epoch=3, transactional_id="app")
    seen = second >= 60
    return healthy(second, fencings=(event,) if seen else (), counters=Counters(fencings=int(seen)))


def restarted(second: int) -> Snapshot:
    """All totals begin anew; of 100 transactions, 2 are aborted before and after."""
    since = second if second < 300 else second - 300
    done = Counters(commits=10 * since, aborts=since // 5, failed_authentications={"PLAIN": since // 60})
    timings = {"OffsetCommit": timed(10 * since, since // 60, 0.4), "fsync": timed(10 * since, 0, 3.0)}
    loading = tuple(Coordinator(kind=each.kind, state="loading") for each in COORDINATORS)
    states = loading if 300 <= second < 315 else COORDINATORS
    return healthy(second, counters=done, timings=timings, coordinators=states)


def lively(second: int) -> Snapshot:
    """A busy cluster that is well: short transactions, a few aborts, saws of lag, a slow commit now and then."""
    chance = random.Random(second)
    since = second - second % 5  # each transaction takes up to five seconds
    end = 1000 * second
    running = transaction(since, timeout_ms=60_000)
    fencings = tuple(
        Fencing(at_ms=ms(at), producer_id=7, epoch=at % 9, current_epoch=10, transactional_id=f"app-{at}")
        for at in range(0, second + 1, 600)
    )
    return healthy(
        second,
        transactions=(running,),
        partitions=(orders(1000 * since, end),),
        producers=(wrote(second, 1000 * since),),
        groups=(group(chance.uniform(0, 5_000)), Group(group_id="new", state="Empty", protocol="consumer", members=0)),
        counters=Counters(
            commits=second // 5 * 49,
            aborts=second // 5,
            fencings=len(fencings),
            failed_authentications={"PLAIN": second // 60},
        ),
        fencings=fencings,
        timings={"OffsetCommit": timed(second * 20, second // 30, 0.4), "fsync": timed(second * 5, second // 60, 3.0)},
    )


SCENARIOS: Final = (
    Scenario(
        name="a transaction that nobody ends",
        at=abandoned,
        fires={30: set(), 120: {LSO}, 270: {LSO}, 345: {LSO, STALE}, 645: {LSO, STALE, LONG}, 900: {LSO, STALE, LONG},
               960: {LSO, STALE, OVERDUE}, 1035: set()},
    ),
    Scenario(
        name="a transaction that hangs on a partition",
        at=hanging,
        fires={30: set(), 120: {LSO}, 375: {LSO, ("StaleProducerEpoch", "warning", "orders-0")}, 450: set()},
        only_python=frozenset({("StaleProducerEpoch", "warning", "orders-0")}),
    ),
    Scenario(
        name="a transaction that is near its timeout",
        at=near_timeout, fires={60: set(), 90: {LONG}, 120: set()},
    ),
    Scenario(
        name="many aborts",
        at=aborting, fires={135: set(), 180: set(), 255: {ABORTS}, 420: {ABORTS}, 540: set(), 600: set()},
    ),
    Scenario(
        name="many aborts after a restart",
        at=aborting_after_restart, fires={105: set(), 255: {ABORTS}, 300: {ABORTS}, 600: set()},
    ),
    Scenario(
        name="no coordinator",
        at=coordinator_away,
        fires={45: set(), 75: set(), 120: {("CoordinatorUnavailable", "critical", "transaction")}, 180: set()},
    ),
    Scenario(
        name="a producer that does not know that it is fenced",
        at=zombie, fires={300: set(), 420: {("ZombieProducer", "warning", "app")}, 780: set()},
    ),
    Scenario(
        name="a group that falls behind",
        at=falling_behind,
        fires={210: set(), 420: {("LagGrowing", "warning", "billing")}, 585: {("LagGrowing", "warning", "billing")},
               690: set()},
    ),
    Scenario(
        name="commits that take long",
        at=slow_commits, fires={90: set(), 180: {COMMITS}, 240: {COMMITS}, 480: {COMMITS}, 600: set()},
    ),
    Scenario(
        name="a disk that is slow",
        at=slow_disk, fires={90: set(), 240: {("DiskSlow", "warning", "")}, 600: set()},
    ),
    Scenario(
        name="somebody who guesses passwords",
        at=guessing,
        fires={75: set(), 150: {("AuthenticationFailures", "warning", "")}, 450: set()},
    ),
    Scenario(
        name="a long transaction that writes all the time",
        at=long_but_busy, fires={30: set(), 120: {LSO}, 390: {LSO}, 435: set()},
    ),
    Scenario(name="a producer without anything to do", at=idle_producer, fires={300: set(), 600: set()}),
    Scenario(name="a transaction after a rest", at=begins_after_rest, fires={315: set(), 330: set(), 420: set()}),
    Scenario(name="a heap that is worked off", at=heap, fires={s: set() for s in range(150, 700, 60)}),
    Scenario(name="a group that is behind and stays where it is", at=nobody_writes, fires={400: set()}),
    Scenario(name="a lag that grows and is small", at=hardly_behind, fires={300: set(), 600: set(), 900: set()}),
    Scenario(name="one abort beside one commit", at=two_ends, fires={s: set() for s in range(60, 600, 60)}),
    Scenario(name="a handful of slow commits", at=few_slow_commits, fires={s: set() for s in range(60, 600, 60)}),
    Scenario(name="a producer that is fenced once", at=fenced_once, fires={s: set() for s in range(60, 500, 60)}),
    Scenario(name="a restart", at=restarted, fires={s: set() for s in range(60, 900, 60)}),
    Scenario(name="an hour of a lively cluster", at=lively, fires={s: set() for s in range(60, 3601, 60)}),
)  # fmt: skip
