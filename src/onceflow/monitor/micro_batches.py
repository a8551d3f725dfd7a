"""Micro-batches as their progress records tell of them; who watches reads the topic and shows them to `MicroBatches`.

The records are written by `spark/progress.py`, whose top says precisely what is in them. A record is sent before its
micro-batch is finished, so it carries the final figures of the one before (`previous`). When the batch was committed,
the marker of its transaction says: the timestamp of the next commit marker of the same producer id in the partition.

    see(record.key, record.value, committed_ms=timestamp of the marker, or None)

for each record that is committed, in the order of the partition. What is not a progress record is passed over:
watching never fails over what others wrote.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from onceflow.monitor.snapshot import MicroBatch

__all__ = ["PROGRESS_PARTITION", "PROGRESS_TOPIC", "MicroBatches"]

PROGRESS_TOPIC: Final = "_onceflow_progress"
PROGRESS_PARTITION: Final = 0
KEPT: Final = 500
_Name = tuple[str, str, int]  # app id, query id, number


class MicroBatches:
    """The last ones, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._found: OrderedDict[_Name, MicroBatch] = OrderedDict()

    @property
    def last(self) -> tuple[MicroBatch, ...]:
        return tuple(self._found.values())

    def see(self, key: bytes | None, value: bytes | None, committed_ms: int | None = None) -> None:
        if key is None or value is None:
            return
        try:
            app_id, told = key.decode(), json.loads(value)
            query_id, batch = str(told["query"]), _batch(app_id, told, committed_ms)
            self._finish(app_id, query_id, told.get("previous"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self._add((app_id, query_id, batch.batch_id), batch)

    def _add(self, name: _Name, batch: MicroBatch) -> None:
        self._found.pop(name, None)  # a name of `write(once=...)` that is used again
        self._found[name] = batch
        while len(self._found) > self._kept:
            self._found.popitem(last=False)

    def _finish(self, app_id: str, query_id: str, told: Any) -> None:
        """The final figures of the batch before, which compaction may have removed."""
        if not isinstance(told, Mapping):
            return
        name = (app_id, query_id, int(told["batch"]))
        known = self._found.get(name)
        if known is None:
            committed_ms = int(told["committed_ms"])
            batch = MicroBatch(app_id=app_id, batch_id=name[2], recorded_ms=committed_ms, committed_ms=committed_ms)
            self._add(name, _with_figures(batch, told))
        else:
            self._found[name] = _with_figures(known, told)


def _batch(app_id: str, told: Mapping[str, Any], committed_ms: int | None) -> MicroBatch:
    return MicroBatch(
        app_id=app_id,
        batch_id=int(told["batch"]),
        recorded_ms=int(told.get("at_ms", 0)),
        started_ms=_whole(told.get("started_ms")),
        committed_ms=committed_ms,
        rows=_whole(told.get("rows")),
    )


def _with_figures(batch: MicroBatch, told: Mapping[str, Any]) -> MicroBatch:
    transaction_ms = told.get("transaction_ms")
    return replace(
        batch,
        started_ms=_whole(told.get("started_ms")) or batch.started_ms,
        # The marker's time is the broker's; this one is by the same clock as the start.
        committed_ms=_whole(told.get("committed_ms")) or batch.committed_ms,
        transaction_ms=None if transaction_ms is None else float(transaction_ms),
        rows=_whole(told.get("rows")),
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
