"""The pipeline `viewing`: its rules one by one, and where everything in its sample ends."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onceflow.pipelines import viewing
from onceflow.pipelines.oracles import viewing as oracles
from onceflow.pipelines.pipeline import DEAD_LETTERS, Record, Send, State
from onceflow.pipelines.samples.viewing import KINDS, generate, labelled
from onceflow.pipelines.viewing import CATALOGUE, PIPELINE, Sample, Viewing, learn_tastes, train
from tests.support.pipeline_in_memory import logged, run_in_memory

DOCS = Path(__file__).parents[3] / "docs/pipelines/viewing.md"
NOON = 1_767_355_200_000
MINUTE, HOUR = 60_000, 3_600_000


def event(
    seq: int = 1,
    show: str = "Low Tide",
    genre: str = "drama",
    minutes: float = 30.0,
    length: int = 60,
    at: int = NOON,
    user: str = "ann",
    timestamp: int | None = None,
) -> Record[Viewing]:
    value = Viewing(user, seq, show, genre, minutes, length, at)
    return Record(at if timestamp is None else timestamp, "viewing_events", 0, seq, value)


def watched(state: State, *events: Record[Viewing]) -> list[Send | Sample]:
    """A micro-batch."""
    return list(learn_tastes(state, list(events)))


def user_in(state: State, name: str = "ann") -> dict[str, Any]:
    (found,) = [page[name] for page in state.values() if name in page]
    return dict(found)


def reasons(found: Sequence[Send | Sample]) -> list[str]:
    return [
        each.value["reason"]
        for each in found
        if isinstance(each, Send) and each.topic == DEAD_LETTERS and isinstance(each.value, dict)
    ]


def recommended(found: Sequence[Send | Sample]) -> list[Any]:
    return [each.value for each in found if isinstance(each, Send) and each.topic == "recommendations"]


def samples(found: Sequence[Send | Sample]) -> list[Sample]:
    return [each for each in found if isinstance(each, Sample)]


# --- tastes


def test_score_grows_by_what_was_watched_of_the_show() -> None:
    state: State = {}
    watched(state, event(1, minutes=30.0), event(2, minutes=20.0), event(3, genre="crime", minutes=15))
    assert user_in(state)["scores"] == {"drama": 0.833333, "crime": 0.25}


def test_more_than_the_whole_show_counts_as_the_whole_show() -> None:
    state: State = {}
    watched(state, event(minutes=500.0))
    assert user_in(state)["scores"] == {"drama": 1.0}


def test_scores_are_halved_after_two_hours_of_event_time() -> None:
    state: State = {}
    watched(state, event(1, minutes=60.0), event(2, genre="crime", minutes=60.0, at=NOON + 2 * HOUR))
    assert user_in(state)["scores"] == {"drama": 0.5, "crime": 1.0}


def test_scores_fade_when_a_tick_of_ten_minutes_begins_and_not_within_it() -> None:
    state: State = {}
    watched(state, event(1, minutes=60.0), event(2, genre="crime", minutes=60.0, at=NOON + 10 * MINUTE - 1))
    assert user_in(state)["scores"]["drama"] == 1.0
    watched(state, event(3, genre="crime", minutes=0.0, at=NOON + 10 * MINUTE))
    assert user_in(state)["scores"]["drama"] == round(0.5 ** (1 / 12), 6)


def test_an_older_event_counts_as_much_as_if_it_had_faded_already() -> None:
    state: State = {}
    watched(state, event(1, minutes=0.0), event(2, minutes=60.0, at=NOON - HOUR))
    assert user_in(state)["scores"] == {"drama": round(0.5**0.5, 6)}
    assert user_in(state)["at"] == NOON


def test_a_score_that_has_faded_to_nothing_is_forgotten() -> None:
    state: State = {}
    watched(state, event(1, minutes=60.0), event(2, genre="crime", minutes=0.0, at=NOON + 72 * HOUR))
    assert user_in(state)["scores"] == {}


def test_the_last_fifty_shows_are_remembered_each_once() -> None:
    state: State = {}
    watched(state, *(event(number, show=f"show {number}") for number in range(50)), event(50, show="show 1"))
    assert user_in(state)["seen"] == ["show 0", *(f"show {number}" for number in range(2, 50)), "show 1"]
    watched(state, event(51, show="one more"))
    assert user_in(state)["seen"][0] == "show 2"
    assert len(user_in(state)["seen"]) == 50


# --- recommendations


def test_unseen_shows_of_favourite_genres_are_recommended() -> None:
    (found,) = recommended(
        watched({}, event(1, minutes=60.0), event(2, show="Cold Ledger", genre="crime", minutes=51.0))
    )
    # drama: 1.0 times 9, 8, 7; crime: 0.85 times 9 (7.65), 8, 7.
    assert found["shows"] == ["The Glass Orchard", "Northbound", "Harbour Nine"]
    assert found == {
        "user": "ann",
        "shows": found["shows"],
        "scores": {"drama": 1.0, "crime": 0.85},
        "seq": 2,
        "at": NOON,
    }


def test_of_equals_the_first_in_the_catalogue_is_recommended() -> None:
    (found,) = recommended(watched({}, event(minutes=0.0, show="Redline")))
    assert found["shows"] == ["Night Convoy", "The Last Signal", "Iron Harbour"]


def test_recommendations_are_sent_once_per_micro_batch_and_only_if_they_have_changed() -> None:
    state: State = {}
    first = watched(state, event(1, minutes=60.0), event(2, minutes=60.0, show="Northbound"))
    assert [each["shows"] for each in recommended(first)] == [["The Glass Orchard", "Letters to Ida", "House of Rain"]]
    assert recommended(watched(state, event(3, minutes=60.0))) == []
    (changed,) = recommended(watched(state, event(4, minutes=60.0, show="Letters to Ida")))
    assert changed["shows"] == ["The Glass Orchard", "House of Rain", "Redline"]


def test_users_do_not_know_of_each_other() -> None:
    state: State = {}
    watched(state, event(7), event(3, user="bob", genre="crime", at=NOON - 3 * HOUR))
    assert user_in(state)["scores"] == {"drama": 0.5}
    assert user_in(state, "bob")["scores"] == {"crime": 0.5}


# --- what is refused


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event(user=""), "'user' is empty"),
        (event(seq=-1), "'seq' is negative: -1"),
        (event(genre="opera"), "unknown genre: opera"),
        (event(minutes=-0.5), "'minutes' is negative: -0.5"),
        (event(length=0), "'length' is not positive: 0"),
        (event(at=-1), "'at' is negative: -1"),
        (
            event(at=NOON + HOUR + 1, timestamp=NOON),
            f"'at' is more than an hour after the record's own time: {NOON + HOUR + 1}",
        ),
    ],
)
def test_nonsense_is_a_dead_letter_and_changes_nothing(bad: Record[Viewing], reason: str) -> None:
    state: State = {}
    found = watched(state, bad)
    assert reasons(found) == [reason]
    assert len(found) == 1
    assert state == {}


def test_an_event_up_to_an_hour_ahead_of_its_arrival_is_fine() -> None:
    assert reasons(watched({}, event(at=NOON + HOUR, timestamp=NOON))) == []


def test_seq_that_is_not_newer_is_a_duplicate_within_a_batch_and_later() -> None:
    state: State = {}
    assert reasons(watched(state, event(5), event(5))) == ["duplicate: seq 5 is not after 5"]
    before = json.dumps(state)
    assert reasons(watched(state, event(4, at=NOON - 5 * HOUR))) == ["duplicate: seq 4 is not after 5"]
    assert json.dumps(state) == before


def test_more_than_an_hour_before_the_users_newest_event_is_late() -> None:
    state: State = {}
    found = watched(state, event(1), event(2, at=NOON - HOUR), event(3, at=NOON - HOUR - 1), event(3))
    assert reasons(found) == [f"late: more than an hour before {NOON}"]
    assert [each.offset for each in samples(found)] == [1, 2, 3]


# --- the model


def lesson(offset: int = 0, liking: float = 0.5, completion: float = 1.0, hour: int = 0, partition: int = 0) -> Sample:
    return Sample(NOON, partition, offset, "model", "drama", liking, hour, completion)


def trained(state: State, *lessons: Sample) -> dict[str, Any]:
    (send,) = train(state, list(lessons))
    assert (send.topic, send.key) == ("models", "model")
    assert isinstance(send.value, dict)
    return send.value


def test_a_sample_has_what_was_known_before_the_event() -> None:
    first, second = samples(watched({}, event(1, minutes=60.0), event(2, minutes=30.0, at=NOON + 5 * MINUTE)))
    assert first == Sample(NOON, 0, 1, "model", "drama", 0.0, 12, 1.0)
    assert second == Sample(NOON + 5 * MINUTE, 0, 2, "model", "drama", 0.5, 12, 0.5)


def test_a_sample_moves_the_weights_of_its_features_against_the_error() -> None:
    model = trained({}, lesson(hour=6))
    weights = model["weights"]
    assert (weights["bias"], weights["preference"], weights["sine"], weights["cosine"]) == (0.02, 0.01, 0.02, 0.0)
    assert {genre: weight for genre, weight in weights["genres"].items() if weight} == {"drama": 0.02}
    assert model["mean_squared_error"] == 1.0


def test_error_is_taken_before_the_sample_is_learned() -> None:
    state: State = {}
    trained(state, lesson(liking=0.0))
    # Twice 0.02 (bias, genre) and 0.02 (cosine of midnight) are expected of the second.
    assert trained(state, lesson(1, liking=0.0))["mean_squared_error"] == pytest.approx((1 + 0.94**2) / 2, abs=1e-12)


def test_versions_count_micro_batches_and_samples_count_events() -> None:
    state: State = {}
    found = [trained(state, lesson(0), lesson(1)), trained(state, lesson(2))]
    assert [(each["version"], each["samples"]) for each in found] == [(1, 2), (2, 3)]


def test_trained_through_is_the_offset_after_the_last_sample_of_each_partition() -> None:
    state: State = {}
    assert trained(state, lesson(7), lesson(3), lesson(4, partition=2))["trained_through"] == {"0": 8, "2": 5}
    assert trained(state, lesson(9, partition=2))["trained_through"] == {"0": 8, "2": 10}


def test_sine_and_cosine_of_all_hours_are_those_of_the_oracle() -> None:
    for hour, (sine, cosine) in enumerate(viewing.HOURS):
        model = oracles.Model()
        model.learn({"at": hour * HOUR, "genre": "drama"}, 0.0, -1.0)
        assert (model.weights["sine"], model.weights["cosine"]) == (-0.02 * sine, -0.02 * cosine)


def test_the_model_learns() -> None:
    """Its error in the last tenth is far below that of who always expects the average."""
    batches = [logged(generate(3, 20_000))]
    batches = [batches[0][first : first + 2_000] for first in range(0, 20_000, 2_000)]
    written, _ = run_in_memory(PIPELINE, batches)
    models = [each.value for batch in written for each in batch if each.topic == "models" and each.value is not None]
    squares = [each["mean_squared_error"] * each["samples"] for each in models]
    last = (squares[-1] - squares[-2]) / (models[-1]["samples"] - models[-2]["samples"])
    good = [json.loads(each.value) for kind, each in labelled(3, 20_000) if kind == "good" and each.value is not None]
    constant = statistics.pvariance(min(1.0, each["minutes"] / each["length"]) for each in good)
    assert last < 0.5 * constant


# --- the sample


def test_a_seed_always_gives_the_same_and_exactly_so_many() -> None:
    first, again, other = (list(generate(seed, 3_000)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(first) == 3_000
    assert list(generate(1, 100)) == first[:100]


def test_a_sample_is_in_the_order_of_time_and_in_the_partitions_of_its_topic() -> None:
    found = list(generate(5, 5_000))
    assert all(one.timestamp <= other.timestamp for one, other in itertools.pairwise(found))
    assert {(each.topic, each.partition) for each in found} == {("viewing_events", number) for number in range(3)}


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_bad_input_is_in_a_small_sample(seed: int) -> None:
    assert {kind for kind, _ in labelled(seed, 2_000)} == {"good", *KINDS}


def test_every_kind_of_bad_input_ends_where_the_docs_say() -> None:
    rows = re.findall(
        r"^\| ([^|]+?) \| (counts|dead letters) \| (?:`([^`]*)`)?[^|]* \|$", DOCS.read_text(), re.MULTILINE
    )
    ends = {kind: (end, reason) for kind, end, reason in rows}
    assert set(ends) == set(KINDS)
    kinds, messages = zip(*labelled(8, 20_000), strict=True)
    records = logged(messages)
    (written,), _ = run_in_memory(PIPELINE, [records])
    letters = {
        (each.value["partition"], each.value["offset"]): each.value["reason"]
        for each in written
        if each.topic == "viewing_dead_letters" and each.value is not None
    }
    for kind, record in zip(kinds, records, strict=True):
        end, expected = ends.get(kind, ("counts", ""))
        reason = letters.get((record.partition, record.offset))
        assert (reason is None) == (end == "counts"), (kind, record, reason)
        assert reason is None or (expected and reason.startswith(expected)), (kind, record, reason)


def test_the_catalogue_is_the_one_in_the_docs() -> None:
    text = DOCS.read_text()
    assert all(f"| {genre} | {', '.join(shows)} |" in text for genre, shows in CATALOGUE.items())
    assert [(genre, show) for genre, shows in CATALOGUE.items() for show in shows] == [
        (genre, show) for genre, _, show in oracles.CATALOGUE
    ]
