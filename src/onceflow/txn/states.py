"""The states of a transactional id, as one table: what may happen in each, and what comes of it.

A transactional id is `Empty` until its producer writes something. The first partition that is added makes it `Ongoing`.
EndTxn brings it to `PrepareCommit` or `PrepareAbort`: once that is on disk, the outcome is decided, and neither a crash
nor a request can change it. Markers are written to every partition of the transaction, and then it is `CompleteCommit`
or `CompleteAbort`, from where the next transaction starts. No way leads from a prepared state to the other outcome.

A transaction is ended from outside in two cases: a new instance of the producer asks for its id (InitProducerId), or it
outlives its timeout. Then it is *fenced*: the epoch is raised, so that the old instance is refused wherever it goes on,
and the transaction aborts. `PrepareEpochFence` is the moment in between; it is never on disk. An id that nobody has
used for long is forgotten: `Dead`, a tombstone in the log.

V1 and V2 (KIP-890) differ in one thing here. In V2 every EndTxn raises the epoch, so a repeated EndTxn can be told from
a new one: it comes with the epoch before the current one. In V1 it can not, and an EndTxn that finds its own outcome is
taken for a repeat. Also, a V2 client may abort although the coordinator knows of nothing (its writes may have been lost
on the way), and gets a new epoch for it.

An entry of the table is the state that follows, or the error that is answered, with nothing changed. An event that is
not in the row of a state cannot happen there: `follow` raises.
"""

from __future__ import annotations

import enum
from typing import Final

from onceflow.errors import ErrorCode

__all__ = ["ENTERED_FROM", "TABLE", "Event", "State", "follow"]


class State(enum.IntEnum):
    """With Kafka's numbers, which are on disk."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """As it is called in requests, answers and tools: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Decided, with markers still to be written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Event(enum.Enum):
    INIT = "InitProducerId"
    ADD = "a partition is added"
    COMMIT = "EndTxn(commit) in V1"
    ABORT = "EndTxn(abort) in V1"
    COMMIT_V2 = "EndTxn(commit)"
    ABORT_V2 = "EndTxn(abort)"
    COMMIT_AGAIN = "EndTxn(commit) repeated, with the epoch before"
    ABORT_AGAIN = "EndTxn(abort) repeated, with the epoch before"
    FENCE = "a new instance, or the timeout"
    FENCED = "the fenced one aborts"
    MARKED = "all markers are written"
    EXPIRE = "unused for long"


_DONE: Final = ErrorCode.NONE
_LATER: Final = ErrorCode.CONCURRENT_TRANSACTIONS
_ILLEGAL: Final = ErrorCode.INVALID_TXN_STATE

_S = State
_E = Event

TABLE: Final[dict[State, dict[Event, State | ErrorCode]]] = {
    State.EMPTY: {
        _E.INIT: _S.EMPTY,
        _E.ADD: _S.ONGOING,
        _E.COMMIT: _ILLEGAL,
        _E.ABORT: _ILLEGAL,
        _E.COMMIT_V2: _ILLEGAL,
        _E.ABORT_V2: _S.PREPARE_ABORT,
        _E.EXPIRE: _S.DEAD,
    },
    State.ONGOING: {
        _E.INIT: _LATER,  # and the transaction is fenced
        _E.ADD: _S.ONGOING,
        _E.COMMIT: _S.PREPARE_COMMIT,
        _E.ABORT: _S.PREPARE_ABORT,
        _E.COMMIT_V2: _S.PREPARE_COMMIT,
        _E.ABORT_V2: _S.PREPARE_ABORT,
        _E.FENCE: _S.PREPARE_EPOCH_FENCE,
    },
    State.PREPARE_EPOCH_FENCE: {
        _E.FENCED: _S.PREPARE_ABORT,
    },
    State.PREPARE_COMMIT: {
        _E.INIT: _LATER,
        _E.ADD: _LATER,
        _E.COMMIT: _LATER,
        _E.ABORT: _ILLEGAL,
        _E.COMMIT_AGAIN: _LATER,
        _E.ABORT_AGAIN: _ILLEGAL,
        _E.MARKED: _S.COMPLETE_COMMIT,
    },
    State.PREPARE_ABORT: {
        _E.INIT: _LATER,
        _E.ADD: _LATER,
        _E.COMMIT: _ILLEGAL,
        _E.ABORT: _LATER,
        _E.COMMIT_AGAIN: _ILLEGAL,
        _E.ABORT_AGAIN: _LATER,
        _E.MARKED: _S.COMPLETE_ABORT,
    },
    State.COMPLETE_COMMIT: {
        _E.INIT: _S.EMPTY,
        _E.ADD: _S.ONGOING,
        _E.COMMIT: _DONE,
        _E.ABORT: _ILLEGAL,
        _E.COMMIT_V2: _ILLEGAL,
        _E.ABORT_V2: _S.PREPARE_ABORT,
        _E.COMMIT_AGAIN: _DONE,
        _E.ABORT_AGAIN: _ILLEGAL,
        _E.EXPIRE: _S.DEAD,
    },
    State.COMPLETE_ABORT: {
        _E.INIT: _S.EMPTY,
        _E.ADD: _S.ONGOING,
        _E.COMMIT: _ILLEGAL,
        _E.ABORT: _DONE,
        _E.COMMIT_V2: _ILLEGAL,
        _E.ABORT_V2: _S.PREPARE_ABORT,
        _E.COMMIT_AGAIN: _ILLEGAL,
        _E.ABORT_AGAIN: _DONE,
        _E.EXPIRE: _S.DEAD,
    },
    State.DEAD: {},
}

ENTERED_FROM: Final[dict[State, frozenset[State]]] = {
    state: frozenset(before for before, row in TABLE.items() if state in [s for s in row.values() if type(s) is State])
    for state in State
}
"""From which states each one is reached; drawn from the table."""


def follow(state: State, event: Event) -> State | ErrorCode:
    """What comes of an event: the next state, or the error to answer. One that cannot happen here raises."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise RuntimeError(f"A transaction in state {state.label} cannot have: {event.value}.") from None
