"""The oracle of `viewing`: it agrees with the steps on whole samples, and it notices when they do something else."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.pipelines import viewing
from onceflow.pipelines.oracles import viewing as oracles
from onceflow.pipelines.pipeline import Pipeline, Record, Send, State
from onceflow.pipelines.reference import Expected, Raw, reference_named
from onceflow.pipelines.samples.viewing import generate
from onceflow.pipelines.viewing import PIPELINE, Sample, Viewing, learn_tastes, train
from tests.support.effort import effort, examples
from tests.support.pipeline_in_memory import in_any_order, logged, micro_batches, run_in_memory

HOUR = 3_600_000


def differences(pipeline: Pipeline, batches: Sequence[Sequence[Raw]]) -> list[str]:
    """Where the pipeline and the oracle do not agree: a micro-batch, or the state at the end."""
    written, pages = run_in_memory(pipeline, batches)
    oracle = oracles.Oracle()
    found = []
    for number, (batch, records) in enumerate(zip(written, batches, strict=True)):
        if in_any_order(batch) != in_any_order(oracle.batch(records)):
            found.append(f"batch {number}")
    if viewing.state(pages) != oracle.state():
        found.append("state")
    return found


@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 3), (3, 12), (4, 40), (5, 150)])
def test_a_sample_ends_as_the_oracle_says_however_it_is_cut(seed: int, count: int) -> None:
    assert differences(PIPELINE, micro_batches(logged(generate(seed, effort(1_000, soak=20_000))), seed, count)) == []


def test_nothing_depends_on_the_number_of_shards() -> None:
    steps = [dataclasses.replace(PIPELINE.steps[0], shards=3), PIPELINE.steps[1]]
    batches = micro_batches(logged(generate(6, 4_000)), 6, 10)
    assert differences(dataclasses.replace(PIPELINE, steps=steps), batches) == []


def test_scores_and_weights_do_not_depend_on_where_time_is_cut() -> None:
    records = logged(generate(7, 4_000))
    whole, parts = (
        viewing.state(run_in_memory(PIPELINE, [records[at : at + size] for at in range(0, 4_000, size)])[1])
        for size in (4_000, 130)
    )
    assert whole["users"] == parts["users"]
    assert {**whole["model"], "version": 31} == parts["model"]


def test_state_before_the_first_record_is_empty() -> None:
    assert viewing.state([]) == oracles.Oracle().state() == {"users": {}, "model": None}


def test_the_reference_is_found_by_its_name() -> None:
    assert reference_named("viewing").pipeline is PIPELINE


ODD = """
NaN|-Infinity|1e999|-0|-0.0|1e-400|7.0|1e2|true|null|[]|{}|""|"\\ud800"|"\\ud83d\\ude00"|01|'a'|"\t"||9223372036854775807|
9223372036854775808|-9223372036854775808|18446744073709551615|18446744073709551616|-9223372036854775809
"""
FRAGMENTS = st.sampled_from([*ODD.strip().split("|"), "9" * 400]) | st.one_of(
    st.integers(), st.floats(), st.text(max_size=80), st.lists(st.integers(), max_size=30)
).map(json.dumps)
GOOD = {
    "user": '"ann"',
    "seq": "1",
    "show": '"Low Tide"',
    "genre": '"drama"',
    "minutes": "1.5",
    "length": "9",
    "at": "5",
}


@examples(60, soak=2_000)
@given(
    st.dictionaries(st.sampled_from(list(GOOD)), FRAGMENTS, max_size=3),
    st.sets(st.sampled_from(list(GOOD)), max_size=1),
)
def test_any_field_is_read_as_the_oracle_reads_it(changed: dict[str, str], missing: set[str]) -> None:
    fields = {name: text for name, text in {**GOOD, **changed}.items() if name not in missing}
    text = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    assert differences(PIPELINE, [[Raw(0, "viewing_events", 0, 0, b"ann", text.encode())]]) == []


@examples(60, soak=2_000)
@given(st.none() | st.binary(max_size=30) | st.text(max_size=30).map(str.encode) | FRAGMENTS.map(str.encode))
def test_any_bytes_are_read_as_the_oracle_reads_them(value: bytes | None) -> None:
    assert differences(PIPELINE, [[Raw(0, "viewing_events", 0, 0, value, value)]]) == []


# --- the oracle is not blind

Step1 = Callable[[State, list[Record[Viewing]]], Iterator[Send | Sample]]


def _nudged(state: State, found: list[Sample]) -> Iterator[Send]:
    sends = list(train(state, found))
    state["model"]["weights"]["bias"] += 1e-12
    yield from sends


def _says_it_again(state: State, events: list[Record[Viewing]]) -> Iterator[Send | Sample]:
    for page in state.values():
        for user in page.values():
            user["shows"] = []
    yield from learn_tastes(state, events)


def _forgets_who_was_there(state: State, events: list[Record[Viewing]]) -> Iterator[Send | Sample]:
    yield from learn_tastes(dict(state), events)


MISTAKES_OF_LEARNING: dict[str, Step1] = {
    "an event is processed twice": lambda state, events: learn_tastes(state, [*events, events[-1]]),
    "an event is lost": lambda state, events: learn_tastes(state, events[:-1]),
    "events in the wrong order": lambda state, events: learn_tastes(state, events[::-1]),
    "users are not written back": _forgets_who_was_there,
    "what has not changed is sent": _says_it_again,
    "a sample is lost": lambda state, events: itertools.islice(learn_tastes(state, events), 1, None),
}
MISTAKES_OF_TRAINING: dict[str, Callable[[State, list[Sample]], Iterator[Send]]] = {
    "a sample is learned twice": lambda state, found: train(state, [*found, found[-1]]),
    "a sample is not learned": lambda state, found: train(state, found[1:]),
    "samples in the wrong order": lambda state, found: train(state, found[::-1]),
    "the model is not written back": lambda state, found: train({}, found),
    "a weight is off by a trifle": _nudged,
}


@pytest.mark.parametrize("mistake", MISTAKES_OF_LEARNING)
def test_the_oracle_finds_mistakes_of_the_first_step(mistake: str) -> None:
    step = dataclasses.replace(PIPELINE.steps[0], run=MISTAKES_OF_LEARNING[mistake])
    batches = micro_batches(logged(generate(9, 3_000)), 9, 4)
    assert differences(dataclasses.replace(PIPELINE, steps=[step, PIPELINE.steps[1]]), batches)


@pytest.mark.parametrize("mistake", MISTAKES_OF_TRAINING)
def test_the_oracle_finds_mistakes_of_the_second_step(mistake: str) -> None:
    step = dataclasses.replace(PIPELINE.steps[1], run=MISTAKES_OF_TRAINING[mistake])
    batches = micro_batches(logged(generate(9, 3_000)), 9, 4)
    assert differences(dataclasses.replace(PIPELINE, steps=[PIPELINE.steps[0], step]), batches)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [("LATE_MS", 100 * HOUR), ("EARLY_MS", 100 * HOUR), ("HALF_LIFE_TICKS", 13), ("SEEN_MAX", 5), ("RATE", 0.020001)],
)
def test_the_oracle_finds_another_rule(rule: str, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewing, rule, wrong)
    assert differences(PIPELINE, micro_batches(logged(generate(9, 3_000)), 9, 4))


def test_a_record_that_is_written_twice_is_a_difference() -> None:
    one = Expected("models", "model", {"version": 1})
    assert in_any_order([one, one]) != in_any_order([one])
