"""What a pipeline is: topics in, steps that keep state, topics out. All of it is declared here; `job.py` runs it.

    class Click(NamedTuple):
        page: str
        user: str

    def count(state: State, clicks: list[Record[Click]]) -> Iterator[Send]:
        for click in clicks:
            page = state.setdefault(click.value.page, {"views": 0})
            page["views"] += 1
        ...

    PAGES = Pipeline(
        name="pages",
        inputs=[Input("clicks", Click)],
        steps=[Step(count, by="page")],
        outputs={"page_views": 3},
    )

A micro-batch goes through the steps one after the other, and what they send is one Kafka transaction.

What makes a result reproducible, so that a batch that runs again gives the same and an oracle can recompute it:

- A step sees what has the same key in one place: all records of a shard (keys by their CRC) in one call per
  micro-batch, with the state of that shard.
- Records come in the order in which they arrived in Kafka: timestamp, then topic, partition, offset. What one step
  hands to the next comes sorted as tuples, whatever is in them (`ordering.py`).
- A step knows no clock and no chance: time is in the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from onceflow.errors import ConfigError
from onceflow.pipelines.tables import Lands

__all__ = ["DEAD_LETTERS", "Input", "Pipeline", "Record", "Send", "State", "Step", "dead_letter"]

DEAD_LETTERS: Final = "dead_letters"
"""What steps call the topic for records that cannot be processed; each pipeline has one of its own."""

Value = TypeVar("Value")
State = MutableMapping[str, Any]
"""Pages of a shard's state: whatever JSON can hold, under a name. A page is read when it is first asked for, and
written back at the end of the micro-batch; so a page is what is needed together, and no more."""


class Record(NamedTuple, Generic[Value]):
    """A record of an input topic. Records sort in the order of their arrival."""

    timestamp: int
    """When it came to Kafka, in ms."""
    topic: str
    partition: int
    offset: int
    value: Value


class Send(NamedTuple):
    """A record to write: to a topic of the pipeline's outputs."""

    topic: str
    key: str | None
    value: Mapping[str, Any] | str | None
    """A mapping becomes JSON; text is written as it is; None is a tombstone."""


@dataclass(frozen=True)
class Input:
    """A topic with JSON in it."""

    topic: str
    schema: type[Any]
    """A `NamedTuple`: `str`, `int`, `float`, `bool`, each also `| None`. Fields without a default must be there. What
    does not fit goes to the dead letters, and never to a step."""
    partitions: int = 3


@dataclass(frozen=True)
class Step:
    """A function with state. It is called once per shard and micro-batch, with the shard's state and all that is new.

    What it yields is either a `Send`, or something for the next step: what that one `takes`.
    """

    run: Callable[[State, list[Any]], Iterable[Any]]
    by: str
    """The field whose value is the key."""
    takes: type[Any] | None = None
    """The `NamedTuple` that the step before hands on; None for the first step, which gets records."""
    shards: int = 8
    """Into how many parts its state is cut, at most so many run at the same time. Fixed by the first run."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    inputs: Sequence[Input]
    outputs: Mapping[str, int]
    """Topics and their numbers of partitions."""
    steps: Sequence[Step] = ()
    build: Callable[[Any], Any] | None = field(default=None)
    """In place of steps, plain Spark: from a streaming DataFrame of the input's fields (and `topic`, `partition`,
    `offset`, `timestamp`) to one with `topic`, `key` and `value`."""
    lands: Sequence[Lands] = ()
    """What of its outputs becomes tables, if it runs with a database (`--sql`)."""

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ConfigError(f"the pipeline {self.name!r} has no input")
        if bool(self.steps) == (self.build is not None):
            raise ConfigError(f"the pipeline {self.name!r} needs either steps or build=")
        if DEAD_LETTERS in self.outputs:
            raise ConfigError(f"the topic {DEAD_LETTERS!r} is there by itself and cannot be an output")
        for before, step in zip((None, *self.steps), self.steps, strict=False):
            if (step.takes is None) != (before is None):
                raise ConfigError(
                    f"the pipeline {self.name!r}: a first step gets records and takes= nothing; every other step "
                    "takes= "
                    "what the step before hands on"
                )
            fields = [each.schema for each in self.inputs] if step.takes is None else [step.takes]
            for schema in fields:
                if step.by not in schema._fields:
                    raise ConfigError(f"the pipeline {self.name!r}: {schema.__name__} has no field {step.by!r}")
        self._check_lands()

    def _check_lands(self) -> None:
        for lands in self.lands:
            if lands.topic not in self.outputs:
                raise ConfigError(
                    f"the pipeline {self.name!r} lands {lands.topic!r}, which is none of its outputs: there is "
                    f"{', '.join(self.outputs)}"
                )
        tables = [lands.table.lower() for lands in self.lands]
        if len(set(tables)) != len(tables):
            raise ConfigError(f"the pipeline {self.name!r} lands two topics in one table: give one another table=")

    @property
    def dead_letters(self) -> str:
        """The topic for what cannot be processed."""
        return f"{self.name}_{DEAD_LETTERS}"

    def topics(self) -> dict[str, int]:
        """All that it reads and writes, with their numbers of partitions."""
        return {**{each.topic: each.partitions for each in self.inputs}, **self.written()}

    def written(self) -> dict[str, int]:
        return {**self.outputs, self.dead_letters: 1}


def dead_letter(record: Record[Any], reason: str) -> Send:
    """For a step that finds a record which it cannot process: where it came from, why, and what it was."""
    timestamp, topic, partition, offset, value = record
    return Send(
        DEAD_LETTERS,
        None,
        {
            "reason": reason,
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "value": json.dumps(value._asdict(), ensure_ascii=False),
        },
    )
