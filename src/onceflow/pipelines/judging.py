"""Compares what a pipeline has written with what its oracle says it must have written. Exactly: nothing is rounded.

    cuts = cut(offset_log(checkpoint), inputs)         what each micro-batch was given
    compare(oracle, cuts, written, topics)             every topic, every micro-batch; tables: judging_tables.py
    compare_state(oracle.state(), found)               what is in the state store afterwards

Invariants:

- Records are compared as multisets, by micro-batch and topic: key, and the JSON in the value as text with its fields
  sorted. 5 is not 5.0, and true is not 1.
- Differences are counted to the last one; only the first of each kind are described.
- Nothing here asks Kafka or knows how records were read. Topics have the names that the pipeline gives them.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceflow.digits import whole_number_of
from onceflow.errors import OnceflowError
from onceflow.pipelines.pipeline import Pipeline
from onceflow.pipelines.reference import Expected, Oracle, Page, Raw
from onceflow.spark.planning import from_json

__all__ = [
    "Comparison",
    "Difference",
    "Differences",
    "NO_BATCH",
    "Offsets",
    "OffsetLogDamaged",
    "Place",
    "Tally",
    "Written",
    "check_log",
    "compare",
    "compare_state",
    "cut",
    "last_committed",
    "name_of",
    "offset_log",
    "state_in",
    "without_prefix",
]

Place = tuple[str, int]
Offsets = Mapping[Place, int]

VERSION: Final = "v1"
SHOWN_MAX: Final = 8
"""Differences of one kind that are described; the rest is counted."""
TEXT_MAX: Final = 200
NO_BATCH: Final = -1
"""For a record without a micro-batch's number: no oracle expects anything there."""


class OffsetLogDamaged(OnceflowError):
    """What Spark wrote down about micro-batches cannot be understood."""


# --- what the micro-batches were


def offset_log(checkpoint: Path, only: Iterable[int] | None = None) -> dict[int, dict[Place, int]]:
    """Where each micro-batch ends, by its number. Spark writes it before the micro-batch runs, and never again."""
    folder = checkpoint / "offsets"
    numbers = _numbers(folder) if only is None else only
    return {number: _ends(folder / str(number)) for number in numbers}


def last_committed(checkpoint: Path) -> int | None:
    """The newest micro-batch that Spark knows to be done."""
    return max(_numbers(checkpoint / "commits"), default=None)


def _numbers(folder: Path) -> list[int]:
    """Of the micro-batches there. What else is there is Spark's own: checksums, files that are being written."""
    return sorted(number for each in folder.glob("*") if (number := whole_number_of(each.name)) is not None)


def _ends(path: Path) -> dict[Place, int]:
    """The file of one micro-batch: a version, what Spark has to remember, and a line for the one source."""
    lines = path.read_text().splitlines()
    if len(lines) != 3 or lines[0] != VERSION:
        raise OffsetLogDamaged(f"{path} is not an offset log of version 1 with one source")
    try:
        return from_json(json.loads(lines[2]))
    except (ValueError, AttributeError, TypeError):
        raise OffsetLogDamaged(f"{path} does not say where the source was: {_shown(lines[2])}") from None


def without_prefix(log: Mapping[int, Offsets], prefix: str) -> dict[int, dict[Place, int]]:
    """Under the pipeline's own names of its topics."""
    return {
        number: {(topic.removeprefix(prefix), partition): end for (topic, partition), end in ends.items()}
        for number, ends in log.items()
    }


def check_log(log: Mapping[int, Offsets], ends: Offsets) -> list[str]:
    """What is wrong with the micro-batches themselves. `ends`: one more than the last record of each input partition;
    those where there is none may be missing."""
    wrong = []
    if list(log) != list(range(len(log))):
        wrong.append(f"the micro-batches are not numbered from 0 on without a gap: {_shown(str(list(log)))}")
    before: Offsets = {}
    for number, now in log.items():
        wrong += [
            f"micro-batch {number} ends at {now.get(place, 0)} in {name_of(place)}, and the one before at {offset}"
            for place, offset in before.items()
            if now.get(place, 0) < offset
        ]
        before = now
    wrong += [
        f"the last micro-batch ends at {before.get(place, 0)} in {name_of(place)}, which has records up to {end}"
        for place, end in ends.items()
        if before.get(place, 0) != end
    ]
    return wrong


def cut(log: Mapping[int, Offsets], records: Iterable[Raw]) -> dict[int, list[Raw]]:
    """The records of each micro-batch, in the order of their arrival. What comes after the last one is left out."""
    numbers = sorted(log)
    by_place: dict[Place, list[int]] = {}
    cuts: dict[int, list[Raw]] = {number: [] for number in numbers}
    for record in records:
        place = record.topic, record.partition
        if place not in by_place:
            by_place[place] = [log[number].get(place, 0) for number in numbers]
        at = bisect_left(by_place[place], record.offset + 1)
        if at < len(numbers):
            cuts[numbers[at]].append(record)
    return {number: sorted(found, key=lambda each: each[:4]) for number, found in cuts.items()}


# --- differences


class Difference(NamedTuple):
    kind: str
    """"missing", "twice", "wrong", "unexpected", "state", "not atomic", "not looked at", "reader"."""
    sentence: str


class Differences:
    """All are counted, few are described."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._described: list[Difference] = []

    def add(self, kind: str, sentence: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= SHOWN_MAX:
            self._described.append(Difference(kind, sentence))

    def count(self, kind: str) -> int:
        return self._counts[kind]

    def __iter__(self) -> Iterator[Difference]:
        yield from self._described
        for kind, count in self._counts.items():
            if count > SHOWN_MAX:
                yield Difference(kind, f"{count - SHOWN_MAX:,} more of this kind are not listed.")

    def __bool__(self) -> bool:
        return bool(self._counts)


class Written(NamedTuple):
    """A record of an output topic, as a reader of committed records found it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    batch: int | None
    """The number in its header; None if it has none that is a number."""


@dataclass
class Tally:
    """Of one topic."""

    expected: int = 0
    found: int = 0
    missing: int = 0
    twice: int = 0
    wrong: int = 0
    """There, under the right key and in the right micro-batch, with another value."""
    unexpected: int = 0


@dataclass
class Comparison:
    topics: dict[str, Tally]
    differences: Differences = field(default_factory=Differences)

    @property
    def is_exact(self) -> bool:
        return not self.differences


_Content = tuple[str | None, str | None]
"""Key and value, the latter as JSON with its fields sorted."""


def compare(
    oracle: Oracle,
    cuts: Mapping[int, Sequence[Raw]],
    written: Iterable[Written],
    topics: Iterable[str],
    hears: Callable[[int, Sequence[Expected]], None] = lambda number, expected: None,
) -> Comparison:
    """Asks the oracle about each micro-batch in turn; afterwards its state is what the pipeline's must be. `hears`: is
    told what the oracle says."""
    comparison = Comparison({topic: Tally() for topic in topics})
    found: defaultdict[int, defaultdict[str, list[Written]]] = defaultdict(lambda: defaultdict(list))
    for each in written:
        found[NO_BATCH if each.batch is None else each.batch][each.topic].append(each)
    for number in sorted({*cuts, *found}):
        said = oracle.batch(cuts[number]) if cuts.get(number) else []
        if number in cuts:
            hears(number, said)
        expected = _by_topic(said)
        there: Mapping[str, list[Written]] = found.pop(number, {})
        for topic in dict.fromkeys((*expected, *there)):
            _compare_topic(comparison, number, topic, expected.get(topic, []), there.get(topic, []))
    return comparison


def _by_topic(expected: Iterable[Expected]) -> dict[str, list[_Content]]:
    by_topic: defaultdict[str, list[_Content]] = defaultdict(list)
    for each in expected:
        by_topic[each.topic].append((each.key, None if each.value is None else _canonical(each.value)))
    return by_topic


def _compare_topic(
    comparison: Comparison, number: int, topic: str, expected: Sequence[_Content], found: Sequence[Written]
) -> None:
    tally = comparison.topics.setdefault(topic, Tally())
    tally.expected += len(expected)
    tally.found += len(found)
    contents = [_content(each) for each in found]
    wanted, there = Counter(expected), Counter(contents)
    if wanted == there:
        return
    where = f"{topic}, micro-batch {number}" if number != NO_BATCH else f"{topic}, without a micro-batch's number"
    _describe(comparison, tally, where, wanted, there, dict(zip(contents, found, strict=True)))


def _describe(
    comparison: Comparison,
    tally: Tally,
    where: str,
    wanted: Counter[_Content],
    there: Counter[_Content],
    places: Mapping[_Content, Written],
) -> None:
    missing, extra = wanted - there, there - wanted
    add = comparison.differences.add
    for content in [each for each in extra if each in wanted]:
        more = extra.pop(content)
        tally.twice += more
        add("twice", f"{where}: {_words(content)} is there {there[content]} times, not {wanted[content]}.")
    for content, instead in _same_key(missing, extra):
        tally.wrong += 1
        at = _at(places[instead])
        add("wrong", f"{where}: {at} has {_words(instead)}, and not {_shown(str(content[1]))}.")
    for content in missing.elements():
        tally.missing += 1
        add("missing", f"{where}: {_words(content)} is missing.")
    for content in extra.elements():
        tally.unexpected += 1
        add("unexpected", f"{where}: {_words(content)}, at {_at(places[content])}, should not be there.")


def _same_key(missing: Counter[_Content], extra: Counter[_Content]) -> list[tuple[_Content, _Content]]:
    """One that is missing with one that should not be there, under one key. Takes them out of both."""
    by_key: defaultdict[str | None, list[_Content]] = defaultdict(list)
    for content in extra.elements():
        by_key[content[0]].append(content)
    pairs = []
    for content in list(missing.elements()):
        if others := by_key[content[0]]:
            pairs.append((content, others.pop(0)))
    for content, instead in pairs:
        missing[content] -= 1
        extra[instead] -= 1
    return pairs


def _content(written: Written) -> _Content:
    return _text(written.key), None if written.value is None else _sorted_json(written.value)


def _sorted_json(value: bytes) -> str:
    """Of what is no JSON, the text: it equals nothing that an oracle expects, which begins with a brace."""
    try:
        return _canonical(json.loads(value))
    except ValueError:
        return f"not JSON: {value!r}"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode(errors="backslashreplace")


# --- state


def compare_state(expected: Mapping[str, Any], found: Mapping[str, Any], differences: Differences) -> Tally:
    tally = Tally(expected=len(expected), found=len(found))
    for name, content in expected.items():
        if name not in found:
            tally.missing += 1
            differences.add("state", f"the state has no {name!r}; it must be {_shown(_canonical(content))}.")
        elif (there := _canonical(found[name])) != (wanted := _canonical(content)):
            tally.wrong += 1
            differences.add("state", f"the state of {name!r} is {_shown(there)}, and not {_shown(wanted)}.")
    for name in found.keys() - expected.keys():
        tally.unexpected += 1
        differences.add("state", f"the state has {name!r}, {_shown(_canonical(found[name]))}, and should not.")
    return tally


def state_in(spark: Any, checkpoint: str, pipeline: Pipeline, batch: int) -> Iterator[Page]:
    """All pages after a micro-batch, from Spark's state store."""
    from onceflow.pipelines.stages import STATE

    for step in range(len(pipeline.steps)):
        # Spark numbers operators from the end of the plan: the last step is operator 0.
        options = {"operatorId": len(pipeline.steps) - 1 - step, "stateVarName": STATE, "batchId": batch}
        frame = spark.read.format("statestore").options(**options).load(checkpoint)
        for row in frame.selectExpr("user_map_key.page", "user_map_value.content").collect():
            yield Page(step, row.page, json.loads(row.content))


# --- in words


def name_of(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _at(written: Written) -> str:
    return f"{written.topic}-{written.partition} offset {written.offset}"


def _words(content: _Content) -> str:
    key, value = content
    return f"{'no key' if key is None else repr(key)}: {_shown('no value' if value is None else value)}"


def _shown(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
