"""Programs of clients (`tests/support/clients/programs.py`) are believed only if the log says the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

import onceflow
from tests.support.clients.programs import SCENARIOS, Played, Program
from tests.support.raw import Wire, batch

Play = Callable[..., Played]
SAYS_OF_ALL = """
import json, sys
for scenario in sys.argv[3:]:
    print(json.dumps({"scenario": scenario, "error": %r}))
"""


@pytest.fixture(scope="module")
def running() -> Iterator[onceflow.Broker]:
    with onceflow.Broker(data_dir=None) as broker:
        yield broker


@pytest.fixture
def wire(running: onceflow.Broker) -> Iterator[Wire]:
    with Wire(running.bootstrap) as wire:
        yield wire


@pytest.fixture
def play(running: onceflow.Broker) -> Play:
    return lambda code, prefix, *scenarios: Played(
        Program([sys.executable, "-c", code]), running.bootstrap, prefix, scenarios
    )


def test_a_program_that_says_nothing_has_failed_and_what_it_printed_is_told(play: Play, wire: Wire) -> None:
    silent = play("import sys; sys.exit('no such library')", "silent", "records")
    with pytest.raises(AssertionError, match=r"nothing was said; the program ended with 1:\nno such library"):
        silent.check("records", wire)


def test_what_a_program_complains_of_is_told(play: Play, wire: Wire) -> None:
    sad = play(SAYS_OF_ALL % "the broker closed the connection", "sad", "records")
    with pytest.raises(AssertionError, match="the broker closed the connection"):
        sad.check("records", wire)


def test_a_program_that_did_nothing_is_not_believed(play: Play, wire: Wire) -> None:
    content = [
        each for each in SCENARIOS if each not in ("records", "group", "rebalance", "consumer protocol", "admin")
    ]
    idle = play(SAYS_OF_ALL % None, "idle", *content)
    for scenario in content:
        with pytest.raises(AssertionError):
            idle.check(scenario, wire)


def test_a_program_that_did_not_compress_is_not_believed(play: Play, wire: Wire) -> None:
    lazy = play(SAYS_OF_ALL % None, "lazy", "none", "gzip")
    for codec in ("none", "gzip"):
        wire.produce(f"lazy-{codec}", batch(*map(str, range(100))))
    lazy.check("none", wire)
    with pytest.raises(AssertionError):
        lazy.check("gzip", wire)
