"""A client of Spark Connect, without a driver of its own: says what becomes of each way to use the package.

Arguments: the address of the server, that of a broker, and the names of two topics. Prints a line of JSON for each
thing it tries: its name, and what came back or which exception.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame

import onceflow.spark
from onceflow.spark import KafkaSink


def main(server: str, bootstrap: str, source: str, target: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    onceflow.spark.register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    rows = spark.read.format("onceflow").options(**options).load().select("key", "value")
    stream = spark.readStream.format("onceflow").options(**options).load().select("key", "value")
    where = {"bootstrap_servers": bootstrap, "topic": target}
    sink = KafkaSink(app_id=target, **where)

    def sink_of_its_own(frame: DataFrame, batch_id: int) -> None:
        KafkaSink(app_id=target, **where)(frame, batch_id)

    def streamed() -> list[str]:
        query = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
        query.awaitTermination(120)
        return _values(spark.table("streamed"))

    def written_by_sink_of_its_own() -> None:
        query = stream.writeStream.foreachBatch(sink_of_its_own).trigger(availableNow=True).start()
        query.awaitTermination(120)

    attempt("batch read", lambda: _values(rows))
    attempt("stream read", streamed)
    attempt("sink", lambda: stream.writeStream.foreachBatch(sink))
    attempt("sink in a function", lambda: stream.writeStream.foreachBatch(lambda frame, number: sink(frame, number)))
    attempt("sink made on the server", written_by_sink_of_its_own)
    attempt("write", lambda: onceflow.spark.write(rows, **where).rows)
    attempt("write at least once", lambda: onceflow.spark.write(rows, guarantee="at_least_once", **where).rows)


def attempt(name: str, do: Callable[[], object]) -> None:
    try:
        result: dict[str, object] = {"returned": do()}
    except Exception as problem:
        result = {"raised": type(problem).__name__, "said": str(problem), "kinds": _kinds(problem)}
    print(json.dumps({"name": name, **result}), flush=True)


def _values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.collect())


def _kinds(problem: Exception) -> list[str]:
    return [each.__name__ for each in type(problem).__mro__]


if __name__ == "__main__":
    main(*sys.argv[1:])
