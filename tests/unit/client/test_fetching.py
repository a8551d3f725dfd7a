"""Reading ranges of a partition: what is seen, what is waited for, what is lost, against a scripted broker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from onceflow.client import fetching, offsets
from onceflow.client.admin import TopicMissingError
from onceflow.client.cluster import Cluster, Refused
from onceflow.client.connection import ApiMissing, NoAnswer
from onceflow.client.fetching import (
    CommittedFilter,
    DataLost,
    NothingDelivered,
    NotYet,
    TopicRecreated,
    committed_offsets,
    fetch,
    list_offsets,
    read_range,
)
from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.wire.batch import BatchHeader, read_header
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
from onceflow.wire.messages.metadata import MetadataRequest
from onceflow.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from onceflow.wire.records import EndTxnMarker, Record, build_batch
from tests.support.stepping_time import SteppingTime
from tests.unit.client.fake_broker import FakeBroker, HangUp

ORDERS = ("orders", 0)


def data(first: int, count: int = 2, *, producer_id: int = -1, transactional: bool = False) -> bytes:
    records = [Record(first + at, 0, None, b"value") for at in range(count)]
    return build_batch(records, base_offset=first, producer_id=producer_id, transactional=transactional)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    record = EndTxnMarker(commit, 0).to_record(offset=offset, timestamp=0)
    return build_batch([record], base_offset=offset, producer_id=producer_id, control=True, transactional=True)


def parsed(*batches: bytes) -> list[tuple[BatchHeader, memoryview]]:
    return [(read_header(each), memoryview(each)) for each in batches]


class Log:
    """The fake broker's partition: serves these batches, as Kafka would, from the one that holds the offset on."""

    def __init__(self, *batches: bytes, batches_per_fetch: int = 100) -> None:
        self.batches = list(batches)
        self.batches_per_fetch = batches_per_fetch
        self.aborted: list[tuple[int, int]] = []
        self.first = 0
        self.end = read_header(batches[-1]).last_offset + 1 if batches else 0
        self.stable: int | None = None
        self.withheld: int | None = None
        """Readers of committed records are given nothing from this offset on."""
        self.asked: list[int] = []
        """The offsets of all fetches."""

    def fetched(self, request: FetchRequest) -> FetchResponse:
        [asked] = request.topics[0].partitions
        self.asked.append(asked.fetch_offset)
        if not self.first <= asked.fetch_offset <= self.end:
            return answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1)
        found = [each for each in self.batches if read_header(each).last_offset >= asked.fetch_offset]
        if request.isolation_level == 1:
            limit = min(each for each in (self.end, self.stable, self.withheld) if each is not None)
            found = [each for each in found if read_header(each).base_offset < limit]
        return answer(
            high_watermark=self.end,
            last_stable_offset=self.end if self.stable is None else self.stable,
            log_start_offset=self.first,
            aborted_transactions=[AbortedTransaction(producer_id=p, first_offset=o) for p, o in self.aborted],
            records=b"".join(found[: self.batches_per_fetch]),
        )

    def listed(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        [asked] = request.topics[0].partitions
        offset = {-1: self.end, -2: self.first}[asked.timestamp]
        return listed(offset=offset)


def answer(**fields: Any) -> FetchResponse:
    fields.setdefault("records", b"")
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="orders", partitions=[PartitionData(partition_index=0, **fields)])]
    )


def listed(**fields: int) -> ListOffsetsResponse:
    partition = ListOffsetsPartitionResponse(partition_index=0, **fields)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=[partition])])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        broker.topics = {"orders": 1}
        yield broker


@pytest.fixture
def cluster(broker: FakeBroker) -> Iterator[Cluster]:
    with Cluster(broker.settings(timeout_s=10.0)) as cluster:
        yield cluster


@pytest.fixture
def serve(broker: FakeBroker) -> Callable[[Log], Log]:
    def serve(log: Log) -> Log:
        broker.on(FetchRequest, log.fetched)
        broker.on(ListOffsetsRequest, log.listed)
        return log

    return serve


def read(cluster: Cluster, start: int, end: int, **settings: Any) -> list[list[int]]:
    """The base offsets of the batches of each fetch."""
    lists = read_range(cluster, *ORDERS, start, end, **settings)
    return [[header.base_offset for header, _ in batches] for batches in lists]


# --- what is read


def test_a_range_is_read_to_its_end_in_several_fetches(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0), data(2), data(4), data(6), batches_per_fetch=2))
    assert read(cluster, 0, 8) == [[0, 2], [4, 6]]
    assert log.asked == [0, 4]


def test_only_batches_that_overlap_the_range_are_returned(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0), data(2), data(4), data(6)))
    assert read(cluster, 3, 5) == [[2, 4]]
    assert log.asked == [3]


def test_an_empty_range_asks_nothing(cluster: Cluster, broker: FakeBroker) -> None:
    assert read(cluster, 5, 5) == []
    assert broker.seen == []


def test_batches_before_the_position_are_left_out(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0), data(2)))
    log.fetched = lambda _: answer(high_watermark=4, last_stable_offset=4, records=data(0) + data(2))  # type: ignore[method-assign]
    serve(log)
    assert read(cluster, 2, 4) == [[2]]


def test_without_topic_ids_fetches_are_of_versions_that_only_leaders_answer(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    serve(Log(data(0)))
    read(cluster, 0, 2)
    [version] = [version for request, version in broker.seen if isinstance(request, FetchRequest)]
    assert version == 10


def test_no_more_is_asked_for_than_the_range_is_thought_to_hold(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    serve(Log(data(0, 1000), data(1000, 1000), batches_per_fetch=1))
    read(cluster, 0, 2000)
    first, second = (request.max_bytes for request in broker.requests(FetchRequest))
    assert first == 64 * 1024 + 2000 * 1024 * 1.25
    assert second == pytest.approx(64 * 1024 + len(data(0, 1000)) * 1.25, abs=2)


def test_a_fetch_never_asks_for_more_than_it_was_told(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    serve(Log(data(0)))
    read(cluster, 0, 2, fetch_bytes=1000)
    assert [request.max_bytes for request in broker.requests(FetchRequest)] == [1000]


# --- what is seen


def test_readers_of_committed_records_do_not_see_aborted_ones(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(
        Log(
            data(0, producer_id=7, transactional=True),
            data(2, producer_id=8, transactional=True),
            data(4, producer_id=7),
            marker(6, 7, commit=False),
            data(7, producer_id=7, transactional=True),
            marker(9, 8, commit=True),
            marker(10, 7, commit=True),
        )
    )
    log.aborted = [(7, 0)]
    assert read(cluster, 0, 11) == [[2, 4, 7]]


def test_without_a_list_of_aborted_ones_only_markers_are_left_out() -> None:
    batches = parsed(data(0, producer_id=7, transactional=True), marker(2, 7, commit=False))
    assert CommittedFilter([]).visible(batches) == batches[:1]


def test_an_aborted_transaction_counts_from_its_first_offset_on() -> None:
    batches = parsed(
        data(0, producer_id=7, transactional=True),
        marker(2, 7, commit=True),
        data(3, producer_id=7, transactional=True),
        marker(5, 7, commit=False),
        data(6, producer_id=7, transactional=True),
        data(8, producer_id=7, transactional=True),
        marker(10, 7, commit=False),
    )
    assert CommittedFilter([(7, 6), (7, 3)]).visible(batches) == [batches[0]]


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    # As in Kafka's consumer: only an abort marker takes a producer from the set.
    batches = parsed(marker(0, 7, commit=True), data(1, producer_id=7, transactional=True))
    assert CommittedFilter([(7, 0)]).visible(batches) == []


def test_a_damaged_marker_is_an_error_and_decides_nothing() -> None:
    damaged = bytearray(marker(2, 7, commit=False))
    damaged[-1] ^= 1
    seen = CommittedFilter([(7, 0)])
    with pytest.raises(MalformedMessage, match="checksum of the transaction marker at offset 2"):
        seen.visible(parsed(data(0, producer_id=7, transactional=True), bytes(damaged)))


def test_a_range_that_ends_in_markers_and_aborted_records_ends(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(
        Log(data(0), data(2, producer_id=7, transactional=True), marker(4, 7, commit=False), batches_per_fetch=1)
    )
    log.aborted = [(7, 2)]
    assert read(cluster, 0, 5) == [[0]]
    assert log.asked == [0, 2, 4]


def test_a_gap_of_compaction_at_the_end_of_the_range_is_passed(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0), data(100), batches_per_fetch=1))
    assert read(cluster, 0, 50) == [[0]]
    assert log.asked == [0, 2]


def test_batches_that_compaction_emptied_are_left_out(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    empty = build_batch([], base_offset=0, last_offset_delta=4)
    serve(Log(empty, data(5)))
    assert read(cluster, 0, 7) == [[5]]


def test_empty_answers_are_not_taken_for_the_end_however_many_come(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a broker answers while its read from remote storage takes too long."""
    monkeypatch.setattr(offsets, "BACKOFF_S", 0.001)
    log = serve(Log(data(0), data(2)))
    answered_late(broker, log, *[lambda: answer(high_watermark=4, last_stable_offset=4)] * 12)
    assert read(cluster, 0, 4) == [[0, 2]]


@pytest.mark.parametrize("read_committed", [True, False])
def test_records_that_never_come_are_an_error_after_the_time_limit(
    cluster: Cluster, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch, read_committed: bool
) -> None:
    monkeypatch.setattr(offsets, "BACKOFF_S", 0.001)
    monkeypatch.setattr(offsets, "time", SteppingTime())
    log = serve(Log(data(0)))
    log.end = 10
    lists = read_range(cluster, *ORDERS, 0, 10, read_committed=read_committed, patience_s=0.3)
    assert [header.base_offset for header, _ in next(lists)] == [0]
    with pytest.raises(
        NothingDelivered, match=r"no records of orders-0 came from offset 2 on, .* log ends at 10"
    ) as late:
        next(lists)
    assert log.asked.count(2) > 5
    assert (late.value.place, late.value.position, late.value.end) == (ORDERS, 2, 10)


def test_what_was_never_delivered_can_be_told_to_another_process() -> None:
    late = pickle.loads(pickle.dumps(NothingDelivered("silence", ORDERS, position=3, end=9)))
    assert (str(late), late.place, late.position, late.end) == ("silence", ORDERS, 3, 9)


def test_a_tail_that_compaction_removed_is_passed_by_the_empty_batch_that_is_left_of_it(
    cluster: Cluster, serve: Callable[[Log], Log]
) -> None:
    """Kafka's cleaner keeps the last batch of what it cleans, without its records (KAFKA-17076), and so does ours."""
    log = serve(Log(data(0), build_batch([], base_offset=2, last_offset_delta=7)))
    assert read(cluster, 0, 10) == [[0]]
    assert log.asked == [0]


def test_a_tail_that_compaction_removed_before_an_open_transaction_is_passed_by_the_batch_behind_it(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    """A reader of committed records is not given what is open; that it begins behind the range is proof enough."""
    log = serve(Log(data(0), data(10, producer_id=7, transactional=True)))
    log.stable = 10
    assert read(cluster, 0, 8) == [[0]]
    assert [request.isolation_level for request in broker.requests(FetchRequest)] == [1, 1, 0]


def test_an_open_transaction_inside_of_the_range_is_no_proof_that_the_rest_was_removed(
    cluster: Cluster, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0), data(2), data(10, producer_id=7, transactional=True)))
    log.stable = 10
    log.withheld = 2
    with pytest.raises(NothingDelivered):
        read(cluster, 0, 8, patience_s=0.1)


def test_an_answer_without_records_from_a_log_that_begins_later_is_lost_data(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(6)))
    log.first = 6
    broker.on(FetchRequest, lambda _: answer(high_watermark=8, last_stable_offset=8, log_start_offset=6))
    with pytest.raises(DataLost, match="offsets 2 to 5 of orders-0 are gone"):
        read(cluster, 2, 8, patience_s=0.1)


def test_an_answer_that_begins_behind_the_position_is_lost_data_if_the_log_does(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    """Deleted while the broker read: it gives what is left, and nothing says that compaction removed the rest."""
    log = serve(Log(data(6)))
    log.first = 6
    late = answer(high_watermark=8, last_stable_offset=8, log_start_offset=6, records=data(6))
    broker.on(FetchRequest, lambda _: late)
    with pytest.raises(DataLost, match="offsets 2 to 5 of orders-0 are gone"):
        read(cluster, 2, 8, patience_s=0.1)


def test_records_that_are_deleted_while_they_are_delivered_are_read(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    serve(Log(data(0)))
    broker.on(
        FetchRequest,
        lambda _: answer(high_watermark=2, last_stable_offset=2, log_start_offset=2, records=data(0)),
    )
    assert read(cluster, 1, 2) == [[0]]


def test_an_empty_answer_now_and_then_does_not_end_the_range(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0), data(2), batches_per_fetch=1))
    turns = iter(range(100))

    def answers(request: FetchRequest) -> FetchResponse:
        if next(turns) % 2 == 0:
            return answer(high_watermark=4, last_stable_offset=4)
        return log.fetched(request)

    broker.on(FetchRequest, answers)
    assert read(cluster, 0, 4) == [[0], [2]]


# --- which topic is read

OLD, NEW = (UUID("00000000-0000-4000-8000-00000000000" + digit) for digit in "12")


def test_topics_are_asked_for_by_id_and_leaders_in_their_epoch(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    broker.topic_ids["orders"], broker.leader_epoch = OLD, 5
    serve(Log(data(0)))
    assert read(cluster, 0, 2) == [[0]]
    [(request, version)] = [each for each in broker.seen if isinstance(each[0], FetchRequest)]
    assert version == 13
    assert request.topics[0].topic_id == OLD  # type: ignore[attr-defined]
    assert request.topics[0].partitions[0].current_leader_epoch == 5  # type: ignore[attr-defined]


def test_another_topic_under_the_same_name_is_not_read(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MISSING_PATIENCE_S", 0.1)
    broker.topic_ids["orders"] = NEW
    serve(Log(data(0)))
    old, new = "AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg"
    with pytest.raises(TopicRecreated, match=rf"'orders' was deleted and created again: its id was {old} and is {new}"):
        read(cluster, 0, 2, topic_id=old)
    assert broker.requests(FetchRequest) == []
    assert read(cluster, 0, 2, topic_id=new) == [[0]]


def test_a_topic_that_is_created_anew_between_two_fetches_is_not_read_on(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "MISSING_PATIENCE_S", 0.1)
    broker.topic_ids["orders"] = OLD
    log = serve(Log(data(0), data(2), batches_per_fetch=1))

    def by_id(request: FetchRequest) -> FetchResponse:
        if request.topics[0].topic_id != broker.topic_ids["orders"]:
            return answer(error_code=ErrorCode.UNKNOWN_TOPIC_ID, high_watermark=-1)
        return log.fetched(request)

    broker.on(FetchRequest, by_id)
    lists = read_range(cluster, *ORDERS, 0, 4)
    assert [header.base_offset for header, _ in next(lists)] == [0]
    broker.topic_ids["orders"] = NEW
    with pytest.raises(TopicRecreated):
        next(lists)


def test_a_broker_that_is_asked_by_name_is_asked_afterwards_whose_name_it_is(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka 2.8 and 3.0 know topic ids, and their Fetch does not."""
    monkeypatch.setattr(offsets, "MISSING_PATIENCE_S", 0.1)
    broker.versions[1] = (0, 12)
    broker.topic_ids["orders"] = OLD
    serve(Log(data(0), data(2), batches_per_fetch=1))
    lists = read_range(cluster, *ORDERS, 0, 4)
    assert [header.base_offset for header, _ in next(lists)] == [0]
    broker.topic_ids["orders"] = NEW
    with pytest.raises(TopicRecreated):
        next(lists)


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    """Metadata may come from a broker that is behind: it names the topic that had the name before."""
    broker.topic_ids["orders"] = OLD
    known = iter([OLD, OLD])

    def metadata(request: MetadataRequest) -> Any:
        if request.topics:
            broker.topic_ids["orders"] = next(known, NEW)
        return broker._metadata(request)

    broker.on(MetadataRequest, metadata)
    serve(Log(data(0)))
    assert read(cluster, 0, 2, topic_id="AAAAAAAAQACAAAAAAAAAAg") == [[0]]


def test_a_topic_that_was_created_anew_can_be_told_to_another_process() -> None:
    found = pickle.loads(pickle.dumps(TopicRecreated.of("orders", "old", "new")))
    assert (found.topic, str(found)) == ("orders", str(TopicRecreated.of("orders", "old", "new")))


def test_the_replica_that_the_leader_prefers_is_asked(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    broker.topic_ids["orders"] = OLD
    log = serve(Log(data(0)))
    answered_late(broker, log, lambda: answer(high_watermark=2, last_stable_offset=2, preferred_read_replica=1))
    assert read(cluster, 0, 2) == [[0]]
    assert len(broker.requests(FetchRequest)) == 2


def test_an_answer_about_another_partition_is_not_taken_for_this_one(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0)))
    other = PartitionData(partition_index=3, high_watermark=9, records=data(0, 9))
    answered_late(
        broker,
        log,
        lambda: FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[other])]),
    )
    assert read(cluster, 0, 2) == [[0]]


# --- what is waited for


def answered_late(broker: FakeBroker, log: Log, *first: Callable[[], FetchResponse]) -> None:
    """The fetches get these answers, and then those of the log."""
    waiting = list(first)
    broker.on(FetchRequest, lambda request: waiting.pop(0)() if waiting else log.fetched(request))


def hang_up() -> FetchResponse:
    raise HangUp


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH])
def test_a_leader_that_changed_is_looked_up_again(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log], code: ErrorCode
) -> None:
    log = serve(Log(data(0)))
    answered_late(broker, log, lambda: answer(error_code=code, high_watermark=-1))
    assert read(cluster, 0, 2) == [[0]]
    named = [request for request in broker.requests(MetadataRequest) if request.topics]
    assert len(named) == 2


def test_a_connection_that_breaks_is_made_anew_and_the_fetch_sent_again(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0), data(2), batches_per_fetch=1))
    answered_late(broker, log, hang_up, hang_up)
    assert read(cluster, 0, 4) == [[0], [2]]


def test_patience_ends_with_the_reason(cluster: Cluster, broker: FakeBroker) -> None:
    broker.on(FetchRequest, lambda _: hang_up())
    with pytest.raises(NoAnswer, match="ended the connection"):
        read(cluster, 0, 2, patience_s=0.2)


def test_an_error_that_stays_is_raised_at_once(cluster: Cluster, broker: FakeBroker) -> None:
    broker.on(FetchRequest, lambda _: answer(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, high_watermark=-1))
    with pytest.raises(Refused, match="reading orders-0 at offset 0 failed: topic authorization failed"):
        read(cluster, 0, 2)
    assert len(broker.requests(FetchRequest)) == 1


def test_a_quota_that_is_used_up_is_waited_out(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0)))
    answered_late(broker, log, lambda: FetchResponse(throttle_time_ms=1))
    assert read(cluster, 0, 2) == [[0]]


def test_an_open_transaction_is_waited_for(cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0, producer_id=7, transactional=True), marker(2, 7, commit=True)))
    answered_late(broker, log, lambda: answer(high_watermark=3, last_stable_offset=0))
    assert read(cluster, 0, 3) == [[0]]


def test_a_transaction_that_stays_open_is_named_as_the_reason(
    cluster: Cluster, serve: Callable[[Log], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "time", SteppingTime())
    log = serve(Log())
    log.end, log.stable = 5, 2
    with pytest.raises(NotYet, match="from 2 on there is a transaction that is still open"):
        read(cluster, 2, 5, patience_s=0.1)
    assert len(log.asked) > 1


def test_readers_of_everything_do_not_wait_for_transactions(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(0, producer_id=7, transactional=True)))
    log.stable = 0
    assert read(cluster, 0, 2, read_committed=False) == [[0]]


def test_a_leader_whose_high_watermark_lags_is_waited_for(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0)))
    answered_late(broker, log, lambda: answer(high_watermark=0, last_stable_offset=0))
    assert read(cluster, 0, 2) == [[0]]


def test_out_of_range_from_a_broker_that_is_no_longer_leader_is_asked_again(
    cluster: Cluster, broker: FakeBroker, serve: Callable[[Log], Log]
) -> None:
    log = serve(Log(data(0)))
    answered_late(broker, log, lambda: answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1))
    assert read(cluster, 0, 2) == [[0]]


# --- what is lost


def test_a_start_below_the_log_is_lost_data(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    log = serve(Log(data(4), data(6)))
    log.first = 4
    with pytest.raises(DataLost, match=r"offsets 1 to 3 of orders-0 are gone: its log begins at 4") as caught:
        read(cluster, 1, 8)
    assert (caught.value.place, caught.value.first, caught.value.end) == (ORDERS, 4, 8)


def test_an_end_above_the_log_is_lost_data_after_what_there_is(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    serve(Log(data(0), data(2)))
    lists = read_range(cluster, *ORDERS, 0, 10)
    assert [header.base_offset for header, _ in next(lists)] == [0, 2]
    with pytest.raises(DataLost, match=r"offsets 4 to 9 of orders-0 do not exist: its log ends at 4"):
        next(lists)


def test_a_start_above_the_log_is_lost_data(cluster: Cluster, serve: Callable[[Log], Log]) -> None:
    serve(Log(data(0)))
    with pytest.raises(DataLost, match=r"offsets 5 to 9 of orders-0 do not exist: its log ends at 2"):
        read(cluster, 5, 10)


def test_lost_data_can_travel_between_processes() -> None:
    lost = pickle.loads(pickle.dumps(DataLost("gone", ORDERS, first=3, end=9)))
    assert (str(lost), lost.place, lost.first, lost.end) == ("gone", ORDERS, 3, 9)


def test_a_missing_topic_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "MISSING_PATIENCE_S", 0.1)
    with pytest.raises(TopicMissingError, match="there is no topic 'nope'"):
        list(read_range(cluster, "nope", 0, 0, 1))
    with pytest.raises(TopicMissingError, match="topic 'orders' has no partition 3"):
        list(read_range(cluster, "orders", 3, 0, 1))


# --- broken answers


def fetch_at(cluster: Cluster, offset: int) -> fetching.Fetched:
    return fetch(cluster, *ORDERS, offset, leader=1, read_committed=True, max_bytes=1 << 20, wait_ms=0)


def test_a_fetch_leaves_out_the_batch_that_was_cut(cluster: Cluster, broker: FakeBroker) -> None:
    records = data(0) + data(2)[:-1]
    broker.on(
        FetchRequest, lambda _: answer(high_watermark=4, last_stable_offset=3, log_start_offset=0, records=records)
    )
    fetched = fetch_at(cluster, 0)
    assert (fetched.high_watermark, fetched.last_stable_offset, fetched.log_start) == (4, 3, 0)
    assert [(header.base_offset, bytes(batch)) for header, batch in fetched.batches] == [(0, data(0))]


@pytest.mark.parametrize("records", [data(0)[:-1], data(0)[:30], b"\0" * 100])
def test_bytes_without_a_whole_batch_are_an_error_not_the_end(
    cluster: Cluster, broker: FakeBroker, records: bytes
) -> None:
    broker.on(FetchRequest, lambda _: answer(high_watermark=2, last_stable_offset=2, records=records))
    with pytest.raises(MalformedMessage, match="reading orders-0 at offset 0 gave"):
        fetch_at(cluster, 0)


def test_batches_that_do_not_go_forward_are_an_error(cluster: Cluster, broker: FakeBroker) -> None:
    broker.on(FetchRequest, lambda _: answer(high_watermark=9, last_stable_offset=9, records=data(0)))
    with pytest.raises(MalformedMessage, match="Asked for offset 5 of orders-0, got 0 to 1"):
        read(cluster, 5, 9)


# --- offsets


def test_offsets_that_are_not_available_yet_are_asked_for_again(cluster: Cluster, broker: FakeBroker) -> None:
    answers = [listed(error_code=ErrorCode.OFFSET_NOT_AVAILABLE), listed(error_code=6), listed(offset=12)]
    broker.on(ListOffsetsRequest, lambda _: answers.pop(0))
    assert list_offsets(cluster, {ORDERS: -1}, read_committed=True) == {ORDERS: 12}
    assert answers == []


def test_only_partitions_without_an_answer_are_asked_for_again(cluster: Cluster, broker: FakeBroker) -> None:
    broker.topics = {"orders": 2}
    codes = iter([0, 6, 0])

    def answers(request: ListOffsetsRequest) -> ListOffsetsResponse:
        partitions = [
            ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=5, error_code=next(codes))
            for each in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=partitions)])

    broker.on(ListOffsetsRequest, answers)
    assert list_offsets(cluster, {("orders", 0): -1, ("orders", 1): -1}, read_committed=False) == {
        ("orders", 0): 5,
        ("orders", 1): 5,
    }
    asked = [
        [each.partition_index for each in request.topics[0].partitions]
        for request in broker.requests(ListOffsetsRequest)
    ]
    assert asked == [[0, 1], [1]]


def test_no_offsets_wanted_asks_nothing(cluster: Cluster, broker: FakeBroker) -> None:
    assert list_offsets(cluster, {}, read_committed=True) == {}
    assert broker.seen == []


def group_offsets(*partitions: tuple[int, int, int], error_code: int = 0) -> OffsetFetchResponse:
    """Partitions of `orders` as (partition, offset, error)."""
    found = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset, error_code=code)
        for index, offset, code in partitions
    ]
    topics = [OffsetFetchResponseTopics(name="orders", partitions=found)]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id="app", topics=topics, error_code=error_code)])


def test_committed_offsets_wait_until_they_are_stable(cluster: Cluster, broker: FakeBroker) -> None:
    answers = [
        group_offsets(error_code=ErrorCode.NOT_COORDINATOR),
        group_offsets((0, 4, 0), (1, -1, ErrorCode.UNSTABLE_OFFSET_COMMIT)),
        group_offsets((0, 4, 0), (1, 7, 0), (2, -1, 0)),
    ]
    broker.on(OffsetFetchRequest, lambda _: answers.pop(0))
    assert committed_offsets(cluster, "app") == {("orders", 0): 4, ("orders", 1): 7}
    assert all(request.require_stable for request in broker.requests(OffsetFetchRequest))


def test_committed_offsets_of_named_partitions(cluster: Cluster, broker: FakeBroker) -> None:
    broker.on(OffsetFetchRequest, lambda _: group_offsets((0, 4, 0)))
    assert committed_offsets(cluster, "app", [ORDERS]) == {ORDERS: 4}
    [request] = broker.requests(OffsetFetchRequest)
    [topic] = request.groups[0].topics
    assert (topic.name, topic.partition_indexes) == ("orders", [0])


def test_a_partition_that_the_answer_leaves_out_is_not_taken_for_one_without_an_offset(
    cluster: Cluster, broker: FakeBroker
) -> None:
    answers = [group_offsets((0, 4, 0)), OffsetFetchResponse(), group_offsets((0, 4, 0), (1, 7, 0))]
    broker.on(OffsetFetchRequest, lambda _: answers.pop(0))
    assert committed_offsets(cluster, "app", [ORDERS, ("orders", 1)]) == {ORDERS: 4, ("orders", 1): 7}


def test_a_broker_too_old_for_stable_offsets_is_told_so(cluster: Cluster, broker: FakeBroker) -> None:
    broker.versions[9] = (1, 7)
    with pytest.raises(ApiMissing, match="too old"):
        committed_offsets(cluster, "app")
