"""The table of states: it is Kafka's, every state has a row, and what is not in it cannot happen."""

from __future__ import annotations

import pytest

from onceflow.errors import ErrorCode
from onceflow.txn.states import ENTERED_FROM, TABLE, Event, State, follow

S = State


def test_every_state_has_a_row() -> None:
    assert set(TABLE) == set(State)


def test_states_are_entered_from_where_kafka_enters_them() -> None:
    assert {
        S.EMPTY: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.ONGOING: {S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.PREPARE_COMMIT: {S.ONGOING},
        S.PREPARE_ABORT: {S.ONGOING, S.PREPARE_EPOCH_FENCE, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
        S.COMPLETE_COMMIT: {S.PREPARE_COMMIT},
        S.COMPLETE_ABORT: {S.PREPARE_ABORT},
        S.PREPARE_EPOCH_FENCE: {S.ONGOING},
        S.DEAD: {S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT},
    } == ENTERED_FROM


@pytest.mark.parametrize("prepared", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
def test_once_prepared_never_undone(prepared: State) -> None:
    ways_out = {state for state in TABLE[prepared].values() if isinstance(state, State)}
    assert ways_out == {S.COMPLETE_COMMIT if prepared is S.PREPARE_COMMIT else S.COMPLETE_ABORT}


def test_what_is_not_in_the_table_raises() -> None:
    for state in State:
        for event in set(Event) - set(TABLE[state]):
            with pytest.raises(RuntimeError, match=state.label):
                follow(state, event)


def test_an_error_is_answered_in_the_state_where_it_belongs() -> None:
    assert follow(S.EMPTY, Event.COMMIT) is ErrorCode.INVALID_TXN_STATE
    assert follow(S.PREPARE_COMMIT, Event.ADD) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert follow(S.COMPLETE_COMMIT, Event.COMMIT_AGAIN) is ErrorCode.NONE


def test_labels_are_those_of_kafkas_tools() -> None:
    assert [state.label for state in sorted(State)] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
