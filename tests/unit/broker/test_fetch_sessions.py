"""Fetch sessions: their epochs, how many there may be, and which one makes room."""

from __future__ import annotations

import random

import pytest

from onceflow.broker.fetch_sessions import (
    ALL_PARTITIONS_MAX,
    EPOCH_MAX,
    IDLE_S,
    PARTITIONS_MAX,
    SESSIONS_MAX,
    FetchSession,
    FetchSessions,
)
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic


def topics(*partitions: int, offset: int = 0) -> list[FetchTopic]:
    asked = [FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=1) for at in partitions]
    return [FetchTopic(topic="t", partitions=asked)]


def forgotten(*partitions: int) -> list[ForgottenTopic]:
    return [ForgottenTopic(topic="t", partitions=list(partitions))]


def begun(sessions: FetchSessions, *partitions: int, now: float = 0.0) -> FetchSession:
    session = sessions.begin(topics(*partitions), False, now)
    assert session is not None
    return session


def test_a_session_keeps_what_was_asked_and_takes_in_what_changes() -> None:
    sessions = FetchSessions()
    session = begun(sessions, 0, 1, 2)
    assert sessions.go_on(session.id, 1, False, topics(1, 3, offset=5), forgotten(0), 0.0) is session
    offsets = {index: asked.entry.fetch_offset for (_, index), asked in session.partitions.items()}
    assert offsets == {1: 5, 2: 0, 3: 5}
    session.move_to_end(("t", 1))
    assert [index for _, index in session.partitions] == [2, 3, 1]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": 1}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"epoch": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"epoch": 1, "by_id": True}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_what_does_not_fit_changes_nothing(change: dict[str, int], code: ErrorCode) -> None:
    sessions = FetchSessions(random.Random(0))
    session = begun(sessions, 0)
    request = {"id": session.id, "epoch": 1, "by_id": False} | change
    with pytest.raises(ProtocolError) as refused:
        sessions.go_on(request["id"], request["epoch"], bool(request["by_id"]), topics(7), forgotten(0), 9.0)
    assert refused.value.code == code
    assert list(session.partitions) == [("t", 0)]
    assert (session.epoch, session.used_at) == (1, 0.0)


def test_epochs_begin_again_at_one() -> None:
    sessions = FetchSessions()
    session = begun(sessions, 0)
    session.epoch = EPOCH_MAX
    sessions.go_on(session.id, EPOCH_MAX, False, [], [], 0.0)
    assert session.epoch == 1


def test_a_session_without_partitions_is_none() -> None:
    sessions = FetchSessions()
    assert sessions.begin([], False, 0.0) is None
    session = begun(sessions, 0)
    assert sessions.go_on(session.id, 1, False, [], forgotten(0), 0.0) is None
    assert len(sessions) == 0


def test_a_session_does_not_grow_without_end() -> None:
    sessions = FetchSessions()
    assert sessions.begin(topics(*range(PARTITIONS_MAX + 1)), False, 0.0) is None
    session = begun(sessions, *range(PARTITIONS_MAX))
    with pytest.raises(ProtocolError) as refused:
        sessions.go_on(session.id, 1, False, topics(PARTITIONS_MAX), [], 0.0)
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 0


def test_only_who_has_been_idle_makes_room() -> None:
    sessions = FetchSessions()
    first, second, *_ = [begun(sessions, 0, now=float(at) / SESSIONS_MAX) for at in range(SESSIONS_MAX)]
    assert sessions.begin(topics(0), False, IDLE_S - 1) is None
    sessions.go_on(first.id, 1, False, [], [], IDLE_S)
    begun(sessions, 0, now=IDLE_S + 1)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.go_on(first.id, 2, False, [], [], IDLE_S + 1) is first
    with pytest.raises(ProtocolError):
        sessions.go_on(second.id, 1, False, [], [], IDLE_S + 1)


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    sessions = FetchSessions()
    many = [begun(sessions, *range(PARTITIONS_MAX)) for _ in range(ALL_PARTITIONS_MAX // PARTITIONS_MAX - 1)]
    small = begun(sessions, *range(PARTITIONS_MAX - 1))
    assert sessions.partitions == ALL_PARTITIONS_MAX - 1
    assert sessions.begin(topics(0, 1), False, 0.0) is None
    sessions.go_on(many[0].id, 1, False, [], forgotten(0, 1), 0.0)
    sessions.go_on(small.id, 1, False, topics(9_000), [], 0.0)
    with pytest.raises(ProtocolError):
        sessions.go_on(many[0].id, 2, False, topics(0, 1, 9_001, 9_002), [], 0.0)
    for each in many:
        sessions.end(each.id)
    assert sessions.partitions == len(small.partitions)
    begun(sessions, 0)
