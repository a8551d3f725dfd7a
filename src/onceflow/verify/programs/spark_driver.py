"""A Spark driver: copies a topic and counts its records by key, each micro-batch as one transaction.

    input --+--> copies: the same id and key, to `output`, in the order of their input partition
            +--> groupBy(key).count(), kept in Spark's state store: the new counts, to `state`

Both come out of one query, so one transaction holds the copies of a micro-batch, the counts that follow from them,
and the source offsets. What a life does is in the history as the sink's listener hears of it:

    take     step 1, the fence, once per life
    commit   step 6, with the offsets where the micro-batch ends

A commit that the coordinator refused is called failed: what the sink says is certain is claimed here, and the verdict
shows whether it was.

A transaction is named PROCESS/BATCH. If the sink aborts a micro-batch and runs it again, both attempts have this
name: the rows carry it, and they are the same rows. Aborts are not recorded for that reason; an attempt that was
aborted and is visible all the same shows as a duplicate.

A life that has lost its query ends with an error, and the next one goes on from the checkpoint. If it was the sink or
the source that refused to go on, its last words say so (`refusal`): `workloads/spark_faults.py` waits for them.

Records that are `PADDING` only move the offsets of a source topic; they are not copied.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from onceflow.client.cluster import TopicPartition
from onceflow.spark.listening import SinkListener, Step
from onceflow.spark.problems import TakenOver, TransactionTimedOut
from onceflow.verify.history import Outcome, Recorder
from onceflow.verify.programs.life import Life

__all__ = ["PADDING", "Chronicle", "main", "new_session", "refusal", "settle"]

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A life is over before the second compiler has earned back what it costs."""
SPARK_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "2",
    "spark.deploy.maxExecutorRetries": "-1",  # they are killed more often than Spark expects of a sane cluster
    # Executors that sleep are given up sooner than after two minutes. Not too soon, or those are given up, too, that
    # have only just started on a busy machine.
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "15s",
    "spark.network.timeoutInterval": "1s",
}
TRANSACTION_TIMEOUT_MS: Final = 180_000
"""The first micro-batch of a life has everything to start, and it is not the speed of the machine that is verified."""
DELIVERY_TIMEOUT_MS: Final = 45_000
PER_BATCH: Final = 4000
"""Records in a micro-batch at most: what has piled up behind a fault is worked off in several transactions."""
LOOK_EVERY_S: Final = 0.1
PADDING: Final = "{}"
"""The value of a record that is nobody's: it is read and goes nowhere."""
REFUSALS: Final = ("CheckpointMismatch", "DataLossError")


class Chronicle(SinkListener):
    """Writes what the sink of this life does into the history."""

    def __init__(self, record: Recorder, app_id: str) -> None:
        self._record = record
        self._app_id = app_id
        self._ends: list[list[Any]] = []
        self._taking: str | None = None
        self._committing: str | None = None

    def transaction(self, batch_id: int) -> str:
        return f"{self._record.process}/{batch_id}"

    @contextmanager
    def of(self, ends: Mapping[TopicPartition, int]) -> Iterator[None]:
        """Around the sink's work on a micro-batch that ends there. How the sink fails says what became of the
        commit, if it came to that."""
        self._ends = [[topic, partition, at] for (topic, partition), at in ends.items()]
        try:
            yield
        except (TakenOver, TransactionTimedOut):
            self._committed(Outcome.FAILED)  # it was refused: nothing of it will ever be visible
            raise
        except BaseException:
            self._committed(Outcome.UNKNOWN)
            raise

    def before(self, step: Step, batch_id: int) -> None:
        if step is Step.FENCE:
            self._taking = self._record.begin("take", transactional_id=self._app_id)
        elif step is Step.COMMIT:
            self._committed(Outcome.UNKNOWN)  # that of an attempt before, which was given up
            self._committing = self._record.begin(
                "commit", transaction=self.transaction(batch_id), group=self._app_id, offsets=self._ends
            )

    def after(self, step: Step, batch_id: int) -> None:
        if step is Step.FENCE and self._taking is not None:
            self._record.end(self._taking, Outcome.OK)
        elif step is Step.COMMIT:
            self._committed(Outcome.OK)

    def _committed(self, outcome: Outcome) -> None:
        if self._committing is not None:
            self._record.end(self._committing, outcome)
        self._committing = None


def main() -> None:
    life = Life.begin()
    settle(Path(life.settings["folder"]), life.process)
    spark = new_session(life)
    try:
        query = _start(spark, life)
        while not life.is_over and query.isActive:
            life.rest(LOOK_EVERY_S)
        query.stop()  # also of one that has failed; what it does is finished or aborted
        problem = None if life.is_over else query.exception()
    finally:
        spark.stop()
    if problem is not None:
        text = str(problem)
        named = next((refusal(life.process, each) for each in REFUSALS if each in text), "the query has failed")
        sys.exit(f"{named}: {text[:500]}")


def refusal(process: str, error: str) -> str:
    """What a life says whose query has ended with this error."""
    return f"{process}: the query has failed with {error}"


def settle(folder: Path, process: str) -> None:
    """Where Spark keeps what it keeps: nothing outside of the run's folder.

    Executors of a `local-cluster` work below SPARK_HOME, so each life gets one, which is links to the real one. It
    lacks the zip with PySpark that would come first on the path of Python workers: from there it would be compiled
    anew by each.
    """
    import pyspark

    installed = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    home = folder / process
    home.mkdir(parents=True)
    for part in ("bin", "jars"):
        (home / part).symlink_to(installed / part)
    os.environ |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": sys.executable,
    }


def new_session(life: Life) -> Any:
    import onceflow.spark

    home = os.environ["SPARK_HOME"]
    flags = f"{QUICK_JVM} -Djava.io.tmpdir={home}"
    conf = {
        **SPARK_SETTINGS,
        "spark.sql.warehouse.dir": f"{home}/warehouse",
        "spark.driver.defaultJavaOptions": flags,  # "extra" ones are for whoever starts us
        "spark.executor.defaultJavaOptions": flags,
    }
    spark = onceflow.spark.session(life.process, master=life.settings["master"], conf=conf, quiet=True)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _start(spark: Any, life: Life) -> Any:
    settings = life.settings
    source = (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", life.bootstrap)
        .option(*settings["subscription"])
        .option("failOnDataLoss", settings["fail_on_data_loss"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .options(**{f"kafka.{name}": value for name, value in settings["client_config"].items()})
        .load()
    )
    return (
        _copied_and_counted(source, settings["output"], settings["state"])
        .writeStream.outputMode("update")
        .foreachBatch(_writer(life))
        .option("checkpointLocation", settings["checkpoint"])
        .start()
    )


def _copied_and_counted(source: Any, output: str, state: str) -> Any:
    """Topic and key of each row, and the fields of its value but for the transaction, which `_writer` knows."""
    from pyspark.sql import functions as sql

    text = sql.col("value").cast("string")
    source = source.where(text != PADDING)
    records = source.select(*(sql.get_json_object(text, f"$.{name}").alias(name) for name in ("id", "key")))
    copies = records.select(sql.lit(output).alias("topic"), "key", "id", sql.col("key").alias("of"))
    counts = records.groupBy("key").count()
    states = counts.select(
        sql.lit(state).alias("topic"), "key", sql.col("key").alias("state"), sql.col("count").alias("n")
    )
    return copies.unionByName(states, allowMissingColumns=True)


def _writer(life: Life) -> Callable[[Any, int], None]:
    """The function for `foreachBatch`."""
    from pyspark.sql import functions as sql

    from onceflow.spark.query import running_batch
    from onceflow.spark.sink import KafkaSink

    app_id = life.settings["app_id"]
    chronicle = Chronicle(life.record, app_id)
    sink = KafkaSink(
        app_id=app_id,
        bootstrap_servers=life.bootstrap,
        listeners=[chronicle],
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        kafka=life.settings["client_config"],
    )

    def write(frame: Any, batch_id: int) -> None:
        name = sql.lit(chronicle.transaction(batch_id)).alias("txn")
        value = sql.to_json(sql.struct("id", sql.col("of").alias("key"), "state", "n", name))  # without what is null
        ends = running_batch(frame, batch_id).ends
        with chronicle.of({place: at for place, at in ends.items() if place[0] == life.settings["input"]}):
            sink(frame.select("topic", "key", value.alias("value")), batch_id)

    return write


if __name__ == "__main__":
    main()
