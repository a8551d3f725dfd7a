"""A reference pipeline as small as can be: clicks are counted by page, and the pages' counts by site.

It has all that `orders` has (two steps with state, dead letters, an oracle) and nothing to think about, so that what
fails with it is the machinery.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from onceflow.pipelines import Input, Lands, Pipeline, Record, Send, State, Step
from onceflow.pipelines.reference import Expected, Message, Page, Raw, Reference

PAGES = 40
SITES = 5
BAD_EVERY = 50
BEGAN = 1_700_000_000_000


class Click(NamedTuple):
    page: str


class Views(NamedTuple):
    site: str
    page: str
    views: int


def count(state: State, clicks: list[Record[Click]]) -> Iterator[Send | Views]:
    for page, number in Counter(click.value.page for click in clicks).items():
        views = state[page] = state.get(page, 0) + number
        yield Send("page_views", page, {"page": page, "views": views})
        yield Views(page.partition("/")[0], page, number)


def add_up(state: State, views: list[Views]) -> Iterator[Send]:
    for site, number in _sums((each.site, each.views) for each in views).items():
        total = state[site] = state.get(site, 0) + number
        yield Send("site_views", site, {"site": site, "views": total})


def _sums(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, number in pairs:
        sums[name] += number
    return sums


class PageViews(NamedTuple):
    page: str
    views: int


class SiteViews(NamedTuple):
    site: str
    views: int


PIPELINE = Pipeline(
    name="clicks",
    inputs=[Input("clicks", Click, partitions=2)],
    steps=[Step(count, by="page"), Step(add_up, by="site", takes=Views)],
    outputs={"page_views": 3, "site_views": 2},
    lands=[
        Lands("page_views", PageViews, key=["page"], mode="upsert", order_by=["views"]),
        Lands("page_views", PageViews, table="all_page_views"),
        Lands("site_views", SiteViews, key=["site"], mode="upsert"),
    ],
)


def generate(seed: int, records: int) -> Iterator[Message]:
    chance = random.Random(seed)
    for number in range(records):
        page = f"site-{chance.randrange(SITES)}/{chance.randrange(PAGES)}"
        value = b"{" if number % BAD_EVERY == BAD_EVERY - 1 else json.dumps({"page": page}).encode()
        yield Message("clicks", number % 2, page.encode(), value, BEGAN + number)


def state(pages: Iterable[Page]) -> Mapping[str, Any]:
    return {f"{('page', 'site')[each.step]} {each.name}": each.content for each in pages}


class Oracle:
    def __init__(self) -> None:
        self._views: Counter[str] = Counter()
        self._sites: Counter[str] = Counter()

    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        good = [json.loads(each.value or b"")["page"] for each in records if each.value != b"{"]
        sites = [page.partition("/")[0] for page in good]
        self._views.update(good)
        self._sites.update(sites)
        return [
            *(Expected("page_views", page, {"page": page, "views": self._views[page]}) for page in set(good)),
            *(Expected("site_views", site, {"site": site, "views": self._sites[site]}) for site in set(sites)),
            *(Expected("clicks_dead_letters", None, _letter(each)) for each in records if each.value == b"{"),
        ]

    def state(self) -> Mapping[str, Any]:
        return {
            **{f"page {page}": views for page, views in self._views.items()},
            **{f"site {site}": views for site, views in self._sites.items()},
        }


def _letter(record: Raw) -> dict[str, Any]:
    return {
        "reason": "not JSON",
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": (record.key or b"").decode(),
        "value": "{",
    }


REFERENCE = Reference(PIPELINE, state, generate, Oracle)
