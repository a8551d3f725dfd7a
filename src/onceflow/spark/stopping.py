"""A query that is stopped while a sink works for it.

`query.stop()` notes that the query has ended, cancels its jobs and interrupts its thread. Whatever the sink asks of
the JVM next raises. Spark then has to tell this from a failure, and in PySpark it has only text to go by: the traceback
of what `foreachBatch` raised (`StreamExecution.isInterruptionException`). It looks for

    py4j.protocol.Py4JJavaError: An error occurred while calling((.|\\r\\n|\\r|\\n)*)(...InterruptedException|...)

and Java's regular expressions recurse for each character of such a group. The traceback has Java's stack trace in it,
10,000 characters or more: too many for the stack of the query's thread, which then ends with a StackOverflowError
(PySpark 4.2 and 4.3). So what leaves a sink after a stop is short, has no such traceback behind it, and says what Spark
looks for next: that a SparkException cancelled the job group of this run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from onceflow.spark.problems import QueryStopped
from onceflow.spark.query import QUERY_ID, query_is_active

__all__ = ["stop_is_recognised"]

JOB_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def stop_is_recognised(frame: Any, batch_id: int) -> Iterator[None]:
    """Around what a sink does with a micro-batch. An exception of Spark's in a query that was stopped becomes
    `QueryStopped`, without its causes; all others pass, and all that are not Spark's."""
    try:
        yield
    except Exception as problem:
        group = _stopped_group(frame) if _is_of_spark(problem) else None
        if group is None:
            raise
        raise QueryStopped(
            f"the query was stopped in the middle of micro-batch {batch_id}, which runs again when it is started again "
            f"(org.apache.spark.SparkException: job group {group} was cancelled)"
        ) from None


def _is_of_spark(problem: BaseException) -> bool:
    """Whether something that Spark or the JVM raised is behind it, or is it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    seen: set[int] = set()
    todo: list[BaseException | None] = [problem]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, Py4JError | PySparkException):
            return True
        seen.add(id(each))
        todo += [each.__cause__, each.__context__]
    return False


def _stopped_group(frame: Any) -> str | None:
    """The job group of the query in whose thread this is, if the query was stopped."""
    from py4j.protocol import Py4JError

    try:
        spark = frame.sparkSession
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None or query_is_active(spark, query_id):
            return None
        group = spark.sparkContext.getLocalProperty(JOB_GROUP)
        return None if group is None else str(group)
    except (Py4JError, OSError):  # the JVM is gone, too
        return None
