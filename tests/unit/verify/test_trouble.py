"""Strikes on frames, without a network around them."""

from __future__ import annotations

import pytest

from onceflow.verify.fates import PASS, Action, Fate, Frame
from onceflow.verify.trouble import EMPTY_AFTER_S, Trouble

PRODUCE, END_TXN = 0, 26


def frame(api_key: int, version: int = 5) -> Frame:
    return Frame(connection=1, api_key=api_key, api_version=version, correlation_id=1, size=10)


@pytest.mark.parametrize(
    ("kind", "request_fate", "answer_fate"),
    [
        ("lost request", Fate.SWALLOW, Fate.PASS),
        ("lost answer", Fate.PASS, Fate.SWALLOW),
        ("torn request", Fate.TEAR, Fate.PASS),
        ("torn answer", Fate.PASS, Fate.TEAR),
        ("late request", Fate.LATE, Fate.PASS),
    ],
)
def test_each_kind_spoils_one_frame_on_its_way(kind: str, request_fate: Fate, answer_fate: Fate) -> None:
    trouble = Trouble()
    plan = trouble.plan(1)
    trouble.strike(kind)
    assert (plan.request(frame(0)).fate, plan.response(frame(0)).fate) == (request_fate, answer_fate)
    assert plan.request(frame(0)) == plan.response(frame(0)) == PASS


def test_a_strike_waits_for_its_api_and_says_what_it_hit() -> None:
    trouble = Trouble()
    plan = trouble.plan(3)
    strike = trouble.strike("lost answer", api={END_TXN, PRODUCE})
    assert plan.response(frame(1)) == PASS
    assert (strike.struck, strike.wait(0)) == (None, False)

    assert plan.response(frame(END_TXN)) == Action(Fate.SWALLOW)
    assert (strike.struck, strike.wait(0)) == ("EndTxn v5 at node 3", True)
    assert [(hit.node, hit.frame.api_key) for hit in strike.hits] == [(3, END_TXN)]


def test_a_strike_hits_as_many_frames_as_it_is_told_on_whichever_node_they_come_by() -> None:
    trouble = Trouble()
    plans = [trouble.plan(node) for node in (1, 2)]
    strike = trouble.strike("lost request", api=PRODUCE, count=2)
    fates = [plan.request(frame(PRODUCE)).fate for plan in (*plans, *plans)]
    assert fates == [Fate.SWALLOW, Fate.SWALLOW, Fate.PASS, Fate.PASS]
    assert strike.struck == "Produce v5 at node 1, Produce v5 at node 2"


def test_a_strike_may_be_for_some_nodes_only() -> None:
    trouble = Trouble()
    strike = trouble.strike("lost request", nodes={2})
    assert trouble.plan(1).request(frame(PRODUCE)) == PASS
    assert trouble.plan(2).request(frame(PRODUCE)).fate is Fate.SWALLOW
    assert strike.struck == "Produce v5 at node 2"


def test_a_cancelled_strike_hits_nothing() -> None:
    trouble = Trouble()
    strike = trouble.strike("lost request")
    strike.cancel()
    assert trouble.plan(1).request(frame(PRODUCE)) == PASS
    assert strike.struck is None


def test_the_oldest_of_two_strikes_gets_the_frame() -> None:
    trouble = Trouble()
    first, second = trouble.strike("torn request"), trouble.strike("lost request")
    assert trouble.plan(1).request(frame(PRODUCE)).fate is Fate.TEAR
    assert (first.struck is None, second.struck) == (False, None)


def test_only_a_late_request_takes_its_time() -> None:
    trouble = Trouble()
    trouble.strike("late request", delay_s=2.0)
    trouble.strike("lost answer", delay_s=2.0)
    plan = trouble.plan(1)
    assert plan.request(frame(PRODUCE)) == Action(Fate.LATE, 2.0)
    assert plan.response(frame(PRODUCE)) == Action(Fate.SWALLOW)


def test_older_versions_of_an_api_may_be_left_alone() -> None:
    trouble = Trouble()
    plan = trouble.plan(1)
    strike = trouble.strike("late request", api={PRODUCE, END_TXN}, count=2, versions_min={END_TXN: 5})
    assert plan.request(frame(END_TXN, version=4)) == PASS
    assert plan.request(frame(END_TXN, version=5)).fate is Fate.LATE
    assert plan.request(frame(PRODUCE, version=0)).fate is Fate.LATE
    assert strike.struck == "EndTxn v5 at node 1, Produce v0 at node 1"


def test_which_one_among_several_frames_is_hit_comes_from_the_seed() -> None:
    def place(seed: int) -> int:
        trouble = Trouble(seed)
        trouble.strike("lost request", among=10)
        plan = trouble.plan(1)
        return [plan.request(frame(PRODUCE)).fate for _ in range(10)].index(Fate.SWALLOW)

    places = [place(seed) for seed in range(30)]
    assert places == [place(seed) for seed in range(30)]
    assert len(set(places)) > 5


def test_delays_are_for_every_frame_until_they_are_ended() -> None:
    trouble = Trouble()
    plan = trouble.plan(1)
    trouble.delay(0.5)
    assert plan.request(frame(PRODUCE)) == plan.response(frame(1)) == Action(Fate.PASS, 0.5)
    trouble.end_delays()
    assert plan.request(frame(PRODUCE)) == PASS


def test_delays_may_be_for_some_nodes_only() -> None:
    trouble = Trouble()
    trouble.delay(0.5, nodes={2})
    assert trouble.plan(1).request(frame(PRODUCE)) == PASS
    assert trouble.plan(2).request(frame(PRODUCE)) == Action(Fate.PASS, 0.5)


def test_a_strike_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="lost answer"):
        Trouble().strike("lost heart")


def test_while_answers_are_empty_those_to_a_fetch_are_and_no_others() -> None:
    trouble = Trouble()
    trouble.empty(nodes=[2])
    assert trouble.plan(2).response(frame(1)) == Action(Fate.EMPTY, EMPTY_AFTER_S)
    assert trouble.plan(2).request(frame(1)) == trouble.plan(2).response(frame(PRODUCE)) == PASS
    assert trouble.plan(1).response(frame(1)) == PASS
    trouble.end_empty()
    assert trouble.plan(2).response(frame(1)) == PASS
