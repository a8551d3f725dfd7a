"""The worst frame of every API and version: nobody else may notice it.

A sample each time, all of them in a soak. How long the event loop was at one thing is measured in CPU time, which does
not depend on what else the machine does; how long an honest client waits does, and is judged in a soak only.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.handlers import APIS
from tests.support.effort import SOAK
from tests.support.furnished import furnish
from tests.support.honest_client import HonestClient
from tests.support.worst_case import MEMORY_MAX, TURN_MAX_S, Cost, MeasuredBroker
from tests.support.worst_frames import SIZES, Frame, World, worst_frames

WAIT_MAX_S = 0.25
RECOVERY_S = 1.0
SAMPLE = 8
"""Frames of each API; all of them in a soak."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    data: Path = tmp_path_factory.mktemp("hostile") / "data"
    with MeasuredBroker(data) as running:
        yield running
        assert "Traceback" not in running.reports, running.reports[running.reports.index("Traceback") - 300 :][:4000]


@pytest.fixture(scope="module")
def honest(broker: MeasuredBroker) -> Iterator[HonestClient]:
    with HonestClient(broker.bootstrap) as client:
        yield client


def frames(api_key: int, world: World) -> Iterator[Frame]:
    api = APIS[api_key]
    if SOAK:
        for version in range(api.min_version, api.max_version + 1):
            for size in SIZES.values():
                yield from worst_frames(api_key, version, size, world)
        return
    dice = random.Random()
    versions = {api.max_version, dice.randint(api.min_version, api.max_version)}
    for version in versions:
        for size in ("64 KB", "1 MB"):
            made = list(worst_frames(api_key, version, SIZES[size], world))
            yield from dice.sample(made, min(len(made), SAMPLE // (2 * len(versions))))


@pytest.mark.timeout(14_400 if SOAK else 600)
@pytest.mark.parametrize("api_key", APIS, ids=[api.module for api in APIS.values()])
def test_the_worst_frames_of_an_api_cost_nobody_else_anything(
    api_key: int, broker: MeasuredBroker, honest: HonestClient
) -> None:
    with broker.client() as client:
        world = furnish(client)
    began = time.monotonic()
    too_much: list[tuple[Frame, Cost]] = []
    for frame in frames(api_key, world):
        cost = broker.cost_of(frame.data)
        if cost.turn_s > TURN_MAX_S or cost.peak_bytes > MEMORY_MAX:
            too_much.append((frame, cost))
    honest.await_rounds(3)
    assert not too_much, "\n".join(f"{frame}: {cost}" for frame, cost in too_much)
    if SOAK:
        waits = honest.waits_s(began)
        assert waits[len(waits) * 99 // 100] < WAIT_MAX_S
        time.sleep(RECOVERY_S)  # what is tested: that it takes no longer
        began = time.monotonic()
        honest.await_rounds(30)
        assert honest.waits_s(began)[-1] < WAIT_MAX_S
