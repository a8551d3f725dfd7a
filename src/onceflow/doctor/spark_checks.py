"""Checks of Spark jobs: what they read, what they write, and the settings in between.

What is not said in a file or a program is only a fault if it cannot be said elsewhere; `UNSEEN` values are taken as
right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final

from onceflow.digits import whole_number_of
from onceflow.doctor.facts import UNSEEN, Case, SparkFacts
from onceflow.doctor.findings import Finding, fault, note, warning
from onceflow.doctor.producer_checks import IDENTITY_WHY, looks_random, timeout_findings
from onceflow.doctor.registry import spark_check

__all__: list[str] = []

SINK_TIMEOUT_MS: Final = 300_000
VERSION_MIN: Final = (4, 2)
_SINK_ARGUMENTS: Final = """
    app_id bootstrap_servers topic guarantee partitioning compression compression_level batch_bytes buffer_bytes
    transaction_timeout_ms delivery_timeout_ms batch_header retries new_checkpoint listeners driver_host driver_port
    missing_batches dead_letter_topic kafka transaction_version rows format
"""
SINK_ARGUMENTS: Final = frozenset(_SINK_ARGUMENTS.split())
"""Of KafkaSink; written down here, since to look at the class takes PySpark. And `format`, which is ours."""
KNOWN_CONF: Final = (
    "spark.speculation",
    "spark.task.maxFailures",
    "spark.master",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation",
    "spark.sql.shuffle.partitions",
    "spark.dynamicAllocation.enabled",
)
RETAIN: Final = "spark.sql.streaming.minBatchesToRetain"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")
_UNITS_MS: Final = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000}


def _true(values: Mapping[str, str], name: str) -> bool:
    return values.get(name, "").lower() == "true"


@spark_check(
    "spark.sink",
    "The sink is exactly-once",
    why="Spark's own Kafka sink has no transactions: a micro-batch that runs again is written again.",
)
def sink(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for each in job.sinks:
        if each.get("format") == "kafka":
            fix = ".foreachBatch(onceflow.spark.KafkaSink(app_id=...))"
            yield fault('the sink is format("kafka"): at least once', fix)
        elif each.get("guarantee") == "at_least_once":
            yield fault('guarantee="at_least_once"', 'guarantee="exactly_once" (the default)')
    if job.queries and not job.sinks:
        fix = "KafkaSink, SqlSink, or a sink that can take a batch twice"
        yield note("what the query writes to is not seen here", fix)
    for query in job.queries:
        if _true(query, "asyncprogresstrackingenabled"):
            yield fault("asyncProgressTrackingEnabled=true: at least once", "leave it out")


@spark_check("spark.app-id", "app_id of the sink", why=IDENTITY_WHY)
def app_id(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for each in job.our_sinks():
        name = each.get("app_id")
        if not name:
            yield fault("KafkaSink without an app_id: it refuses", 'app_id="NAME", the same over all restarts')
        elif looks_random(name):
            found = f"app_id={name} looks new at every start: the last run's progress is not found"
            yield warning(found, "a name that stays")


@spark_check(
    "spark.app-group",
    "Nobody consumes in the group of the app",
    why="KafkaSink keeps the offsets of its source in the group app_id; a consumer there would move them.",
    needs=("groups",),
)
def app_group(job: SparkFacts, case: Case) -> Iterator[Finding]:
    groups = {group.id: group for group in case.cluster.groups} if case.cluster is not None else {}
    for each in job.our_sinks():
        group = groups.get(each.get("app_id", ""))
        if group is not None and group.has_members:
            yield fault(f"the group {group.id} has members", "another app_id, or another group.id for those consumers")


@spark_check(
    "spark.isolation",
    "kafka.isolation.level of the source",
    why="Spark's own source reads uncommitted by default: records of transactions that were aborted, too.",
)
def isolation(job: SparkFacts, case: Case) -> Iterator[Finding]:
    name = "kafka.isolation.level"
    for each in job.of_kafka():
        value = each.get(name, "").lower()
        if value == "read_uncommitted" or (not value and each["format"] == "kafka"):
            found = f"{name}={value}" if value else f'{name} is not set, and format("kafka") reads uncommitted'
            yield fault(found, f'.option("{name}", "read_committed"), or format("onceflow"), where it is the default')


@spark_check(
    "spark.checkpoint",
    "The checkpoint",
    why="The checkpoint says what was read and holds the state: without it, a restart begins somewhere else.",
)
def checkpoint(job: SparkFacts, case: Case) -> Iterator[Finding]:
    shared = job.conf.get("spark.sql.streaming.checkpointLocation")
    for query in job.queries:
        place = query.get("checkpointlocation") or shared
        if place is None:
            yield fault("no checkpointLocation: Spark takes a temporary one", '.option("checkpointLocation", "...")')
        elif "checkpointlocation" not in query and "queryname" not in query:
            found = "spark.sql.streaming.checkpointLocation without queryName: a new folder at every start"
            yield fault(found, '.queryName("NAME"), or .option("checkpointLocation", "...")')
        yield from _place(place, job)
    if _true(job.conf, "spark.sql.streaming.forceDeleteTempCheckpointLocation"):
        yield warning("forceDeleteTempCheckpointLocation=true: temporary checkpoints go with the query", "leave it out")


def _place(place: str | None, job: SparkFacts) -> Iterator[Finding]:
    if place in (None, UNSEEN):
        return
    path = place.removeprefix("file://").removeprefix("file:")
    if path.startswith("/"):
        if any(path == each or path.startswith(f"{each}/") for each in TEMPORARY):
            yield warning(f"checkpointLocation={place}: systems clean up there", "a folder that stays")
        elif job.is_local is False and place.startswith("file:"):
            found = f"checkpointLocation={place} on a cluster: other machines do not see it"
            yield fault(found, "HDFS, S3, or a disk that all machines share")


@spark_check(
    "spark.trigger",
    "Trigger and transaction timeout",
    why="A micro-batch is one transaction: if it takes longer than the timeout, the broker aborts it.",
)
def trigger(job: SparkFacts, case: Case) -> Iterator[Finding]:
    timeout = min((_timeout(each) for each in job.our_sinks()), default=None)
    for query in job.queries:
        if "continuous" in query:
            yield fault("a continuous trigger: foreachBatch has none", '.trigger(processingTime="1 second")')
        interval = _interval_ms(query.get("trigger", ""))
        if timeout is not None and interval is not None and interval >= timeout:
            yield warning(
                f"a trigger of {interval} ms, and transaction_timeout_ms={timeout}: a batch of that length is aborted",
                "a larger transaction_timeout_ms, a shorter trigger, or maxOffsetsPerTrigger",
            )


@spark_check(
    "spark.transaction-timeout",
    "transaction_timeout_ms of the sink",
    why="A transaction that takes longer is aborted; one whose driver died holds readers back for so long.",
)
def transaction_timeout(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for each in job.our_sinks():
        if each.get("guarantee") != "at_least_once" and each.get("transaction_timeout_ms") != UNSEEN:
            yield from timeout_findings("transaction_timeout_ms", _timeout(each), case)


def _timeout(arguments: Mapping[str, str]) -> int:
    text = arguments.get("transaction_timeout_ms", "")
    number = whole_number_of(text)
    return SINK_TIMEOUT_MS if number is None else number


def _interval_ms(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,18})\s*([a-z]+?)s?", text.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        return None
    return int(match[1]) * _UNITS_MS[match[2]]


@spark_check(
    "spark.data-loss",
    "failOnDataLoss",
    why="With false, records that were deleted before they were read are skipped with a line in the log.",
)
def data_loss(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for each in job.of_kafka():
        if each.get("failondataloss", "").lower() == "false":
            yield warning("failOnDataLoss=false", 'leave it out, or .option("failOnDataLoss", "true")')


@spark_check(
    "spark.starting-offsets",
    "startingOffsets",
    why="The first start reads what comes from then on; later ones go on from the checkpoint.",
)
def starting_offsets(job: SparkFacts, case: Case) -> Iterator[Finding]:
    names = ("startingtimestamp", "startingoffsetsbytimestamp")
    for each in job.of_kafka():
        value = each.get("startingoffsets")
        if value == "latest" or (value is None and not any(name in each for name in names)):
            found = "startingOffsets=latest" if value else "not set: latest for streams"
            yield note(found, '.option("startingOffsets", "earliest"), if what is there already counts')


@spark_check(
    "spark.speculation",
    "spark.speculation",
    why="A second copy of a task that writes can only wait for the first, and other side effects happen twice.",
)
def speculation(job: SparkFacts, case: Case) -> Iterator[Finding]:
    if _true(job.conf, "spark.speculation"):
        yield warning("spark.speculation=true", "spark.speculation=false")


@spark_check(
    "spark.task-failures",
    "spark.task.maxFailures",
    why="A second attempt at a task never writes: the transaction is aborted and the whole micro-batch runs again.",
)
def task_failures(job: SparkFacts, case: Case) -> Iterator[Finding]:
    value = job.conf.get("spark.task.maxFailures")
    if value not in (None, UNSEEN, "4"):
        yield note(f"spark.task.maxFailures={value} does not help tasks that write", "KafkaSink(retries=...) does")


@spark_check(
    "spark.state",
    "The state store",
    why="State in the JVM's heap, written as a whole now and then, makes large state slow and starts long.",
)
def state(job: SparkFacts, case: Case) -> Iterator[Finding]:
    if job.stateful and job.conf and job.conf.get(PROVIDER) not in (ROCKSDB, UNSEEN):
        yield note("RocksDB is not the state store of this stateful job", f"{PROVIDER}={ROCKSDB}")


@spark_check(
    "spark.retained",
    RETAIN,
    why="A batch that has to run again needs the files of the one before.",
)
def retained(job: SparkFacts, case: Case) -> Iterator[Finding]:
    value = job.conf.get(RETAIN, "")
    number = whole_number_of(value)
    if number is not None and number < 2:
        yield warning(f"{RETAIN}={value}", f"{RETAIN}=100 (the default)")


@spark_check(
    "spark.new-checkpoint",
    "new_checkpoint of the sink",
    why="A start with another checkpoint loses or repeats records, unless it goes on where the app stopped.",
)
def new_checkpoint(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for each in job.our_sinks():
        value = each.get("new_checkpoint")
        if value == "accept":
            yield warning('new_checkpoint="accept": right for one start, not for good', 'leave it out, or "never"')
        elif job.stateful and value is None:
            yield note("a query with state: a new checkpoint is wrong wherever it begins", 'new_checkpoint="never"')


@spark_check(
    "spark.allocation",
    "Executors that come and go",
    why="An executor that is lost takes its part of a micro-batch along: the batch is aborted and runs again.",
)
def allocation(job: SparkFacts, case: Case) -> Iterator[Finding]:
    if _true(job.conf, "spark.dynamicAllocation.enabled"):
        fix = "false for streams, or spark.dynamicAllocation.executorIdleTimeout well above the trigger"
        yield note("spark.dynamicAllocation.enabled=true", fix)


@spark_check(
    "spark.names",
    "Names of settings and options",
    why="A setting that is misspelt has no effect; an option of Onceflow's source that does not exist is refused.",
)
def names(job: SparkFacts, case: Case) -> Iterator[Finding]:
    for name in sorted(job.conf):
        near = difflib.get_close_matches(name, KNOWN_CONF, n=1, cutoff=0.93)
        if near and name not in KNOWN_CONF and not near[0].startswith(f"{name}."):
            yield warning(f"{name} looks misspelt", f"{near[0]}, is that what is meant?")
    for each in job.sources:
        if each.get("format") == "onceflow":
            yield from _source_options(each)
    for each in job.our_sinks():
        for name in sorted(set(each) - SINK_ARGUMENTS):
            near = difflib.get_close_matches(name, SINK_ARGUMENTS, n=1)
            yield fault(f"KafkaSink has no argument {name}", f"{near[0]}?" if near else "leave it out")


def _source_options(options: Mapping[str, str]) -> Iterator[Finding]:
    from onceflow.errors import ConfigError
    from onceflow.spark.option_names import check_names

    try:
        check_names(name for name in options if name not in ("format", UNSEEN))
    except ConfigError as problem:
        yield fault(str(problem), "see docs/spark.md for the options")


@spark_check(
    "spark.version",
    "Version of PySpark",
    why="Onceflow's source and sink are made for, and tested with, PySpark 4.2 and 4.3.",
)
def version(job: SparkFacts, case: Case) -> Iterator[Finding]:
    if job.version is None:
        return
    numbers = tuple(int(part) for part in re.findall(r"[0-9]{1,9}", job.version)[:2])
    if numbers < VERSION_MIN:
        yield fault(f"PySpark {job.version}", "pip install 'onceflow[spark]'")
