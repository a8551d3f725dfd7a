"""Many of the worst frames at the same time, each on a connection of its own: together they may not cost more memory
than one of them, or keep anybody waiting for longer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceflow.broker.handlers import APIS
from tests.support.effort import SOAK, effort
from tests.support.furnished import furnish
from tests.support.honest_client import HonestClient
from tests.support.worst_case import MEMORY_MAX, MeasuredBroker
from tests.support.worst_frames import SIZES, Frame, worst_frames

CONNECTIONS = 60
TURNS_MAX_S = 0.25
"""CPU time of one turn of the loop, in which each of the connections may have one of its own. Beyond that, who asks
something else would notice: `WAIT_MAX_S` of `test_frames`."""
ROUNDS = effort(1, soak=30)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    data: Path = tmp_path_factory.mktemp("hostile") / "data"
    with MeasuredBroker(data) as running:
        yield running
        assert "Traceback" not in running.reports, running.reports[running.reports.index("Traceback") - 300 :][:4000]


@pytest.mark.timeout(3600 if SOAK else 300)
@pytest.mark.parametrize("size", ["64 KB", "1 MB", "8 MB"] if SOAK else ["1 MB"])
def test_many_of_the_worst_frames_at_once(broker: MeasuredBroker, size: str) -> None:
    with broker.client() as client:
        world = furnish(client)
    dice = random.Random()
    for _ in range(ROUNDS):
        chosen: list[Frame] = []
        while len(chosen) < CONNECTIONS:
            api_key = dice.choice(list(APIS))
            version = dice.randint(APIS[api_key].min_version, APIS[api_key].max_version)
            made = list(worst_frames(api_key, version, SIZES[size], world))
            chosen += dice.sample(made, min(len(made), 4))
        with HonestClient(broker.bootstrap) as honest:
            cost = broker.cost_of_all([frame.data for frame in chosen])
            honest.await_rounds(3)
        assert cost.turn_s < TURNS_MAX_S, "\n".join(map(str, [cost, *chosen]))
        assert cost.peak_bytes < MEMORY_MAX, "\n".join(map(str, [cost, *chosen]))
