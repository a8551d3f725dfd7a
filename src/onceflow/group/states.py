"""The states of a classic group, and which may follow which.

    Empty                nobody is a member; offsets may be kept, and simple consumers may commit
    PreparingRebalance   a change was noticed; members are told to join again, and the group waits for them
    CompletingRebalance  everybody has joined (or was left behind); the leader is working out who gets what
    Stable               the assignment is on disk and every member that asks for it gets it
    Dead                 the group is gone; whoever still holds on to it is told to look for the coordinator again

A rebalance is the way from any state with members to PreparingRebalance and on to Stable; it ends in Empty when
nobody came back. Only Dead is final.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["MOVES", "ClassicState", "check_move"]


class ClassicState(enum.Enum):
    """The value is the name that Kafka's protocol and tools use."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = ClassicState

MOVES: Final[dict[ClassicState, frozenset[ClassicState]]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}),
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.DEAD: frozenset({_S.DEAD}),
}
"""Where a group may go from each state."""


def check_move(group_id: str, before: ClassicState, after: ClassicState) -> None:
    """Raise unless the table has this move: a broken invariant, never a client's fault."""
    if after not in MOVES[before]:
        raise RuntimeError(f"Group {group_id!r} cannot go from {before.value} to {after.value}.")
