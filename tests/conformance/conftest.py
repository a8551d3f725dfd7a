"""One suite, two brokers: every test here runs against Onceflow and against Apache Kafka, and expects the same of both.

`--broker onceflow` or `--broker kafka` runs one half. Without Java there is no reference to compare with, and the half
that needs it fails with a sentence that says what to install: a silent skip would look like conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol, TypeVar
from uuid import uuid4

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.kafka_jars import JarsMissing, JavaMissing
from tests.support.raw import Wire

# Tests live there too, and their assertions deserve pytest's explanations.
pytest.register_assert_rewrite("tests.conformance.scenarios")

BROKERS = ("onceflow", "kafka")
T = TypeVar("T")


class RunningBroker(Protocol):
    name: str

    @property
    def bootstrap(self) -> str: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=BROKERS, help="run the conformance suite against this broker only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("broker", default=None)
        metafunc.parametrize("broker", [chosen] if chosen else BROKERS, indirect=True, scope="session")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "onceflow_differs(reason): Onceflow deliberately does not do what Apache Kafka does; the test must fail there",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        differs = item.get_closest_marker("onceflow_differs")
        parameters = getattr(item, "callspec", None)
        if differs and parameters and parameters.params.get("broker") == "onceflow":
            item.add_marker(pytest.mark.xfail(reason=differs.args[0], strict=True))


def started(start: Callable[[], T]) -> T:
    """What `start` returns; without Java the test fails with the sentence that says so, and nothing around it."""
    try:
        return start()
    except (JavaMissing, JarsMissing) as error:
        sentence = str(error)
    pytest.fail(sentence, pytrace=False)


class _Onceflow:
    name = "onceflow"

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    if request.param == "kafka":
        with ExitStack() as stack:
            yield started(lambda: stack.enter_context(ApacheKafka()))
    else:
        import onceflow

        with onceflow.Broker(data_dir=None) as running:
            yield _Onceflow(running.bootstrap)


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
