"""A query that is stopped in the middle of a micro-batch: it ends without an exception, its thread in the JVM ends
without an error, and the next run writes what is missing, once.

What the stop interrupts differs from place to place: a job that is cancelled, or a call into the JVM from a thread
that has been interrupted. Spark tells a stop from a failure by the text of the exception.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from onceflow.sinks import SqlSink
from onceflow.spark import SinkListener, Step, sinks
from tests.spark.programs.holding import begun, held
from tests.spark.streams import Streams
from tests.support.brokers import RunningBroker
from tests.support.waiting import eventually

STOP_S = 60.0
COUNT = 6
ALL = sorted(map(str, range(COUNT)))


def steps(*daily: Step, more: tuple[Step, ...]) -> list[Any]:
    """`more`: what is interrupted there is the same as elsewhere, today."""
    return [
        *(pytest.param(step, id=step.value) for step in daily),
        *(pytest.param(step, id=step.value, marks=pytest.mark.faults) for step in more),
    ]


INTO_KAFKA = steps(Step.COMMIT, more=(Step.FENCE, Step.PROGRESS, Step.WRITE, Step.VERIFY, Step.RECORD))
INTO_SQL = steps(Step.WRITE, more=(Step.FENCE, Step.STAGE, Step.VERIFY, Step.MERGE, Step.COMMIT))


class UncaughtErrors:
    """What ended threads of the JVM."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def uncaughtException(self, thread: Any, problem: Any) -> None:  # noqa: N802, Java's name
        self.all.append(f"{thread.getName()}: {problem.getClass().getName()}")

    class Java:
        implements = ("java.lang.Thread$UncaughtExceptionHandler",)


@pytest.fixture
def uncaught(spark: SparkSession) -> Iterator[list[str]]:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)
    threads, handler = gateway.jvm.java.lang.Thread, UncaughtErrors()
    before = threads.getDefaultUncaughtExceptionHandler()
    threads.setDefaultUncaughtExceptionHandler(handler)
    yield handler.all
    threads.setDefaultUncaughtExceptionHandler(before)


@pytest.fixture
def streams(spark: SparkSession, broker: RunningBroker, new_name: Callable[[], str], tmp_path: Path) -> Streams:
    return Streams(spark, broker.bootstrap, new_name(), tmp_path)


class Stopper(SinkListener):
    """Has the query stopped by another thread when a step begins, and lets the step go on once Spark has noted it."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._may_stop = threading.Event()
        self._noted = threading.Event()

    def before(self, step: Step, batch_id: int) -> None:
        if step is self._step:
            self._may_stop.set()
            assert self._noted.wait(STOP_S)

    def stop(self, query: StreamingQuery) -> None:
        assert self._may_stop.wait(STOP_S), query.exception()
        stopping = threading.Thread(target=query.stop)
        stopping.start()
        eventually(lambda: not query.isActive, "Spark notes that the query stops")
        self._noted.set()
        stopping.join(STOP_S)
        assert not stopping.is_alive(), "the query does not stop"


def assert_ended_in_silence(query: StreamingQuery, uncaught: list[str]) -> None:
    assert query.exception() is None
    assert uncaught == []


@pytest.mark.parametrize("step", INTO_KAFKA)
def test_a_stop_before_any_step_into_kafka_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str], step: Step
) -> None:
    streams.send(range(COUNT))
    stopper = Stopper(step)
    query = streams.start(streams.sink(listeners=[stopper]))
    stopper.stop(query)
    assert_ended_in_silence(query, uncaught)
    streams.run()
    assert streams.values() == ALL


@pytest.mark.faults
@pytest.mark.parametrize("step", INTO_SQL)
def test_a_stop_before_any_step_into_a_database_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str], step: Step, tmp_path: Path
) -> None:
    file = tmp_path / "landed.db"

    def sink(*listeners: SinkListener) -> SqlSink:
        return SqlSink(
            url=f"sqlite:///{file}", app_id=streams.app_id, table="landed", create_table=True, listeners=listeners
        )

    def values(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("CAST(value AS string) AS value")

    streams.send(range(COUNT))
    stopper = Stopper(step)
    query = streams.start(sink(stopper), values)
    stopper.stop(query)
    assert_ended_in_silence(query, uncaught)
    streams.run(sink(), values)
    with sqlite3.connect(file) as connection:
        assert sorted(value for (value,) in connection.execute("SELECT value FROM landed")) == ALL
    connection.close()


def test_a_stop_while_tasks_run_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str], tmp_path: Path
) -> None:
    streams.send(range(COUNT))
    sink = streams.sink()
    query = streams.start(lambda frame, batch_id: sink(held(frame, tmp_path, batch_id), batch_id))
    eventually((tmp_path / begun(0, 0, 0)).exists, "the task has begun", timeout_s=STOP_S)
    query.stop()
    assert_ended_in_silence(query, uncaught)
    streams.run()
    assert streams.values() == ALL


@pytest.mark.faults
@pytest.mark.parametrize("step", steps(Step.WRITE, more=(Step.FENCE,)))
def test_a_stop_while_several_sinks_write_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str], step: Step
) -> None:
    """The rows are kept for all of them, and given up in a thread that has been interrupted."""
    streams.send(range(COUNT))
    stopper = Stopper(step)
    second = streams.sink(app_id=f"{streams.app_id}-2")
    query = streams.start(sinks(streams.sink(listeners=[stopper]), second))
    stopper.stop(query)
    assert_ended_in_silence(query, uncaught)
    streams.run(sinks(streams.sink(), streams.sink(app_id=f"{streams.app_id}-2")))
    assert streams.values() == sorted(2 * ALL)


@pytest.mark.faults
def test_a_stop_while_a_committed_batch_is_computed_again_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str], tmp_path: Path
) -> None:
    streams.send(range(COUNT))
    streams.run()
    streams.forget_last_commit()
    sink = streams.sink()
    query = streams.start(lambda frame, batch_id: sink(held(frame, tmp_path, batch_id), batch_id))
    eventually((tmp_path / begun(0, 0, 0)).exists, "the task has begun", timeout_s=STOP_S)
    query.stop()
    assert_ended_in_silence(query, uncaught)
    streams.run()
    assert streams.values() == ALL


def test_a_stop_while_the_source_asks_a_broker_that_does_not_answer_ends_the_query_in_silence(
    streams: Streams, uncaught: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(STOP_S)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        query = streams.start(**{"kafka.bootstrap.servers": address})
        asked, _ = silent.accept()
        with asked:
            query.stop()
    assert_ended_in_silence(query, uncaught)
