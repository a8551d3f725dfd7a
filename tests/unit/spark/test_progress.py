"""The progress record: its form, and reading it where compaction was, from a scripted broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onceflow.client.cluster import Cluster
from onceflow.errors import ErrorCode, OnceflowError
from onceflow.spark.progress import (
    PROGRESS_TOPIC,
    TOPIC_SETTINGS,
    Progress,
    ensure_topic,
    from_json,
    read_progress,
    to_json,
)
from onceflow.spark.query import MicroBatch, SourceOffsets
from onceflow.wire.batch import read_header
from onceflow.wire.compression import Codec
from onceflow.wire.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from onceflow.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from onceflow.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records
from tests.unit.client.fake_broker import FakeBroker

APP = "orders-app"
EARLIEST = -2


# --- the record


def test_a_record_is_read_as_it_was_written() -> None:
    progress = Progress(
        app_id=APP,
        query_id="q",
        batch_id=2**40,
        entry="digest",
        run_id="r",
        offsets={("t", 12): 5, ("t", 3): 0, ("u", 0): 2**60},
        topic_ids={"t": "one", "u": "two"},
        ambiguous=frozenset({"u"}),
        left={("z", 1): 4, ("a", 0): 2},
        at_ms=77,
    )
    data = progress.to_batch(producer_id=9, epoch=3, sequence=0)
    header = read_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 0)
    assert header.is_transactional
    [record] = read_records(data)
    assert (record.key, record.timestamp) == (APP.encode(), 77)
    found = Progress.of(record)
    assert found == progress
    assert list(found.left) == list(progress.left), "the topic that was left last is still the last"


def test_what_a_record_of_version_1_does_not_say_is_not_needed() -> None:
    value = b'{"version": 1, "query": "q", "batch": 3, "offsets": {"t": {"0": 5}}}'
    assert Progress.of(Record(5, 0, APP.encode(), value)) == Progress(
        app_id=APP, query_id="q", batch_id=3, offsets={("t", 0): 5}
    )


def test_a_record_of_another_version_is_refused() -> None:
    value = b'{"version": 2, "query": "q", "batch": 3, "offsets": {"t": {"0": 5}}}'
    with pytest.raises(OnceflowError, match=r"offset 41 .* version 2 of its format, and this program knows version 1"):
        Progress.of(Record(41, 0, APP.encode(), value))


def micro_batch(number: int, *topics: str) -> MicroBatch:
    offsets = {(topic, 0): number for topic in topics}
    return MicroBatch(
        query_id="q", run_id="r", batch_id=number, entry="", sources=(SourceOffsets(start=offsets, end=offsets),)
    )


def test_where_a_topic_was_left_is_remembered() -> None:
    before = Progress.after(micro_batch(1, "a", "b", "c"), None, app_id=APP)
    after = Progress.after(micro_batch(2, "c", "d"), before, app_id=APP)
    assert after.offsets == {("c", 0): 2, ("d", 0): 2}
    assert after.left == {("a", 0): 1, ("b", 0): 1}
    assert Progress.after(micro_batch(3, "b"), after, app_id=APP).everything == {
        ("a", 0): 1, ("b", 0): 3, ("c", 0): 2, ("d", 0): 2,
    }  # fmt: skip


def test_which_topic_was_left_is_remembered() -> None:
    """It may be another one under this name when it is read again."""

    def batch(number: int, **topics: str) -> MicroBatch:
        offsets = {(topic, 0): number for topic in topics}
        source = SourceOffsets(start=offsets, end=offsets, topic_ids=topics)
        return MicroBatch(query_id="q", run_id="r", batch_id=number, entry="", sources=(source,))

    before = Progress.after(batch(1, a="id of a", b="id of b"), None, app_id=APP)
    assert Progress.after(batch(2, b="id of b"), before, app_id=APP).topic_ids == {"a": "id of a", "b": "id of b"}
    assert Progress.after(batch(2, a="another"), before, app_id=APP).topic_ids == {"a": "another", "b": "id of b"}


def test_a_record_does_not_grow_with_topics_that_come_and_go() -> None:
    progress = None
    for day in range(1000):
        progress = Progress.after(micro_batch(day, f"day-{day}"), progress, app_id=APP)
    assert progress is not None
    assert list(progress.left) == [(f"day-{day}", 0) for day in range(899, 999)]
    assert len(progress.to_batch(producer_id=9, epoch=3, sequence=0)) < 4096


def test_topics_with_many_partitions_are_forgotten_sooner() -> None:
    """A record that is larger than its topic takes would be the end of the app."""
    progress = None
    for day in range(9):
        ends = {(f"day-{day}", number): 1 for number in range(900)}
        sources = (SourceOffsets(start=ends, end=ends),)
        batch = MicroBatch(query_id="q", run_id="r", batch_id=day, entry="", sources=sources)
        progress = Progress.after(batch, progress, app_id=APP)
    assert progress is not None
    assert {topic for topic, _ in progress.left} == {"day-6", "day-7"}
    assert len(progress.to_batch(producer_id=1, epoch=0, sequence=0)) < 100_000


def test_offsets_are_written_as_sparks_kafka_source_writes_them() -> None:
    offsets = {("b", 0): 1, ("a", 10): 3, ("a", 2): 4}
    assert to_json(offsets) == {"a": {"2": 4, "10": 3}, "b": {"0": 1}}
    assert from_json(to_json(offsets)) == offsets


def test_a_tombstone_is_no_progress() -> None:
    assert Progress.of(Record(5, 0, APP.encode(), None)) is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"{}",
        b'{"version": 1, "query": "q"}',
        b'{"query": "q", "batch": 1, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": "x", "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": []}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {"t": 5}}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {"t": {"x": 5}}}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {}, "left": 5}',
        b"[" * 100_000,
        b'{"version": true, "query": "q", "batch": 1, "offsets": {}}',
        b'{"version": 1, "query": null, "batch": 1, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": 1e999, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": NaN, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": 1.5, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": "1", "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": true, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": -1, "offsets": {}}',
        b'{"version": 1, "query": "q", "batch": 1%s, "offsets": {}}' % (b"0" * 30),
        b'{"version": 1, "query": "q", "batch": 1%s, "offsets": {}}' % (b"0" * 5_000),
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {"t": {"0": true}}}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {"t": {"0": -2}}}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {}, "at_ms": 1e999}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {}, "entry": 7}',
        b'{"version": 1, "query": "q", "batch": 1, "offsets": {}, "topic_ids": {"t": 7}}',
    ],
)
def test_garbage_is_refused_with_its_offset_and_what_to_do(value: bytes) -> None:
    with pytest.raises(OnceflowError, match=r"offset 41 .* not a progress record .*a null value under its key"):
        Progress.of(Record(41, 0, APP.encode(), value))


# --- where compaction was


def progress(offset: int, batch_id: int, producer_id: int, epoch: int = 0, app: str = APP, **more: int) -> bytes:
    value = json.dumps({"version": 1, "query": "q", "batch": batch_id, "offsets": {}}).encode()
    return build_batch(
        [Record(offset, 0, app.encode(), value)],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
        transactional=True,
        **more,
    )


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    record = EndTxnMarker(commit, 0).to_record(offset=offset, timestamp=0)
    return build_batch(
        [record],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        control=True,
        transactional=True,
    )


class Partition:
    """The progress topic as a leader serves it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.batches: list[bytes] = []
        self.stable: int | None = None
        """The last stable offset; None: the end."""
        self.end: int | None = None
        self.aborted: list[tuple[int, int]] = []
        broker.topics[PROGRESS_TOPIC] = 1
        broker.on(ListOffsetsRequest, self._list)
        broker.on(FetchRequest, self._fetch)

    def holds(
        self,
        *batches: bytes,
        stable: int | None = None,
        end: int | None = None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> None:
        self.batches = list(batches)
        self.end = read_header(batches[-1]).last_offset + 1 if end is None else end
        self.stable = self.end if stable is None else stable
        self.aborted = aborted or []

    def _list(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        asked = request.topics[0].partitions[0]
        latest = self.stable if request.isolation_level else self.end
        offset = 0 if asked.timestamp == EARLIEST else latest
        found = ListOffsetsPartitionResponse(partition_index=0, offset=offset or 0)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=PROGRESS_TOPIC, partitions=[found])])

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        at = request.topics[0].partitions[0].fetch_offset
        upto = self.stable if request.isolation_level else self.end
        shown = [
            each
            for each in self.batches
            if read_header(each).last_offset >= at and read_header(each).base_offset < (upto or 0)
        ]
        listed = [AbortedTransaction(producer_id=who, first_offset=first) for who, first in self.aborted]
        data = PartitionData(
            partition_index=0,
            high_watermark=self.end or 0,
            last_stable_offset=self.stable or 0,
            log_start_offset=0,
            aborted_transactions=listed if request.isolation_level else None,
            records=b"".join(shown[:2]),  # in small pieces
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic=PROGRESS_TOPIC, partitions=[data])])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def partition(broker: FakeBroker) -> Partition:
    return Partition(broker)


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(broker.settings()) as cluster:
        yield cluster


def found(cluster: Cluster) -> int | None:
    known = read_progress(cluster, APP)
    return None if known is None else known.batch_id


def test_the_newest_committed_record_is_found_across_gaps(cluster: Cluster, partition: Partition) -> None:
    partition.holds(
        progress(3, 1, 7),
        marker(4, 7, commit=True),
        progress(100, 2, 8),
        marker(101, 8, commit=True),
        progress(500, 3, 7, app="another"),
        marker(501, 7, commit=True),
        build_batch([], base_offset=1990, last_offset_delta=9),  # of the last batch compaction leaves the header
    )
    assert found(cluster) == 2


def test_a_record_whose_commit_marker_was_compacted_away_is_committed(cluster: Cluster, partition: Partition) -> None:
    partition.holds(progress(3, 1, 7), progress(100, 5, 9, app="another"), marker(101, 9, commit=True))
    assert found(cluster) == 1


def test_an_abort_marker_is_not_about_a_record_whose_own_commit_marker_was_compacted_away(
    cluster: Cluster, partition: Partition
) -> None:
    """A later transaction of the same producer that wrote no progress before it was aborted."""
    partition.holds(progress(3, 1, 7, epoch=0), marker(50, 7, commit=False, epoch=1))
    assert found(cluster) == 1


def test_a_record_that_the_broker_lists_as_aborted_is_not_seen(cluster: Cluster, partition: Partition) -> None:
    partition.holds(
        progress(3, 1, 7, epoch=0),
        marker(4, 7, commit=True, epoch=0),
        progress(10, 2, 7, epoch=1),
        marker(50, 7, commit=False, epoch=2),
        aborted=[(7, 10)],
    )
    assert found(cluster) == 1


def test_records_behind_an_open_transaction_of_another_application_are_judged_by_their_markers(
    cluster: Cluster, partition: Partition
) -> None:
    partition.holds(
        progress(0, 0, 7),
        marker(1, 7, commit=True),
        progress(2, 50, 8, app="another"),
        progress(3, 1, 7, epoch=1),
        marker(4, 7, commit=True, epoch=1),
        progress(5, 2, 7, epoch=2),
        marker(6, 7, commit=False, epoch=2),
        stable=2,
    )
    assert found(cluster) == 1


def test_a_record_that_is_still_open_is_not_committed(cluster: Cluster, partition: Partition) -> None:
    """Of whom, after the fence? Of a zombie, at a broker that does not verify (before KIP-890): it hangs."""
    partition.holds(progress(0, 0, 7), marker(1, 7, commit=True), progress(2, 1, 7), stable=2)
    assert found(cluster) == 0


def test_records_in_packed_batches_are_found(cluster: Cluster, partition: Partition) -> None:
    partition.holds(progress(0, 4, 7, codec=Codec.ZSTD), marker(1, 7, commit=True))
    assert found(cluster) == 4


def test_an_empty_topic_holds_no_progress(cluster: Cluster, partition: Partition) -> None:
    partition.holds(marker(0, 7, commit=True))
    assert found(cluster) is None


def test_nothing_is_asked_for_beyond_the_end_that_was_read_first(
    broker: FakeBroker, cluster: Cluster, partition: Partition
) -> None:
    partition.holds(progress(0, 0, 7), marker(1, 7, commit=True))
    assert found(cluster) == 0
    assert [each.topics[0].partitions[0].fetch_offset for each in broker.requests(FetchRequest)] == [0]


# --- making the topic


def test_a_topic_that_may_not_be_created_says_how_to_have_it_created(broker: FakeBroker, cluster: Cluster) -> None:
    broker.on(
        CreateTopicsRequest,
        lambda request: CreateTopicsResponse(
            topics=[CreatableTopicResult(name=request.topics[0].name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
        ),
    )
    with pytest.raises(OnceflowError, match="have it created with 1 partition") as refused:
        ensure_topic(cluster)
    assert all(setting in str(refused.value) for setting in TOPIC_SETTINGS)


def test_a_topic_that_somebody_else_creates_meanwhile_is_as_good(broker: FakeBroker, cluster: Cluster) -> None:
    def create(request: CreateTopicsRequest) -> CreateTopicsResponse:
        broker.topics[PROGRESS_TOPIC] = 1
        result = CreatableTopicResult(name=PROGRESS_TOPIC, error_code=ErrorCode.TOPIC_ALREADY_EXISTS)
        return CreateTopicsResponse(topics=[result])

    broker.on(CreateTopicsRequest, create)
    ensure_topic(cluster)
    ensure_topic(cluster)
    assert len(broker.requests(CreateTopicsRequest)) == 1
