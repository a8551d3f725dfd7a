"""What leaves a sink when its query was stopped, without Spark: Spark recognises it by its text."""

from __future__ import annotations

import re
import traceback
from types import SimpleNamespace
from typing import Any, Final

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from onceflow.spark import stopping
from onceflow.spark.problems import BatchFailed, CommitUnknown, QueryStopped
from onceflow.spark.stopping import stop_is_recognised

GROUP: Final = "6f2c-run"
WITH_JAVAS_TRACE: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
STACK_TRACE: Final = 500 * "\tat org.apache.spark.Some.method(Some.scala:1)\n"


class Context:
    def getLocalProperty(self, name: str) -> str:  # noqa: N802, Spark's name
        return {"sql.streaming.queryId": "query", "spark.jobGroup.id": GROUP}[name]


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The DataFrame of a query that was stopped."""
    monkeypatch.setattr(stopping, "query_is_active", lambda spark, query_id: False)
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=Context()))


@pytest.fixture
def active(stopped: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(stopping, "query_is_active", lambda spark, query_id: True)
    return stopped


def fail_for_java() -> None:
    try:
        raise Py4JError(f"{WITH_JAVAS_TRACE} o1.collectToPython.\n{STACK_TRACE}")
    except Py4JError as problem:
        raise BatchFailed("batch 3 failed once") from problem


def test_after_a_stop_the_text_is_short_and_names_the_cancelled_job_group(stopped: Any) -> None:
    with pytest.raises(QueryStopped) as raised, stop_is_recognised(stopped, 3):
        fail_for_java()
    text = "".join(traceback.format_exception(raised.value))
    assert len(text) < 2000
    assert WITH_JAVAS_TRACE not in text
    assert re.search(rf"org\.apache\.spark\.SparkException.*{GROUP}.*cancelled", text)
    assert "micro-batch 3" in text


def test_an_exception_of_pyspark_is_recognised_too(stopped: Any) -> None:
    with pytest.raises(QueryStopped), stop_is_recognised(stopped, 3):
        raise PySparkRuntimeError("interrupted")


def test_what_is_raised_while_a_stop_is_cleaned_up_is_part_of_the_stop(stopped: Any) -> None:
    def fail_twice() -> None:
        try:
            with stop_is_recognised(stopped, 3):
                fail_for_java()
        finally:
            raise Py4JError(f"{WITH_JAVAS_TRACE} o1.unpersist.\n{STACK_TRACE}")

    with pytest.raises(QueryStopped) as raised, stop_is_recognised(stopped, 3):
        fail_twice()
    assert len("".join(traceback.format_exception(raised.value))) < 2000


def test_the_failure_of_a_query_that_was_not_stopped_keeps_its_cause(active: Any) -> None:
    with pytest.raises(BatchFailed) as raised, stop_is_recognised(active, 3):
        fail_for_java()
    assert isinstance(raised.value.__cause__, Py4JError)


def test_what_is_not_sparks_is_told_even_if_the_query_was_stopped(stopped: Any) -> None:
    with pytest.raises(CommitUnknown), stop_is_recognised(stopped, 3):
        raise CommitUnknown("the commit was not answered")


def test_without_a_jvm_the_problem_is_told_as_it_is(stopped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(spark: Any, query_id: str) -> bool:
        raise Py4JError("Answer from Java side is empty")

    monkeypatch.setattr(stopping, "query_is_active", gone)
    with pytest.raises(BatchFailed), stop_is_recognised(stopped, 3):
        fail_for_java()
