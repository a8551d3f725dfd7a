"""What `viewing` must write, recomputed from `docs/pipelines/viewing.md`. Nothing here knows the pipeline's code.

One record after the other, in their order, as if there were no shards and no steps.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.pipelines.reference import Expected, Raw

__all__ = ["Oracle"]

TITLES: Final = """
action: Redline, Night Convoy, The Last Signal, Iron Harbour, Fast Water
animation: Paper Foxes, Moonkite, Tin Garden, The Cloud Postman, Little Glacier
comedy: Second Helpings, Office Plants, The Wrong Wedding, Flat Four, Mind the Goat
crime: Cold Ledger, Harbour Nine, The Quiet Witness, Ashfield, Two Fingerprints
documentary: Deep Rivers, The Salt Road, Machines That Sing, Winter Bees, A City Below
drama: Low Tide, The Glass Orchard, Northbound, Letters to Ida, House of Rain
family: The Borrowed Dog, Attic Club, Sunday Pirates, Grandma Goes Pro, Camp Pinecone
fantasy: The Ninth Gate Keeper, Ember Crown, Wolves of Vael, Thornlight, The Map Thief
horror: Cellar Door, The Hollow Choir, Sleep Well, Black Pond, It Knocks Twice
romance: Platform Seven, The Long Summer, Dear Stranger, Lemon Season, Almost Vienna
science: Zero Horizon, The Cassini Letters, Second Sun, Drift, Signal Lost
thriller: Blind Corner, The Fourth Key, Undertow, No Witnesses, Dead Reckoning
"""
CATALOGUE: Final = [
    (genre, place, title)
    for genre, titles in (line.split(": ") for line in TITLES.strip().splitlines())
    for place, title in enumerate(titles.split(", "))
]
GENRES: Final = sorted({genre for genre, _, _ in CATALOGUE})
FIELDS: Final[Mapping[str, tuple[type[Any], str]]] = {
    "user": (str, "a text"),
    "seq": (int, "an integer"),
    "show": (str, "a text"),
    "genre": (str, "a text"),
    "minutes": (float, "a number"),
    "length": (int, "an integer"),
    "at": (int, "an integer"),
}
HOUR: Final = 60 * 60 * 1000
TICK: Final = 10 * 60 * 1000


class Refused(Exception):
    """A record that ends in the dead letters."""


# --- what a record says


def read(value: bytes | None) -> dict[str, Any]:
    """The declared fields."""
    if value is None:
        raise Refused("there is no value")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("not UTF-8") from None
    found = read_json(text)
    if not isinstance(found, dict):
        raise Refused(f"not a JSON object: {shortened(found)}")
    return {name: read_field(found, name) for name in FIELDS}


def read_json(text: str) -> Any:
    try:
        found = DECODER.decode(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # Half of a surrogate pair cannot be written.
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    return found


def integer(text: str) -> int | float:
    """What no 64 bits can hold is not an integer to most parsers of JSON."""
    return int(text) if len(text) < 25 and -(2**63) <= int(text) < 2**64 else finite(text)


def finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


DECODER: Final = json.JSONDecoder(parse_int=integer, parse_float=finite, parse_constant=finite)


def read_field(found: Mapping[str, Any], name: str) -> Any:
    kind, said = FIELDS[name]
    if name not in found:
        raise Refused(f"no field '{name}'")
    value: Any = found[name]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise Refused(f"'{name}' is not {said}: {shortened(value)}")
    if kind is int and not -(2**63) < value < 2**63:
        raise Refused(f"'{name}' is out of range: {value}")
    return value


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


def check(event: Mapping[str, Any], timestamp: int) -> None:
    """The first of the rules that an event breaks."""
    for reason in broken_rules(event, timestamp):
        raise Refused(reason)


def broken_rules(event: Mapping[str, Any], timestamp: int) -> Iterator[str]:
    if event["user"] == "":
        yield "'user' is empty"
    if event["seq"] < 0:
        yield f"'seq' is negative: {event['seq']}"
    if event["genre"] not in GENRES:
        yield f"unknown genre: {event['genre']}"
    if event["minutes"] < 0:
        yield f"'minutes' is negative: {event['minutes']}"
    if event["length"] < 1:
        yield f"'length' is not positive: {event['length']}"
    if event["at"] < 0:
        yield f"'at' is negative: {event['at']}"
    if event["at"] - timestamp > HOUR:
        yield f"'at' is more than an hour after the record's own time: {event['at']}"


# --- users


@dataclass
class User:
    seq: int = -1
    newest: int = -1
    scores: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GENRES, 0.0))
    seen: list[str] = field(default_factory=list)
    recommended: list[str] = field(default_factory=list)

    def check(self, event: Mapping[str, Any]) -> None:
        if event["seq"] <= self.seq:
            raise Refused(f"duplicate: seq {event['seq']} is not after {self.seq}")
        if self.newest - event["at"] > HOUR:
            raise Refused(f"late: more than an hour before {self.newest}")

    def watch(self, event: Mapping[str, Any], completion: float) -> float:
        """Returns the score of the genre before it."""
        tick, newest_tick = event["at"] // TICK, self.newest // TICK
        weight = 1.0
        if self.newest >= 0 and tick > newest_tick:
            self.scores = {genre: round(score * halved(tick - newest_tick), 6) for genre, score in self.scores.items()}
        elif tick < newest_tick:
            weight = halved(newest_tick - tick)
        before = self.scores[event["genre"]]
        self.scores[event["genre"]] = round(before + completion * weight, 6)
        self.seq, self.newest = event["seq"], max(self.newest, event["at"])
        self.seen = [*(show for show in self.seen if show != event["show"]), event["show"]][-50:]
        return before

    def best(self) -> list[str]:
        """Highest first; a stable sort keeps the catalogue's order among equals."""
        unseen = [each for each in CATALOGUE if each[2] not in self.seen]
        ranked = sorted(unseen, key=lambda each: self.scores[each[0]] * (10 - each[1]), reverse=True)
        return [title for _, _, title in ranked[:3]]

    def kept_scores(self) -> dict[str, float]:
        return {genre: score for genre, score in self.scores.items() if score != 0}


def halved(ticks: int) -> float:
    """What is left after so many times ten minutes."""
    return float(0.5 ** (ticks / 12))


# --- the model


class Model:
    """Weights by name: bias, each genre, preference, sine, cosine."""

    def __init__(self) -> None:
        self.weights = dict.fromkeys(["bias", *GENRES, "preference", "sine", "cosine"], 0.0)
        self.version = self.samples = 0
        self.squared_error = 0.0
        self.through: dict[str, int] = {}

    def learn(self, event: Mapping[str, Any], before: float, completion: float) -> None:
        angle = 2 * math.pi * (event["at"] // HOUR % 24) / 24
        features = {
            "bias": 1.0,
            event["genre"]: 1.0,
            "preference": before / (1 + before),
            "sine": round(math.sin(angle), 6),
            "cosine": round(math.cos(angle), 6),
        }
        predicted = 0.0
        for name, feature in features.items():
            predicted += self.weights[name] * feature
        error = predicted - completion
        self.squared_error += error * error
        self.samples += 1
        for name, feature in features.items():
            self.weights[name] -= 0.02 * error * feature

    def published(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "samples": self.samples,
            "weights": {
                "bias": self.weights["bias"],
                "genres": {genre: self.weights[genre] for genre in GENRES},
                "preference": self.weights["preference"],
                "sine": self.weights["sine"],
                "cosine": self.weights["cosine"],
            },
            "trained_through": dict(self.through),
        }


# --- a micro-batch


class Oracle:
    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._model = Model()

    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        written: list[Expected] = []
        watchers: dict[str, User] = {}
        for record in records:
            if (letter := self._take(record, watchers)) is not None:
                written.append(Expected("viewing_dead_letters", None, letter))
        for name, user in watchers.items():
            if (shows := user.best()) != user.recommended:
                user.recommended = shows
                written.append(Expected("recommendations", name, self._recommendation(name, user)))
        if watchers:
            self._model.version += 1
            error = self._model.squared_error / self._model.samples
            written.append(Expected("models", "model", {**self._model.published(), "mean_squared_error": error}))
        return written

    def _take(self, record: Raw, watchers: dict[str, User]) -> dict[str, Any] | None:
        """Learn from a record; or the dead letter that it becomes."""
        try:
            event = read(record.value)
        except Refused as refused:
            return {**_origin(record, str(refused)), **_bytes("key", record.key), **_bytes("value", record.value)}
        user = self._users.get(event["user"]) or User()
        try:
            check(event, record.timestamp)
            user.check(event)
        except Refused as refused:
            return {**_origin(record, str(refused)), "value": json.dumps(event, ensure_ascii=False)}
        self._users[event["user"]] = watchers[event["user"]] = user
        completion = min(event["minutes"] / event["length"], 1.0)
        before = user.watch(event, completion)
        self._model.learn(event, before, completion)
        partition = str(record.partition)
        self._model.through[partition] = max(self._model.through.get(partition, 0), record.offset + 1)
        return None

    def _recommendation(self, name: str, user: User) -> dict[str, Any]:
        return {
            "user": name,
            "shows": user.recommended,
            "scores": user.kept_scores(),
            "seq": user.seq,
            "at": user.newest,
        }

    def state(self) -> Mapping[str, Any]:
        users = {
            name: {
                "seq": user.seq,
                "at": user.newest,
                "scores": user.kept_scores(),
                "seen": list(user.seen),
                "shows": list(user.recommended),
            }
            for name, user in self._users.items()
        }
        trained = {**self._model.published(), "squared_error": self._model.squared_error}
        return {"users": users, "model": trained if self._model.samples else None}


def _origin(record: Raw, reason: str) -> dict[str, Any]:
    return {
        "reason": reason,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }


def _bytes(name: str, raw: bytes | None) -> dict[str, str | None]:
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw).decode()}
