"""`pricing` on generated input: steps and oracle agree in each micro-batch and in the state, and the oracle sees."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.pipelines import pricing
from onceflow.pipelines.oracles.pricing import Oracle, explain
from onceflow.pipelines.pipeline import Pipeline, Record, Send, State
from onceflow.pipelines.pricing import PIPELINE, set_prices, state
from onceflow.pipelines.reference import Expected, Raw
from onceflow.pipelines.samples.pricing import BAD, PARTITIONS, generate, labelled
from tests.support.pipeline_in_memory import in_any_order, logged, micro_batches, run_in_memory

late_or_known = pricing._late_or_known
DOCUMENT = Path(__file__).parents[3] / "docs" / "pipelines" / "pricing.md"


def in_time(records: Iterable[Raw], seed: int, count: int) -> list[list[Raw]]:
    """Cut as a job does it that keeps up: all partitions at the same moments."""
    records = sorted(records, key=lambda record: record[:4])
    cuts = sorted(random.Random(seed).sample(range(1, len(records)), count - 1))
    return [records[first:end] for first, end in itertools.pairwise([0, *cuts, len(records)])]


@cache
def sample(seed: int = 1, records: int = 5_000) -> list[Raw]:
    return logged(generate(seed, records))


@cache
def written(seed: int, records: int) -> list[list[Expected]]:
    return run_in_memory(PIPELINE, in_time(sample(seed, records), seed, 5))[0]


@dataclasses.dataclass(frozen=True)
class Case:
    """Micro-batches, and what the oracle says to them."""

    batches: Sequence[Sequence[Raw]]
    expected: Sequence[Sequence[str]]
    state: Mapping[str, Any]


def case_of(batches: Sequence[Sequence[Raw]]) -> Case:
    oracle = Oracle()
    expected = [in_any_order(oracle.batch(batch)) for batch in batches]
    return Case(batches, expected, oracle.state())


@cache
def small_case() -> Case:
    return case_of(in_time(sample(), 1, 6))


def differences(case: Case, pipeline: Pipeline = PIPELINE) -> list[str]:
    """Where the steps do not do what the oracle says."""
    outputs, pages = run_in_memory(pipeline, case.batches)
    found = [in_any_order(output) for output in outputs]
    wrong = [f"batch {number}" for number, output in enumerate(found) if output != case.expected[number]]
    return wrong + ["state"] * (state(pages) != case.state)


# --- they agree


@pytest.mark.parametrize(("seed", "records", "count"), [(1, 1_000, 1), (2, 4_000, 5), (3, 2_000, 40)])
def test_steps_do_what_the_oracle_says(seed: int, records: int, count: int) -> None:
    assert differences(case_of(in_time(sample(seed, records), seed, count))) == []


@pytest.mark.parametrize(("seed", "count"), [(4, 3), (5, 12)])
def test_steps_do_what_the_oracle_says_when_topics_are_far_apart(seed: int, count: int) -> None:
    assert differences(case_of(micro_batches(sample(seed), seed, count))) == []


def test_result_does_not_depend_on_the_number_of_shards() -> None:
    (step,) = PIPELINE.steps
    alone = dataclasses.replace(PIPELINE, steps=[dataclasses.replace(step, shards=1)])
    assert differences(small_case(), alone) == []


def test_cuts_do_not_matter_when_topics_are_in_step() -> None:
    def all_of(count: int) -> list[str]:
        return in_any_order(itertools.chain(*run_in_memory(PIPELINE, in_time(sample(), count, count))[0]))

    assert all_of(1) == all_of(17)


TEXTS = st.sampled_from(["north", "south", "", "é\U0001f697", "weather", "event", "strike", "a", "b"])
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 2_000_000),
    st.integers(0, 100),
    st.sampled_from([-1, 101, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 1.0, 1.5, True, None, "1", [], {}]),
)
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "ride_requests": {"request_id": TEXTS, "region": TEXTS, "rider": TEXTS, "distance_m": NUMBERS, "at": NUMBERS},
    "driver_locations": {"region": TEXTS, "driver": TEXTS, "available": st.booleans(), "at": NUMBERS},
    "external_data": {"region": TEXTS, "kind": TEXTS, "severity": NUMBERS, "at": NUMBERS},
}
ODD_BYTES = st.sampled_from(
    [
        None,
        b"",
        b"NaN",
        b"1e999",
        b"-0",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"region":"\\ud800"}',
        b'{"at":-Infinity}',
        b"[1,]",
    ]
)
TOPICS = st.sampled_from(list(FIELDS))
VALUES = TOPICS.flatmap(
    lambda topic: st.tuples(
        st.just(topic),
        st.one_of(
            st.fixed_dictionaries(FIELDS[topic]).map(lambda value: json.dumps(value).encode()),
            st.fixed_dictionaries({}, optional=FIELDS[topic]).map(lambda value: json.dumps(value).encode()),
            ODD_BYTES,
        ),
    )
)


@given(st.lists(st.lists(VALUES, max_size=25), max_size=4))
def test_steps_and_oracle_agree_on_anything(contents: list[list[tuple[str, bytes | None]]]) -> None:
    offsets: Counter[str] = Counter()
    batches = []
    for batch in contents:
        records = []
        for topic, value in batch:
            records.append(Raw(1000 * sum(offsets.values()), topic, 0, offsets[topic], b"k\xff", value))
            offsets[topic] += 1
        batches.append(records)
    assert differences(case_of(batches)) == []


# --- the oracle is not blind


def with_step(run: Callable[[State, list[Any]], Iterable[Any]]) -> Pipeline:
    (step,) = PIPELINE.steps
    return dataclasses.replace(PIPELINE, steps=[dataclasses.replace(step, run=run)])


def one_twice(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    pings = [record for record in records if record.topic == "driver_locations" and record.offset % 1000 == 7]
    return set_prices(pages, sorted(records + pings))


def one_lost(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    return set_prices(pages, [each for each in records if (each.topic, each.offset) != ("ride_requests", 500)])


def not_written_back(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    is_struck = any(record.topic == "ride_requests" and record.offset == 500 for record in records)
    return set_prices(copy.deepcopy(pages) if is_struck else pages, records)


def backwards(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    return set_prices(pages, records[::-1])


def by_topic(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    return set_prices(pages, sorted(records, key=lambda record: record.topic))


def one_audit_less(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    gone = next((tick for tick in set_prices(copy.deepcopy(pages), records) if tick.topic == "pricing_audit"), None)
    return (each for each in set_prices(pages, records) if each != gone)


def one_update_twice(pages: State, records: list[Record[Any]]) -> Iterator[Send]:
    for each in set_prices(pages, records):
        yield each
        if each.topic == "driver_notifications":
            yield each


@pytest.mark.parametrize(
    "mistake", [one_twice, one_lost, not_written_back, backwards, by_topic, one_audit_less, one_update_twice]
)
def test_mistake_in_running_the_step_is_found(mistake: Callable[[State, list[Any]], Iterable[Any]]) -> None:
    assert differences(small_case(), with_step(mistake)) != []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EXTERNAL_VALID_MS", 60_000),
        ("AHEAD_MS_MAX", 2**62),
        ("DISTANCE_M_MAX", 10**9),
        ("WEIGHTS", {"weather": 3, "event": 4, "traffic": 3}),
        ("SURGE_MAX", 1800),
        ("DAMPING_PERCENT", 31),
        ("PUBLISHED_FROM", 6),
        ("HIGH", 151),
        ("CENTS_PER_KM", 121),
        ("WINDOW_MS", 240_000),
        ("_tick_after", lambda at: at + 30_000),
        ("_note_driver", lambda drivers, driver, at, available: drivers.update({driver: [at, available]})),
        ("_late_or_known", lambda *given: None if (found := late_or_known(*given)) == "duplicate" else found),
    ],
)
def test_mistake_in_a_rule_is_found(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    monkeypatch.setattr(pricing, name, value)
    assert differences(small_case()) != []


# --- each price can be explained


def test_each_price_follows_from_the_records_that_its_audit_record_names() -> None:
    topics = {(raw.topic, raw.partition, raw.offset): raw for raw in sample(1, 6_000)}
    audits = [
        each.value for batch in written(1, 6_000) for each in batch if each.topic == "pricing_audit" and each.value
    ]
    dampened: dict[str, int] = {}
    for audit in audits:
        explained = explain(audit, lambda *place: topics[place])
        assert explained == {name: audit[name] for name in explained}
        assert audit["before"] == dampened.get(f"{audit['region']}/{audit['tick'] - 30_000}", 1000)
        dampened[audit["price_id"]] = audit["dampened"]
    assert len(audits) == len(dampened) > 200


def test_everybody_is_told_of_the_same_prices_in_the_same_batch_and_the_audit_knows_them() -> None:
    for batch in written(1, 12_000):
        by_topic = {
            topic: sorted(
                (each.value["price_id"], each.value["surge"]) for each in batch if each.topic == topic and each.value
            )
            for topic in PIPELINE.outputs
        }
        published = [
            each.value for each in batch if each.topic == "pricing_audit" and each.value and each.value["published"]
        ]
        assert by_topic["pricing_updates"] == by_topic["rider_updates"]
        assert by_topic["pricing_updates"] == sorted((each["price_id"], each["surge"]) for each in published)
        assert set(by_topic["driver_notifications"]) <= set(by_topic["pricing_updates"])


def test_surge_rises_and_falls_in_the_sample() -> None:
    news = Counter(
        each.value["news"]
        for batch in written(1, 12_000)
        for each in batch
        if each.topic == "driver_notifications" and each.value
    )
    assert news["surge began"] > 10
    assert news["surge ended"] > 3


# --- the sample, and where what is bad in it ends

COUNTED = "counted"
ENDS = {
    "no value": "there is no value",
    "not UTF-8": "not UTF-8",
    "not JSON: cut off": "not JSON",
    "not JSON: NaN": "not JSON",
    "not JSON: half a character": "not JSON",
    "no object": "not a JSON object: .*",
    "a field is missing": "no field '(region|at|request_id)'",
    "a field is null": "'rider' is not a text: null|'at' is not an integer: null",
    "wrong type: text": "'distance_m' is not an integer: \"1200\"",
    "wrong type: fraction": "'distance_m' is not an integer: 1200.0",
    "wrong type: true": "'at' is not an integer: true",
    "wrong type: number": "'region' is not a text: 7",
    "out of range": r"'distance_m' is out of range: \d+",
    "beyond 64 bits": r"'at' is not an integer: 1e\+30",
    "negative at": r"at is negative: -\d+",
    "negative distance": r"distance_m is not in 1\.\.1000000: -500",
    "no distance": r"distance_m is not in 1\.\.1000000: 0",
    "far too long": r"distance_m is not in 1\.\.1000000: 40000000",
    "unknown kind": "unknown kind",
    "severity above 100": r"severity is not in 0\.\.100: 150",
    "severity below 0": r"severity is not in 0\.\.100: -1",
    "from the future": "from the future: .*",
    "late": "late",
    "late external": "late",
    "duplicate, near": "duplicate",
    "duplicate, far": "duplicate|late",
    "duplicate ping": COUNTED,
    "duplicate external": "duplicate|late",
    "extra fields": COUNTED,
    "a little late": COUNTED,
    "good": f"{COUNTED}|late",
}


def ends_of(batches: Iterable[Iterable[Expected]], pages: Iterable[Any]) -> dict[tuple[str, int, int], str]:
    """By topic, partition and offset: the reason, or that it counted."""
    found = {}
    for each in itertools.chain(*batches):
        if each.topic == "pricing_dead_letters" and each.value:
            found[each.value["topic"], each.value["partition"], each.value["offset"]] = each.value["reason"]
        for topic, partitions in each.value["inputs"].items() if each.topic == "pricing_audit" and each.value else ():
            for partition, used in partitions.items():
                found.update(dict.fromkeys(((topic, int(partition), offset) for offset in used["offsets"]), COUNTED))
    for page, topic in itertools.product(pages, ("ride_requests", "driver_locations")):
        for slot, (partition, offsets) in ((s, item) for s in page.content["slots"] for item in s[topic].items()):
            assert slot["requests"] or slot["drivers"]
            found.update(dict.fromkeys(((topic, int(partition), offset) for offset in offsets), COUNTED))
    return found


@pytest.mark.parametrize(("seed", "records"), [(1, 2_000), (2, 2_000), (3, 20_000)])
def test_each_kind_of_bad_record_is_in_the_sample_and_ends_where_the_document_says(seed: int, records: int) -> None:
    special = list(labelled(seed, records))
    raws = logged(each.message for each in special)
    ends = ends_of(*run_in_memory(PIPELINE, in_time(raws, seed, 3)))
    seen: Counter[str] = Counter()
    for (label, _), raw in zip(special, raws, strict=True):
        label = label or "good"
        end = ends.get((raw.topic, raw.partition, raw.offset))
        if end is None:  # external data that a newer one replaced before the next tick
            assert (label, raw.topic) == ("good", "external_data")
            continue
        assert re.fullmatch(ENDS[label], end), (label, raw)
        seen[label] += 1
    assert set(seen) == {*BAD, "good"}
    if records >= 20_000:
        assert all(0.0003 < seen[label] / records < 0.01 for label in BAD)
        assert set(ends.values()) >= {"late", "duplicate"}


def test_document_has_a_row_for_each_kind_of_bad_record() -> None:
    text = DOCUMENT.read_text()
    assert [label for label in BAD if f"| {label} |" not in text] == []


def test_sample_is_the_same_for_the_same_seed_and_of_the_length_that_was_asked_for() -> None:
    assert list(generate(7, 3_000)) == list(generate(7, 3_000)) != list(generate(8, 3_000))
    assert list(generate(7, 3_000))[:1_000] == list(generate(7, 1_000))


def test_sample_comes_in_the_order_of_time_and_to_partitions_that_exist() -> None:
    messages = list(generate(1, 5_000))
    assert all(before.timestamp <= after.timestamp for before, after in itertools.pairwise(messages))
    assert {each.topic: each.partitions for each in PIPELINE.inputs} == PARTITIONS
    assert {(each.topic, each.partition) for each in messages} == {
        (topic, partition) for topic, count in PARTITIONS.items() for partition in range(count)
    }
    assert len({(each.topic, each.key, each.partition) for each in messages}) == len(
        {(m.topic, m.key) for m in messages}
    )
