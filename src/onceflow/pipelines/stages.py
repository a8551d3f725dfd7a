"""A pipeline's steps as stages of a Spark query.

    source, parse and pack --(shuffle)--> step 1 --(shuffle)--> step 2 --> packed rows for the sink

Between stages records travel in parcels (`parcels.py`).

Invariants:

- Nothing is computed twice, and the source is read once.
- A step's state is a map in Spark's state store, one per shard, from page to JSON: in the checkpoint, versioned with
  the micro-batch, and readable with Spark's `statestore` format.
- A page that a step did not touch costs nothing. A page that it touched is written back if it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from onceflow.errors import ConfigError, OnceflowError
from onceflow.pipelines.intake import DEAD_LETTER, RECORDS, no_garbage
from onceflow.pipelines.ordering import sort_items
from onceflow.pipelines.parcels import PARCEL, Outbox, Parcels, opened
from onceflow.pipelines.parsing import dumps
from onceflow.pipelines.pipeline import DEAD_LETTERS, Pipeline, Record, Send, Step
from onceflow.spark.packed_rows import PACKED

__all__ = ["OBSERVED", "Pages", "StepFailed", "good_and_bad", "through_steps", "topic_names"]

OBSERVED: Final = "onceflow"
"""Under this name a query's progress has what was observed: how many records came in. Spark itself counts parcels."""
STATE: Final = "state"
"""The name of the state variable in the state store."""


class StepFailed(OnceflowError):
    """A step raised an error, or did what a step must not do; the message names it. Nothing of the batch is visible."""


def topic_names(pipeline: Pipeline, prefix: str) -> dict[str, str]:
    """What Kafka calls the topics that a pipeline speaks of."""
    own = {name: f"{prefix}{name}" for name in (*(each.topic for each in pipeline.inputs), *pipeline.outputs)}
    return {**own, DEAD_LETTERS: f"{prefix}{pipeline.dead_letters}"}


def through_steps(parcels: Any, pipeline: Pipeline, names: Mapping[str, str]) -> Any:
    """From the parcels of the first stage (`intake.packing`) to rows for the sink, packed.

    `names`: what Kafka calls the pipeline's topics (`topic_names`).
    """
    from pyspark.sql import functions as sql

    frame = parcels.observe(OBSERVED, sql.sum(RECORDS).alias(RECORDS)).select("shard", "parcel")
    schemas = {each.topic: each.schema for each in pipeline.inputs}
    written = {name: names[name] for name in (*pipeline.outputs, DEAD_LETTERS)}
    for step, following in zip(pipeline.steps, (*pipeline.steps[1:], None), strict=True):
        work = _Work(step, following, schemas, written)
        frame = frame.groupBy("shard").transformWithState(
            _processor(work), PARCEL if following else f"{PACKED} BINARY", outputMode="Append", timeMode="None"
        )
    return frame


def good_and_bad(typed: Any, names: Mapping[str, str]) -> tuple[Any, Any]:
    """For pipelines that are plain Spark, of what `intake.typing` gives: the good records with their fields as columns,
    and the rows of dead letters."""
    from pyspark.sql import functions as sql

    letter = sql.col(DEAD_LETTER)
    return (
        typed.where(letter.isNull()).drop(DEAD_LETTER),
        typed.where(letter.isNotNull()).select(
            sql.lit(names[DEAD_LETTERS]).alias("topic"),
            sql.lit(None).cast("string").alias("key"),
            letter.alias("value"),
        ),
    )


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
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StringType, StructType

    page, content = (StructType().add(name, StringType()) for name in ("page", "content"))

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._store = handle.getMapState(STATE, page, content)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            with no_garbage():
                found = _rows(work, key[0], self._store, (row.parcel for row in rows))
            yield from (Row(**each) for each in found)

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


def _rows(work: _Work, shard: int, store: Any, parcels: Iterable[bytes]) -> list[dict[str, Any]]:
    """What comes out of a step for one shard. The state is changed."""
    items, passing = opened(parcels)
    pages = Pages(store)
    onward = None if work.following is None else Parcels(work.following)
    with _blamed_on(work.step):
        sent = passing + (_run(work, pages, _typed(work, items), onward) if items else [])
        pages.save()
    if onward is None:
        return [{PACKED: each} for each in sent]
    return [{"shard": label, "parcel": parcel} for label, parcel in onward.rows(sent, shard)]


def _run(work: _Work, pages: Pages, items: list[Any], onward: Parcels | None) -> list[bytes]:
    """What the step sends, packed; what is for the next step goes into its parcels."""
    outbox = Outbox(work.names)
    send, following = outbox.add, work.following
    takes = None if following is None else following.takes
    key_at = 0 if takes is None or following is None else takes._fields.index(following.by)
    for each in work.step.run(pages, items):
        if type(each) is Send:
            send(each)
        elif onward is None or type(each) is not takes:
            raise ConfigError(_unexpected(work.step, following, each))
        else:
            onward.add[each[key_at]](tuple(each))
    return outbox.packed()


def _typed(work: _Work, items: list[Any]) -> list[Any]:
    """In their order, and of their types. (Its base class makes a `NamedTuple` without a call of Python.)"""
    takes, schemas, new = work.step.takes, work.schemas, tuple.__new__
    if takes is not None:
        sort_items(items)
        return [new(takes, each) for each in items]
    items.sort()  # no two records have the same topic, partition and offset, so values are never compared
    return [
        new(Record, (timestamp, topic, partition, offset, new(schemas[topic], value)))
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
