"""Micro-batches as their progress records tell of them; who watches reads the topic and shows it to `MicroBatches`.

The records are written by `spark/progress.py`, whose top says precisely what is in them. A record is sent before its
micro-batch is finished, so it carries the final figures of the one before (`previous`).

**A micro-batch is shown when its transaction is committed**: when the commit marker of its producer id is in the
partition, not before, and not later because the transaction of somebody else is open. So who watches reads the
partition to its high watermark (`read_uncommitted`), and hands every batch to `see_batch`, in their order; the markers
decide, and their timestamps say when.

What is not a progress record is passed over and counted: watching never fails over what others wrote. So every field is
looked at before it is used, and what waits for its marker is a few numbers, however large the record was.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from onceflow.errors import MalformedMessage, UnpacksToTooMuch
from onceflow.monitor.snapshot import MicroBatch
from onceflow.wire.batch import BatchHeader
from onceflow.wire.records import EndTxnMarker, read_records
from onceflow.wire.thinning import spans, unpacked

__all__ = ["PROGRESS_PARTITION", "PROGRESS_TOPIC", "MicroBatches"]

PROGRESS_TOPIC: Final = "_onceflow_progress"
PROGRESS_PARTITION: Final = 0
KEPT: Final = 500
WAITING_OF_ONE: Final = 10
WAITING_PRODUCERS: Final = 1_000
"""Jobs write one record per transaction; the limits are for whoever else writes here."""
VALUE_BYTES_MAX: Final = 1024 * 1024
"""A record names each partition that its app reads: ten thousand take 200 KB."""
UNPACKED_BYTES_MAX: Final = 2 * VALUE_BYTES_MAX
RECORDS_MAX: Final = 1_000
"""In a batch. A job writes one; more is passed over as a whole."""
NAME_LENGTH_MAX: Final = 2_000
NUMBER_MAX: Final = 2**53 - 1
"""What the page and Prometheus can count to."""


_Name = tuple[str, str, int]  # app id, query id, number


class _Told(NamedTuple):
    """What is shown of a record."""

    query_id: str
    batch: MicroBatch
    previous: MicroBatch | None


class MicroBatches:
    """The last ones, oldest first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._found: OrderedDict[_Name, MicroBatch] = OrderedDict()
        self._undecided: dict[int, deque[_Told]] = {}
        """By producer id: what waits for its marker."""
        self.passed_over = 0
        """Records that are no progress records, and batches that cannot be read."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """For who watches."""
        if not self.passed_over:
            return ()
        return (
            f"what is no progress of a Spark job in {PROGRESS_TOPIC} is passed over ({self.passed_over} so far): "
            "somebody else writes into this topic",
        )

    @property
    def last(self) -> tuple[MicroBatch, ...]:
        return tuple(self._found.values())

    def see_batch(self, header: BatchHeader, batch: bytes | memoryview) -> int:
        """A batch of the partition: of records, whatever becomes of them, or of a marker. Returns how many bytes of
        records were looked at."""
        try:
            if header.is_control:
                self._end(header, is_commit=any(EndTxnMarker.read(each).commit for each in read_records(batch)))
                return len(batch)
            data = self._unpacked(header, batch)
            for _, _, _, _, key_at, key_size, value_at, value_size in spans(header, data):
                key = None if key_size < 0 else data[key_at : key_at + key_size]
                value = None if value_size < 0 else data[value_at : value_at + value_size]
                if not header.is_transactional:
                    self.see(key, value)
                elif (told := self._read(key, value)) is not None:
                    self._wait_for_marker(header.producer_id, told)
        except UnpacksToTooMuch:
            self.passed_over += 1
            return UNPACKED_BYTES_MAX
        except MalformedMessage:
            self.passed_over += 1
            return len(batch)
        return len(data)

    def _unpacked(self, header: BatchHeader, batch: bytes | memoryview) -> bytes:
        if header.count > RECORDS_MAX:
            raise MalformedMessage(f"{header.count} records; a job writes one.")
        return unpacked(header, batch, UNPACKED_BYTES_MAX)

    def see(self, key: bytes | None, value: bytes | None, committed_ms: int | None = None) -> None:
        """A record that is committed."""
        told = self._read(key, value)
        if told is not None:
            self._show(told, committed_ms)

    def _read(self, key: bytes | None, value: bytes | None) -> _Told | None:
        if value is None:
            return None  # an app that somebody wants forgotten
        try:
            return _told(key, value)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.passed_over += 1
            return None

    def _wait_for_marker(self, producer_id: int, told: _Told) -> None:
        self._undecided.setdefault(producer_id, deque(maxlen=WAITING_OF_ONE)).append(told)
        if len(self._undecided) > WAITING_PRODUCERS:
            del self._undecided[next(iter(self._undecided))]

    def _end(self, header: BatchHeader, *, is_commit: bool) -> None:
        for told in self._undecided.pop(header.producer_id, ()):
            if is_commit:
                self._show(told, header.max_timestamp)

    def _show(self, told: _Told, committed_ms: int | None) -> None:
        query_id, batch, previous = told
        if previous is not None:
            self._finish(query_id, previous)
        self._add((batch.app_id, query_id, batch.batch_id), replace(batch, committed_ms=committed_ms))

    def _add(self, name: _Name, batch: MicroBatch) -> None:
        self._found.pop(name, None)  # a name of `write(once=...)` that is used again
        self._found[name] = batch
        while len(self._found) > self._kept:
            self._found.popitem(last=False)

    def _finish(self, query_id: str, finished: MicroBatch) -> None:
        """The final figures of the batch before, which compaction may have removed."""
        name = (finished.app_id, query_id, finished.batch_id)
        known = self._found.get(name)
        if known is None:
            self._add(name, finished)
            return
        # The marker's time is the broker's; that of the figures is by the same clock as the start.
        self._found[name] = replace(
            finished, recorded_ms=known.recorded_ms, started_ms=finished.started_ms or known.started_ms
        )


def _told(key: bytes | None, value: bytes) -> _Told:
    """Raises `ValueError`, `KeyError`, `TypeError` or `RecursionError` if this is no progress record."""
    if key is None or len(value) > VALUE_BYTES_MAX:
        raise ValueError
    app_id, told = _name(key.decode()), _object(json.loads(value))
    previous = told.get("previous")
    return _Told(
        query_id=_name(told["query"]),
        batch=MicroBatch(
            app_id=app_id,
            batch_id=_number(told["batch"]),
            recorded_ms=_number(told.get("at_ms", 0)),
            started_ms=_number_or_none(told.get("started_ms")),
            rows=_number_or_none(told.get("rows")),
        ),
        previous=None if previous is None else _finished(app_id, _object(previous)),
    )


def _finished(app_id: str, told: Mapping[str, Any]) -> MicroBatch:
    committed_ms = _number(told["committed_ms"])
    return MicroBatch(
        app_id=app_id,
        batch_id=_number(told["batch"]),
        recorded_ms=committed_ms,
        started_ms=_number_or_none(told.get("started_ms")),
        committed_ms=committed_ms,
        transaction_ms=_milliseconds(told.get("transaction_ms")),
        rows=_number_or_none(told.get("rows")),
    )


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > NAME_LENGTH_MAX:
        raise TypeError
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise TypeError
    return value


def _number_or_none(value: Any) -> int | None:
    return None if value is None else _number(value)


def _milliseconds(value: Any) -> float | None:
    """A fraction of one counts; NaN and infinity are no times."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= NUMBER_MAX:
        raise TypeError
    return float(value)
