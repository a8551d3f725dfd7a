"""The transaction coordinator's decisions, told as conversations. Every refusal leaves everything as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.txn.coordinator import OVERTAKING_MS, Coordinator
from onceflow.txn.records import read_value, write_value
from onceflow.txn.states import State
from onceflow.txn.transaction import LAST_EPOCH, Transaction

T0 = 1_700_000_000_000
TIMEOUT_MS = 60_000
MAX_MS = 900_000
P = frozenset({("t", 0)})
Q = frozenset({("t", 1), ("u", 0)})


class Talk:
    """A coordinator whose decisions are applied at once, through the bytes of the log."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(itertools.count(100).__next__, MAX_MS)
        self.now_ms = T0
        self.version = 2

    def _apply(self, target: Transaction | None) -> Transaction | None:
        if target is not None:
            stored = read_value(write_value(target))
            self.coordinator.apply("app", Transaction(**{**_fields(stored), "last_epoch": target.last_epoch}))
        return self.current

    @property
    def current(self) -> Transaction | None:
        return self.coordinator.get("app")

    @property
    def state(self) -> State:
        assert self.current is not None
        return self.current.state

    @property
    def identity(self) -> tuple[int, int]:
        assert self.current is not None
        return self.current.producer_id, self.current.epoch

    def init(self, expected: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS) -> tuple[int, int]:
        self._apply(self.coordinator.init("app", timeout_ms, expected, self.now_ms))
        return self.identity

    def add(self, partitions: frozenset[tuple[str, int]] = P, identity: tuple[int, int] | None = None) -> None:
        who = identity or self.identity
        self._apply(self.coordinator.add("app", *who, partitions, version=self.version, now_ms=self.now_ms))

    def end(self, commit: bool, identity: tuple[int, int] | None = None) -> tuple[int, int]:
        """What the client is told to go on with."""
        who = identity or self.identity
        self._apply(self.coordinator.end("app", *who, commit=commit, version=self.version, now_ms=self.now_ms))
        assert self.current is not None
        return self.current.next_identity

    def marked(self) -> None:
        assert self.current is not None
        self._apply(self.current.completed(self.now_ms))

    def be(self, **changes: object) -> None:
        assert self.current is not None
        self._apply(Transaction(**{**_fields(self.current), **changes}))  # type: ignore[arg-type]


def _fields(transaction: Transaction) -> dict[str, object]:
    return {name: getattr(transaction, name) for name in Transaction.__slots__}


@pytest.fixture
def talk() -> Talk:
    talk = Talk()
    talk.init()
    return talk


@pytest.fixture
def old(talk: Talk) -> Talk:
    talk.version = 0
    return talk


def refusal(talk: Talk, ask: Callable[[], object]) -> ErrorCode:
    before = talk.current
    with pytest.raises(ProtocolError) as refused:
        ask()
    assert talk.current == before
    return refused.value.code


# InitProducerId


def test_a_new_id_begins_with_epoch_0() -> None:
    talk = Talk()
    assert talk.init() == (100, 0)
    assert talk.state is State.EMPTY


def test_each_instance_gets_the_next_epoch(talk: Talk) -> None:
    assert [talk.init(), talk.init()] == [(100, 1), (100, 2)]


@pytest.mark.parametrize("timeout_ms", [0, -1, MAX_MS + 1])
def test_a_timeout_must_be_positive_and_at_most_the_maximum(talk: Talk, timeout_ms: int) -> None:
    assert refusal(talk, lambda: talk.init(timeout_ms=timeout_ms)) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_empty_id_is_none(talk: Talk) -> None:
    for ask in (
        lambda: talk.coordinator.init("", TIMEOUT_MS, None, T0),
        lambda: talk.coordinator.add("", 100, 0, P, version=2, now_ms=T0),
        lambda: talk.coordinator.end("", 100, 0, commit=True, version=2, now_ms=T0),
        lambda: talk.coordinator.end("", 100, 0, commit=True, version=0, now_ms=T0),
    ):
        assert refusal(talk, ask) == ErrorCode.INVALID_REQUEST


def test_who_says_who_it_is_gets_the_next_epoch_once(talk: Talk) -> None:
    assert talk.init(expected=(100, 0)) == (100, 1)
    assert talk.init(expected=(100, 0)) == (100, 1)  # the answer was lost


def test_who_is_two_epochs_behind_is_fenced(talk: Talk) -> None:
    talk.init(expected=(100, 0))
    talk.init(expected=(100, 1))
    assert refusal(talk, lambda: talk.init(expected=(100, 0))) == ErrorCode.PRODUCER_FENCED


def test_somebody_elses_producer_id_is_fenced(talk: Talk) -> None:
    assert refusal(talk, lambda: talk.init(expected=(7, 0))) == ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_is_fenced_and_aborted_first(talk: Talk) -> None:
    talk.add()
    assert talk.init() == (100, 1)
    assert talk.state is State.PREPARE_ABORT
    assert refusal(talk, talk.init) == ErrorCode.CONCURRENT_TRANSACTIONS
    talk.marked()
    assert talk.init() == (100, 2)


# Writing


def test_the_first_partition_starts_the_clock(talk: Talk) -> None:
    talk.now_ms += 5
    talk.add(P)
    talk.now_ms += 5
    talk.add(Q)
    assert talk.current is not None
    assert (talk.state, talk.current.partitions, talk.current.started_ms) == (State.ONGOING, P | Q, T0 + 5)


def test_what_is_in_already_needs_no_record(talk: Talk) -> None:
    talk.add(P | Q)
    assert talk.coordinator.add("app", *talk.identity, P, version=2, now_ms=T0) is None


def test_after_a_commit_the_same_partition_is_new_again(talk: Talk) -> None:
    talk.add(P)
    talk.end(True)
    talk.marked()
    talk.add(P)
    assert talk.state is State.ONGOING


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_nothing_is_added_while_markers_are_written(talk: Talk, state: State) -> None:
    talk.add(P)
    talk.end(state is State.PREPARE_COMMIT)
    assert refusal(talk, lambda: talk.add(Q)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(talk, lambda: talk.coordinator.verify("app", *talk.identity, P)) == ErrorCode.CONCURRENT_TRANSACTIONS


def test_who_may_not_add(talk: Talk) -> None:
    talk.init()
    assert refusal(talk, lambda: talk.add(identity=(100, 0))) == ErrorCode.PRODUCER_FENCED
    assert refusal(talk, lambda: talk.add(identity=(100, 2))) == ErrorCode.PRODUCER_FENCED
    assert refusal(talk, lambda: talk.add(identity=(7, 1))) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    unknown = refusal(talk, lambda: talk.coordinator.add("other", 100, 1, P, version=2, now_ms=T0))
    assert unknown == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_partition_that_was_not_added_is_not_verified(talk: Talk) -> None:
    talk.add(P)
    talk.coordinator.verify("app", *talk.identity, P)
    verify = lambda: talk.coordinator.verify("app", *talk.identity, P | Q)  # noqa: E731
    assert refusal(talk, verify) == ErrorCode.TRANSACTION_ABORTABLE


# The end, V1


@pytest.mark.parametrize("commit", [True, False])
def test_v1_keeps_the_epoch_and_takes_the_same_end_for_a_repeat(old: Talk, commit: bool) -> None:
    old.add(P)
    assert old.end(commit) == (100, 0)
    assert refusal(old, lambda: old.end(commit)) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(old, lambda: old.end(not commit)) == ErrorCode.INVALID_TXN_STATE
    old.marked()
    assert old.end(commit) == (100, 0)
    assert refusal(old, lambda: old.end(not commit)) == ErrorCode.INVALID_TXN_STATE


def test_v1_cannot_end_what_never_began(old: Talk) -> None:
    for commit in (True, False):
        assert refusal(old, lambda commit=commit: old.end(commit)) == ErrorCode.INVALID_TXN_STATE  # type: ignore[misc]


def test_v1_is_fenced_by_any_other_epoch(old: Talk) -> None:
    old.add(P)
    for epoch in (-1, 1):
        ask = lambda epoch=epoch: old.end(True, identity=(100, epoch))  # noqa: E731
        assert refusal(old, ask) == ErrorCode.PRODUCER_FENCED


# The end, V2


@pytest.mark.parametrize("commit", [True, False])
def test_v2_raises_the_epoch_with_every_end(talk: Talk, commit: bool) -> None:
    talk.add(P)
    assert talk.end(commit) == (100, 1)
    talk.marked()
    talk.add(P)
    assert talk.end(commit) == (100, 2)


@pytest.mark.parametrize("commit", [True, False])
def test_v2_recognises_a_repeat_by_its_epoch(talk: Talk, commit: bool) -> None:
    talk.add(P)
    talk.end(commit)
    repeat = lambda: talk.end(commit, identity=(100, 0))  # noqa: E731
    opposite = lambda: talk.end(not commit, identity=(100, 0))  # noqa: E731
    assert refusal(talk, repeat) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert refusal(talk, opposite) == ErrorCode.INVALID_TXN_STATE
    talk.marked()
    assert repeat() == (100, 1)
    assert refusal(talk, opposite) == ErrorCode.INVALID_TXN_STATE


def test_v2_is_fenced_two_epochs_behind(talk: Talk) -> None:
    for _ in range(2):
        talk.add(P)
        talk.end(True)
        talk.marked()
    assert refusal(talk, lambda: talk.end(True, identity=(100, 0))) == ErrorCode.PRODUCER_FENCED


def test_v2_may_abort_what_the_coordinator_does_not_know(talk: Talk) -> None:
    assert talk.end(False) == (100, 1)
    talk.marked()
    assert talk.end(False) == (100, 2)
    talk.marked()
    talk.add(P)
    talk.end(True)
    talk.marked()
    assert talk.end(False) == (100, 4)


def test_v2_cannot_commit_what_never_began(talk: Talk) -> None:
    assert refusal(talk, lambda: talk.end(True)) == ErrorCode.INVALID_TXN_STATE


def test_v2_may_overtake_its_own_records_with_a_commit_and_is_told_to_come_again(talk: Talk) -> None:
    """The Java producer does, now and then; Kafka is still writing markers then."""
    talk.add(P)
    talk.end(True)
    talk.marked()
    talk.now_ms += OVERTAKING_MS - 1
    assert refusal(talk, lambda: talk.end(True)) == ErrorCode.CONCURRENT_TRANSACTIONS
    talk.add(P)
    talk.end(True)
    talk.marked()
    talk.now_ms += OVERTAKING_MS
    assert refusal(talk, lambda: talk.end(True)) == ErrorCode.INVALID_TXN_STATE


# When the epochs are used up


def test_the_next_instance_gets_a_new_producer_id(talk: Talk) -> None:
    talk.be(epoch=LAST_EPOCH)
    assert talk.init() == (101, 0)


def test_a_new_producer_id_is_given_once_to_who_repeats(talk: Talk) -> None:
    talk.be(epoch=LAST_EPOCH)
    assert talk.init(expected=(100, LAST_EPOCH)) == (101, 0)
    assert talk.init(expected=(100, LAST_EPOCH)) == (101, 0)


def test_v2_hands_out_a_new_producer_id_with_the_end(talk: Talk) -> None:
    talk.be(epoch=LAST_EPOCH)
    talk.add(P)
    assert talk.end(True) == (101, 0)
    assert talk.identity == (100, LAST_EPOCH + 1)  # what the markers carry
    talk.marked()
    assert talk.identity == (101, 0)
    assert talk.end(True, identity=(100, LAST_EPOCH)) == (101, 0)  # a repeat
    assert refusal(talk, lambda: talk.add(identity=(100, LAST_EPOCH))) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_fenced_producer_in_its_last_epoch_leaves_a_new_producer_id(talk: Talk) -> None:
    talk.be(epoch=LAST_EPOCH)
    talk.add(P)
    talk.init()
    assert talk.identity == (100, LAST_EPOCH + 1)
    talk.marked()
    assert talk.init() == (101, 1)


# Housekeeping


def test_only_open_transactions_time_out(talk: Talk) -> None:
    at = T0 + TIMEOUT_MS
    assert talk.coordinator.timed_out(at + 1) == []
    talk.add(P)
    assert (talk.coordinator.timed_out(at), talk.coordinator.timed_out(at + 1)) == ([], ["app"])


def test_ids_expire_unless_they_are_in_use(talk: Talk) -> None:
    assert talk.coordinator.expired(T0 - 1) == []
    assert talk.coordinator.expired(T0) == ["app"]
    talk.add(P)
    assert talk.coordinator.expired(T0 + 10**12) == []
