"""Fetch: positions, limits, waiting and sessions."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

import pytest

from onceflow.errors import ErrorCode
from onceflow.wire.batch import batches
from onceflow.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from onceflow.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from onceflow.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.conformance.conftest import RunningBroker
from tests.support.raw import TIMEOUT_S, Wire, batch, fetch_request

READ_COMMITTED = 1
NEW_SESSION, NO_SESSION = 0, -1
FOREVER_MS = 20 * int(TIMEOUT_S) * 1000


@pytest.fixture
def five_batches(wire: Wire, topic: str) -> str:
    """Offsets 0 to 9, two records in each batch."""
    for number in range(5):
        wire.produce(topic, batch(f"{number}a", f"{number}b"))
    return topic


BATCH_SIZE = len(batch("0a", "0b"))


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_returns_the_batches(wire: Wire, five_batches: str, version: int) -> None:
    answer = wire.fetch(five_batches, 0, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (ErrorCode.NONE, 10, 10)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert answer.preferred_read_replica == -1
    assert [header.base_offset for header, _ in batches(answer.records)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("version", range(13, 18))
def test_newer_versions_name_the_topic_by_id(wire: Wire, five_batches: str, version: int) -> None:
    topic_id = wire.metadata(name=five_batches).topic_id
    [answer] = wire.ask(fetch_request(topic_id, 0), version).responses
    assert answer.topic_id == topic_id
    assert len(answer.partitions[0].records) == 5 * BATCH_SIZE


def test_a_position_inside_a_batch_returns_the_whole_batch(wire: Wire, five_batches: str) -> None:
    headers = [header.base_offset for header, _ in batches(wire.fetch(five_batches, 3).records)]
    assert headers == [2, 4, 6, 8]


def test_batches_carry_the_leader_epoch(wire: Wire, five_batches: str) -> None:
    epoch = wire.metadata(name=five_batches).partitions[0].leader_epoch
    assert {header.leader_epoch for header in wire.headers(five_batches)} == {epoch}


@pytest.mark.parametrize("offset", [11, 1000, -1, -5])
def test_a_position_outside_the_log_is_out_of_range(wire: Wire, five_batches: str, offset: int) -> None:
    answer = wire.fetch(five_batches, offset)
    assert (answer.error_code, answer.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert not answer.records


def test_readers_of_committed_records_get_the_list_of_aborted_ones(wire: Wire, five_batches: str) -> None:
    assert wire.fetch(five_batches, 0).aborted_transactions is None
    assert wire.fetch(five_batches, 0, isolation_level=READ_COMMITTED).aborted_transactions == []


def test_unknown_topics_and_partitions_are_told(wire: Wire, topic: str, new_name: Callable[[], str]) -> None:
    assert wire.fetch(new_name(), 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert wire.fetch(topic, 0, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    [answer] = wire.ask(fetch_request(uuid4(), 0), version=13).responses
    assert answer.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_leader_epoch_from_the_future_is_unknown(wire: Wire, five_batches: str) -> None:
    assert wire.fetch(five_batches, 0, leader_epoch=0).error_code == ErrorCode.NONE
    assert wire.fetch(five_batches, 0, leader_epoch=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- limits


@pytest.mark.parametrize("limit", [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}], ids=str)
def test_one_batch_is_returned_even_if_it_is_too_large(wire: Wire, five_batches: str, limit: dict[str, int]) -> None:
    assert len(wire.fetch(five_batches, 0, **limit).records) == BATCH_SIZE


@pytest.mark.parametrize("setting", ["max_bytes", "partition_max_bytes"])
def test_limits_hold_from_the_second_batch_on(wire: Wire, five_batches: str, setting: str) -> None:
    records = wire.fetch(five_batches, 0, **{setting: 3 * BATCH_SIZE}).records
    assert [header.base_offset for header, _ in batches(records)] == [0, 2, 4]


def test_only_the_first_partition_may_exceed_the_limit(wire: Wire, new_name: Callable[[], str]) -> None:
    topic = new_name()
    wire.create_topic(topic, partitions=2)
    for partition in (0, 1):
        wire.produce(topic, batch("x" * 1000), partition=partition)
    request = fetch_request(topic, 0, max_bytes=1)
    request.topics[0].partitions += fetch_request(topic, 0, partition=1).topics[0].partitions
    [answer] = wire.ask(request, version=12).responses
    assert [len(each.records) > 0 for each in answer.partitions] == [True, False]


# --- waiting
# A wait that is not to be waited for is longer than the connection waits for an answer: no clock has to say so.


def test_an_empty_fetch_waits_as_long_as_it_was_told(wire: Wire, topic: str) -> None:
    started = time.monotonic()
    answer = wire.fetch(topic, 0, max_wait_ms=400)
    assert time.monotonic() - started > 0.35
    assert (answer.error_code, len(answer.records)) == (ErrorCode.NONE, 0)


def test_too_few_bytes_are_returned_when_the_wait_is_over(wire: Wire, five_batches: str) -> None:
    started = time.monotonic()
    answer = wire.fetch(five_batches, 0, min_bytes=1_000_000, max_wait_ms=400)
    assert time.monotonic() - started > 0.35
    assert len(answer.records) == 5 * BATCH_SIZE


def test_enough_bytes_are_returned_at_once(wire: Wire, five_batches: str) -> None:
    assert wire.fetch(five_batches, 0, min_bytes=BATCH_SIZE, max_wait_ms=FOREVER_MS).records


def test_a_waiting_fetch_returns_when_there_are_enough_bytes(wire: Wire, topic: str, broker: RunningBroker) -> None:
    request = fetch_request(topic, 0, min_bytes=BATCH_SIZE + 1, max_wait_ms=FOREVER_MS)
    with Wire(broker.bootstrap) as writer:
        wire.send(request, version=12)
        writer.produce(topic, batch("0a", "0b"))
        writer.produce(topic, batch("1a", "1b"))
    _, answer = wire.receive(request, version=12)
    assert len(answer.responses[0].partitions[0].records) == 2 * BATCH_SIZE


def test_an_error_does_not_wait(wire: Wire, topic: str) -> None:
    assert wire.fetch(topic, 99, max_wait_ms=FOREVER_MS).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_waiting_fetch_is_told_when_its_topic_is_deleted(wire: Wire, topic: str, broker: RunningBroker) -> None:
    request = fetch_request(topic, 0, max_wait_ms=FOREVER_MS)
    wire.send(request, version=12)
    with Wire(broker.bootstrap) as admin:
        admin.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000))
    _, answer = wire.receive(request, version=12)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- many partitions


def test_a_partition_that_is_named_twice_is_answered_once_as_it_was_named_last(wire: Wire, five_batches: str) -> None:
    request = fetch_request(five_batches, 0, max_wait_ms=0)
    [topic] = request.topics
    last = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=8, partition_max_bytes=50_000_000)
    topic.partitions = [*topic.partitions, *topic.partitions, last]
    [answered] = wire.ask(request, 12).responses
    [answer] = answered.partitions
    assert [header.base_offset for header, _ in batches(answer.records)] == [8]


def test_a_topic_that_is_named_twice_is_answered_once_for_each_partition(wire: Wire, new_name) -> None:
    name = new_name()
    wire.create_topic(name, partitions=2)
    parts = [FetchPartition(partition=at, current_leader_epoch=-1, partition_max_bytes=1000) for at in range(2)]
    topics = [FetchTopic(topic=name, partitions=each) for each in ([parts[0]], [parts[1]], parts)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=topics)
    answers = wire.ask(request, 12).responses
    assert [(topic.topic, part.partition_index) for topic in answers for part in topic.partitions] == [
        (name, 0),
        (name, 1),
    ]


def test_large_batches_come_with_hundreds_of_partitions(wire: Wire, new_name) -> None:
    name = new_name()
    wire.create_topic(name, partitions=600)
    value = b"v" * 100_000
    assert wire.produce(name, batch(value), partition=577).error_code == ErrorCode.NONE
    request = fetch_request(name, 0, max_wait_ms=0)
    request.topics[0].partitions = [
        FetchPartition(partition=at, current_leader_epoch=-1, partition_max_bytes=1_000_000) for at in range(600)
    ]
    [topic] = wire.ask(request, 12).responses
    assert sorted(part.partition_index for part in topic.partitions) == list(range(600))
    [records] = [part.records for part in topic.partitions if part.records]
    assert value in bytes(records)


# --- sessions (KIP-227)


def test_an_unknown_session_is_not_found(wire: Wire, topic: str) -> None:
    answer = wire.fetch_answer(topic, 0, session_id=12345, session_epoch=1)
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


def test_without_a_session_everything_is_answered(wire: Wire, topic: str) -> None:
    answer = wire.fetch_answer(topic, 0, session_epoch=NO_SESSION, max_wait_ms=0)
    assert (answer.session_id, len(answer.responses)) == (0, 1)


def test_asking_for_a_session_answers_everything_once(wire: Wire, five_batches: str) -> None:
    answer = wire.fetch_answer(five_batches, 0, session_epoch=NEW_SESSION)
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.responses[0].partitions[0].records) == 5 * BATCH_SIZE


def test_the_first_epoch_asks_for_a_new_session_whatever_the_id(wire: Wire, five_batches: str) -> None:
    # So does a Java client whose session was refused: it names the old one for the broker to forget.
    answer = wire.fetch_answer(five_batches, 0, session_id=12345, session_epoch=NEW_SESSION)
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.responses[0].partitions[0].records) == 5 * BATCH_SIZE


def test_an_epoch_without_a_session_is_not_found(wire: Wire, five_batches: str) -> None:
    answer = wire.fetch_answer(five_batches, 0, session_id=0, session_epoch=3)
    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


class Session:
    """A fetch session of one partition, and its epochs."""

    def __init__(self, wire: Wire, topic: str, offset: int) -> None:
        self._wire = wire
        self._topic = topic
        self.id = wire.fetch_answer(topic, offset, session_epoch=NEW_SESSION, max_wait_ms=0).session_id
        self.epoch = 0

    def next(self, *, position: int | None = None, forget: bool = False, epoch: int | None = None):
        self.epoch = self.epoch + 1 if epoch is None else epoch
        moved = [FetchPartition(fetch_offset=position, partition_max_bytes=10_000)] if position is not None else []
        return self._wire.ask(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                session_id=self.id,
                session_epoch=self.epoch,
                topics=[FetchTopic(topic=self._topic, partitions=moved)] if moved else [],
                forgotten_topics_data=[ForgottenTopic(topic=self._topic, partitions=[0])] if forget else [],
            ),
            version=12,
        )


def test_a_session_answers_only_what_changed(wire: Wire, five_batches: str) -> None:
    session = Session(wire, five_batches, offset=0)
    assert session.id != 0
    assert session.next(position=10).responses == []
    wire.produce(five_batches, batch("new"))
    [answer] = session.next().responses
    assert answer.partitions[0].high_watermark == 11
    assert len(answer.partitions[0].records) == len(batch("new"))


def test_a_session_insists_on_its_epoch(wire: Wire, topic: str) -> None:
    session = Session(wire, topic, offset=0)
    assert session.next().error_code == ErrorCode.NONE
    assert session.next(epoch=7).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_that_forgot_its_last_partition_is_gone(wire: Wire, topic: str) -> None:
    session = Session(wire, topic, offset=0)
    assert session.next(forget=True).session_id == 0
    assert session.next().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_closed_session_is_gone(wire: Wire, topic: str) -> None:
    session = Session(wire, topic, offset=0)
    assert session.next(epoch=NO_SESSION).error_code == ErrorCode.NONE
    assert session.next(epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class WideSession:
    """A session of all partitions of a topic, each from its beginning."""

    def __init__(self, wire: Wire, topic: str, partitions: int, *, max_bytes: int = 50_000_000) -> None:
        self._wire = wire
        self._topic = topic
        self._max_bytes = max_bytes
        self.epoch = 0
        self.id = 0
        self.first = self.ask(dict.fromkeys(range(partitions), 0))
        self.id = self.first.session_id

    def ask(self, moved=None, *, forget=(), **settings):
        """What came, as {partition: data}, with the answer's code and id if that is no success."""
        entries = [
            FetchPartition(partition=at, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=50_000_000)
            for at, offset in (moved or {}).items()
        ]
        forgotten = [ForgottenTopic(topic=self._topic, partitions=list(forget))] if forget else []
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=self._max_bytes,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic=self._topic, partitions=entries)] if entries else [],
            forgotten_topics_data=forgotten,
        )
        for name, value in settings.items():
            setattr(request, name, value)
        self.epoch += 1
        return self._wire.ask(request, 12)

    def news(self, moved=None, **settings) -> dict:
        answer = self.ask(moved, **settings)
        assert answer.error_code == ErrorCode.NONE
        assert answer.session_id == self.id
        return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


@pytest.fixture
def wide(wire: Wire, new_name: Callable[[], str]) -> str:
    name = new_name()
    wire.create_topic(name, partitions=4)
    return name


def test_a_session_has_what_was_asked_before_and_tells_what_is_new(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 4)
    assert session.id != 0
    assert [part.partition_index for part in session.first.responses[0].partitions] == [0, 1, 2, 3]
    assert session.news() == {}
    wire.produce(wide, batch("one"), partition=2)
    news = session.news()
    assert list(news) == [2]
    assert news[2].high_watermark == 1
    assert list(session.news()) == [2], "it has not moved on, so the records are there again"
    assert session.news({2: 1}) == {}
    wire.produce(wide, batch("two"), partition=2)
    wire.produce(wide, batch("three"), partition=0)
    assert {at: len(part.records) for at, part in session.news().items()} == {
        0: len(batch("three")),
        2: len(batch("two")),
    }


def test_a_session_tells_that_the_log_start_has_moved(wire: Wire, wide: str) -> None:
    wire.produce(wide, batch("one", "two"), partition=1)
    session = WideSession(wire, wide, 4)
    assert session.news({1: 2}) == {}
    wire.ask(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=wide, partitions=[DeleteRecordsPartition(partition_index=1, offset=1)])],
            timeout_ms=10_000,
        )
    )
    news = session.news()
    assert {at: (part.log_start_offset, len(part.records)) for at, part in news.items()} == {1: (1, 0)}
    assert session.news() == {}


def test_a_session_tells_an_error_each_time_and_when_it_is_over(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 4)
    for _ in range(2):
        assert {at: part.error_code for at, part in session.news({3: 99}).items()} == {3: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert {at: part.error_code for at, part in session.news({3: 0}).items()} == {3: ErrorCode.NONE}
    assert session.news() == {}


def test_partitions_come_into_a_session_and_go(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 2)
    assert list(session.news({3: 0})) == [3]
    assert session.news(forget=[0]) == {}
    for at in range(4):
        wire.produce(wide, batch("one"), partition=at)
    assert sorted(session.news()) == [1, 3]
    assert sorted(session.news({0: 0})) == [0, 1, 3]


def test_every_partition_of_a_session_has_its_turn(wire: Wire, wide: str) -> None:
    value = b"v" * 10_000
    for at in range(4):
        for _ in range(3):
            wire.produce(wide, batch(value), partition=at)
    session = WideSession(wire, wide, 4, max_bytes=11_000)
    sent = []
    for _ in range(4):
        sent += [at for at, part in session.news().items() if part.records]
    assert sorted(sent) == [0, 1, 2, 3], "nobody has moved on"


def test_a_wrong_epoch_changes_nothing_in_a_session(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 4)
    wrong = session.ask({0: 99}, session_epoch=7)
    assert (wrong.error_code, wrong.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    session.epoch = 1
    assert session.news() == {}


def test_a_session_that_is_begun_anew_ends_the_one_before(wire: Wire, wide: str) -> None:
    before = WideSession(wire, wide, 4)
    again = WideSession(wire, wide, 4)
    again.epoch = 0
    answer = again.ask({0: 0}, session_id=before.id)
    assert answer.session_id not in (0, before.id)
    assert before.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_by_name_does_not_go_on_by_id(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 4)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=session.id, session_epoch=1)
    assert wire.ask(request, 13).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert session.news() == {}


def test_a_session_waits_for_its_partitions(wire: Wire, wide: str, broker: RunningBroker) -> None:
    session = WideSession(wire, wide, 4)
    request = FetchRequest(max_wait_ms=FOREVER_MS, min_bytes=1, session_id=session.id, session_epoch=1)
    sent = wire.send(request, 12)
    with Wire(broker.bootstrap) as other:
        assert other.produce(wide, batch("one"), partition=3).error_code == ErrorCode.NONE
    answered, answer = wire.receive(request, 12)
    assert answered == sent
    assert [part.partition_index for topic in answer.responses for part in topic.partitions] == [3]
    session.epoch = 2
    assert list(session.news()) == [3]
    assert session.news({3: 1}) == {}


def test_a_session_of_a_topic_that_goes_tells_so(wire: Wire, wide: str) -> None:
    session = WideSession(wire, wide, 2)
    wire.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=wide)], timeout_ms=10_000))
    codes = {part.error_code for part in session.news().values()}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
