"""The first stage: records become typed values where they are read, in the tasks of the source.

    Kafka --> KafkaSource --> parse --> parcels for the first step    (`packing`)
                                    --> columns, for plain Spark      (`typing`)

What does not fit its schema becomes a dead letter and travels along. Between the source and this stage no record
passes through Spark: both are Python, in one process.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from onceflow.errors import ConfigError
from onceflow.pipelines.parcels import PARCEL, Outbox, Parcels
from onceflow.pipelines.parsing import Parser, Unfit, dead_letter_json
from onceflow.pipelines.pipeline import DEAD_LETTERS, Pipeline, Send
from onceflow.spark.columns import array_of, binary_of_list
from onceflow.spark.source import Conversion

__all__ = ["DEAD_LETTER", "RECORDS", "no_garbage", "packing", "typing"]

RECORDS: Final = "records"
"""A column of parcels: how many records were read for them."""
DEAD_LETTER: Final = "dead_letter"
ORIGIN: Final = {"topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "BIGINT"}
PACKED_AT_ONCE: Final = 50_000
"""Records at least, unless there are no more."""

_SQL: Final = {str: "STRING", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
_ARROW: Final = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}
_PARCEL_ARROW: Final = pa.schema([("shard", pa.int32()), ("parcel", pa.binary()), (RECORDS, pa.int64())])


def packing(pipeline: Pipeline, names: Mapping[str, str]) -> Conversion:
    """For a pipeline of steps: parcels for the first one."""
    return Conversion(_Packing(pipeline, names), f"{PARCEL}, {RECORDS} BIGINT")


def typing(pipeline: Pipeline, names: Mapping[str, str]) -> Conversion:
    """For a pipeline that is plain Spark: a column for each field of any input, null where a record's topic does not
    have it, and the dead letters of those that do not fit."""
    columns = {**ORIGIN, **_columns(pipeline), DEAD_LETTER: "STRING"}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return Conversion(_Typing(pipeline, names, columns), schema)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Records by the hundred thousand are no garbage, and looking through them for cycles takes a third of the time.

    For a call that leaves little behind: what is still there in the end is looked through after all.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Inputs:
    """The topics of a pipeline, by the names that Kafka has for them."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str]) -> None:
        self._topics = {names[each.topic]: (each.topic, Parser(each.schema)) for each in pipeline.inputs}

    def opened(self, batch: pa.RecordBatch) -> _Opened:
        topic, parser = self._topics[batch.column("topic")[0].as_py()]
        return _Opened(batch, topic, parser)


class _Opened:
    """The records of an Arrow batch, which is of one partition."""

    def __init__(self, batch: pa.RecordBatch, topic: str, parser: Parser) -> None:
        self._batch = batch
        self.topic = topic
        self.parse = parser.values
        """The fields of a value. Raises `Unfit`."""
        self.partition: int = batch.column("partition")[0].as_py()
        micros = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        self._timestamps: list[int] = (micros // 1000).tolist()
        self._offsets: list[int] = batch.column("offset").to_pylist()
        self._values: list[bytes | None] = batch.column("value").to_pylist()

    def __iter__(self) -> Iterator[tuple[int, int, bytes | None]]:
        """Timestamps, offsets, and values."""
        return zip(self._timestamps, self._offsets, self._values, strict=True)

    def dead_letter(self, offset: int, problem: Unfit) -> str:
        number = bisect_left(self._offsets, offset)
        key = self._batch.column("key")[number].as_py()
        origin = (self.topic, self.partition, offset, self._timestamps[number])
        return dead_letter_json(str(problem), *origin, key, self._values[number])


class _Packing:
    """Parses, and packs a parcel for each shard of the first step."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str]) -> None:
        self._pipeline = pipeline
        self._names = dict(names)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inputs = _Inputs(self._pipeline, self._names)
        waiting: list[pa.RecordBatch] = []
        count = 0
        for batch in batches:
            waiting.append(batch)
            count += batch.num_rows
            if count >= PACKED_AT_ONCE:
                with no_garbage():
                    packed = self._packed(inputs, waiting, count)
                yield packed
                waiting, count = [], 0
        if waiting:
            with no_garbage():
                packed = self._packed(inputs, waiting, count)
            yield packed

    def _packed(self, inputs: _Inputs, batches: list[pa.RecordBatch], count: int) -> pa.RecordBatch:
        step = self._pipeline.steps[0]
        key_at = {each.topic: each.schema._fields.index(step.by) for each in self._pipeline.inputs}
        parcels, outbox = Parcels(step), Outbox({DEAD_LETTERS: self._names[DEAD_LETTERS]})
        add = parcels.add
        for batch in batches:
            records = inputs.opened(batch)
            topic, partition, parse = records.topic, records.partition, records.parse
            key = key_at[topic]
            for timestamp, offset, value in records:
                try:
                    fields = parse(value)
                except Unfit as problem:
                    outbox.add(Send(DEAD_LETTERS, None, records.dead_letter(offset, problem)))
                    continue
                add[fields[key]]((timestamp, topic, partition, offset, fields))
        return _parcel_batch(parcels.rows(outbox.packed(), 0), count)


def _parcel_batch(rows: list[tuple[int, bytes]], count: int) -> pa.RecordBatch:
    """With the count in the first row."""
    columns = [
        array_of(np.array([shard for shard, _ in rows], dtype=np.int32)),
        binary_of_list([parcel for _, parcel in rows]),
        array_of(np.array([count, *([0] * (len(rows) - 1))], dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_PARCEL_ARROW)


class _Typing:
    """Parses, and makes columns of the fields."""

    def __init__(self, pipeline: Pipeline, names: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self._pipeline = pipeline
        self._names = dict(names)
        self._columns = dict(columns)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        inputs = _Inputs(self._pipeline, self._names)
        fields = {each.topic: each.schema._fields for each in self._pipeline.inputs}
        schema = pa.schema([(name, _ARROW[kind]) for name, kind in self._columns.items()])
        for batch in batches:
            rows = list(self._rows(inputs.opened(batch), fields))
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _rows(self, records: _Opened, fields: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
        origin = {"topic": records.topic, "partition": records.partition}
        for timestamp, offset, value in records:
            try:
                values = dict(zip(fields[records.topic], records.parse(value), strict=True))
            except Unfit as problem:
                yield {DEAD_LETTER: records.dead_letter(offset, problem)}
            else:
                yield {**origin, "offset": offset, "timestamp": timestamp, **values}


def _columns(pipeline: Pipeline) -> dict[str, str]:
    """The fields of all inputs. One that several have is one column, and must be of one type."""
    found: dict[str, str] = {}
    for each in pipeline.inputs:
        for name, kind in Parser(each.schema).kinds.items():
            if name in (*ORIGIN, DEAD_LETTER):
                raise ConfigError(f"a field cannot be called {name!r}: that is a column of every record")
            if found.setdefault(name, _SQL[kind]) != _SQL[kind]:
                raise ConfigError(f"the field {name!r} is of different types in different inputs")
    return found
