"""The groups of one partition: what they share, what they leave behind, and how they come back from the log."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.classic import ClassicSettings, Join
from onceflow.group.coordinator import Coordinator
from onceflow.group.effects import Client
from onceflow.group.offsets import CommittedOffset, offset_record, offset_tombstone
from onceflow.group.records import KeyValue
from onceflow.wire.batch import read_header
from onceflow.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from onceflow.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from onceflow.wire.messages.sync_group import SyncGroupRequest
from onceflow.wire.records import EndTxnMarker, Record, build_batch, read_records

NOW = 1_000_000
DAY = 86_400_000
PRODUCER = (7, 0)


def always(topic: str, topic_id: UUID | None) -> bool:
    return True


class Log:
    """Batches as they stand in a partition of the offsets topic."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.problems: list[str] = []
        self.end = 0

    def write(self, *records: KeyValue, transactional: bool = False) -> None:
        entries = [Record(self.end + at, NOW, key, value) for at, (key, value) in enumerate(records)]
        identity = {"producer_id": PRODUCER[0], "producer_epoch": PRODUCER[1]} if transactional else {}
        self._add(entries, transactional=transactional, **identity)

    def mark(self, commit: bool) -> None:
        marker = EndTxnMarker(commit, 0).to_record(offset=self.end, timestamp=NOW)
        self._add([marker], transactional=True, control=True, producer_id=PRODUCER[0], producer_epoch=PRODUCER[1])

    def _add(self, entries: Sequence[Record], **settings: int | bool) -> None:
        self.batches.append(build_batch(entries, base_offset=self.end, **settings))  # type: ignore[arg-type]
        self.end += len(entries)

    def load(self) -> Coordinator:
        coordinator = Coordinator(ClassicSettings())
        for batch in self.batches:
            self.problems += map(str, coordinator.replay(read_header(batch), read_records(batch), NOW))
        list(coordinator.loaded(NOW))
        return coordinator


@pytest.fixture
def log() -> Log:
    return Log()


def offset(value: int, group: str = "g", topic: str = "t", committed_ms: int = NOW, **rest: object) -> KeyValue:
    return offset_record(group, topic, 0, CommittedOffset(value, -1, "", committed_ms, **rest))  # type: ignore[arg-type]


def read(coordinator: Coordinator, group: str = "g", topic: str = "t") -> int | None:
    found = coordinator.offsets.get(group, topic, 0)
    return None if found is None else found.offset


def join_alone(coordinator: Coordinator, log: Log, group: str = "g") -> str:
    """Makes a stable group with one member, writes what there is to write, and returns the member's id."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff")
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[protocol],
    )
    join = Join(request, 3, Client("c", "/h"), "join")
    records = coordinator.make_room(join, NOW)
    log.write(*records)
    coordinator.apply(records, NOW)
    assert coordinator.join(join, NOW).records == []
    [(_, started)] = list(coordinator.on_time(NOW + 3_000))
    [(_, joined)] = started.answers
    member_id: str = joined.member_id  # type: ignore[attr-defined]
    synced = coordinator.sync(SyncGroupRequest(group_id=group, generation_id=1, member_id=member_id), "sync", NOW)
    log.write(*synced.records)
    assert synced.then is not None
    synced.then(ErrorCode.NONE, NOW)
    return member_id


# Replay


def test_the_last_offset_in_the_log_counts(log: Log) -> None:
    log.write(offset(1), offset(2))
    log.write(offset(3), offset(9, topic="u"))
    assert read(log.load()) == 3


def test_a_tombstone_deletes_an_offset(log: Log) -> None:
    log.write(offset(1))
    log.write(offset_tombstone("g", "t", 0))
    assert read(log.load()) is None


def test_a_transaction_without_a_marker_is_pending_after_a_restart_and_then_ends(log: Log) -> None:
    log.write(offset(1))
    log.write(offset(5), transactional=True)
    before = log.load()
    assert read(before) == 1
    assert before.offsets.is_pending("g", "t", 0)
    before.end_transaction(PRODUCER[0], commit=True)
    assert read(before) == 5
    log.mark(commit=True)
    assert read(log.load()) == 5


def test_an_aborted_transaction_is_never_seen_after_a_restart(log: Log) -> None:
    log.write(offset(5), transactional=True)
    log.mark(commit=False)
    coordinator = log.load()
    assert read(coordinator) is None
    assert not coordinator.offsets.has_pending("g")


def test_the_order_in_the_log_decides_between_a_transaction_and_a_plain_commit(log: Log) -> None:
    log.write(offset(5), transactional=True)
    log.write(offset(9))
    log.mark(commit=True)
    assert read(log.load()) == 9


def test_two_transactions_of_one_producer_end_each_by_its_own_marker(log: Log) -> None:
    log.write(offset(5), transactional=True)
    log.mark(commit=True)
    log.write(offset(6), transactional=True)
    log.mark(commit=False)
    assert read(log.load()) == 5


def test_a_group_with_members_comes_back_with_fresh_sessions(log: Log) -> None:
    member_id = join_alone(Coordinator(ClassicSettings()), log)
    back = log.load()
    group = back.classic("g")
    assert (group.state_name, group.generation) == ("Stable", 1)
    assert group.heartbeat(member_id, None, 1, NOW + 9_999) == ErrorCode.NONE
    assert back.deadlines.next_ms == NOW + 10_000


def test_a_deleted_group_stays_deleted(log: Log) -> None:
    log.write(offset(1))
    log.write(*log.load().delete_group("g"))
    back = log.load()
    assert (back.get("g"), read(back)) == (None, None)


def test_a_record_that_nobody_understands_is_reported_and_does_not_cost_its_neighbours(log: Log) -> None:
    log.write(offset(1), (b"\0\x63", b""), (b"\0\1", b""), offset(2, topic="u"))
    back = log.load()
    assert (read(back), read(back, topic="u")) == (1, 2)
    [unknown, broken] = log.problems
    assert "kind 99" in unknown
    assert "OffsetCommitKey" in broken


# Deleting


def test_a_group_with_members_cannot_be_deleted(log: Log) -> None:
    coordinator = Coordinator(ClassicSettings())
    join_alone(coordinator, log)
    with pytest.raises(ProtocolError) as refused:
        coordinator.delete_group("g")
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP


def test_deleting_a_group_takes_pending_offsets_along(log: Log) -> None:
    log.write(offset(5), transactional=True)
    log.write(*log.load().delete_group("g"))
    log.mark(commit=True)
    assert read(log.load()) is None


# Expiry


def expire(log: Log, after_ms: int) -> Coordinator:
    """The log as it is when offsets are looked through after so much time, read by a new process."""
    log.write(*log.load().expire(NOW + after_ms, DAY, always))
    return log.load()


def test_an_offset_of_a_simple_group_expires_after_its_commit(log: Log) -> None:
    log.write(offset(1), offset(2, topic="u", committed_ms=NOW + 10))
    later = expire(log, DAY)
    assert (read(later), read(later, topic="u")) == (None, 2)
    assert later.get("g") is not None
    assert expire(log, DAY + 10).get("g") is None


def test_an_offset_with_a_time_of_its_own_expires_then(log: Log) -> None:
    log.write(offset(1, expire_timestamp_ms=NOW + 5), offset(2, topic="u", expire_timestamp_ms=NOW + 2 * DAY))
    assert read(expire(log, 4)) == 1
    assert read(expire(log, 5)) is None
    assert read(expire(log, DAY), topic="u") == 2


def test_offsets_of_a_group_that_was_left_expire_after_that(log: Log) -> None:
    coordinator = Coordinator(ClassicSettings())
    member_id = join_alone(coordinator, log)
    log.write(offset(1))
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    _, effects = coordinator.leave(request, NOW + DAY)
    log.write(*effects.records)
    assert read(expire(log, 2 * DAY - 1)) == 1
    later = expire(log, 2 * DAY)
    assert (read(later), later.get("g")) == (None, None)


def test_an_offset_of_a_subscribed_topic_never_expires(log: Log) -> None:
    join_alone(Coordinator(ClassicSettings()), log)
    log.write(offset(1), offset(2, topic="u"))
    later = expire(log, 99 * DAY)
    assert (read(later), read(later, topic="u")) == (1, None)


def test_a_pending_offset_keeps_the_committed_one_and_the_group(log: Log) -> None:
    log.write(offset(1))
    log.write(offset(5), transactional=True)
    later = expire(log, 99 * DAY)
    assert (read(later), later.get("g") is not None) == (1, True)


def test_offsets_of_a_topic_that_is_gone_are_deleted(log: Log) -> None:
    old, new = uuid4(), uuid4()
    log.write(offset(1, topic_id=old), offset(2, topic="u"))
    log.write(*log.load().expire(NOW, DAY, lambda topic, id: topic == "t" and id in (None, new)))
    later = log.load()
    assert (read(later), read(later, topic="u")) == (None, None)


def test_an_empty_group_without_offsets_goes_with_the_next_look(log: Log) -> None:
    coordinator = Coordinator(ClassicSettings())
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range")],
    )
    log.write(*coordinator.make_room(Join(request, 9, Client("c", "/h"), "join"), NOW))
    assert log.load().get("g") is not None
    assert expire(log, 0).get("g") is None


# Committing to groups that do not exist


@pytest.mark.parametrize(
    ("transactional", "version", "expected"),
    [
        (False, 8, ErrorCode.ILLEGAL_GENERATION),
        (False, 9, ErrorCode.GROUP_ID_NOT_FOUND),
        (True, 5, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_a_generation_of_an_unknown_group_is_refused(transactional: bool, version: int, expected: ErrorCode) -> None:
    coordinator = Coordinator(ClassicSettings())
    with pytest.raises(ProtocolError) as refused:
        coordinator.check_commit("g", "m", None, 1, (), transactional=transactional, version=version, now_ms=NOW)
    assert refused.value.code == expected
    coordinator.check_commit("g", "", None, -1, (), transactional=transactional, version=version, now_ms=NOW)
    assert coordinator.get("g") is None, "a check changes nothing"
