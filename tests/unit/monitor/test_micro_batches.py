"""Micro-batches from progress records: in their order, completed by the next one, whatever else is in the topic."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from onceflow.monitor.micro_batches import PROGRESS_PARTITION, PROGRESS_TOPIC, WAITING_PRODUCERS, MicroBatches
from onceflow.monitor.snapshot import MicroBatch
from onceflow.spark import progress as written
from onceflow.spark.progress import Finished, Progress
from onceflow.wire.batch import BatchHeader, read_header
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records


def record(batch_id: int, app_id: str = "app", query_id: str = "q", **more: Any) -> tuple[bytes, bytes]:
    """As the sink writes it."""
    progress = Progress(app_id=app_id, query_id=query_id, batch_id=batch_id, at_ms=100 + batch_id, **more)
    [found] = read_records(progress.to_batch(producer_id=1, epoch=0, sequence=0))
    assert found.key is not None
    assert found.value is not None
    return found.key, found.value


def finished(batch_id: int) -> Finished:
    return Finished(batch_id=batch_id, started_ms=90, committed_ms=130, rows=7, transaction_ms=12.34)


def test_what_is_written_and_what_is_read_is_the_same_topic() -> None:
    assert (written.PROGRESS_TOPIC, written.PARTITION) == (PROGRESS_TOPIC, PROGRESS_PARTITION)


def test_a_batch_is_known_by_its_record_and_completed_by_the_next() -> None:
    batches = MicroBatches()
    batches.see(*record(0, started_ms=95), committed_ms=120)
    expected = MicroBatch(app_id="app", batch_id=0, recorded_ms=100, started_ms=95, committed_ms=120)
    assert batches.last == (expected,)
    batches.see(*record(1, started_ms=140, previous=finished(0)))
    assert batches.last == (
        MicroBatch(
            app_id="app",
            batch_id=0,
            recorded_ms=100,
            started_ms=90,
            committed_ms=130,
            transaction_ms=12.3,
            rows=7,
        ),
        MicroBatch(app_id="app", batch_id=1, recorded_ms=101, started_ms=140),
    )


def test_a_batch_that_compaction_removed_is_known_from_the_next_one() -> None:
    batches = MicroBatches()
    batches.see(*record(5, previous=finished(4)))
    assert [(each.batch_id, each.rows, each.committed_ms) for each in batches.last] == [(4, 7, 130), (5, None, None)]


def test_a_record_that_is_seen_again_with_its_marker_is_one_batch() -> None:
    batches = MicroBatches()
    batches.see(*record(0))
    batches.see(*record(0), committed_ms=7)
    assert [each.committed_ms for each in batches.last] == [7]


def of_producer(producer_id: int, batch_id: int) -> tuple[BatchHeader, bytes]:
    progress = Progress(app_id=f"app-{producer_id}", query_id="q", batch_id=batch_id, at_ms=5)
    found = progress.to_batch(producer_id=producer_id, epoch=0, sequence=0)
    return read_header(found), found


def marker(producer_id: int, timestamp: int, *, commit: bool) -> tuple[BatchHeader, bytes]:
    record = EndTxnMarker(commit=commit, coordinator_epoch=0).to_record(offset=0, timestamp=timestamp)
    found = build_batch(
        (record,), base_offset=0, producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )
    return read_header(found), found


def test_a_batch_is_shown_when_the_marker_of_its_own_producer_commits_it() -> None:
    batches = MicroBatches()
    for producer_id in (1, 2, 3):
        batches.see_batch(*of_producer(producer_id, 7))
    assert batches.last == ()
    batches.see_batch(*marker(2, 50, commit=True))
    batches.see_batch(*marker(1, 60, commit=False))
    assert [(each.app_id, each.batch_id, each.committed_ms) for each in batches.last] == [("app-2", 7, 50)]
    batches.see_batch(*marker(1, 70, commit=True))
    assert len(batches.last) == 1, "what was aborted stays so"


def test_who_never_ends_a_transaction_takes_no_memory() -> None:
    batches = MicroBatches()
    for producer_id in range(1, WAITING_PRODUCERS + 10):
        batches.see_batch(*of_producer(producer_id, 0))
    assert len(batches._undecided) == WAITING_PRODUCERS
    for number in range(100):
        batches.see_batch(*of_producer(5000, number))
    batches.see_batch(*marker(5000, 1, commit=True))
    assert [each.batch_id for each in batches.last] == list(range(90, 100))


def test_a_new_checkpoint_begins_anew_and_is_not_taken_for_the_old_one() -> None:
    batches = MicroBatches()
    batches.see(*record(0))
    batches.see(*record(0, query_id="another"))
    batches.see(*record(0, app_id="other"))
    assert [(each.app_id, each.batch_id) for each in batches.last] == [("app", 0), ("app", 0), ("other", 0)]


def test_only_the_last_are_kept() -> None:
    batches = MicroBatches(kept=3)
    for number in range(10):
        batches.see(*record(number))
    assert [each.batch_id for each in batches.last] == [7, 8, 9]


def test_records_of_earlier_versions_are_understood() -> None:
    batches = MicroBatches()
    batches.see(b"app", json.dumps({"version": 1, "query": "q", "batch": 3, "offsets": {}, "at_ms": 5}).encode())
    assert batches.last == (MicroBatch(app_id="app", batch_id=3, recorded_ms=5),)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"app", None),
        (b"\xff", b'{"query": "q", "batch": 1}'),
        (b"app", b"\xff"),
        (b"app", b"[]"),
        (b"app", b'{"query": "q"}'),
        (b"app", b'{"query": "q", "batch": "x"}'),
        (b"app", b'{"query": "q", "batch": 1, "started_ms": []}'),
        (b"app", b'{"query": "q", "batch": 1, "previous": {"batch": 0}}'),
    ],
)
def test_what_is_no_progress_record_is_passed_over(key: bytes | None, value: bytes | None) -> None:
    batches = MicroBatches()
    batches.see(key, value)
    assert batches.last == ()
    assert batches.passed_over == (value is not None), "a tombstone is one"


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 100_000,
        b'{"query": "q", "batch": 1, "more": ' + b"[" * 100_000,
        b'{"query": "q", "batch": 1e999}',
        b'{"query": "q", "batch": NaN}',
        b'{"query": "q", "batch": 1.5}',
        b'{"query": "q", "batch": "1"}',
        b'{"query": "q", "batch": true}',
        b'{"query": "q", "batch": -1}',
        b'{"query": "q", "batch": 1%s}' % (b"0" * 20),
        b'{"query": "q", "batch": 1%s}' % (b"0" * 5_000),
        b'{"query": 7, "batch": 1}',
        b'{"query": "%s", "batch": 1}' % (b"q" * 3_000),
        b'{"query": "q", "batch": 1, "rows": Infinity}',
        b'{"query": "q", "batch": 1, "at_ms": 1e308}',
        b'{"query": "q", "batch": 1, "previous": []}',
        b'{"query": "q", "batch": 1, "previous": {"batch": 0, "committed_ms": 1, "transaction_ms": NaN}}',
        b'{"query": "q", "batch": 1, "previous": {"batch": 0, "committed_ms": 1, "transaction_ms": 1%s}}'
        % (b"0" * 400),
        b'{"query": "q", "batch": 1, "more": "%s"}' % (b"x" * (1 << 20)),
    ],
)
def test_a_hostile_record_is_counted_and_the_others_go_on(value: bytes) -> None:
    batches = MicroBatches()
    batches.see(*record(0))
    assert batches.remarks == ()
    batches.see(b"app", value)
    batches.see(*record(1))
    assert [each.batch_id for each in batches.last] == [0, 1]
    [remark] = batches.remarks
    assert "in _onceflow_progress is passed over (1 so far)" in remark


def test_a_batch_that_cannot_be_read_is_counted_and_the_others_go_on() -> None:
    batches = MicroBatches()
    header, batch = of_producer(1, 7)
    batches.see_batch(header, batch[:-3])
    no_marker = build_batch(
        (Record(0, 0, b"\0\0\0\7", b""),),
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    batches.see_batch(read_header(no_marker), no_marker)
    batches.see_batch(header, batch)
    batches.see_batch(*marker(1, 50, commit=True))
    assert ([each.batch_id for each in batches.last], batches.passed_over) == ([7], 2)


def test_what_waits_for_its_marker_is_small_however_large_the_record_was() -> None:
    batches = MicroBatches()
    value = json.dumps({"query": "q", "batch": 1, "offsets": "x" * 500_000}).encode()
    tracemalloc.start()
    for producer_id in range(20):
        batches.see_batch(*in_transaction(producer_id, value))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 500_000
    batches.see_batch(*marker(5, 50, commit=True))
    assert [each.batch_id for each in batches.last] == [1]


def in_transaction(producer_id: int, value: bytes) -> tuple[BatchHeader, bytes]:
    found = build_batch(
        (Record(0, 0, b"app", value),), base_offset=0, producer_id=producer_id, producer_epoch=0, transactional=True
    )
    return read_header(found), found
