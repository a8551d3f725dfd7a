"""A pipeline's steps without Spark and without Kafka: what they do with micro-batches, in milliseconds.

It does what `stages.py` does: parse, shard, sort, run each step per shard. Pages of state go through JSON after each
micro-batch, so that nothing survives in them which a state store would not keep.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from onceflow.pipelines.ordering import sort_items
from onceflow.pipelines.parcels import shard_of
from onceflow.pipelines.parsing import Parser, Unfit, dead_letter_json
from onceflow.pipelines.pipeline import DEAD_LETTERS, Pipeline, Record, Send, Step
from onceflow.pipelines.reference import Expected, Message, Page, Raw


def logged(messages: Iterable[Message]) -> list[Raw]:
    """The messages as they lie in Kafka."""
    ends: defaultdict[tuple[str, int], int] = defaultdict(int)
    found = []
    for topic, partition, key, value, timestamp in messages:
        found.append(Raw(timestamp, topic, partition, ends[topic, partition], key, value))
        ends[topic, partition] += 1
    return found


def micro_batches(records: Sequence[Raw], seed: int, count: int) -> list[list[Raw]]:
    """Cut into at most `count` micro-batches as Spark does it: each partition by itself, anywhere."""
    chance = random.Random(seed)
    partitions: defaultdict[tuple[str, int], list[Raw]] = defaultdict(list)
    for record in records:
        partitions[record.topic, record.partition].append(record)
    batches: list[list[Raw]] = [[] for _ in range(count)]
    for name in sorted(partitions):
        log = partitions[name]
        cuts = sorted(chance.randrange(len(log) + 1) for _ in range(count - 1))
        for batch, (first, end) in zip(batches, zip([0, *cuts], [*cuts, len(log)], strict=True), strict=True):
            batch.extend(log[first:end])
    return [sorted(batch, key=lambda record: record[:4]) for batch in batches if batch]


def run_in_memory(pipeline: Pipeline, batches: Iterable[Sequence[Raw]]) -> tuple[list[list[Expected]], list[Page]]:
    """What is written in each micro-batch, and the state after the last."""
    memory = InMemory(pipeline)
    return [memory.batch(each) for each in batches], memory.pages()


def in_any_order(written: Iterable[Expected]) -> list[str]:
    """For comparisons: a micro-batch's records come in no order that anybody promised."""
    return sorted(json.dumps(each, sort_keys=True) for each in written)


class InMemory:
    """A pipeline that runs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._parsers = {each.topic: Parser(each.schema) for each in pipeline.inputs}
        self._state: dict[tuple[int, int], dict[str, bytes]] = defaultdict(dict)

    def batch(self, records: Iterable[Raw]) -> list[Expected]:
        sends: list[Send] = []
        items = list(self._parsed(records, sends))
        for number, step in enumerate(self._pipeline.steps):
            items = list(self._through(number, step, items, sends))
        assert not items, f"the last step yielded {items[0]}"
        return [self._written(each) for each in sends]

    def pages(self) -> list[Page]:
        return [
            Page(step, name, orjson.loads(content))
            for (step, _), pages in sorted(self._state.items())
            for name, content in pages.items()
        ]

    def _parsed(self, records: Iterable[Raw], sends: list[Send]) -> Iterator[Record[Any]]:
        for timestamp, topic, partition, offset, key, value in records:
            try:
                yield Record(timestamp, topic, partition, offset, self._parsers[topic](value))
            except Unfit as problem:
                letter = dead_letter_json(str(problem), topic, partition, offset, timestamp, key, value)
                sends.append(Send(DEAD_LETTERS, None, letter))

    def _through(self, number: int, step: Step, items: list[Any], sends: list[Send]) -> Iterator[Any]:
        shards: defaultdict[int, list[Any]] = defaultdict(list)
        for item in items:
            shards[shard_of(getattr(item.value if step.takes is None else item, step.by), step.shards)].append(item)
        for shard in sorted(shards):
            stored = self._state[number, shard]
            pages = {name: orjson.loads(content) for name, content in stored.items()}
            sort_items(shards[shard])
            for each in step.run(pages, shards[shard]):
                if isinstance(each, Send):
                    sends.append(each)
                else:
                    yield each
            self._state[number, shard] = {name: orjson.dumps(page) for name, page in pages.items()}

    def _written(self, send: Send) -> Expected:
        topic = self._pipeline.dead_letters if send.topic == DEAD_LETTERS else send.topic
        assert topic in self._pipeline.written(), f"{topic} is not an output"
        return Expected(topic, send.key, _decoded(send.value))


def _decoded(value: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    """As a reader gets it."""
    if value is None:
        return None
    decoded: Mapping[str, Any] = orjson.loads(value if isinstance(value, str) else orjson.dumps(value))
    return decoded
