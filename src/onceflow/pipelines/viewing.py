"""Viewing: what people watch changes what is recommended to them, and trains a model.

    viewing_events --> learn_tastes (by user) --> recommendations
                            |
                            +--> train (one model) --> models

Each event counts once: in the user's scores and in the model's weights. A version of the model says through which
offsets it was trained, and is published in one transaction with that progress. The rules are in
`docs/pipelines/viewing.md`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from onceflow.pipelines.pipeline import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.reference import Page
from onceflow.pipelines.tables import Json, Lands

__all__ = ["CATALOGUE", "PIPELINE", "Sample", "Viewing", "learn_tastes", "state", "train"]

CATALOGUE: Final[Mapping[str, tuple[str, ...]]] = {
    "action": ("Redline", "Night Convoy", "The Last Signal", "Iron Harbour", "Fast Water"),
    "animation": ("Paper Foxes", "Moonkite", "Tin Garden", "The Cloud Postman", "Little Glacier"),
    "comedy": ("Second Helpings", "Office Plants", "The Wrong Wedding", "Flat Four", "Mind the Goat"),
    "crime": ("Cold Ledger", "Harbour Nine", "The Quiet Witness", "Ashfield", "Two Fingerprints"),
    "documentary": ("Deep Rivers", "The Salt Road", "Machines That Sing", "Winter Bees", "A City Below"),
    "drama": ("Low Tide", "The Glass Orchard", "Northbound", "Letters to Ida", "House of Rain"),
    "family": ("The Borrowed Dog", "Attic Club", "Sunday Pirates", "Grandma Goes Pro", "Camp Pinecone"),
    "fantasy": ("The Ninth Gate Keeper", "Ember Crown", "Wolves of Vael", "Thornlight", "The Map Thief"),
    "horror": ("Cellar Door", "The Hollow Choir", "Sleep Well", "Black Pond", "It Knocks Twice"),
    "romance": ("Platform Seven", "The Long Summer", "Dear Stranger", "Lemon Season", "Almost Vienna"),
    "science": ("Zero Horizon", "The Cassini Letters", "Second Sun", "Drift", "Signal Lost"),
    "thriller": ("Blind Corner", "The Fourth Key", "Undertow", "No Witnesses", "Dead Reckoning"),
}
"""Five shows of each genre, the most popular first: what can be recommended."""
POINTS: Final = (10, 9, 8, 7, 6)
"""What the places of a genre are worth."""
SHOWS: Final = [
    (show, genre, points) for genre, shows in CATALOGUE.items() for show, points in zip(shows, POINTS, strict=True)
]

HOUR_MS: Final = 3_600_000
TICK_MS: Final = HOUR_MS // 6
"""Scores fade every ten minutes, and not with every event."""
HALF_LIFE_TICKS: Final = 12
"""After so long, what somebody watched is worth half."""
LATE_MS: Final = HOUR_MS
"""So much older than the user's newest event may an event be."""
EARLY_MS: Final = HOUR_MS
"""So much later than its arrival in Kafka may an event have happened: clocks differ."""
SEEN_MAX: Final = 50
BUCKETS: Final = 8
"""Pages of users in a shard. Users are found by it: fixed by the first run."""
RATE: Final = 0.02
"""How far the model moves with each sample."""
HOURS: Final = [(round(math.sin(math.pi * h / 12), 6), round(math.cos(math.pi * h / 12), 6)) for h in range(24)]


class Viewing(NamedTuple):
    """Somebody has watched something."""

    user: str
    seq: int
    """Counts the events of this user."""
    show: str
    genre: str
    minutes: float
    """How much of it was watched."""
    length: int
    """How long it is, in minutes."""
    at: int
    """When it was watched, in ms."""


class Sample(NamedTuple):
    """What the model learns from: an event, and what was known about the user before it."""

    timestamp: int
    partition: int
    offset: int
    model: str
    genre: str
    liking: float
    """The user's score of the genre before the event, between 0 and 1."""
    hour: int
    completion: float


# --- step 1, by user


def learn_tastes(state: State, events: list[Record[Viewing]]) -> Iterator[Send | Sample]:
    """Keep a score per genre for each user; say what to watch next if that has changed."""
    users: dict[str, dict[str, Any]] = {}
    for event in events:
        timestamp, _, partition, offset, (name, seq, show, genre, minutes, length, at) = event
        user = users.get(name) or _known(state, name)
        if reason := _nonsense(event.value, timestamp) or _out_of_turn(user, seq, at):
            yield dead_letter(event, reason)
            continue
        if not user:
            user = _begun(state, name, at)
        users[name] = user
        user["seq"] = seq
        completion = min(1.0, minutes / length)
        before = _score(user, genre, completion, at)
        _remember(user["seen"], show)
        liking, hour = before / (1.0 + before), at // HOUR_MS % 24
        yield Sample(timestamp, partition, offset, "model", genre, liking, hour, completion)
    for name, user in users.items():
        shows = _best(user["scores"], user["seen"])
        if shows != user["shows"]:
            user["shows"] = shows
            found = {"user": name, "shows": shows, "scores": user["scores"], "seq": user["seq"], "at": user["at"]}
            yield Send("recommendations", name, found)


def _nonsense(event: Viewing, timestamp: int) -> str | None:
    """Why an event cannot be true, whatever came before it."""
    user, seq, _, genre, minutes, length, at = event
    if not user:
        return "'user' is empty"
    if seq < 0:
        return f"'seq' is negative: {seq}"
    if genre not in CATALOGUE:
        return f"unknown genre: {genre}"
    if minutes < 0:
        return f"'minutes' is negative: {minutes}"
    if length <= 0:
        return f"'length' is not positive: {length}"
    if at < 0:
        return f"'at' is negative: {at}"
    if at > timestamp + EARLY_MS:
        return f"'at' is more than an hour after the record's own time: {at}"
    return None


def _out_of_turn(user: Mapping[str, Any], seq: int, at: int) -> str | None:
    """Why an event is not the user's next."""
    if user and seq <= user["seq"]:
        return f"duplicate: seq {seq} is not after {user['seq']}"
    if user and at < user["at"] - LATE_MS:
        return f"late: more than an hour before {user['at']}"
    return None


def _known(state: State, name: str) -> dict[str, Any]:
    """What is known about a user; nothing is an empty dict."""
    return state.get(_page(name), {}).get(name) or {}


def _begun(state: State, name: str, at: int) -> dict[str, Any]:
    user: dict[str, Any] = {"seq": 0, "at": at, "scores": {}, "seen": [], "shows": []}
    state.setdefault(_page(name), {})[name] = user
    return user


def _page(name: str) -> str:
    # Other bits than those that chose the shard.
    return f"users-{(zlib.crc32(name.encode()) >> 16) % BUCKETS}"


def _score(user: dict[str, Any], genre: str, completion: float, at: int) -> float:
    """Add to the score of a genre. Returns what it was before, at the time of the user's newest event."""
    scores, past = user["scores"], at // TICK_MS - user["at"] // TICK_MS
    if past > 0:
        factor = 0.5 ** (past / HALF_LIFE_TICKS)
        faded = {each: round(score * factor, 6) for each, score in scores.items()}
        user["scores"] = scores = {each: score for each, score in faded.items() if score > 0}
    elif past < 0:
        completion *= 0.5 ** (-past / HALF_LIFE_TICKS)
    if at > user["at"]:
        user["at"] = at
    before: float = scores.get(genre, 0.0)
    if (after := round(before + completion, 6)) > 0:
        scores[genre] = after
    return before


def _remember(seen: list[str], show: str) -> None:
    """The last ones, each once, the newest at the end."""
    if show in seen:
        seen.remove(show)
    seen.append(show)
    if len(seen) > SEEN_MAX:
        del seen[0]


def _best(scores: Mapping[str, float], seen: list[str]) -> list[str]:
    """Three shows that the user has not seen; of equals, the first in the catalogue."""
    known = set(seen)
    unseen = [each for each in SHOWS if each[0] not in known]
    unseen.sort(key=lambda each: -scores.get(each[1], 0.0) * each[2])
    return [show for show, _, _ in unseen[:3]]


# --- step 2, one model


def train(state: State, samples: list[Sample]) -> Iterator[Send]:
    """A linear model of how much of a show will be watched: one step of gradient descent for each sample, in order."""
    model = state.setdefault("model", _untrained())
    weights, through, squares = model["weights"], model["trained_through"], model["squared_error"]
    bias, genres, preference = weights["bias"], weights["genres"], weights["preference"]
    sine, cosine = weights["sine"], weights["cosine"]
    for _, partition, offset, _, genre, liking, hour, completion in samples:
        sin, cos = HOURS[hour]
        error = bias + genres[genre] + preference * liking + sine * sin + cosine * cos - completion
        squares += error * error
        step = RATE * error
        bias -= step
        genres[genre] -= step
        preference -= step * liking
        sine -= step * sin
        cosine -= step * cos
        if offset >= through.get(str(partition), 0):
            through[str(partition)] = offset + 1
    weights.update(bias=bias, preference=preference, sine=sine, cosine=cosine)
    model.update(version=model["version"] + 1, samples=model["samples"] + len(samples), squared_error=squares)
    published = {each: model[each] for each in ("version", "samples", "weights", "trained_through")}
    yield Send("models", "model", {**published, "mean_squared_error": squares / model["samples"]})


def _untrained() -> dict[str, Any]:
    weights = {"bias": 0.0, "genres": dict.fromkeys(CATALOGUE, 0.0), "preference": 0.0, "sine": 0.0, "cosine": 0.0}
    return {"version": 0, "samples": 0, "weights": weights, "squared_error": 0.0, "trained_through": {}}


# --- what lands in a database


class Model(NamedTuple):
    version: int
    samples: int
    mean_squared_error: float
    weights: Json
    trained_through: Json


PIPELINE: Final = Pipeline(
    name="viewing",
    inputs=[Input("viewing_events", Viewing, partitions=3)],
    steps=[Step(learn_tastes, by="user"), Step(train, by="model", takes=Sample, shards=1)],
    outputs={"recommendations": 3, "models": 1},
    lands=[Lands("models", Model, key=["version"])],
)


def state(pages: Iterable[Page]) -> Mapping[str, Any]:
    """The state of all shards: users by name, and the model (None before the first sample)."""
    found: dict[str, Any] = {"users": {}, "model": None}
    for step, _, content in pages:
        if step == 0:
            found["users"].update(content)
        else:
            found["model"] = content
    return found
