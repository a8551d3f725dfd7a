"""Fixtures of the suites that run against two brokers, each one per process, and who runs what if there are several.

Spark's tests take longest, so they go first, and those that share a session with a JVM stay together: one process for
each broker. So do all tests on Apache Kafka: one Kafka for all of them, where each process would start its own.
Everything else is divided by module and class, as xdist's `loadscope` does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import hypothesis
import pytest

from onceflow.signals import restore_signals
from tests.support import browser
from tests.support.brokers import BROKERS, RunningBroker, Shared, running_broker
from tests.support.browser import HOW_TO_GET_ONE
from tests.support.effort import SOAK, effort
from tests.support.raw import Wire


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", choices=BROKERS, help="run the suites for two brokers against this one only")
    parser.addoption(
        "--repeat", type=int, default=1, metavar="N", help="run each test N times, with the brokers that it shares"
    )


@pytest.hookimpl(trylast=True)  # its part of a test's name comes last: tools/repeat_tests.py takes it off
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (times := metafunc.config.getoption("repeat")) > 1:
        metafunc.fixturenames.append("again")
        metafunc.parametrize("again", range(1, times + 1), indirect=True, ids="again{}".format)


@pytest.fixture
def again(request: pytest.FixtureRequest) -> int:
    """Which time it is, with `--repeat`."""
    return int(request.param)


SPARK = "tests/spark/"
ON_KAFKA = "Apache Kafka"
WITH_A_SESSION = (
    "test_sink.py",
    "test_source.py",
    "test_resuming.py",
    "test_metrics.py",
    "test_broker_faults.py",
    "test_failover.py",
    "test_security.py",
    "test_jvm_source.py",
    "test_connect.py",
    "test_infrastructure.py",
    "test_stopping.py",
    "test_several_sinks.py",
)
KAFKA_ONLY = ("test_failover.py", "test_security.py", "test_cluster.py")
BESIDE_KAFKA = ("tests/sinks/test_sql_sink_spark.py",)
"""It shares the session with the tests on Apache Kafka, which are fewer than those on our broker."""

SELECTED = (
    "tests/spark/", "tests/verify/", "tests/pipelines/", "tests/sinks/",
    *(
        f"tests/conformance/{module}"
        for module in (
            "test_aiokafka.py", "test_cli", "test_confluent.py", "test_fetching.py", "test_groups.py", "test_java",
            "test_kafka_python.py", "test_kafka_tools.py", "test_streams.py", "test_transactions.py",
            "test_batch_writer.py::TestExpiredId",  # on a Kafka of their own, which forgets transactional ids
        )
    ),
)  # fmt: skip
"""Places of which `make test` has a selection: on Apache Kafka only what is marked. Whether commands and clients work
with a real Kafka is asked by `make faults`; how Kafka answers to the letter (test_raw_*), each time. Whoever names a
broker gets everything."""
STARTED_FIRST = ("tests/spark/", "tests/pipelines/", "tests/verify/", "tests/docs/", "tests/sinks/")
"""What takes longest, in this order, and after Spark what needs Apache Kafka: whoever begins with it is not waited for
in the end."""


def pytest_configure(config: pytest.Config) -> None:
    # In this process and in xdist's workers, each of which comes here: what tests start inherits it, also where the
    # tests run in the background of a shell, which ignores SIGINT and SIGQUIT there.
    restore_signals()
    # The last two are limits on wall-clock time, which a busy machine exceeds with examples that are fine.
    hypothesis.settings.register_profile(
        "onceflow",
        max_examples=effort(40, soak=1_000),
        print_blob=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("onceflow")
    config.addinivalue_line(
        "markers", "daily_on_kafka: `make test` runs it on Apache Kafka too, not on our broker only"
    )
    config.addinivalue_line("markers", "faults: takes long; only `make faults` runs it")
    config.addinivalue_line(
        "markers", "tried(tool, what, version): a row of the tools in docs/clients.md, made by `make clients`"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    if SOAK or config.getoption("broker", default=None):
        return
    left_out = {item for item in items if not _is_daily(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests that are skipped for want of a browser have one place, and so one line in the summary."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith(HOW_TO_GET_ONE):
        report.longrepr = (browser.__file__, 1, report.longrepr[2])
    return report


def _turn(item: pytest.Item) -> float:
    if environment_of(item.nodeid) == ON_KAFKA:
        return 0.5
    folders = enumerate(STARTED_FIRST)
    return next((turn for turn, folder in folders if item.nodeid.startswith(folder)), len(STARTED_FIRST))


def _is_daily(item: pytest.Item) -> bool:
    if item.get_closest_marker("faults"):
        return False
    if not item.nodeid.startswith(SELECTED):
        return True
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    on_kafka = "kafka" in (parameters.get("broker"), parameters.get("brokers"))
    return not on_kafka or item.get_closest_marker("daily_on_kafka") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByEnvironment(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return environment_of(nodeid) or super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # by the number of tests; the order of collection is by what they cost
    return ByEnvironment(config, log)


def environment_of(nodeid: str) -> str | None:
    """What belongs into one process since it shares what takes long to start; None if that is nothing."""
    on_kafka = "[kafka" in nodeid or nodeid.startswith(BESIDE_KAFKA)
    if on_kafka and not SOAK:  # in a soak that would be too much for one
        return ON_KAFKA
    if not nodeid.startswith(SPARK):
        return None
    module = nodeid.removeprefix(SPARK).partition("::")[0]
    broker = "kafka" if on_kafka or module in KAFKA_ONLY else "onceflow"
    return f"a session with {broker}" if module in WITH_A_SESSION else f"{module} with {broker}"


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
