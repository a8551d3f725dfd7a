"""Whoever looks into the tables sees whole micro-batches only: all tables and the progress, at one border."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from onceflow.sinks.tables import Table
from onceflow.spark.listening import SinkListener, Step
from tests.support.sql_sink_cases import Case
from tests.support.sql_sink_places import Place, SqlitePlace
from tests.support.sql_sink_without_spark import Job
from tests.support.waiting import eventually

NewJob = Callable[..., Job]
BATCHES, ROWS, TASKS = 6, 300, 3
LOOK = """
    SELECT (SELECT count(*) FROM events), (SELECT coalesce(sum(id), 0) FROM events),
           (SELECT count(*) FROM latest), (SELECT coalesce(sum(version), 0) FROM latest),
           (SELECT coalesce(sum(seen), 0) FROM counts),
           (SELECT count(*) FROM alive), (SELECT coalesce(sum(id), 0) FROM alive),
           (SELECT coalesce(max(batch_id), -1) FROM onceflow_progress)
"""


def _part(name: str) -> Any:
    return lambda frame: frame.parts[name]


CASE = Case(
    "visible",
    [
        Table("events", rows=_part("events"), create=True),
        Table("latest", key=["id"], mode="upsert", rows=_part("latest"), create=True),
        Table("counts", key=["word"], mode="increment", rows=_part("counts"), create=True),
        Table("alive", key=["id"], mode="delete_and_upsert", rows=_part("alive"), create=True),
    ],
    {
        "events": "id bigint",
        "latest": "id bigint, version bigint",
        "counts": "word string, seen bigint",
        "alive": "id bigint, deleted boolean",
    },
    [
        {
            "events": [[(batch * ROWS + n,) for n in range(task, ROWS, TASKS)] for task in range(TASKS)],
            "latest": [[(n, batch) for n in range(task, ROWS, TASKS)] for task in range(TASKS)],
            "counts": [[(f"w{n % 7}", 1) for n in range(task, ROWS, TASKS)] for task in range(TASKS)],
            # Each deletes what the last one brought, so there are never more or less.
            "alive": [
                [(batch * ROWS + n, False) for n in range(ROWS)],
                [((batch - 1) * ROWS + n, True) for n in range(ROWS)],
            ],
        }
        for batch in range(BATCHES)
    ],
)


def border(batch: int) -> tuple[int, ...]:
    """What is there to be seen after this micro-batch; -1 is before the first."""
    count = (batch + 1) * ROWS
    if batch < 0:
        return (0, 0, 0, 0, 0, 0, 0, -1)
    alive = sum(range(batch * ROWS, count))
    return (count, sum(range(count)), ROWS, batch * ROWS, count, ROWS, alive, batch)


class Onlooker:
    """Looks all the time, with one connection."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: list[tuple[int, ...]] = []

    def _connect(self) -> Any:
        if isinstance(self._place, SqlitePlace):
            return contextlib.closing(sqlite3.connect(self._place.path))
        return psycopg.connect(self._place.url, autocommit=True)

    def _look(self) -> None:
        with self._connect() as connection:
            while not self._ends.is_set():
                self.seen.append(tuple(map(int, connection.execute(LOOK).fetchone())))

    def __enter__(self) -> Onlooker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


class WaitsToBeSeen(SinkListener):
    """The driver goes on when somebody has begun to look after each step, and has seen something."""

    def __init__(self) -> None:
        self.onlooker: Onlooker | None = None

    def after(self, step: Step, batch_id: int) -> None:
        if self.onlooker is not None:
            looks, onlooker = len(self.onlooker.seen), self.onlooker
            eventually(lambda: len(onlooker.seen) >= looks + 2, "somebody looks", every_s=0.001)


@pytest.fixture
def landed(place: Place, new_job: NewJob) -> tuple[Job, list[tuple[int, ...]]]:
    job, slow = new_job(place, CASE), WaitsToBeSeen()
    driver = job.driver(slow).run(0)
    with Onlooker(place) as onlooker:
        slow.onlooker = onlooker
        driver.run(*range(1, BATCHES))
    return job, onlooker.seen


def test_every_look_sees_the_tables_and_the_progress_at_the_border_of_a_micro_batch(
    landed: tuple[Job, list[tuple[int, ...]]],
) -> None:
    job, seen = landed
    borders = {border(batch) for batch in range(BATCHES)}
    assert [look for look in seen if look not in borders] == []
    assert set(seen) == borders, "somebody looked between all of them"
    assert [look[-1] for look in seen] == sorted(look[-1] for look in seen), "nothing is taken back"
    job.check(BATCHES - 1)
