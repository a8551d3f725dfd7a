"""The driver's side of a micro-batch without Spark's JVM: the tasks of these DataFrames write nothing, or fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import onceflow
from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.client.shared_transaction import SharedTransaction, _look
from onceflow.errors import ErrorCode
from onceflow.spark import BatchFailed, SinkListener, TakenOver, TransactionTimedOut
from onceflow.spark import sink as sink_module
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.listening import BatchResult
from onceflow.spark.progress import Progress, read_progress
from onceflow.spark.query import MicroBatch
from onceflow.spark.sink import KafkaSink
from onceflow.spark.writing import WriteSettings
from onceflow.verify.lossy_proxy import Action, Fate, Hooks, LossyProxy
from onceflow.wire.messages.describe_transactions import DescribeTransactionsRequest, TransactionState
from tests.conformance.conftest import SETTINGS, RunningBroker, started
from tests.conformance.test_shared_transaction import ThroughProxy
from tests.support.apache_kafka import QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.brokers import Shared
from tests.support.waiting import eventually


class _Context:
    master = "local[2]"


class _Session:
    sparkContext = _Context()  # noqa: N815 - the names are Spark's


class Frame:
    """As much of a DataFrame as the driver's side looks at."""

    sparkSession = _Session()  # noqa: N815
    schema = None

    def __init__(self, at_first: Callable[[], None] = lambda: None, *, always: bool = False) -> None:
        """`at_first`: what the tasks of the first run do, or those of all."""
        self.runs = 0
        self._at_first = at_first
        self._always = always

    def mapInArrow(self, *_: object) -> Frame:  # noqa: N802
        return self

    def collect(self) -> list[Any]:
        self.runs += 1
        if self.runs == 1 or self._always:
            self._at_first()
        return []


@pytest.fixture
def app_id(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def settings(broker: RunningBroker, topic: str) -> WriteSettings:
    return WriteSettings(bootstrap_servers=broker.bootstrap, topic=topic, delivery_timeout_ms=1000, retries=2)


@pytest.fixture
def new_writer(settings: WriteSettings, app_id: str) -> Iterator[Callable[..., BatchWriter]]:
    writers: list[BatchWriter] = []

    def make(version: int | None = None, **changes: Any) -> BatchWriter:
        writers.append(BatchWriter(replace(settings, **changes), app_id, version=version))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def recorded(app_id: str, batch_id: int, query_id: str = "query") -> Recorded:
    return Recorded(Progress(app_id=app_id, query_id=query_id, batch_id=batch_id, at_ms=1))


def test_driver_whose_abort_is_not_answered_does_not_take_the_app_back_from_its_successor(
    broker: RunningBroker, settings: WriteSettings, app_id: str, new_writer: Callable[[], BatchWriter]
) -> None:
    host, _, port = broker.bootstrap.partition(":")
    first, second = new_writer(), new_writer()
    with LossyProxy((host, int(port))) as proxy, Cluster(settings.client) as cluster:
        first._cluster = ThroughProxy(proxy)
        first.fence(5)
        assert first.progress(5) is None

        def trouble() -> None:
            proxy.plan = Hooks(request=lambda _: Action(Fate.SWALLOW))  # the network of the first driver is gone
            second.fence(5)
            assert second.progress(5) is None
            second.write(Frame(), 5, "second", recorded(app_id, 5, "second"))
            threading.Timer(1.5, proxy.heal).start()
            raise RuntimeError("its tasks fail, too")

        with pytest.raises(TakenOver):
            first.write(Frame(trouble), 5, "first", recorded(app_id, 5, "first"))
        known = read_progress(cluster, app_id)
        assert known is not None
        assert (known.query_id, known.batch_id) == ("second", 5)
        second.write(Frame(), 6, "second", recorded(app_id, 6, "second"))


def test_batch_that_fails_is_run_again_under_a_new_epoch(new_writer: Callable[[], BatchWriter], app_id: str) -> None:
    writer = new_writer()
    writer.fence(0)
    writer.progress(0)

    def fail() -> None:
        raise RuntimeError("once")

    frame = Frame(fail)
    result = writer.write(frame, 0, "query", recorded(app_id, 0))
    assert (frame.runs, result.attempts) == (2, 2)
    assert writer.write(Frame(), 1, "query", recorded(app_id, 1)).attempts == 1


@pytest.mark.parametrize("name", ["onceflow-sequencer", "onceflow-recording"])
def test_thread_that_cannot_be_started_does_not_end_the_query(
    app_id: str,
    cluster: Cluster,
    new_writer: Callable[..., BatchWriter],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    start, failures = threading.Thread.start, iter(["can't start new thread"])

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == name and (reason := next(failures, None)):
            raise RuntimeError(reason)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    ready(new_writer()).write(Frame(), 0, "query", recorded(app_id, 0))
    assert next(failures, None) is None
    await_committed(cluster, app_id, "query", 0)


def test_port_that_somebody_else_has_is_named_with_the_settings(
    app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BatchFailed, match=rf"cannot listen at 127.0.0.1:{port}.*KafkaSink\(driver_host="):
            ready(new_writer(driver_port=port)).write(Frame(), 0, "query", recorded(app_id, 0))
    assert read_progress(cluster, app_id) is None


# --- a transaction that is over


def state(cluster: Cluster, app_id: str) -> TransactionState:
    coordinator = cluster.node(cluster.transaction_coordinator(app_id).id)
    [found] = coordinator.ask(DescribeTransactionsRequest(transactional_ids=[app_id])).transaction_states
    return found


def outlive_the_timeout(cluster: Cluster, app_id: str) -> Callable[[], None]:
    """What is recorded is written while tasks run, so the transaction is open."""

    def wait() -> None:
        eventually(lambda: state(cluster, app_id).transaction_state == "Ongoing", "the transaction is open")
        eventually(lambda: state(cluster, app_id).transaction_state == "CompleteAbort", "the broker aborts it")

    return wait


@pytest.fixture
def cluster(settings: WriteSettings) -> Iterator[Cluster]:
    with Cluster(settings.client) as cluster:
        yield cluster


def ready(writer: BatchWriter, batch_id: int = 0) -> BatchWriter:
    writer.fence(batch_id)
    writer.progress(batch_id)
    return writer


def test_batch_whose_transaction_times_out_is_run_again_by_itself(
    settings: WriteSettings, app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter]
) -> None:
    writer = ready(new_writer(transaction_timeout_ms=1000))
    frame = Frame(outlive_the_timeout(cluster, app_id))
    assert writer.write(frame, 0, "query", recorded(app_id, 0)).attempts == 2
    await_committed(cluster, app_id, "query", 0)
    assert writer.write(Frame(), 1, "query", recorded(app_id, 1)).attempts == 1


def test_batch_whose_transaction_times_out_every_time_names_the_setting(
    app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter]
) -> None:
    writer = ready(new_writer(transaction_timeout_ms=1000, retries=1))
    frame = Frame(outlive_the_timeout(cluster, app_id), always=True)
    with pytest.raises(TransactionTimedOut, match=r"failed 2 times; nothing of it is visible.*transaction_timeout_ms"):
        writer.write(frame, 0, "query", recorded(app_id, 0))
    assert frame.runs == 2
    assert read_progress(cluster, app_id) is None


def test_batch_that_times_out_and_was_taken_over_stops_and_leaves_the_app_to_the_other(
    app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter]
) -> None:
    first, second = ready(new_writer(transaction_timeout_ms=1000)), new_writer()

    def trouble() -> None:
        outlive_the_timeout(cluster, app_id)()
        ready(second)

    frame = Frame(trouble)
    with pytest.raises(TakenOver, match="another run with the app id"):
        first.write(frame, 0, "first", recorded(app_id, 0, "first"))
    assert frame.runs == 1
    assert second.write(Frame(), 0, "second", recorded(app_id, 0, "second")).attempts == 1


@pytest.mark.parametrize("code", [ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING])
def test_refusal_that_is_no_takeover_has_the_batch_run_again(
    app_id: str,
    cluster: Cluster,
    new_writer: Callable[..., BatchWriter],
    monkeypatch: pytest.MonkeyPatch,
    code: ErrorCode,
) -> None:
    writer = ready(new_writer())
    refuse_once(monkeypatch, lambda: _look(code, "ending the transaction"))
    assert writer.write(Frame(), 0, "query", recorded(app_id, 0)).attempts == 2
    await_committed(cluster, app_id, "query", 0)


def test_error_that_asks_for_an_abort_has_the_batch_aborted_and_run_again(
    app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ready(new_writer())
    refuse_once(monkeypatch, lambda: _look(ErrorCode.TRANSACTION_ABORTABLE, "ending the transaction"))
    assert writer.write(Frame(), 0, "query", recorded(app_id, 0)).attempts == 2
    await_committed(cluster, app_id, "query", 0)


def test_reason_is_told_if_a_refused_batch_may_not_be_run_again(
    app_id: str, new_writer: Callable[..., BatchWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ready(new_writer(retries=0))
    refuse_once(monkeypatch, lambda: _look(ErrorCode.INVALID_TXN_STATE, "ending the transaction"))
    with pytest.raises(BatchFailed, match="there is no transaction in which that could be done"):
        writer.write(Frame(), 0, "query", recorded(app_id, 0))


def refuse_once(patch: pytest.MonkeyPatch, refuse: Callable[[], None]) -> None:
    """The first commit."""
    commit, refusals = SharedTransaction.commit, iter([refuse])

    def commit_or_not(transaction: SharedTransaction) -> None:
        next(refusals, lambda: None)()
        commit(transaction)

    patch.setattr(SharedTransaction, "commit", commit_or_not)


def await_committed(cluster: Cluster, app_id: str, query_id: str, batch_id: int) -> None:
    """Markers are written after the commit was answered."""

    def is_known() -> bool:
        known = read_progress(cluster, app_id)
        return known is not None and (known.query_id, known.batch_id) == (query_id, batch_id)

    eventually(is_known, f"batch {batch_id} of {query_id} is what was committed last")


# --- a transactional id that has expired


EXPIRES = {
    **SETTINGS,
    "transactional.id.expiration.ms": 2000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
}


@pytest.fixture
def forgetful(broker: RunningBroker, shared: Shared, topic: str) -> str:
    """A broker that forgets transactional ids soon."""
    if broker.name == "kafka":
        kafka = started(
            lambda: shared.get("forgetful kafka", lambda: ApacheKafka(EXPIRES, jvm_options=QUICK_JVM_OPTIONS))
        )
        bootstrap = kafka.bootstrap
    else:
        ours = shared.get("forgetful onceflow", lambda: onceflow.Broker(data_dir=None, settings=EXPIRES))
        bootstrap = ours.bootstrap
    Admin(ClientSettings(bootstrap=bootstrap)).create(topic, partitions=1)
    return bootstrap


class TestExpiredId:
    @pytest.fixture
    def settings(self, forgetful: str, topic: str) -> WriteSettings:
        return WriteSettings(bootstrap_servers=forgetful, topic=topic, delivery_timeout_ms=10_000, retries=2)

    def expire(self, cluster: Cluster, app_id: str) -> None:
        gone = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        eventually(lambda: state(cluster, app_id).error_code == gone, "the id is forgotten", timeout_s=60)

    @pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.faults), 2], ids=["V1", "V2"])
    def test_query_goes_on_by_itself(
        self, app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter], version: int
    ) -> None:
        writer = ready(new_writer(version))
        writer.write(Frame(), 0, "query", recorded(app_id, 0))
        for batch_id in (1, 2):
            self.expire(cluster, app_id)
            writer.write(Frame(), batch_id, "query", recorded(app_id, batch_id))
            await_committed(cluster, app_id, "query", batch_id)

    @pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.faults), 2], ids=["V1", "V2"])
    def test_query_stops_if_another_has_committed_and_was_forgotten_too(
        self, app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter], version: int
    ) -> None:
        first, second = ready(new_writer(version)), new_writer(version)
        first.write(Frame(), 0, "first", recorded(app_id, 0, "first"))
        self.expire(cluster, app_id)
        ready(second, 1).write(Frame(), 1, "second", recorded(app_id, 1, "second"))
        self.expire(cluster, app_id)
        with pytest.raises(TakenOver, match="has committed batch 1 since"):
            first.write(Frame(), 1, "first", recorded(app_id, 1, "first"))
        await_committed(cluster, app_id, "second", 1)

    @pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.faults), 2], ids=["V1", "V2"])
    def test_query_stops_if_another_has_the_id_now(
        self, app_id: str, cluster: Cluster, new_writer: Callable[..., BatchWriter], version: int
    ) -> None:
        first, second = ready(new_writer(version)), new_writer(version)
        first.write(Frame(), 0, "first", recorded(app_id, 0, "first"))
        self.expire(cluster, app_id)
        ready(second, 1)
        with pytest.raises(TakenOver, match="another run with the app id"):
            first.write(Frame(), 1, "first", recorded(app_id, 1, "first"))
        second.write(Frame(), 1, "second", recorded(app_id, 1, "second"))
        await_committed(cluster, app_id, "second", 1)


# --- the rest


def test_nothing_to_write_and_nothing_to_record_is_no_error(new_writer: Callable[[], BatchWriter]) -> None:
    writer = new_writer()
    writer.fence(0)
    assert writer.write(Frame(), 0, "query", Recorded()).rows == 0
    assert writer.write(Frame(), 0, "query", Recorded()).rows == 0


class _Broken(SinkListener):
    def on_batch(self, result: BatchResult) -> None:
        if not result.skipped:
            raise RuntimeError("this listener is broken")


def test_listener_that_raises_after_the_commit_does_not_have_the_batch_written_again(
    broker: RunningBroker, app_id: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "check_columns", lambda *_: None)
    monkeypatch.setattr(sink_module, "claim", lambda *_: None)
    runs = iter(("first run", "second run"))
    monkeypatch.setattr(
        sink_module,
        "running_batch",
        lambda _, number: MicroBatch(query_id="query", run_id=next(runs), batch_id=number, entry=str(number)),
    )
    skipped: list[bool] = []
    monkeypatch.setattr(Frame, "write", property(lambda self: skipped.append(True) or _Writer()), raising=False)
    sink = KafkaSink(app_id=app_id, bootstrap_servers=broker.bootstrap, topic=topic, listeners=[_Broken()])
    try:
        with pytest.raises(RuntimeError, match="this listener is broken"):
            sink(Frame(), 0)
        again = Frame()
        sink(again, 0)
        assert (again.runs, skipped) == (0, [True])
    finally:
        sink.close()


class _Writer:
    """The `noop` sink."""

    def format(self, name: str) -> _Writer:
        assert name == "noop"
        return self

    def mode(self, name: str) -> _Writer:
        return self

    def save(self) -> None: ...
