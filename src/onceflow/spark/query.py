"""What Spark knows about the micro-batch that is running, and tells nobody: its query, and where its sources stand.

`foreachBatch` hands over a DataFrame and a number. The rest is read from Spark's own objects through the gateway: the
id of the query from the local properties of its thread, the start and end of every source from the plan that is being
executed and from the offset log. Both Spark's Kafka source and ours write their offsets as {"topic": {"0": 42}};
sources whose offsets look different are not Kafka's and have no part in the bookkeeping.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.client.cluster import TopicPartition
from onceflow.errors import ConfigError
from onceflow.spark.planning import offsets_in

__all__ = ["MicroBatch", "running_batch"]

QUERY_ID: Final = "sql.streaming.queryId"
SCAN: Final = "StreamingDataSourceV2ScanRelation"
_INTERVAL: Final = re.compile(r"ProcessingTimeTrigger\((\d+)\)")


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """A micro-batch: which one, of which query, from where to where."""

    query_id: str
    run_id: str
    """Another one each time the query is started."""
    batch_id: int
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of all Kafka sources of the query, also those that have nothing new in this batch."""
    source_servers: frozenset[str] = frozenset()
    """The bootstrap addresses of these sources, as far as they are known."""


def running_batch(
    frame: Any, batch_id: int, sink: str = "KafkaSink", write: str = "onceflow.spark.write"
) -> MicroBatch:
    """The micro-batch in which this code runs. Raises `ConfigError` outside of `foreachBatch`."""
    spark = frame.sparkSession
    query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
    if query_id is None:
        raise ConfigError(
            f"{sink} is for a streaming query: df.writeStream.foreachBatch(sink). For a DataFrame that does not "
            f"stream use {write}(df, ...)"
        )
    execution = _execution(spark, query_id)
    assert execution is not None, "a query that runs this code is active"
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    servers: set[str] = set()
    for leaf in _leaves(execution.getLatestExecutionContext().executionPlan().logical()):
        if leaf.getClass().getSimpleName() != SCAN:
            continue
        _merge(starts, _offsets(_json(leaf.startOffset())))
        own = _offsets(_json(leaf.endOffset()))
        _merge(ends, own)
        address = leaf.relation().options().get("kafka.bootstrap.servers") if own else None
        servers.update(each.strip() for each in (address or "").split(",") if each.strip())
    for each in _logged(execution.offsetLog().get(batch_id)):
        logged = _offsets(each)
        _merge(ends, {where: at for where, at in logged.items() if where not in ends})
    return MicroBatch(
        query_id=query_id,
        run_id=str(execution.runId().toString()),
        batch_id=batch_id,
        starts=starts,
        ends=ends,
        source_servers=frozenset(servers),
    )


def query_is_active(spark: Any, query_id: str) -> bool:
    """Whether a query with this id is running in this process."""
    execution = _execution(spark, query_id)
    return execution is not None and bool(execution.isActive())


def session_of(spark: Any, query_id: str) -> Any:
    """Spark's own object for the session in which a query was started; None if it is not running."""
    execution = _execution(spark, query_id)
    return None if execution is None else execution.sparkSession()


def trigger_interval_s(spark: Any, query_id: str) -> float | None:
    """From the start of one micro-batch to the next; None if the query has no such interval, or is not running."""
    execution = _execution(spark, query_id)
    found = None if execution is None else _INTERVAL.fullmatch(str(execution.trigger().toString()))
    return None if found is None else int(found[1]) / 1000


def _execution(spark: Any, query_id: str) -> Any:
    """Spark's own object behind a query, of whatever session: in `foreachBatch` the session is a copy that knows of
    no queries."""
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    return running.get(spark._jvm.java.util.UUID.fromString(query_id))


def _leaves(plan: Any) -> Iterator[Any]:
    return _each(plan.collectLeaves())


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _json(option: Any) -> str | None:
    """Of an `Option[Offset]`."""
    return str(option.get().json()) if option.isDefined() else None


def _logged(entry: Any) -> Iterable[str | None]:
    """The offsets of all sources in an entry of the offset log."""
    if not entry.isDefined():
        return []
    return [_json(each) for each in _each(entry.get().offsets())]


def _offsets(text: str | None) -> dict[TopicPartition, int]:
    """Kafka's offsets, or nothing if they are somebody else's."""
    return offsets_in(text)


def _merge(into: dict[TopicPartition, int], more: Mapping[TopicPartition, int]) -> None:
    """A partition that is read twice stands where the slower reader stands."""
    for where, at in more.items():
        into[where] = min(at, into.get(where, at))
