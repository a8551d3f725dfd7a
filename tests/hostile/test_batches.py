"""Batches that are small on the wire and enormous inside, wherever the broker looks into one: nobody else may notice.

Where a batch is looked into: when it is produced to a topic that wants something of its records, when a record is
looked for by its time, and when the page shows the micro-batches of Spark jobs.
"""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.monitor.micro_batches import PROGRESS_TOPIC
from onceflow.ports import ReservedPort
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.effort import SOAK
from tests.support.furnished import KINDS_OF_TOPICS, furnish
from tests.support.honest_client import HonestClient
from tests.support.raw import batch, produce_request
from tests.support.raw_client import frame_of
from tests.support.waiting import eventually
from tests.support.worst_batches import Bomb, bombs
from tests.support.worst_case import MEMORY_MAX, TURN_MAX_S, Cost, MeasuredBroker
from tests.support.worst_frames import SIZES

VERSION = 9
LENGTH = 4
TIMESTAMP = 1_700_000_000_000
SAMPLE = 4
"""Batches for each place; all of them in a soak."""


@pytest.fixture(scope="module")
def page() -> str:
    return f"127.0.0.1:{ReservedPort().number}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, page: str) -> Iterator[MeasuredBroker]:
    data: Path = tmp_path_factory.mktemp("hostile") / "data"
    with MeasuredBroker(data, options=["--http", page]) as running, running.client() as client:
        furnish(client)
        yield running
        assert "Traceback" not in running.reports, running.reports[running.reports.index("Traceback") - 300 :][:4000]


def chosen(sizes: tuple[str, ...]) -> list[Bomb]:
    made = [bomb for size in sizes for bomb in bombs(SIZES[size])]
    return made if SOAK else random.Random().sample(made, SAMPLE)


def check(costs: list[tuple[Bomb, Cost]]) -> None:
    too_much = [f"{bomb.filled_with}: {cost}" for bomb, cost in costs if _is_too_much(cost)]
    assert not too_much, "\n".join(too_much)


def _is_too_much(cost: Cost) -> bool:
    return cost.turn_s > TURN_MAX_S or cost.peak_bytes > MEMORY_MAX


@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("topic", KINDS_OF_TOPICS)
def test_batches_that_unpack_to_much_cost_nobody_else_anything(broker: MeasuredBroker, topic: str) -> None:
    sizes = ("1 KB", "64 KB", "1 MB", "8 MB") if SOAK else ("1 KB", "64 KB")
    with HonestClient(broker.bootstrap) as honest:
        costs = []
        for bomb in chosen(sizes):
            frame = frame_of(produce_request(topic, bomb.batch), VERSION)[LENGTH:]
            costs.append((bomb, broker.cost_of(frame)))
        honest.await_rounds(3)
    check(costs)


@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("timestamp", [TIMESTAMP, TIMESTAMP + 1, -3], ids=["that-is-there", "later", "the-largest"])
def test_looking_for_a_time_in_them_costs_nobody_else_anything(broker: MeasuredBroker, timestamp: int) -> None:
    with broker.client() as client, HonestClient(broker.bootstrap) as honest:
        costs = []
        for at, bomb in enumerate(chosen(("1 KB", "64 KB"))):
            topic = f"by-time{timestamp}-{at}"
            client.make_topic(topic)
            if client.produce(topic, bomb.batch).error_code:
                continue
            asked = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=asked)])
            costs.append((bomb, broker.cost_of(frame_of(request, 7)[LENGTH:])))
        honest.await_rounds(3)
    check(costs)


def test_what_is_found_by_time_in_the_thread_is_right(broker: MeasuredBroker) -> None:
    """Also where it takes several steps: in a batch of many records, behind many batches."""
    with broker.client() as client:
        client.make_topic("long")
        for at in range(300):
            assert client.produce("long", batch(b"v", timestamps=[TIMESTAMP + at])).error_code == 0
        stamps = range(TIMESTAMP + 300, TIMESTAMP + 30_300)
        many = batch(*[b"v"] * len(stamps), timestamps=stamps, compression=1)
        assert client.produce("long", many).error_code == 0
        for asked, expected in (
            (TIMESTAMP, (TIMESTAMP, 0)),
            (TIMESTAMP + 299, (TIMESTAMP + 299, 299)),
            (TIMESTAMP + 25_000, (TIMESTAMP + 25_000, 25_000)),
            (TIMESTAMP + 30_300, (-1, -1)),
            (-3, (TIMESTAMP + 30_299, 30_299)),
        ):
            partition = ListOffsetsPartition(partition_index=0, timestamp=asked)
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="long", partitions=[partition])])
            [found] = client.ask(request, 7).topics[0].partitions
            assert (found.error_code, found.timestamp, found.offset) == (0, *expected)


@pytest.mark.timeout(3600 if SOAK else 300)
def test_they_keep_nobody_from_the_page_either(broker: MeasuredBroker, page: str) -> None:
    """The broker reads the progress topic every two seconds, whatever is in it."""
    with broker.client() as client:
        client.make_topic(PROGRESS_TOPIC)
    with HonestClient(broker.bootstrap) as honest:
        costs = []
        for bomb in chosen(("1 KB", "64 KB")):
            request = produce_request(PROGRESS_TOPIC, bomb.batch)
            costs.append((bomb, broker.cost_of(frame_of(request, VERSION)[LENGTH:], then=lambda: await_looks(page))))
        honest.await_rounds(3)
    check(costs)


def await_looks(page: str) -> None:
    """Until the broker has looked at what was there when this began."""
    for _ in range(2):
        before = taken_at(page)
        eventually(lambda: taken_at(page) > before, "the broker looks at the topic again")  # noqa: B023


def taken_at(page: str) -> int:
    with urllib.request.urlopen(f"http://{page}/state.json", timeout=60) as answer:
        return int(json.load(answer)["now_ms"])
