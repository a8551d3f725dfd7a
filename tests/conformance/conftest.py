"""One suite, two brokers: every test here runs against Onceflow and against Apache Kafka, and expects the same of both.

`--broker onceflow` or `--broker kafka` runs one half. Without Java there is no reference to compare with, and the half
that needs it fails with a sentence that says what to install: a silent skip would look like conformance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.support.brokers import SETTINGS, RunningBroker, Shared, run_against_both, started
from tests.support.clients.coordinated.aio import CoordinatedAioClient
from tests.support.clients.coordinated.confluent import CoordinatedConfluentClient
from tests.support.clients.coordinated.java import CoordinatedJavaClient
from tests.support.clients.coordinated.kafka_python import CoordinatedKafkaPythonClient
from tests.support.raw import Wire
from tests.support.raw_transactions import V1, V2, TransactionalProducer, TransactionProtocol

# Tests live there too, and their assertions deserve pytest's explanations.
pytest.register_assert_rewrite(
    "tests.conformance.scenarios", "tests.conformance.transaction_scenarios", "tests.conformance.group_scenarios"
)

__all__ = ["SETTINGS", "RunningBroker", "started"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


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
    return started(lambda: shared.get((broker.name, "java"), lambda: closing(CoordinatedJavaClient(broker.bootstrap))))


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
