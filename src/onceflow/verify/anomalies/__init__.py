"""What exactly-once forbids: one function for each anomaly, over the history of a run.

Each looks for what cannot have happened in a system that does what Kafka promises, whatever died on the way. So each
takes an operation of unknown outcome both ways: as done when asking what may be there, as not done when asking what
must be there. The effect of an operation lies between its beginning and its end; two operations have an order only if
one had ended before the other began. What is missing is held against nobody unless the run came to its end
(`History.is_drained`).

A function's docstring is its definition, as reports show it. Several may fire for one and the same defect: each says
what it is certain of.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from onceflow.verify.anomalies.contents import duplicate, lost_write, phantom, taken_back, torn_transaction
from onceflow.verify.anomalies.isolation import aborted_read, fenced_write, read_before_commit
from onceflow.verify.anomalies.order import offsets_moved_back, reordering, skipped_offsets
from onceflow.verify.anomalies.state import state_mismatch
from onceflow.verify.history import History
from onceflow.verify.verdict import Anomaly

__all__ = ["ANOMALIES", "KIND_MAX", "check"]

KIND_MAX: Final = 50
"""Anomalies of one kind in a verdict: a defect that strikes everything is as clear from fifty."""

ANOMALIES: Final[dict[str, Callable[[History], Iterator[Anomaly]]]] = {
    "lost write": lost_write,
    "duplicate": duplicate,
    "aborted read": aborted_read,
    "read before commit": read_before_commit,
    "torn transaction": torn_transaction,
    "reordering": reordering,
    "skipped offsets": skipped_offsets,
    "fenced write": fenced_write,
    "offsets moved back": offsets_moved_back,
    "state mismatch": state_mismatch,
    "taken back": taken_back,
    "phantom": phantom,
}


def check(history: History) -> list[Anomaly]:
    """All of them. Of more than `KIND_MAX` of a kind, the last one says how many there are besides."""
    with _collector_at_rest():
        return [found for name, look in ANOMALIES.items() for found in _limited(name, look(history))]


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """There are no cycles in a history, but a million objects: looking through them over and over takes most of the
    time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _limited(name: str, found: Iterator[Anomaly]) -> list[Anomaly]:
    first = list(islice(found, KIND_MAX))
    more = sum(1 for _ in found)
    if more:
        first[-1] = Anomaly(name=name, sentence=f"{more + 1} more of this kind are not listed.")
    return first
