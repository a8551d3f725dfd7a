"""The table of states: complete, and the only way to move."""

from __future__ import annotations

import pytest

from onceflow.group.states import MOVES, ClassicState, check_move


def test_every_state_has_a_row() -> None:
    assert set(MOVES) == set(ClassicState)


def test_every_state_but_the_first_can_be_reached() -> None:
    assert set().union(*MOVES.values()) == set(ClassicState)


def test_every_state_can_end_and_the_end_is_final() -> None:
    assert all(ClassicState.DEAD in after for after in MOVES.values())
    assert MOVES[ClassicState.DEAD] == {ClassicState.DEAD}


def test_a_move_that_is_not_in_the_table_raises() -> None:
    check_move("g", ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE)
    with pytest.raises(RuntimeError, match="'g' cannot go from Empty to Stable"):
        check_move("g", ClassicState.EMPTY, ClassicState.STABLE)
