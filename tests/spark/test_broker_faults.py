"""What happens between the driver and its broker: a crash of the broker, answers that are lost, a second driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import onceflow
from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster
from onceflow.client.connection import Connection
from onceflow.client.settings import ClientSettings
from onceflow.spark import batch_writer
from onceflow.verify.lossy_proxy import PASS, Action, Fate, Frame, Hooks, LossyProxy
from tests.spark.copying import Copying
from tests.spark.streams import Results
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import SETTINGS, RunningBroker, started
from tests.support.spark import DriverProcess

PER_BATCH = 20
END_TXN = 26
NewCopying = Callable[..., Copying]


@pytest.fixture
def new_copying(new_name: Callable[[], str], tmp_path: Path, new_driver: Callable[..., DriverProcess]) -> NewCopying:
    def make(bootstrap: str, *, batches: int = 3) -> Copying:
        count = batches * PER_BATCH
        return Copying(bootstrap, new_name(), tmp_path, new_driver, count=count, per_batch=PER_BATCH)

    return make


# --- the broker dies


def _own(name: str) -> AbstractContextManager[onceflow.Broker | ApacheKafka]:
    """A broker to be killed: the shared one is for everybody."""
    if name == "kafka":
        return ApacheKafka(SETTINGS, jvm_options=QUICK_JVM_OPTIONS)
    return onceflow.Broker(settings=SETTINGS)


@pytest.mark.faults  # of every day: `onceflow demo` in tests/pipelines, whose broker is killed
@pytest.mark.timeout(600)
def test_query_goes_on_by_itself_after_its_broker_was_killed_in_the_middle_of_a_batch(
    broker: RunningBroker, spark: SparkSession, new_copying: NewCopying
) -> None:
    with started(lambda: _own(broker.name)) as own:
        copying = new_copying(own.bootstrap)
        results = Results()
        with copying.watcher() as watcher:
            query = copying.query(spark, results, held={1: {}})
            before = copying.await_written(1)
            own.kill()
            copying.let_go(1)
            own.start()
            copying.finish(query)
            copying.check(watcher)
        assert results.committed == [0, 1, 2]
        assert [each.attempts for each in results.all] == [1, 1, 1], "the transaction has outlived its broker"
        assert set(before) <= set(copying.output())


# --- answers are lost


class _ThroughProxy(Cluster):
    """All brokers are reached at the proxy's address, whatever they advertise."""

    def __init__(self, settings: ClientSettings, proxy: LossyProxy) -> None:
        super().__init__(replace(settings, bootstrap=proxy.address))

    def _connection(self, address: Address) -> Connection:
        return super()._connection(self._settings.addresses[0])


@pytest.fixture
def proxy(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossyProxy]:
    """Between the driver's side of the sink and the broker."""
    host, _, port = broker.bootstrap.rpartition(":")
    with LossyProxy((host, int(port))) as proxy:
        monkeypatch.setattr(batch_writer, "Cluster", lambda settings: _ThroughProxy(settings, proxy))
        yield proxy


class _Troubled(Hooks):
    """Ends of transactions meet these fates in turn, in both directions: request, answer, request, answer and so on."""

    def __init__(self, fates: Iterable[Fate]) -> None:
        fates = iter(fates)

        def decide(frame: Frame) -> Action:
            return Action(next(fates, Fate.PASS)) if frame.api_key == END_TXN else PASS

        super().__init__(request=decide, response=decide)


ANSWER_LOST = (Fate.PASS, Fate.SWALLOW)
ANSWER_TORN = (Fate.PASS, Fate.TEAR)
REQUEST_LOST = (Fate.SWALLOW,)
WELL = (Fate.PASS, Fate.PASS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.faults), 2], ids=["V1", "V2"])
def test_commit_whose_answer_is_lost_is_asked_for_again_and_done_once(
    version: int, broker: RunningBroker, proxy: LossyProxy, spark: SparkSession, new_copying: NewCopying
) -> None:
    copying = new_copying(broker.bootstrap)
    proxy.plan = _Troubled([*ANSWER_LOST, *WELL, *REQUEST_LOST, *ANSWER_LOST, *ANSWER_TORN, *WELL, *ANSWER_LOST])
    results = Results()
    with copying.watcher() as watcher:
        query = copying.query(spark, results, sink={"transaction_version": version})
        copying.finish(query)
        copying.check(watcher)
    assert [(each.batch_id, each.attempts) for each in results.all] == [(0, 1), (1, 1), (2, 1)]
    assert (proxy.counters.responses_swallowed, proxy.counters.responses_torn) == (3, 1)
    assert proxy.counters.requests_swallowed == 1


@pytest.mark.timeout(300)
def test_commit_that_is_never_answered_stops_the_query_and_the_next_run_finds_that_it_was_done(
    broker: RunningBroker, proxy: LossyProxy, spark: SparkSession, new_copying: NewCopying
) -> None:
    copying = new_copying(broker.bootstrap)
    proxy.plan = _Troubled([*WELL, *ANSWER_LOST * 1000])
    results = Results()
    with copying.watcher() as watcher:
        query = copying.query(spark, results, sink={"delivery_timeout_ms": 1000})
        with pytest.raises(StreamingQueryException, match="CommitUnknown"):
            copying.finish(query)
        assert results.committed == [0]
        proxy.heal()
        copying.finish(copying.query(spark, results))
        copying.check(watcher)
    assert (results.committed, results.skipped) == ([0, 2], [1])


# --- another driver


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_second_driver_with_the_same_app_id_takes_over_and_the_first_one_stops_and_says_so(
    broker: RunningBroker, spark: SparkSession, new_copying: NewCopying
) -> None:
    copying = new_copying(broker.bootstrap)
    results = Results()
    with copying.watcher() as watcher:
        first = copying.driver(held={1: {}})
        copying.await_written(1)
        copying.finish(copying.query(spark, results))
        assert results.committed == [1, 2], "it goes on with what the first one had begun"
        copying.let_go(1)
        assert first.wait() == 3, first.log[-6000:]
        copying.check(watcher)
    assert "TakenOver" in first.log
    assert f"another run with the app id '{copying.app_id}' has taken over" in first.log
