"""A pipeline's steps as stages of a Spark query.

    source --> parse and pack --(shuffle)--> step 1 --(shuffle)--> step 2 --> rows of topic, key, value

Between stages records travel in *parcels*: all that one task has for one shard is one row with a binary column. Spark's
operator with state (transformWithState) handles every row and column by itself, in Python and one by one, which costs
more than most steps do; a parcel costs it one row.

Invariants:

- What is in a parcel is what the next step takes, plus what is already to be sent and only passes through: dead
  letters, and what earlier steps have sent. Nothing is computed twice, and the source is read once.
- A step's state is a map in Spark's state store, one per shard, from page to JSON: in the checkpoint, versioned with
  the micro-batch, and readable with Spark's `statestore` format.
- A page that a step did not touch costs nothing. A page that it touched is written back if it has changed.
"""

from __future__ import annotations

import gc
import marshal
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from onceflow.errors import ConfigError, OnceflowError
from onceflow.pipelines.parsing import Parser, Unfit, dead_letter_json, dumps
from onceflow.pipelines.pipeline import DEAD_LETTERS, Pipeline, Record, Send, Step

__all__ = ["Pages", "StepFailed", "shard_of", "through_steps", "topic_names", "typed"]

PARCEL: Final = "shard INT, parcel BINARY"
ROWS: Final = "topic STRING, key STRING, value STRING"
ORIGIN: Final = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "BIGINT"}
LETTER: Final = "dead_letter"
_ORIGIN_ARROW: Final = ("string", "int32", "int64", "int64")
_SQL: Final = {str: "STRING", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
_ARROW: Final = {"STRING": "string", "BIGINT": "int64", "DOUBLE": "float64", "BOOLEAN": "bool"}
STATE: Final = "state"
"""The name of the state variable in the state store."""

Sends = list[tuple[str, str | None, str | None]]


class StepFailed(OnceflowError):
    """A step raised an error, or did what a step must not do; the message names it. Nothing of the batch is visible."""


def shard_of(key: object, shards: int) -> int:
    """Which shard a key belongs to. Written into checkpoints by way of the state: never to be changed."""
    return zlib.crc32(str(key).encode()) % shards


def topic_names(pipeline: Pipeline, prefix: str) -> dict[str, str]:
    """What Kafka calls the topics that a pipeline speaks of."""
    own = {name: f"{prefix}{name}" for name in (*(each.topic for each in pipeline.inputs), *pipeline.outputs)}
    return {**own, DEAD_LETTERS: f"{prefix}{pipeline.dead_letters}"}


def through_steps(source: Any, pipeline: Pipeline, names: Mapping[str, str]) -> Any:
    """From the records of a Kafka source to rows with `topic`, `key` and `value`.

    `names`: what Kafka calls the pipeline's topics (`topic_names`).
    """
    frame = _raw(source).mapInArrow(_Packing(pipeline, names), PARCEL)
    schemas = {each.topic: each.schema for each in pipeline.inputs}
    written = {name: names[name] for name in (*pipeline.outputs, DEAD_LETTERS)}
    for step, following in zip(pipeline.steps, (*pipeline.steps[1:], None), strict=True):
        work = _Work(step, following, schemas, written)
        frame = frame.groupBy("shard").transformWithStateInPandas(
            _processor(work), PARCEL if following else ROWS, outputMode="Append", timeMode="None"
        )
    return frame


def typed(source: Any, pipeline: Pipeline, names: Mapping[str, str]) -> tuple[Any, Any]:
    """For pipelines that are plain Spark: the good records with their fields as columns, and the rows of dead
    letters."""
    from pyspark.sql import functions as sql

    fields = _columns(pipeline)
    schema = ", ".join(f"`{name}` {kind}" for name, kind in {**ORIGIN, **fields, LETTER: "STRING"}.items())
    parsed = _raw(source).mapInArrow(_Typing(pipeline, names, tuple(fields)), schema)
    letters = parsed.where(sql.col(LETTER).isNotNull())
    return (
        parsed.where(sql.col(LETTER).isNull()).drop(LETTER),
        letters.select(
            sql.lit(names[DEAD_LETTERS]).alias("topic"),
            sql.lit(None).cast("string").alias("key"),
            letters[LETTER].alias("value"),
        ),
    )


def _raw(source: Any) -> Any:
    from pyspark.sql import functions as sql

    return source.select(
        "topic", "partition", "offset", sql.unix_millis("timestamp").alias("timestamp"), "key", "value"
    )


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Records by the hundred thousand are no garbage, and looking through them for cycles takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- the first stage


class _Records:
    """The records of an Arrow batch, parsed."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str]) -> None:
        self._topics = {names[each.topic]: (each.topic, Parser(each.schema)) for each in pipeline.inputs}

    def parse(self, batch: Any) -> Iterator[tuple[int, str, int, int, tuple[Any, ...] | None, str | None]]:
        """Each as the fields of a `Record`, its value a plain tuple, or as a dead letter."""
        columns = [
            batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "timestamp", "key", "value")
        ]
        for real, partition, offset, timestamp, key, value in zip(*columns, strict=True):
            topic, parser = self._topics[real]
            try:
                yield timestamp, topic, partition, offset, parser.values(value), None
            except Unfit as problem:
                letter = dead_letter_json(str(problem), topic, partition, offset, timestamp, key, value)
                yield timestamp, topic, partition, offset, None, letter


class _Packing:
    """For `mapInArrow`: parses, and packs a parcel for each shard of the first step."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str]) -> None:
        self._pipeline = pipeline
        self._names = dict(names)

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        step = self._pipeline.steps[0]
        key_at = {each.topic: each.schema._fields.index(step.by) for each in self._pipeline.inputs}
        records, schema = _Records(self._pipeline, self._names), _parcel_schema()
        for batch in batches:
            with _no_garbage():
                parcels = _Parcels(step)
                letters: Sends = []
                for timestamp, topic, partition, offset, values, letter in records.parse(batch):
                    if values is None:
                        letters.append((self._names[DEAD_LETTERS], None, letter))
                    else:
                        parcels.add(values[key_at[topic]], (timestamp, topic, partition, offset, values))
                parcels.pass_on(letters)
                packed = pa.RecordBatch.from_pylist(parcels.rows(), schema=schema)
            yield packed


class _Typing:
    """For `mapInArrow`: a column for each field of any input; those that a record's topic does not have are null."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str], fields: tuple[str, ...]) -> None:
        self._pipeline = pipeline
        self._names = dict(names)
        self._fields = fields
        self._schemas = {each.topic: each.schema._fields for each in pipeline.inputs}

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        records = _Records(self._pipeline, self._names)
        types = [*_ORIGIN_ARROW, *(_ARROW[_columns(self._pipeline)[name]] for name in self._fields), "string"]
        schema = pa.schema(
            [
                (name, pa.type_for_alias(kind))
                for name, kind in zip([*ORIGIN, *self._fields, LETTER], types, strict=True)
            ]
        )
        for batch in batches:
            yield pa.RecordBatch.from_pylist([self._row(*each) for each in records.parse(batch)], schema=schema)

    def _row(
        self,
        timestamp: int,
        topic: str,
        partition: int,
        offset: int,
        values: tuple[Any, ...] | None,
        letter: str | None,
    ) -> dict[str, Any]:
        if values is None:
            return {LETTER: letter}
        fields = dict(zip(self._schemas[topic], values, strict=True))
        return {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp, **fields}


def _columns(pipeline: Pipeline) -> dict[str, str]:
    """The fields of all inputs. One that several have is one column, and must be of one type."""
    found: dict[str, str] = {}
    for each in pipeline.inputs:
        for name, kind in Parser(each.schema).kinds.items():
            if name in (*ORIGIN, LETTER):
                raise ConfigError(f"a field cannot be called {name!r}: that is a column of every record")
            if found.setdefault(name, _SQL[kind]) != _SQL[kind]:
                raise ConfigError(f"the field {name!r} is of different types in different inputs")
    return found


class _Parcels:
    """What is on its way to a step, by shard."""

    def __init__(self, step: Step) -> None:
        self._shards = step.shards
        self._items: defaultdict[int, list[Any]] = defaultdict(list)
        self._sends: Sends = []
        self._known: dict[object, int] = {}

    def add(self, key: object, item: tuple[Any, ...]) -> None:
        shard = self._known.get(key)
        if shard is None:
            shard = self._known[key] = shard_of(key, self._shards)
        self._items[shard].append(item)

    def pass_on(self, sends: Sends) -> None:
        self._sends += sends

    def rows(self) -> list[dict[str, Any]]:
        """What only passes through goes with any of the shards."""
        shards = sorted(self._items) or ([0] if self._sends else [])
        share = -(-len(self._sends) // max(1, len(shards)))
        return [
            {
                "shard": shard,
                "parcel": marshal.dumps((self._items[shard], self._sends[index * share : (index + 1) * share])),
            }
            for index, shard in enumerate(shards)
        ]


def _parcel_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("shard", pa.int32()), ("parcel", pa.binary())])


# --- a step


class Pages(MutableMapping[str, Any]):
    """The state of a shard during one micro-batch."""

    def __init__(self, store: Any) -> None:
        """`store`: Spark's `MapState`."""
        self._store = store
        self._pages: dict[str, Any] = {}
        self._before: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> Any:
        self._load(name)
        return self._pages[name]

    def __setitem__(self, name: str, page: Any) -> None:
        self._load(name)
        self._pages[name] = page

    def __delitem__(self, name: str) -> None:
        self._load(name)
        del self._pages[name]

    def __iter__(self) -> Iterator[str]:
        """All pages; this one is slow, it asks the store."""
        stored = [name for (name,) in self._store.keys()] if self._store.exists() else []  # noqa: SIM118 - a MapState is no mapping
        yield from (name for name in stored if name not in self._before or name in self._pages)
        yield from [name for name in self._pages if self._before[name] is None]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self, name: str) -> None:
        if name in self._before:
            return
        found = self._store.getValue((name,))
        self._before[name] = None if found is None else found[0]
        if found is not None:
            self._pages[name] = orjson.loads(found[0])

    def save(self) -> None:
        """Write back what has changed."""
        for name, before in self._before.items():
            if name not in self._pages:
                if before is not None:
                    self._store.removeKey((name,))
                continue
            now = dumps(self._pages[name])
            if now != before:
                self._store.updateValue((name,), (now,))


def _processor(work: _Work) -> Any:
    """Spark's view of a step."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StringType, StructType

    page, content = (StructType().add(name, StringType()) for name in ("page", "content"))

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._store = handle.getMapState(STATE, page, content)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            parcels = [marshal.loads(parcel) for frame in rows for parcel in frame["parcel"]]
            pages = Pages(self._store)
            with _blamed_on(work.step), _no_garbage():
                yield from _frames(work, pages, parcels)
                pages.save()

        def close(self) -> None:
            pass

    return Processor()


@dataclass(frozen=True)
class _Work:
    """A step in its pipeline."""

    step: Step
    following: Step | None
    schemas: Mapping[str, type[Any]]
    """Of the values of records, by topic."""
    names: Mapping[str, str]
    """Of the topics that may be written."""


def _frames(work: _Work, pages: Pages, parcels: list[tuple[list[Any], Sends]]) -> Iterator[Any]:
    """What comes out of a step for one shard, as pandas wants it."""
    import pandas

    sends: Sends = [each for _, passing in parcels for each in passing]
    items = _unpacked(work, [each for items, _ in parcels for each in items])
    if work.following is None:
        if items:
            sends += _run(work, pages, items, None)
        if sends:
            yield pandas.DataFrame(sends, columns=["topic", "key", "value"])
        return
    onward = _Parcels(work.following)
    if items:
        sends += _run(work, pages, items, onward)
    onward.pass_on(sends)
    if rows := onward.rows():
        yield pandas.DataFrame(rows)


def _run(work: _Work, pages: Pages, items: list[Any], onward: _Parcels | None) -> Sends:
    """What the step sends; what is for the next step goes into its parcels."""
    sends: Sends = []
    names, following = work.names, work.following
    for each in work.step.run(pages, items):
        if type(each) is Send:
            topic, key, value = each
            if topic not in names:
                raise ConfigError(f"it sends to {topic!r}, which is not declared: there is {', '.join(names)}")
            sends.append((names[topic], key, value if value is None or type(value) is str else dumps(value)))
        elif onward is None or following is None or type(each) is not following.takes:
            raise ConfigError(_unexpected(work.step, following, each))
        else:
            onward.add(getattr(each, following.by), tuple(each))
    return sends


def _unpacked(work: _Work, items: list[Any]) -> list[Any]:
    """In their order, and of their types."""
    items.sort()
    takes, schemas = work.step.takes, work.schemas
    if takes is not None:
        return [takes(*each) for each in items]
    return [
        Record(timestamp, topic, partition, offset, schemas[topic](*value))
        for timestamp, topic, partition, offset, value in items
    ]


@contextmanager
def _blamed_on(step: Step) -> Iterator[None]:
    """Whatever is raised becomes an error that names the step: it is read far from here, in the message of a query."""
    try:
        yield
    except Exception as problem:
        reason = str(problem) if isinstance(problem, OnceflowError) else f"{type(problem).__name__}: {problem}"
        raise StepFailed(f"the step {_name(step)!r} failed: {reason}") from problem


def _name(step: Step) -> str:
    return getattr(step.run, "__name__", "without a name")


def _unexpected(step: Step, following: Step | None, found: object) -> str:
    name = _name(step)
    wanted = "Send, as there is no step after it" if following is None else f"Send or {following.takes}"
    return f"{name} yielded {type(found).__name__}: a step yields {wanted}"
