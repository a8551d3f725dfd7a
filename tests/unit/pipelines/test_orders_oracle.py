"""The orders pipeline against its oracle, on its sample and on input that looks for trouble; would the oracle notice?

Steps run in memory (`tests/support/pipeline_in_memory.py`), in micro-batches that are cut anywhere.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.pipelines.oracles.orders import Oracle
from onceflow.pipelines.orders import PIPELINE, reserve, state, summarise
from onceflow.pipelines.pipeline import Pipeline, Send, State
from onceflow.pipelines.reference import Expected, Message, Raw
from onceflow.pipelines.samples.orders import ORDER, generate, kinds, labelled
from tests.support.effort import effort, examples
from tests.support.pipeline_in_memory import InMemory, in_any_order, logged, micro_batches, run_in_memory

DOCUMENT = Path(__file__).parents[3] / "docs" / "pipelines" / "orders.md"
NOON = 1_767_614_400_000
MINUTE = 60_000


def differences(pipeline: Pipeline, batches: Sequence[Sequence[Raw]]) -> list[str]:
    """Between what the pipeline does and what the oracle says: micro-batches by number, and the state."""
    return compared(pipeline, batches, *said(batches))


def said(batches: Sequence[Sequence[Raw]]) -> tuple[list[list[str]], Mapping[str, Any]]:
    """By the oracle."""
    oracle = Oracle()
    return [in_any_order(oracle.batch(batch)) for batch in batches], oracle.state()


def compared(
    pipeline: Pipeline, batches: Sequence[Sequence[Raw]], expected: list[list[str]], remembered: Mapping[str, Any]
) -> list[str]:
    written, pages = run_in_memory(pipeline, batches)
    found = zip(map(in_any_order, written), expected, strict=True)
    wrong = [f"batch {number}" for number, (got, right) in enumerate(found) if got != right]
    return wrong + ([] if state(pages) == remembered else ["state"])


# --- they agree


@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 3), (3, 8), (4, 20), (5, 60)])
def test_pipeline_does_what_the_oracle_says(seed: int, count: int) -> None:
    assert differences(PIPELINE, micro_batches(logged(generate(seed, effort(1_000, soak=20_000))), seed, count)) == []


@pytest.mark.parametrize("shards", [1, 3])
def test_results_do_not_depend_on_shards(shards: int) -> None:
    pipeline = replace(PIPELINE, steps=[replace(step, shards=shards) for step in PIPELINE.steps])
    assert differences(pipeline, micro_batches(logged(generate(6, 2_000)), 6, 5)) == []


class Event(NamedTuple):
    """An order or an update, by when it comes and how long before that it was placed. Full ten minutes are frequent."""

    minutes_later: int
    minutes_ago: int
    ms: int
    value: dict[str, Any]


ORDERS = st.fixed_dictionaries(
    {
        "order_id": st.integers(1, 30).map("o-{}".format),
        "user": st.sampled_from(["ann", "bob"]),
        "product": st.sampled_from(["tea", "tea", "salt", "never"]),
        "quantity": st.sampled_from([1, 1, 1, 2, 5, 0]),
    }
)
UPDATES = st.fixed_dictionaries(
    {
        "product": st.sampled_from(["tea", "salt"]),
        "seq": st.integers(1, 9),
        "change": st.sampled_from([-20, -1, 0, 3, 10, 10**9, 10**9 + 1]),
        "price": st.sampled_from([0, 1, 250, 10**8, 10**8 + 1, -1]),
    }
)
EVENTS = st.builds(
    Event,
    st.sampled_from([0, 0, 1, 5, 10, 10, 20, 60, 70]),
    st.sampled_from([0, 0, 0, 5, 10, 20, 30, 60, 70, 80, -10]),
    st.sampled_from([0, 0, 1, -1]),
    st.one_of(ORDERS, ORDERS, ORDERS, UPDATES),
)
OPENING = [
    Message("inventory", 0, b"", b'{"product":"%s","seq":1,"change":30,"price":99}' % name, NOON)
    for name in (b"tea", b"salt")
]


def messages_of(events: list[Event]) -> Iterator[Message]:
    now = NOON
    for number, (later, ago, ms, value) in enumerate(events):
        now += later * MINUTE
        if "user" in value:
            whole = {**value, "at": now - ago * MINUTE + ms}
            yield Message("orders", number % 3, b"key", json.dumps(whole).encode(), now)
        else:
            yield Message("inventory", number % 2, b"key", json.dumps(value).encode(), now)


@examples(50, soak=1_500)
@given(events=st.lists(EVENTS, max_size=40), seed=st.integers(0, 1_000), count=st.integers(1, 4))
def test_pipeline_and_oracle_agree_on_orders_of_all_times(events: list[Event], seed: int, count: int) -> None:
    assert differences(PIPELINE, micro_batches(logged([*OPENING, *messages_of(events)]), seed, count)) == []


GOOD = b'{"order_id":"o-1","user":"ann","product":"tea","quantity":2,"at":1767614400000}'
STRANGE = [
    b"",
    b" ",
    b"\xef\xbb\xbf" + GOOD,
    b" \t\r\n" + GOOD + b"\n",
    b"\x0c" + GOOD,
    GOOD + b"\x00",
    GOOD + GOOD,
    GOOD[:-1] + b",}",
    GOOD[:-1] + b',"quantity":3}',
    GOOD[:-1] + b',"quantity":null}',
    GOOD[:-1] + b',"x":Infinity}',
    GOOD[:-1] + b',"x":-Infinity}',
    GOOD[:-1] + b',"x":-1e999}',
    GOOD[:-1] + b',"x":1e-999}',
    GOOD[:-1] + b',"x":' + b"9" * 400 + b"}",
    GOOD[:-1] + b',"x":' + b"9" * 5_000 + b"}",
    GOOD[:-1] + b',"\\udead":1}',
    GOOD[:-1] + b',"x":"\\ud83d\\ude00"}',
    GOOD[:-1] + b',"x":"\t"}',
    GOOD[:-1] + b',"x":"\x7f\xc2\x85"}',
    b"[" * 100_000,
    *(GOOD.replace(b'"quantity":2', b'"quantity":' + each) for each in (b"-0", b"02", b"2.", b"2.0", b"2e0", b"+2")),
    *(
        GOOD.replace(b'"quantity":2', f'"quantity":{number}'.encode())
        for number in (2**63 - 1, 2**63, -(2**63) + 1, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 2**65, 10**30)
    ),
    GOOD.replace(b'"ann"', b'["' + b"long" * 40 + b'"]'),
    GOOD.replace(b'"ann"', '["Zoë"]'.encode()),
    b'"' + "é".encode() * 80 + b'"',
    b"true",
]


@pytest.mark.parametrize("value", STRANGE, ids=range(len(STRANGE)))
def test_pipeline_and_oracle_read_strange_json_alike(value: bytes) -> None:
    strange = Message("orders", 0, b"\xff", value, NOON)
    assert differences(PIPELINE, [logged([*OPENING, strange])]) == []


@examples(100, soak=3_000)
@given(place=st.integers(0, len(GOOD) - 1), length=st.integers(0, 4), put=st.binary(max_size=3))
def test_pipeline_and_oracle_read_damaged_json_alike(place: int, length: int, put: bytes) -> None:
    damaged = GOOD[:place] + put + GOOD[place + length :]
    assert differences(PIPELINE, [logged([*OPENING, Message("orders", 0, None, damaged, NOON)])]) == []


# --- the oracle is not blind

Run = Callable[[State, list[Any]], Iterator[Any]]


def forgetful(page: str, run: Run) -> Run:
    """What it has done to pages is not written back."""

    def broken(state: State, items: list[Any]) -> Iterator[Any]:
        before = {name: copy.deepcopy(content) for name, content in state.items() if name.startswith(page)}
        yield from run(state, items)
        for name in [name for name in state if name.startswith(page)]:
            if name in before:
                state[name] = before[name]

    return broken


def changing(run: Run, change: Callable[[Any], Any]) -> Run:
    """What it sends is changed; None: is not sent."""
    return lambda state, items: (
        changed for each in run(state, items) if (changed := change(each) if isinstance(each, Send) else each)
    )


def first_lost(topic: str) -> Callable[[Send], Send | None]:
    found: list[Send] = []

    def change(send: Send) -> Send | None:
        if send.topic == topic and not found:
            found.append(send)
            return None
        return send

    return change


def dearer(send: Send) -> Send:
    assert isinstance(send.value, dict)
    return send._replace(value={**send.value, "total": send.value["total"] + 1}) if "total" in send.value else send


def page_dropped(page: str, run: Run) -> Run:
    def broken(state: State, items: list[Any]) -> Iterator[Any]:
        for name in [name for name in state if name.startswith(page)]:
            del state[name]
        yield from run(state, items)

    return broken


def moved_by_one(page: str, field: str, run: Run) -> Run:
    """Nothing is wrong but a number in the state, after the last micro-batch."""

    def broken(state: State, items: list[Any]) -> Iterator[Any]:
        for sign in (-1, 1):
            for name in [name for name in state if name.startswith(page)]:
                for known in state[name].values():
                    known[field] += sign
            yield from run(state, items) if sign < 0 else ()

    return broken


MISTAKES: dict[str, tuple[Run, Run]] = {
    "a record is processed twice": (lambda state, items: reserve(state, [items[0], *items]), summarise),
    "a record is lost": (lambda state, items: reserve(state, items[:-1]), summarise),
    "a sale is added twice": (reserve, lambda state, items: summarise(state, [*items, items[-1]])),
    "a sale is lost": (reserve, lambda state, items: summarise(state, items[1:])),
    "the wrong order of records": (lambda state, items: reserve(state, items[::-1]), summarise),
    "the wrong order of sales": (reserve, lambda state, items: summarise(state, items[::-1])),
    "stock is not written back": (forgetful("products", reserve), summarise),
    "ids are not written back": (forgetful("seen/", reserve), summarise),
    "windows are not written back": (reserve, forgetful("users/", summarise)),
    "ids are forgotten": (page_dropped("seen/", reserve), summarise),
    "stock is forgotten": (page_dropped("products", reserve), summarise),
    "a validated order is not written": (changing(reserve, first_lost("validated_orders")), summarise),
    "a rejected order is not written": (changing(reserve, first_lost("rejected_orders")), summarise),
    "a dead letter is not written": (changing(reserve, first_lost("dead_letters")), summarise),
    "a summary is not written": (reserve, changing(summarise, first_lost("user_summaries"))),
    "a late order is not written": (reserve, changing(summarise, first_lost("late_orders"))),
    "all is written to one topic": (changing(reserve, lambda send: send._replace(topic="late_orders")), summarise),
    "the wrong key": (changing(reserve, lambda send: send._replace(key="ann")), summarise),
    "one cent": (changing(reserve, dearer), summarise),
    "one cent in a summary": (reserve, changing(summarise, dearer)),
    "one unit in the state": (moved_by_one("products", "stock", reserve), summarise),
    "one millisecond in the state": (reserve, moved_by_one("users/", "newest", summarise)),
}


@cache
def sample_and_verdict() -> tuple[list[list[Raw]], list[list[str]], Mapping[str, Any]]:
    batches = micro_batches(logged(generate(7, 2_000)), 7, 4)
    return batches, *said(batches)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_oracle_notices(mistake: str) -> None:
    steps = [replace(step, run=run) for step, run in zip(PIPELINE.steps, MISTAKES[mistake], strict=True)]
    assert compared(replace(PIPELINE, steps=steps), *sample_and_verdict()) != []


def test_oracle_finds_nothing_where_there_is_no_mistake() -> None:
    assert compared(PIPELINE, *sample_and_verdict()) == []


# --- the sample


def test_sample_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert list(generate(1, 500)) == list(generate(1, 500))
    assert list(generate(1, 500)) != list(generate(2, 500))


@pytest.mark.parametrize("records", [0, 1, 99, 2_345])
def test_sample_has_as_many_messages_as_were_asked_for(records: int) -> None:
    assert sum(1 for _ in generate(1, records)) == records


def test_sample_has_good_partitions_and_times_that_never_go_back() -> None:
    messages = list(generate(3, 3_000))
    partitions = {each.topic: each.partitions for each in PIPELINE.inputs}
    assert {(each.topic, each.partition) for each in messages} == {
        (topic, partition) for topic, count in partitions.items() for partition in range(count)
    }
    assert [each.timestamp for each in messages] == sorted(each.timestamp for each in messages)
    assert all(
        len({each.partition for each in messages if (each.topic, each.key) == key}) == 1 for key in some(messages)
    )


def some(messages: list[Message]) -> list[tuple[str, bytes | None]]:
    return [(each.topic, each.key) for each in messages[:40]]


def test_sample_has_two_percent_of_updates_and_each_kind_of_trouble_once_or_twice_in_a_thousand() -> None:
    opening, blocks = 200, 20
    sample = list(labelled(4, opening + blocks * 1_000))
    found = Counter(kind for kind, _ in sample)
    assert {found[kind] for kind in kinds()} == {blocks, 2 * blocks}
    assert 0.015 < sum(message.topic == "inventory" for _, message in sample[opening:]) / len(sample) < 0.025
    assert found[ORDER] / len(sample) > 0.9


def test_stock_runs_out_sometimes() -> None:
    written, _ = run_in_memory(PIPELINE, [logged(generate(5, 20_000))])
    reasons = Counter(each.value["reason"] for each in written[0] if each.topic == "rejected_orders" and each.value)
    assert 200 < reasons["out_of_stock"] < 4_000


# --- where each kind of bad input ends


def documented() -> dict[str, str]:
    """The table in the document: kinds, and where they end."""
    section = DOCUMENT.read_text().split("## Where each kind of bad input ends")[1].split("\n## ")[0]
    rows = [row.strip("|").split(" | ") for row in section.splitlines() if row.startswith("| ")][2:]
    return {row[0].strip(): row[-1].strip() for row in rows}


def ends_as_documented(ends: str, written: list[Expected]) -> bool:
    names = re.findall("`(.*?)`", ends)
    topics = {each.topic for each in written}
    reasons = [str(each.value["reason"]) for each in written if each.value and "reason" in each.value]
    if ends.startswith("dead letters"):
        return topics == {"orders_dead_letters"} and any(name in reasons[0] for name in names)
    if ends.startswith("`rejected_orders`"):
        return topics == {"rejected_orders"} and reasons[0] in names[1:]
    if ends.startswith("applied"):
        return written == []
    return topics == ({*names} if names else {"validated_orders", "user_summaries"})


def test_document_tells_of_every_kind_in_the_sample() -> None:
    assert list(documented()) == kinds()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kind_of_bad_input_ends_where_the_document_says(seed: int) -> None:
    memory, ends, good = InMemory(PIPELINE), documented(), Counter[str]()
    sample = list(labelled(seed, 2_000))
    for (kind, _), record in zip(sample, logged(each for _, each in sample), strict=True):
        written = memory.batch([record])  # each a micro-batch of its own, so that it is clear what came of it
        if kind not in ends:
            continue
        if ends_as_documented(ends[kind], written):
            good[kind] += 1
        else:
            assert is_excused(kind, written), (kind, record, written)
    assert set(good) == set(kinds())


def is_excused(kind: str, written: list[Expected]) -> bool:
    """The shelf may be empty, and who has bought nothing else cannot be late."""
    [first, *_] = written
    if kind in ("extra field", "unusual text", "a little late", "late") and first.topic == "rejected_orders":
        return bool(first.value and first.value["reason"] == "out_of_stock")
    return kind == "late" and [each.topic for each in written] == ["validated_orders", "user_summaries"]
