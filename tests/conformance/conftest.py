"""One suite, two brokers: every test here runs against Onceflow and against Apache Kafka, and expects the same of both.

`--broker onceflow` or `--broker kafka` runs one half. Without Java there is no reference to compare with, and the half
that needs it fails with a sentence that says what to install: a silent skip would look like conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import pytest

import onceflow
from tests.support.apache_kafka import ApacheKafka
from tests.support.clients.coordinated.aio import CoordinatedAioClient
from tests.support.clients.coordinated.confluent import CoordinatedConfluentClient
from tests.support.clients.coordinated.java import CoordinatedJavaClient
from tests.support.clients.coordinated.kafka_python import CoordinatedKafkaPythonClient
from tests.support.kafka_jars import JarsMissing, JavaMissing
from tests.support.raw import Wire
from tests.support.raw_transactions import V1, V2, TransactionalProducer, TransactionProtocol

# Tests live there too, and their assertions deserve pytest's explanations.
pytest.register_assert_rewrite(
    "tests.conformance.scenarios", "tests.conformance.transaction_scenarios", "tests.conformance.group_scenarios"
)

BROKERS = ("onceflow", "kafka")
SETTINGS: Mapping[str, int] = {
    # Timed-out transactions are found by a scan; every ten seconds is too seldom for a test to wait for it.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    # Members die in these tests, and what the broker tells the others it tells in answers to heartbeats.
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 2000,
    "group.consumer.heartbeat.interval.ms": 200,
}
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


class Shared:
    """Brokers and clients that all tests of a process use: started when first asked for, ended after the last test.

    A fixture with a parameter would end, and start again, whenever the parameter changes.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[object, Any] = {}

    def get(self, key: object, start: Callable[[], AbstractContextManager[T]]) -> T:
        if key not in self._running:
            self._running[key] = self._stack.enter_context(start())
        found: T = self._running[key]
        return found


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    with ExitStack() as stack:
        yield Shared(stack)


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, shared: Shared) -> RunningBroker:
    if request.param == "kafka":
        return started(lambda: shared.get("kafka", lambda: ApacheKafka(SETTINGS)))
    running = shared.get("onceflow", lambda: onceflow.Broker(data_dir=None, settings=SETTINGS))
    return _Onceflow(running.bootstrap)


@pytest.fixture(scope="session")
def confluent(broker: RunningBroker, shared: Shared) -> CoordinatedConfluentClient:
    return shared.get((broker.name, "confluent"), lambda: closing(CoordinatedConfluentClient(broker.bootstrap)))


@pytest.fixture(scope="session")
def aiokafka(broker: RunningBroker, shared: Shared) -> CoordinatedAioClient:
    return shared.get((broker.name, "aiokafka"), lambda: closing(CoordinatedAioClient(broker.bootstrap)))


@pytest.fixture(scope="session")
def kafka_python(broker: RunningBroker, shared: Shared) -> CoordinatedKafkaPythonClient:
    return shared.get((broker.name, "kafka-python"), lambda: closing(CoordinatedKafkaPythonClient(broker.bootstrap)))


@pytest.fixture(scope="session")
def java(broker: RunningBroker, shared: Shared) -> CoordinatedJavaClient:
    return started(
        lambda: shared.get((broker.name, "java"), lambda: closing(CoordinatedJavaClient(broker.bootstrap)))
    )


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


@pytest.fixture(params=[V1, V2], ids=lambda protocol: protocol.name)
def protocol(request: pytest.FixtureRequest) -> TransactionProtocol:
    """Classic transactions, and those of KIP-890."""
    return request.param


@pytest.fixture
def new_producer(
    wire: Wire, new_name: Callable[[], str], protocol: TransactionProtocol
) -> Callable[[], TransactionalProducer]:
    """Transactional producers, each with an id of its own, ready to write."""
    return lambda: TransactionalProducer(wire, new_name(), protocol).init()


@pytest.fixture
def producer(new_producer: Callable[[], TransactionalProducer]) -> TransactionalProducer:
    return new_producer()


@pytest.fixture
def classic(wire: Wire, new_name: Callable[[], str]) -> TransactionalProducer:
    """A producer of the first protocol, for what the second one has not."""
    return TransactionalProducer(wire, new_name(), V1).init()


@pytest.fixture
def bumping(wire: Wire, new_name: Callable[[], str]) -> TransactionalProducer:
    """A producer of the second protocol, in which every end bumps the epoch."""
    return TransactionalProducer(wire, new_name(), V2).init()
