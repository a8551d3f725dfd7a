"""The driver's side of a micro-batch without Spark's JVM: the tasks of these DataFrames write nothing, or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceflow.client.cluster import Cluster
from onceflow.spark import SinkListener, TakenOver
from onceflow.spark import sink as sink_module
from onceflow.spark.batch_writer import BatchWriter, Recorded
from onceflow.spark.listening import BatchResult
from onceflow.spark.progress import Progress, read_progress
from onceflow.spark.query import MicroBatch
from onceflow.spark.sink import KafkaSink
from onceflow.spark.writing import WriteSettings
from onceflow.verify.lossy_proxy import Action, Fate, Hooks, LossyProxy
from tests.conformance.conftest import RunningBroker
from tests.conformance.test_shared_transaction import ThroughProxy


class _Context:
    master = "local[2]"


class _Session:
    sparkContext = _Context()  # noqa: N815 - the names are Spark's


class Frame:
    """As much of a DataFrame as the driver's side looks at."""

    sparkSession = _Session()  # noqa: N815
    schema = None

    def __init__(self, at_first: Callable[[], None] = lambda: None) -> None:
        self.runs = 0
        self._at_first = at_first

    def mapInArrow(self, *_: object) -> Frame:  # noqa: N802
        return self

    def collect(self) -> list[Any]:
        self.runs += 1
        if self.runs == 1:
            self._at_first()
        return []


@pytest.fixture
def app_id(new_name: Callable[[], str]) -> str:
    return new_name()


@pytest.fixture
def settings(broker: RunningBroker, topic: str) -> WriteSettings:
    return WriteSettings(bootstrap_servers=broker.bootstrap, topic=topic, delivery_timeout_ms=1000, retries=2)


@pytest.fixture
def new_writer(settings: WriteSettings, app_id: str) -> Iterator[Callable[[], BatchWriter]]:
    writers: list[BatchWriter] = []

    def make() -> BatchWriter:
        writers.append(BatchWriter(settings, app_id))
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
