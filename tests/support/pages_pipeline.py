"""A pipeline of two small steps for tests of the stages: views of pages, and lists of who saw what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from onceflow.pipelines import Input, Pipeline, Record, Send, State, Step
from onceflow.spark.packed_rows import unpack_rows


class Click(NamedTuple):
    page: str
    user: str


class View(NamedTuple):
    user: str
    page: str


def count(state: State, clicks: list[Record[Click]]) -> Iterator[Any]:
    for click in clicks:
        state[click.value.page] = state.get(click.value.page, 0) + 1
        yield View(click.value.user, click.value.page)
        yield Send("views", click.value.page, {"views": state[click.value.page]})


def listed(state: State, views: list[View]) -> Iterator[Send]:
    yield Send("lists", None, " ".join(f"{view.user}:{view.page}" for view in views))


PAGES = Pipeline(
    name="pages",
    inputs=[Input("clicks", Click)],
    steps=[Step(count, by="page"), Step(listed, by="user", takes=View, shards=1)],
    outputs={"views": 1, "lists": 1},
)


def sent(packed: list[bytes]) -> list[tuple[str, str | None, str | None]]:
    """Topics, keys and values of packed rows."""
    batch = pa.RecordBatch.from_arrays([pa.array(packed, pa.binary())], names=["packed"])
    rows = [row for each in unpack_rows([batch]) for row in each.to_pylist()]
    return [(row["topic"], _text(row["key"]), _text(row["value"])) for row in rows]


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()
