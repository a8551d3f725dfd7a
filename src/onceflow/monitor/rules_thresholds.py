"""From where on something is an alert: every figure of every rule, in one place.

A name ends in its unit; what has none is a count or a share. `onceflow alerts --set NAME=VALUE` changes one, for what
it looks at itself and for the rule file that it prints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from onceflow.errors import ConfigError

__all__ = ["Thresholds", "promql_duration"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    window_ms: int = 300_000
    """Rates and percentiles are of the last five minutes: shorter, and each retry is an alarm."""
    abort_share: float = 0.05
    """Of the commits in the window."""
    aborts_min: int = 5
    """So that one abort in a quiet hour is no alarm."""
    abort_for_ms: int = 60_000
    coordinator_for_ms: int = 30_000
    """Longer than reading its state takes at a start."""
    idle_ms: int = 300_000
    """How long a producer may do nothing while it holds a transaction open."""
    fencing_pause_ms: int = 120_000
    """Who comes again within this time has not understood that it was fenced."""
    fencings_min: int = 2
    """In this time: once is how every instance that was replaced learns of it."""
    fencing_for_ms: int = 300_000
    open_share: float = 0.8
    """Of the transaction's own timeout: there is time left to act."""
    open_ms: int = 600_000
    """Whatever the timeout is: readers of committed records wait so long."""
    overdue_ms: int = 30_000
    """After the timeout. Coordinators look for such transactions every ten seconds, and then need the disk."""
    lso_stuck_ms: int = 60_000
    lag_window_ms: int = 300_000
    """Longer than the interval at which the slowest group commits."""
    lag_min: int = 1_000
    commit_p99_ms: int = 100
    commits_min: int = 20
    """A percentile of fewer is chance."""
    fsync_p99_ms: int = 1_000
    fsyncs_min: int = 20
    authentication_failures_min: int = 20
    """In the window. A person who mistypes does not get there; a program with an old password, or a guesser, does."""
    batch_failures_min: int = 1
    """In the window. A sink tries again by itself: what it raises has ended the query."""
    batch_stuck_ms: int = 300_000
    """Where the trigger's interval is more than half of it, this is not looked at."""
    down_for_ms: int = 60_000

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 0 or (each.name.endswith("window_ms") and getattr(self, each.name) == 0):
                raise ConfigError(f"{each.name} cannot be {getattr(self, each.name)}: it has to be more than nothing")

    def changed(self, figures: Mapping[str, float]) -> Thresholds:
        """With these instead; a `ConfigError` for a name that there is not."""
        known = {each.name: each.type for each in fields(self)}
        for name, figure in figures.items():
            if name not in known:
                raise ConfigError(f"there is no threshold {name!r}; there are {', '.join(known)}")
            if not math.isfinite(figure):
                raise ConfigError(f"{name} has to be a number, not {figure}")
            if known[name] == "int" and figure != int(figure):
                raise ConfigError(f"{name} has to be a whole number, not {figure}")
        return replace(self, **{n: int(f) if known[n] == "int" else f for n, f in figures.items()})  # type: ignore[arg-type]

    def in_promql(self) -> dict[str, str]:
        """By name; a time also as a duration (`window`) and in seconds (`window_s`), a share in percent."""
        words: dict[str, str] = {}
        for each in fields(self):
            figure = getattr(self, each.name)
            words[each.name] = f"{figure:g}" if isinstance(figure, float) else str(figure)
            if each.name.endswith("_ms"):
                bare = each.name.removesuffix("_ms")
                words |= {bare: promql_duration(figure), f"{bare}_s": f"{figure / 1000:g}"}
            if each.name.endswith("_share"):
                words[each.name.removesuffix("share") + "percent"] = f"{figure * 100:g} %"
        for fifths in (1, 2, 4):
            words[f"lag_{fifths}_fifths"] = promql_duration(self.lag_window_ms * fifths // 5)
        return words


def promql_duration(ms: int) -> str:
    """`5m`, `90s`, `1500ms`: one unit, the largest that fits."""
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms and ms % size_ms == 0:
            return f"{ms // size_ms}{unit}"
    return f"{ms}ms"
