"""Snapshots over time: what is shown on the page, and what is scraped.

Who looks decides how often: `look` takes a snapshot there and then, `see` is for one that was taken elsewhere (in a
thread, if asking takes time), and `lost` says that none could be taken. What is shown is of the last one seen, however
old, and the page says so. All methods are called on one thread.

Memory is bounded: one snapshot, and the figures of `history.py`. The page's JSON is made when it is first asked for and
kept until the next snapshot, so ten people who look cost as much as one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from onceflow.monitor.history import History
from onceflow.monitor.metrics import exposition
from onceflow.monitor.page_state import described
from onceflow.monitor.rates import Rates
from onceflow.monitor.rules import Alert, Alerts
from onceflow.monitor.snapshot import Snapshot

__all__ = ["Watcher"]

FORMAT: Final = 1
FRESH_S: Final = 0.9
"""While somebody looks at the page, a snapshot is taken about once a second: short transactions are to be seen."""
SCRAPES_KEPT: Final = 4


class Watcher:
    def __init__(self, take: Callable[[], Snapshot], *, alerts: Alerts | None = None, is_quick: bool = True) -> None:
        """`take` makes a snapshot as of now. If that is quick, one is taken when somebody asks and the last is older
        than a second; else only `look` and `see` bring news."""
        self._take = take
        self._is_quick = is_quick
        self._alerts = Alerts() if alerts is None else alerts
        self._history = History()
        self._rates = Rates()
        self._snapshot: Snapshot | None = None
        self._seen_at = float("-inf")
        self._problem: dict[str, Any] | None = None
        self._encoded: bytes | None = None
        self._scrapes: dict[str, tuple[bytes, str]] = {}
        """Of this snapshot, by what was asked for."""

    def look(self) -> None:
        """Take a snapshot: into the history, and past the alerts. Called every few seconds."""
        self.see(self._take())

    def see(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._seen_at = time.monotonic()
        self._problem = self._encoded = None
        self._scrapes = {}
        self._history.see(snapshot)
        self._rates.see(snapshot)
        self._alerts.see(snapshot)

    def lost(self, problem: str) -> None:
        """No snapshot could be taken: what is shown stays, and the page says why it is old."""
        since_ms = self._problem["since_ms"] if self._problem else int(time.time() * 1000)
        self._problem = {"text": problem, "since_ms": since_ms}
        self._encoded = None

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return self._alerts.current

    def refresh(self) -> None:
        """Look, if the last time is a while ago."""
        if self._is_quick and time.monotonic() - self._seen_at > FRESH_S:
            self.look()

    def state(self) -> dict[str, Any]:
        """What the page shows, for JSON. Times are milliseconds since 1970, by the clock of whoever took the snapshot;
        null is "not known", never zero.

            format          1
            now_ms          when the snapshot was taken; null before the first one, and then only `problem` is there
            problem         null, or {text, since_ms}: there is no newer snapshot because ...
            cluster         {id, software, brokers, started_ms, connections_open, truncated, notes}
            alerts          [{rule, severity, subject, summary, meaning, action, since_ms, firing}], firing ones first
            unknown         [names of rules that need what the snapshot does not know]
            totals          `Counters` by their names
            history         lists of equal length, oldest first, one entry per `step_ms`: at_ms; per second: commits,
                            aborts, fencings, records_in, records_out, bytes_in, bytes_out; as it was: open, oldest_ms,
                            lso_lag, lag, produce_p99_ms, offset_commit_p99_ms; groups: {group: lags}, the ten with the
                            most
            transactions    {states: {state: how many}, rows: [{id, producer_id, epoch, state, is_open, timeout_ms,
                            started_ms, updated_ms, partition_count, partitions: [[topic, partition]]}]}, the oldest
                            open one first
            ended, fencings [`EndedTransaction`], [`Fencing`] by their names, the newest first
            topics          [[name, [[partition, start, last stable, end, bytes, leader, replicas, in sync]]]], by name
            producers       {count, rows: [[topic, partition, producer id, epoch, last sequence, last write ms, start
                            of the open transaction]]}, those with an open transaction first
            groups          {count, rows: [{id, state, protocol, members, lag, partition_count,
                            partitions: [[topic, partition, committed, lag]]}]}, the most lag first
            micro_batches   [`MicroBatch`] by their names, oldest first
            coordinators    [`Coordinator`] by their names
            consumers       {isolation level: how many}
            requests        [{name, per_s, mean_ms, p50_ms, p99_ms}], of the last minute, the most frequent first
        """
        first = {"format": FORMAT, "problem": self._problem}
        if self._snapshot is None:
            return {**first, "now_ms": None}
        return {
            **first,
            **described(self._snapshot, *self._history.last_minute()),
            **self._told_alerts(),
            "history": self._history.charts(),
        }

    def state_json(self) -> bytes:
        """`state`, encoded once per snapshot."""
        if self._encoded is None:
            self._encoded = json.dumps(self.state(), separators=(",", ":"), allow_nan=False).encode()
        return self._encoded

    def alerts_json(self) -> bytes:
        """`now_ms`, `problem`, `alerts` and `unknown` as in `state`."""
        now_ms = self._snapshot.at_ms if self._snapshot else None
        told = {"now_ms": now_ms, "problem": self._problem, **self._told_alerts()}
        return json.dumps(told, allow_nan=False).encode()

    def _told_alerts(self) -> dict[str, Any]:
        return {"alerts": [asdict(each) for each in self.alerts], "unknown": self._alerts.unknown}

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """A scrape: the text and its content type. Without a snapshot, or while none can be taken, it is empty: an
        absent figure can be alerted on, an old one passes for true."""
        return self.scrape(accept)()

    def scrape(self, accept: str) -> Callable[[], tuple[bytes, str]]:
        """What makes the scrape, for another thread: with a thousand partitions it takes a tenth of a second."""
        snapshot, alerts, minute, made = self._snapshot, self.alerts, self._rates.minute, self._scrapes
        if snapshot is None or self._problem is not None:
            return lambda: (b"", "text/plain; version=0.0.4; charset=utf-8")

        def make() -> tuple[bytes, str]:
            if accept not in made and len(made) >= SCRAPES_KEPT:
                made.clear()
            if (found := made.get(accept)) is None:
                found = made[accept] = exposition(snapshot, alerts, accept, minute)
            return found

        return make
