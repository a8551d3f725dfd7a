"""What belongs to a reference pipeline beyond the pipeline: input to try it with, and an oracle that knows what must
come out.

A *sample* makes input from a seed, bad records among it. An *oracle* is told the records of each micro-batch and says
what the pipeline must write in it. It is plain Python, knows neither Spark nor the pipeline's code, and reads JSON
with another library: the two have nothing in common but the documentation, so that a mistake is not made twice.

What a micro-batch is is the only thing an oracle is told about a run, since results may depend on it (an order is
checked against the stock that is known when it is dealt with). Spark writes it down before it begins (the offset log
of the checkpoint) and keeps to it whatever happens.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from onceflow.errors import ConfigError
from onceflow.pipelines.pipeline import Pipeline

__all__ = ["REFERENCES", "Expected", "Message", "Oracle", "Page", "Raw", "Reference", "reference_named"]


class Message(NamedTuple):
    """A record of a sample, to be written to an input topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    """In ms, never less than that of the message before."""


class Raw(NamedTuple):
    """A record of an input topic, as an oracle sees it."""

    timestamp: int
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class Expected(NamedTuple):
    """A record that must have been written."""

    topic: str
    """As the pipeline calls it; for dead letters `NAME_dead_letters`."""
    key: str | None
    value: Mapping[str, Any] | None
    """The JSON object in it."""


class Page(NamedTuple):
    """A page of a step's state, as it was found in the state store."""

    step: int
    """0 is the first."""
    name: str
    content: Any


class Oracle(Protocol):
    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        """All that a micro-batch must write. `records`: all of its input, sorted."""

    def state(self) -> Mapping[str, Any]:
        """All that must be in the state now."""


@dataclass(frozen=True)
class Reference:
    """The three modules of a reference pipeline, by what they offer."""

    pipeline: Pipeline
    state: Callable[[Iterable[Page]], Mapping[str, Any]]
    """What was found in the state store, in the words of the oracle."""
    generate: Callable[[int, int], Iterator[Message]]
    """From a seed, so many messages: always the same."""
    oracle: Callable[[], Oracle]


REFERENCES: Final[Mapping[str, str]] = {
    "orders": "orders are checked against the stock and summed up by user",
    "viewing": "what people watch changes what is recommended to them, and trains a model",
    "pricing": "prices of rides from demand and supply, with an audit trail",
}


def reference_named(name: str) -> Reference:
    if name not in REFERENCES:
        raise ConfigError(f"there is no pipeline {name!r}: there is {', '.join(REFERENCES)}")
    module, sample, oracle = (
        importlib.import_module(f"onceflow.pipelines.{folder}{name}") for folder in ("", "samples.", "oracles.")
    )
    return Reference(module.PIPELINE, module.state, sample.generate, oracle.Oracle)
