"""Micro-batches as their progress records tell of them; who watches reads the topic and shows it to `MicroBatches`.

The records are written by `spark/progress.py`, whose top says precisely what is in them. A record is sent before its
micro-batch is finished, so it carries the final figures of the one before (`previous`).

**A micro-batch is shown when its transaction is committed**: when the commit marker of its producer id is in the
partition, not before, and not later because the transaction of somebody else is open. So who watches reads the
partition to its high watermark (`read_uncommitted`), and hands every batch to `see_batch`, in their order; the markers
decide, and their timestamps say when.

What is not a progress record is passed over: watching never fails over what others wrote.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from onceflow.monitor.snapshot import MicroBatch
from onceflow.wire.batch import BatchHeader
from onceflow.wire.records import EndTxnMarker, Record, read_records

__all__ = ["PROGRESS_PARTITION", "PROGRESS_TOPIC", "MicroBatches"]

PROGRESS_TOPIC: Final = "_onceflow_progress"
PROGRESS_PARTITION: Final = 0
KEPT: Final = 500
WAITING_OF_ONE: Final = 10
WAITING_PRODUCERS: Final = 1_000
"""Jobs write one record per transaction; the limits are for whoever else writes here."""
_Name = tuple[str, str, int]  # app id, query id, number


class MicroBatches:
    """The last ones, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._found: OrderedDict[_Name, MicroBatch] = OrderedDict()
        self._undecided: dict[int, deque[Record]] = {}
        """By producer id: records whose marker is to come."""

    @property
    def last(self) -> tuple[MicroBatch, ...]:
        return tuple(self._found.values())

    def see_batch(self, header: BatchHeader, batch: bytes | memoryview) -> None:
        """A batch of the partition: of records, whatever becomes of them, or of a marker."""
        if header.is_control:
            is_commit = any(EndTxnMarker.read(each).commit for each in read_records(batch))
            for record in self._undecided.pop(header.producer_id, ()):
                if is_commit:
                    self.see(record.key, record.value, committed_ms=header.max_timestamp)
            return
        for record in read_records(batch):
            if header.is_transactional:
                self._wait_for_marker(header.producer_id, record)
            else:
                self.see(record.key, record.value)

    def _wait_for_marker(self, producer_id: int, record: Record) -> None:
        self._undecided.setdefault(producer_id, deque(maxlen=WAITING_OF_ONE)).append(record)
        if len(self._undecided) > WAITING_PRODUCERS:
            del self._undecided[next(iter(self._undecided))]

    def see(self, key: bytes | None, value: bytes | None, committed_ms: int | None = None) -> None:
        """A record that is committed."""
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
