"""A Spark session with what an exactly-once job needs, and a list of what was set and why.

    spark = onceflow.spark.session("orders", master="local[4]")

What you set yourself (arguments, spark-defaults.conf, spark-submit --conf) is never changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["Setting", "recommended", "session"]


class Setting(NamedTuple):
    name: str
    value: str
    why: str


_FILE_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_PROGRESS_BARS: Final = "spark.ui.showConsoleProgress"
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def recommended(master: str | None) -> list[Setting]:
    """For a job on this master; None if spark-submit decides."""
    settings = [
        Setting("spark.sql.streaming.stateStore.providerClass", _ROCKSDB, "state on disk, not in the JVM's heap"),
        Setting(
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
            "true",
            "a micro-batch writes what changed, not a snapshot of all state",
        ),
        Setting(
            "spark.sql.execution.arrow.maxRecordsPerBatch", "20000", "fewer, larger batches between JVM and Python"
        ),
        Setting("spark.speculation", "false", "a speculative copy of a task that writes can only wait"),
        Setting("spark.sql.streaming.minBatchesToRetain", "100", "enough of the logs to go back to, and no more"),
    ]
    if _is_in_one_process(master):
        settings.append(
            Setting(_FILE_MANAGER, _FILES, "checkpoint files on this machine, without a process (readlink) for each")
        )
    if master is not None and master.startswith("local"):
        cores = max(2, os.cpu_count() or 2)
        settings += [
            Setting(
                "spark.sql.shuffle.partitions", str(cores), "one per core; fixed by the first run of a stateful query"
            ),
            Setting(_PROGRESS_BARS, "false", "progress bars of jobs that take milliseconds"),
        ]
    return settings


def session(
    app_name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, quiet: bool = False
) -> Any:
    """A session with the source registered. It says on stderr what it set, unless `quiet`."""
    from pyspark.sql import SparkSession

    from onceflow.spark.source import register

    if (master or "").startswith("local"):
        # Executors are on this machine: they are to run the Python that has this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {**_given_elsewhere(master, conf or {}), **(conf or {})}
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    chosen = [each for each in recommended(master) if each.name not in given]
    for each in chosen:
        builder = builder.config(each.name, each.value)
    spark = builder.getOrCreate()
    register(spark)
    if any(each.name == _FILE_MANAGER for each in chosen):
        _write_no_checksum_files(spark)
    if not quiet:
        _say(app_name, chosen)
    return spark


def _is_in_one_process(master: str | None) -> bool:
    """`local` and `local[2]`, not `local-cluster[...]`."""
    return master is not None and (master == "local" or master.startswith("local["))


def _write_no_checksum_files(spark: Any) -> None:
    """Hadoop writes a second file beside each, with a checksum, and puts the two in place one after the other. A file
    that is written again, as that of a micro-batch that runs again, must not be found with the checksum of the one
    before: the checkpoint could not be read any more. Spark's other file manager has none of these files either.
    """
    files = spark._jvm.org.apache.hadoop.fs.FileSystem
    files.get(spark._jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _given_elsewhere(master: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """What spark-submit and spark-defaults.conf say. Only the JVM knows, so it is started here, with these settings."""
    from pyspark import SparkConf, SparkContext

    wanted = SparkConf(loadDefaults=False)
    for name, value in {**({"spark.master": master} if master else {}), **conf}.items():
        wanted.set(name, value)
    SparkContext._ensure_initialized(conf=wanted)  # type: ignore[attr-defined,unused-ignore]
    given = dict(SparkConf().getAll())
    if given.get(_PROGRESS_BARS) == "true":
        del given[_PROGRESS_BARS]  # what spark-submit sets for every Python program that starts a JVM by itself
    return given


def _say(app_name: str, settings: list[Setting]) -> None:
    print(f"onceflow session {app_name!r}: set", file=sys.stderr)
    for each in settings:
        print(f"  {each.name}={each.value}  # {each.why}", file=sys.stderr)
