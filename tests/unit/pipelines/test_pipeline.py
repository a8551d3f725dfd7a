"""What a pipeline may be, and what it says about itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from onceflow.errors import ConfigError
from onceflow.pipelines import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.pipeline import DEAD_LETTERS


class Click(NamedTuple):
    page: str
    user: str


class Search(NamedTuple):
    user: str
    words: str


class View(NamedTuple):
    page: str


def count(state: State, clicks: list[Record[Click]]) -> Iterator[Any]:
    yield from ()


def made(**changed: Any) -> Pipeline:
    declared: dict[str, Any] = {
        "name": "pages",
        "inputs": [Input("clicks", Click, partitions=4)],
        "steps": [Step(count, by="page")],
        "outputs": {"views": 2},
    }
    return Pipeline(**{**declared, **changed})


def test_a_pipeline_knows_its_topics_and_has_a_topic_of_its_own_for_dead_letters() -> None:
    pipeline = made()
    assert pipeline.dead_letters == "pages_dead_letters"
    assert pipeline.written() == {"views": 2, "pages_dead_letters": 1}
    assert pipeline.topics() == {"clicks": 4, "views": 2, "pages_dead_letters": 1}


def test_a_chain_of_steps_and_a_function_over_dataframes_are_pipelines() -> None:
    assert len(made(steps=[Step(count, by="page"), Step(count, by="page", takes=View)]).steps) == 2
    build: Callable[[Any], Any] = lambda frame: frame  # noqa: E731
    assert made(steps=(), build=build).build is build


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"inputs": []}, "'pages' has no input"),
        ({"steps": []}, "needs either steps or build="),
        ({"build": lambda frame: frame}, "needs either steps or build="),
        ({"outputs": {DEAD_LETTERS: 1}}, "is there by itself"),
        ({"steps": [Step(count, by="colour")]}, "Click has no field 'colour'"),
        ({"inputs": [Input("clicks", Click), Input("searches", Search)]}, "Search has no field 'page'"),
        ({"steps": [Step(count, by="page", takes=View)]}, "a first step gets records"),
        ({"steps": [Step(count, by="page"), Step(count, by="page")]}, "every other step takes="),
        ({"steps": [Step(count, by="page"), Step(count, by="user", takes=View)]}, "View has no field 'user'"),
    ],
)
def test_what_cannot_run_is_refused_when_it_is_declared(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(**changed)
    assert words in str(refused.value)


def test_a_dead_letter_of_a_step_tells_the_reason_the_origin_and_the_record() -> None:
    record = Record(1_700_000_000_000, "clicks", 2, 41, Click("/für", "ann"))
    topic, key, value = dead_letter(record, "no such page")
    assert (topic, key) == (DEAD_LETTERS, None)
    assert isinstance(value, dict)
    assert json.loads(value.pop("value")) == {"page": "/für", "user": "ann"}
    assert value == {
        "reason": "no such page",
        "topic": "clicks",
        "partition": 2,
        "offset": 41,
        "timestamp": 1_700_000_000_000,
    }


def test_records_sort_in_the_order_of_their_arrival() -> None:
    late = Record(2, "a", 0, 0, Click("/", "zoe"))
    ties = [
        Record(1, "b", 0, 0, Click("/", "a")),
        Record(1, "a", 1, 0, Click("/", "a")),
        Record(1, "a", 0, 7, late.value),
    ]
    assert sorted([late, *ties]) == [ties[2], ties[1], ties[0], late]


def test_what_is_sent_is_a_value_of_three() -> None:
    assert Send("views", "k", None) == ("views", "k", None)
