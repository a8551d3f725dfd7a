"""The table of metrics, and a snapshot in Prometheus' format.

Names: where Kafka has a metric, it has the name that people know from Kafka's JMX exporter (`kafka_server_...`) or from
kafka_exporter (`kafka_topic_...`, `kafka_consumergroup_...`), with their labels; everything else is `onceflow_...`.
Names that begin with `onceflow_microbatch_` are those of Spark jobs and not here. `documentation` writes the table of
the docs, so they cannot differ.

A scrape is a pure function of what it is given and may run in another thread. `minute` is what the `Rates` that
have seen the snapshots know as of this one; without it, what is per second is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from onceflow.monitor import samples
from onceflow.monitor.exposition_text import COUNTER, GAUGE, HISTOGRAM, Text
from onceflow.monitor.rates import Minute
from onceflow.monitor.rules import Alert
from onceflow.monitor.samples import Sample, View
from onceflow.monitor.snapshot import Snapshot

__all__ = ["TABLE", "Metric", "documentation", "exposition", "names"]

VERSION: Final = version("onceflow")
OPENMETRICS: Final = "application/openmetrics-text"
_process: Final = ProcessCollector(registry=None)
"""Memory, CPU and files of the process that serves the metrics."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[View], Iterable[Sample]]
    known_as: str = ""
    """What the same thing is called elsewhere."""


PARTITION: Final = ("topic", "partition")
GROUP: Final = ("consumergroup",)
ID: Final = ("transactional_id",)
REQUEST: Final = ("request",)

TRANSACTIONS: Final = (
    Metric("onceflow_transaction_commit_rate", GAUGE, (), "Transactions committed per second, over the last minute.",
           samples.rate("commits"), "transaction-commit-rate"),
    Metric("onceflow_transaction_abort_rate", GAUGE, (), "Transactions aborted per second, over the last minute.",
           samples.rate("aborts"), "transaction-abort-rate"),
    Metric("onceflow_transactions_committed_total", COUNTER, (), "Transactions whose commit is on disk.",
           samples.total("commits")),
    Metric("onceflow_transactions_aborted_total", COUNTER, ("reason",),
           "Transactions whose abort is on disk: by the client, by timeout, or because a new instance of the producer "
           "began (fenced). One that has written nothing does not count.", samples.aborts),
    Metric("onceflow_transactions", GAUGE, ("state",), "Transactional ids by Kafka's name of their state.",
           samples.transaction_states),
    Metric("onceflow_open_transactions", GAUGE, (), "Transactions that are open or whose markers are being written.",
           samples.open_transactions),
    Metric("onceflow_oldest_open_transaction_seconds", GAUGE, (),
           "Age of the oldest open transaction; 0 if none is open.",
           samples.oldest_open),
    Metric("onceflow_transaction_open_seconds", GAUGE, ID, "How long this transaction has been open; open ones only.",
           samples.open_seconds),
    Metric("onceflow_transaction_timeout_seconds", GAUGE, ID, "The timeout of this transaction; open ones only.",
           samples.timeout_seconds),
    Metric("onceflow_producer_id_age_ms", GAUGE, ID,
           "Since the producer id last did something: at its coordinator, or a write. At most "
           f"{samples.PRODUCER_SERIES_MAX} ids: open transactions first, then who did something last.",
           samples.producer_ages, "producer-id-age-ms"),
    Metric("onceflow_fencing_events_total", COUNTER, (),
           "Requests at a coordinator, and batches on a partition, that were refused because their epoch is past.",
           samples.total("fencings"), "fencing events"),
    Metric("onceflow_coordinator_state", GAUGE, ("coordinator", "state"),
           "1 for the state that the coordinator is in (active, loading, unavailable), 0 for the others.",
           samples.coordinator_states, "transaction coordinator state"),
    Metric("onceflow_coordinator_load_time_ms", GAUGE, ("coordinator",),
           "How long the coordinator took to read its state, at the last start.", samples.load_times,
           "partition-load-time-max"),
)  # fmt: skip

PRODUCING: Final = (
    Metric("kafka_server_brokertopicmetrics_messagesin_total", COUNTER, ("topic",),
           "Records that clients wrote to the topic.", samples.traffic(lambda t: t.records_in), "MessagesInPerSec"),
    Metric("kafka_server_brokertopicmetrics_bytesin_total", COUNTER, ("topic",),
           "Bytes of record batches that clients wrote to the topic.", samples.traffic(lambda t: t.bytes_in),
           "BytesInPerSec"),
    Metric("kafka_server_brokertopicmetrics_bytesout_total", COUNTER, ("topic",),
           "Bytes of record batches that were sent to consumers of the topic.", samples.traffic(lambda t: t.bytes_out),
           "BytesOutPerSec"),
    Metric("onceflow_records_produced_rate", GAUGE, (), "Records written per second, over the last minute.",
           samples.counted_rate("records_in"), "record-send-rate"),
    Metric("onceflow_duplicate_batches_total", COUNTER, (),
           "Batches that a producer repeated; they were acknowledged and not stored again.",
           samples.total("duplicates")),
    Metric("onceflow_out_of_order_batches_total", COUNTER, (),
           "Batches that were refused because one before them is missing.", samples.total("out_of_order")),
    Metric("onceflow_produce_errors_total", COUNTER, ("error",),
           "Batches that were refused, by Kafka's name of the error.",
           samples.totals("errors"), "FailedProduceRequestsPerSec"),
)  # fmt: skip

CONSUMING: Final = (
    Metric("onceflow_records_consumed_total", COUNTER, ("topic",),
           "Offsets that consumers have moved on by, from fetch to fetch. Markers and aborted records count, a seek "
           "does not, and what was fetched last counts with the next fetch.", samples.traffic(lambda t: t.records_out)),
    Metric("onceflow_records_consumed_rate", GAUGE, (), "The same per second, over the last minute, of all topics.",
           samples.counted_rate("records_out"), "records-consumed-rate"),
    Metric("onceflow_consumers", GAUGE, ("isolation_level",), "Connections that fetched in the last 30 seconds.",
           samples.consumers, "consumers by isolation level"),
    Metric("kafka_consumergroup_members", GAUGE, GROUP, "Members of the group.", samples.group_members),
    Metric("kafka_consumergroup_current_offset", GAUGE, (*GROUP, *PARTITION),
           "The offset that the group has committed.",
           samples.group_offsets),
    Metric("kafka_consumergroup_lag", GAUGE, (*GROUP, *PARTITION),
           "From the committed offset to the last stable offset: what a read_committed member could have read.",
           samples.group_lags, "records-lag"),
    Metric("kafka_consumergroup_lag_sum", GAUGE, (*GROUP, "topic"), "The lag of all partitions of a topic.",
           samples.group_lag_sums),
    Metric("onceflow_offset_commit_latency_seconds", HISTOGRAM, (),
           "How long commits of offsets took, in transactions (TxnOffsetCommit) and outside (OffsetCommit).",
           samples.offset_commits, "commit-latency"),
    Metric("onceflow_offset_commit_latency_p99_ms", GAUGE, (),
           "99 of 100 commits of offsets in the last minute took at most this long; absent if there were none.",
           lambda view: samples.one(view.minute.p99_ms(*samples.OFFSET_COMMITS)), "offset-commit latency p99"),
)  # fmt: skip

TOPICS: Final = (
    Metric("kafka_topic_partitions", GAUGE, ("topic",), "Partitions of the topic.", samples.partition_counts),
    Metric("kafka_topic_partition_current_offset", GAUGE, PARTITION, "The high watermark.",
           samples.partitions(lambda p: p.end), "LogEndOffset"),
    Metric("kafka_topic_partition_oldest_offset", GAUGE, PARTITION, "The first offset that can be read.",
           samples.partitions(lambda p: p.start), "LogStartOffset"),
    Metric("kafka_topic_partition_replicas", GAUGE, PARTITION, "Replicas of the partition.",
           samples.partitions(lambda p: p.replicas)),
    Metric("kafka_topic_partition_in_sync_replica", GAUGE, PARTITION, "Replicas that are in sync.",
           samples.partitions(lambda p: p.in_sync)),
    Metric("kafka_log_log_size", GAUGE, PARTITION, "Bytes on disk.", samples.partitions(lambda p: p.size_bytes),
           "Size"),
    Metric("onceflow_partition_last_stable_offset", GAUGE, PARTITION,
           "Up to here everything is decided: where a read_committed consumer stops.",
           samples.partitions(lambda p: p.last_stable), "LastStableOffset"),
    Metric("onceflow_partition_lso_lag", GAUGE, PARTITION,
           "From the last stable offset to the high watermark: what a read_committed consumer may not see yet.",
           samples.partitions(lambda p: p.lso_lag), "LastStableOffsetLag"),
)  # fmt: skip

BROKER: Final = (
    Metric("onceflow_request_latency_seconds", HISTOGRAM, REQUEST,
           "From having the request to having its answer ready, waiting for the disk included. The long poll of a "
           "fetch is not in it; waiting for the other members of a group (JoinGroup, SyncGroup) is.", samples.requests,
           "TotalTimeMs"),
    Metric("onceflow_request_rate", GAUGE, REQUEST, "Requests per second, over the last minute.", samples.request_rates,
           "RequestsPerSec"),
    Metric("onceflow_request_latency_p99_ms", GAUGE, REQUEST,
           "99 of 100 requests in the last minute took at most this long.", samples.request_p99),
    Metric("onceflow_fetch_wait_seconds", HISTOGRAM, (),
           "How long fetches that found nothing waited for records (long poll).",
           samples.timing("fetch wait"), "DelayedFetch"),
    Metric("onceflow_fsync_latency_seconds", HISTOGRAM, (),
           "How long a round of group commit took to bring all files that were written meanwhile to disk.",
           samples.timing("fsync"), "LogFlushRateAndTimeMs"),
    Metric("onceflow_connections", GAUGE, (), "Open connections.",
           lambda view: samples.one(view.snapshot.connections_open), "connection-count"),
    Metric("onceflow_connections_accepted_total", COUNTER, (), "Connections that were accepted.",
           samples.total("connections"), "connection-creation-total"),
    Metric("onceflow_connections_refused_total", COUNTER, ("reason",), "Connections that were closed over a limit.",
           samples.totals("connections_refused")),
    Metric("onceflow_failed_authentication_total", COUNTER, ("mechanism",), "Logins that failed.",
           samples.totals("failed_authentications", samples.MECHANISMS), "failed-authentication-total"),
    Metric("onceflow_failed_authentication_rate", GAUGE, (), "Logins that failed per second, over the last minute.",
           samples.counted_rate("failed_authentications"), "failed-authentication-rate"),
    Metric("onceflow_successful_authentication_total", COUNTER, ("mechanism",), "Logins that succeeded.",
           samples.totals("successful_authentications", samples.MECHANISMS), "successful-authentication-total"),
    Metric("onceflow_authorization_denied_total", COUNTER, ("resource",), "What an ACL refused, by kind of resource.",
           samples.totals("denied", samples.RESOURCES)),
    Metric("kafka_brokers", GAUGE, (), "Brokers of the cluster.",
           lambda view: samples.one(len(view.snapshot.brokers) or None)),
)  # fmt: skip

WATCHING: Final = (
    Metric("onceflow_app_last_batch_id", GAUGE, ("app_id",), "The last micro-batch of a Spark job that was committed.",
           samples.last_batches),
    Metric("onceflow_app_last_commit_age_seconds", GAUGE, ("app_id",), "How long ago that was.",
           samples.last_batch_ages),
    Metric("onceflow_alerts_firing", GAUGE, ("rule", "severity"), "Alerts that are firing here; absent if none is.",
           samples.firing),
    Metric("onceflow_snapshot_truncated", GAUGE, (), "1 if there is more of something than is shown here.",
           lambda view: samples.one(int(view.snapshot.truncated))),
    Metric("onceflow_build_info", GAUGE, ("version", "watched"),
           "Always 1: the version of Onceflow, and what it watches.",
           samples.build),
)  # fmt: skip

SECTIONS: Final = {
    "Transactions": TRANSACTIONS,
    "Producing": PRODUCING,
    "Consuming": CONSUMING,
    "Topics": TOPICS,
    "Broker": BROKER,
    "Watching": WATCHING,
}
TABLE: Final = tuple(metric for section in SECTIONS.values() for metric in section)


def names() -> frozenset[str]:
    """Every name that a query may use, those of a histogram's parts included."""
    found = set()
    for metric in TABLE:
        found.add(metric.name)
        if metric.kind == HISTOGRAM:
            found |= {f"{metric.name}_{part}" for part in ("bucket", "count", "sum")}
    return frozenset(found)


def exposition(
    snapshot: Snapshot, alerts: Sequence[Alert] = (), accept: str = "", minute: Minute | None = None
) -> tuple[bytes, str]:
    """A scrape: the text and its content type, as the `Accept` header asks for it."""
    encode, content_type = choose_encoder(accept)
    view = View(snapshot, minute or Minute(), alerts, VERSION)
    text = Text(is_openmetrics=content_type.startswith(OPENMETRICS))
    for metric in TABLE:
        text.add(metric.name, metric.kind, metric.help, metric.labels, metric.samples(view))
    return text.encode() + encode(_process), content_type  # last: in OpenMetrics, the encoder says that it is the end


def documentation() -> str:
    """The table as Markdown, for the docs."""
    parts = []
    for title, section in SECTIONS.items():
        rows = [f"### {title}", "", "| metric | kind | what it is | known as |", "| --- | --- | --- | --- |"]
        for metric in section:
            labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
            rows.append(f"| `{metric.name}{labels}` | {metric.kind} | {metric.help} | {metric.known_as} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
