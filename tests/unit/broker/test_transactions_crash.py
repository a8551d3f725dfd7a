"""The crash matrix: one transaction, and the machine dies at every single step of it.

A step is a write, a sync or a change of a name. For each of them the broker is killed (everything written is there), or
the power goes (of what was not synced, anything may be there). Then a new broker starts on what is left, and:

- what was answered holds: a commit that was acknowledged is there, all of it; an abort leaves nothing;
- what was not answered is all or nothing, over all partitions and the offsets of the group alike;
- nothing hangs: at the latest after the timeout the last stable offset is the end of every partition;
- the old producer is out, and a new instance goes on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from onceflow.errors import ErrorCode
from onceflow.log.memory_files import SimulatedCrash
from tests.support.effort import effort
from tests.support.memory_broker import MemoryBroker, Reply
from tests.support.memory_transactions import MemoryProducer, committed, committed_offset, create_topic, ends

TIMEOUT_MS = 60_000
SEEDS = range(effort(1, soak=10))
STEPS_MAX = 400


@dataclass(frozen=True)
class Plan:
    v2: bool
    commit: bool
    partitions: int
    fsync: bool

    def __str__(self) -> str:
        outcome = "commit" if self.commit else "abort"
        durability = "fsync" if self.fsync else "os"
        return f"{'V2' if self.v2 else 'V1'}-{outcome}-{self.partitions}-{durability}"


PLANS = [
    Plan(v2, commit, partitions, fsync)
    for v2 in (False, True)
    for commit in (True, False)
    for partitions in (1, 3)
    for fsync in (True, False)
]


class Run:
    """A broker with a committed transaction on it, and a second one that is under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.broker = MemoryBroker(fsync=plan.fsync)
        self.end: Reply | None = None
        create_topic(self.broker, "t", plan.partitions)
        self.producer = MemoryProducer(self.broker, "app", v2=plan.v2, timeout_ms=TIMEOUT_MS).init()
        self._write("before", offset=1)
        self._finish(commit=True)

    def go(self) -> None:
        """The second transaction; `end` is the answer to its end, from the moment that it was asked for."""
        self.end = None
        self._write("during", offset=2)
        self._finish(commit=self.plan.commit)

    def _write(self, value: str, offset: int) -> None:
        for partition in range(self.plan.partitions):
            if not self.plan.v2:
                self._done(self.producer.send_add("t", partition))
            self._done(self.producer.send("t", partition, f"{value}-{partition}"))
        if not self.plan.v2:
            self._done(self.producer.send_add_offsets("group"))
        self._done(self.producer.send_offset("group", "t", 0, offset))

    def _finish(self, commit: bool) -> None:
        self.end = reply = self.producer.send_end(commit=commit)
        self.broker.settle()
        assert self.producer.took_end(reply)

    def _done(self, reply: Reply) -> None:
        self.broker.settle()
        assert reply.is_there

    @property
    def is_answered(self) -> bool:
        return self.end is not None and self.end.is_there


def values(broker: MemoryBroker, plan: Plan) -> list[list[str]]:
    return [committed(broker, "t", partition) for partition in range(plan.partitions)]


def expected(plan: Plan, *names: str) -> list[list[str]]:
    return [[f"{name}-{partition}" for name in names] for partition in range(plan.partitions)]


def check_outcome(broker: MemoryBroker, plan: Plan, *, decided: bool) -> str:
    """What became of the second transaction: "committed" or "aborted", the same everywhere."""
    if not decided:
        broker.pass_time(TIMEOUT_MS + 1)
        broker.settle()
    for partition in range(plan.partitions):
        last_stable, high_watermark = ends(broker, "t", partition)
        assert last_stable == high_watermark
    outcomes = {
        "committed": (expected(plan, "before", "during"), 2),
        "aborted": (expected(plan, "before"), 1),
    }
    found = (values(broker, plan), committed_offset(broker, "group", "t", 0))
    [outcome] = [name for name, state in outcomes.items() if state == found] or [found]
    assert outcome in outcomes, outcome
    return str(outcome)


def check_goes_on(broker: MemoryBroker, old: MemoryProducer, plan: Plan, outcome: str) -> None:
    """The old instance is fenced by the new one, which commits."""
    new = MemoryProducer(broker, "app", v2=plan.v2, timeout_ms=TIMEOUT_MS).init()
    assert (new.id, new.epoch) > (old.id, old.epoch)
    zombie = MemoryProducer(broker, "app", v2=plan.v2, id=old.id, epoch=old.epoch)
    refused = zombie.send("t", 0, "zombie")
    broker.settle()
    [[answer]] = [each.partition_responses for each in refused.message.responses]
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    for partition in range(plan.partitions):
        if not plan.v2:
            new.send_add("t", partition)
            broker.settle()
        new.send("t", partition, f"after-{partition}")
    broker.settle()
    end = new.send_end(commit=True)
    broker.settle()
    assert new.took_end(end)
    middle = ["during"] if outcome == "committed" else []
    assert values(broker, plan) == expected(plan, "before", *middle, "after")


def steps_of(plan: Plan) -> int:
    """How many steps the second transaction takes."""
    run = Run(plan)
    run.broker.files.steps_until_crash = STEPS_MAX
    run.go()
    left = run.broker.files.steps_until_crash
    assert left > 0
    return STEPS_MAX - left


def died(plan: Plan, step: int) -> Run:
    """A run whose machine died in place of a step."""
    run = Run(plan)
    run.broker.files.steps_until_crash = step
    with pytest.raises(SimulatedCrash):
        run.go()
    return run


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_after_a_crash_at_any_step_it_is_all_or_nothing(plan: Plan) -> None:
    seen = set()
    steps = steps_of(plan)
    for step in range(steps):
        run = died(plan, step)
        restarts = [run.broker.killed]
        if plan.fsync:
            restarts += [lambda seed=seed, run=run: run.broker.crashed(random.Random(seed)) for seed in SEEDS]
        for restart in restarts:
            broker = restart()
            broker.settle()
            outcome = check_outcome(broker, plan, decided=run.is_answered)
            if run.is_answered:
                assert outcome == ("committed" if plan.commit else "aborted")
            if not plan.commit:
                assert outcome == "aborted"
            again = broker.killed()
            again.settle()
            assert check_outcome(again, plan, decided=True) == outcome
            check_goes_on(again, run.producer, plan, outcome)
            seen.add(outcome)
    assert seen == ({"committed", "aborted"} if plan.commit else {"aborted"})


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.fsync and plan.partitions == 3], ids=str)
def test_a_crash_while_a_restart_finishes_what_was_decided(plan: Plan) -> None:
    """The first restart finds a decision and begins to write markers; it dies on the way, at every step."""
    for first_step in range(0, steps_of(plan), 3):
        for second_step in range(0, 60, 2):
            run = died(plan, first_step)
            files = run.broker.files.kill()
            files.steps_until_crash = second_step
            try:
                second = MemoryBroker(files, clock=run.broker.clock)
                second.settle()
                second.files.steps_until_crash = None
                finished = True
            except SimulatedCrash:
                finished = False
            broker = MemoryBroker(files.crash(random.Random(second_step)), clock=run.broker.clock)
            broker.settle()
            outcome = check_outcome(broker, plan, decided=run.is_answered)
            if run.is_answered:
                assert outcome == ("committed" if plan.commit else "aborted")
            if finished:
                break
