"""A member of a group, with a client that does what the test says: rebalances in the middle, errors between records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition

from onceflow.client.problems import ClientError
from onceflow.sinks.consumer_member import Doubt, Member
from onceflow.sinks.consumer_offsets import Held
from onceflow.sinks.consumer_settings import ConsumeSettings

A, B = ("orders", 0), ("orders", 1)


class Message:
    def __init__(self, place: tuple[str, int], offset: int, error: int | None = None) -> None:
        self._place = place
        self._offset = offset
        self._error = None if error is None else KafkaError(error)

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return None

    value = key

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (0, -1)


class FakeConsumer:
    """`script`: what `poll` hands out, or does, one after the other."""

    script: list[Message | Callable[[FakeConsumer], None]]

    def __init__(self, settings: dict[str, Any]) -> None:
        self.script = []
        self.assigned: list[tuple[str, int, int]] = []
        self.calls: list[str] = []

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def poll(self, timeout: float) -> Message | None:
        while self.script:
            step = self.script.pop(0)
            if isinstance(step, Message):
                return step
            step(self)
        return None

    def _note(self, call: str, places: list[TopicPartition]) -> None:
        self.calls.append(call)
        self.assigned += [(each.topic, each.partition, each.offset) for each in places]

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self._note("incremental_assign", places)

    def assign(self, places: list[TopicPartition]) -> None:
        self._note("assign", places)


def assigned(*places: tuple[str, int]) -> Callable[[FakeConsumer], None]:
    return lambda fake: fake.on_assign(fake, [TopicPartition(*place) for place in places])


def revoked(*places: tuple[str, int]) -> Callable[[FakeConsumer], None]:
    return lambda fake: fake.on_revoke(fake, [TopicPartition(*place) for place in places])


def fence(places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Held]:
    return {place: Held(1, 10) for place in places}


@pytest.fixture
def new_member(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Member, FakeConsumer]]:
    monkeypatch.setattr(confluent_kafka, "Consumer", FakeConsumer)

    def make(fence: Any = fence, **settings: Any) -> tuple[Member, FakeConsumer]:
        given = {"topics": ("orders",), "group": "g", "bootstrap_servers": "127.0.0.1:1", **settings}
        member = Member(ConsumeSettings(**given), fence)
        fake = member._consumer
        assert isinstance(fake, FakeConsumer)
        return member, fake

    return make


New = Callable[..., tuple[Member, FakeConsumer]]


def offsets(member: Member) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in member.collect().records]


def test_it_reads_where_the_fence_says(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A, B), Message(A, 10), Message(B, 10)]
    assert offsets(member) == [(0, 10), (1, 10)]
    assert fake.assigned == [(*A, 10), (*B, 10)]
    assert fake.calls == ["incremental_assign"]


def test_everything_is_given_anew_if_the_group_works_so(new_member: New) -> None:
    member, fake = new_member(kafka={"partition.assignment.strategy": "range"})
    fake.script = [assigned(A, B), revoked(A, B), assigned(B)]
    assert offsets(member) == []
    assert fake.calls == ["assign", "assign"]
    assert member.held == {B: Held(1, 10)}


def test_no_more_records_than_allowed_are_collected(new_member: New) -> None:
    member, fake = new_member(max_records=2)
    fake.script = [assigned(A), *(Message(A, offset) for offset in range(10, 13))]
    assert offsets(member) == [(0, 10), (0, 11)]
    assert offsets(member) == [(0, 12)]


def test_records_of_a_partition_that_is_taken_away_meanwhile_are_dropped(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A, B), Message(A, 10), Message(B, 10), revoked(A), Message(B, 11)]
    assert offsets(member) == [(1, 10), (1, 11)]
    assert member.held.keys() == {B}


def test_records_of_a_partition_that_is_not_held_are_dropped(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(B), Message(A, 10), Message(B, 10)]
    assert offsets(member) == [(1, 10)]


def test_records_behind_what_the_database_has_are_dropped(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A), Message(A, 9), Message(A, 10)]
    assert offsets(member) == [(0, 10)]


def test_the_end_of_a_partition_is_news_once(new_member: New) -> None:
    member, fake = new_member()
    end = KafkaError._PARTITION_EOF
    fake.script = [assigned(A, B), Message(A, 10), Message(A, 13, end), Message(B, 10, end)]
    assert member.collect().ends == {A: 13}, "past the markers; and B was there already"
    member.moved(A, 13)
    assert member.collect().ends == {}


def test_what_was_collected_before_an_offset_was_refused_is_handed_out_first(new_member: New) -> None:
    member, fake = new_member()
    refused = Message(B, 10, KafkaError._AUTO_OFFSET_RESET)
    fake.script = [assigned(A, B), Message(A, 10), refused, Message(A, 11)]
    assert offsets(member) == [(0, 10)]
    with pytest.raises(Doubt, match="orders-1") as doubt:
        member.collect()
    assert (doubt.value.place, doubt.value.is_topic_missing) == (B, False)
    assert offsets(member) == [(0, 11)]


def test_an_offset_that_is_refused_in_a_partition_of_others_is_their_affair(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A), Message(B, 10, KafkaError._AUTO_OFFSET_RESET), Message(A, 10)]
    assert offsets(member) == [(0, 10)]


def test_a_topic_that_is_unknown_is_a_doubt(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A), Message(A, 0, KafkaError.UNKNOWN_TOPIC_OR_PART)]
    member.collect()
    with pytest.raises(Doubt) as doubt:
        member.collect()
    assert doubt.value.is_topic_missing


def test_what_cannot_get_better_is_an_error_and_the_rest_is_left_to_the_client(new_member: New) -> None:
    member, fake = new_member()
    fake.script = [assigned(A), Message(A, 0, KafkaError._TRANSPORT), Message(A, 10)]
    assert offsets(member) == [(0, 10)]
    fake.script = [Message(A, 0, KafkaError.GROUP_AUTHORIZATION_FAILED)]
    with pytest.raises(ClientError, match="reading orders as group 'g' failed: "):
        member.collect()


def test_trouble_of_the_fence_comes_out_of_collect(new_member: New) -> None:
    def failing(places: Collection[tuple[str, int]]) -> dict[tuple[str, int], Held]:
        raise ValueError("the database is away")

    member, fake = new_member(failing)
    fake.script = [assigned(A)]
    with pytest.raises(ValueError, match="away"):
        member.collect()
    assert (member.held, fake.assigned) == ({}, [])
