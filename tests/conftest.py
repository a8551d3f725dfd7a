"""Fixtures of the suites that run against two brokers: each is one per process, whichever suites the process runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from tests.support.brokers import BROKERS, RunningBroker, Shared, running_broker
from tests.support.raw import Wire


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=BROKERS, help="run the suites for two brokers against this one only")


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    with ExitStack() as stack:
        yield Shared(stack)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, shared: Shared) -> RunningBroker:
    return running_broker(request.param, shared)


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Topic names that no other test uses and that say whose they are."""
    test = request.node.originalname.removeprefix("test_")[:60]
    return lambda: f"{test}-{uuid4().hex[:8]}"


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Wire]:
    """The protocol itself, for the tests that no client would help with."""
    with Wire(broker.bootstrap) as wire:
        yield wire


@pytest.fixture
def topic(wire: Wire, new_name: Callable[[], str]) -> str:
    """An empty topic with one partition."""
    name = new_name()
    wire.create_topic(name)
    return name
