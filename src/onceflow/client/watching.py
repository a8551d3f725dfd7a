"""Any Kafka as a snapshot, by asking it through the protocol: our broker, and Apache Kafka 3.6 and newer.

    watch = ClusterWatch(ClientSettings(bootstrap="kafka:9092"))
    watch.take()    # a Snapshot; every few seconds, always from the same thread
    watch.close()

Nothing is changed by asking; not even a coordinator is looked up, since Kafka creates a coordinator's topic for whoever
does. A take is a handful of requests to each broker, however many partitions there are:

    Metadata                                          once
    ListOffsets                                       three to each leader: start, last stable, end, in this order
    DescribeLogDirs, ListTransactions, ListGroups     one to each broker
    DescribeProducers, DescribeTransactions           one for 500 partitions or ids
    DescribeGroups, ConsumerGroupDescribe, OffsetFetch  one for 100 groups
    Fetch                                             if there is progress of Spark jobs that we have not read

- **A cluster that is away raises `ClientError`.** Everything else that goes wrong is left out, with a note: a broker
  that does not answer (and is not asked again in this take), an API that an ACL forbids or that an old broker does not
  know. A topic that vanishes between two questions is simply not there any more.
- Everything is bounded (`*_MAX` in the neighbours); what is left out by a bound makes the snapshot `truncated`.
- What a broker counts inside itself (duplicates, fencings, latencies, traffic) cannot be asked for, and is not here.
  Ended transactions are counted by comparing one take with the next; `watch_transactions.py` says what that misses.
"""

from __future__ import annotations

import time
from typing import Final

from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.client.software import is_onceflow
from onceflow.client.watch_groups import groups_of
from onceflow.client.watch_partitions import log_sizes, partitions_of, producers_of
from onceflow.client.watch_progress import ProgressReader
from onceflow.client.watch_questions import Questions, once_more
from onceflow.client.watch_transactions import EndedTransactions, transactions_of
from onceflow.monitor.snapshot import Coordinator, Counters, Snapshot
from onceflow.wire.messages.metadata import MetadataRequest, MetadataResponse

__all__ = ["ClusterWatch"]

COORDINATORS: Final = {"transaction": "__transaction_state", "group": "__consumer_offsets"}


class ClusterWatch:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._cluster: Cluster | None = None
        self._ended = EndedTransactions()
        self._progress = ProgressReader()

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def take(self) -> Snapshot:
        """How the cluster looks now. Raises `ClientError` if nobody answers."""
        if self._cluster is None:
            self._cluster = Cluster(self._settings)
        cluster = self._cluster
        once_more(cluster.nodes)  # finds a broker that answers, if the one before does not
        metadata: MetadataResponse = cluster.any_broker().ask(
            MetadataRequest(topics=None, allow_auto_topic_creation=False)
        )
        features = cluster.any_broker().features()
        asking = Questions(cluster, [each.node_id for each in metadata.brokers])
        partitions = partitions_of(asking, metadata, log_sizes(asking))
        producers = producers_of(asking, metadata)
        transactions = transactions_of(asking)
        now_ms = time.time_ns() // 1_000_000
        transactions = self._ended.compare(
            transactions, now_ms, each_end_bumps=features.get("transaction.version", 0) >= 2
        )
        groups = groups_of(asking, partitions)
        micro_batches = self._progress.read(asking, partitions)
        return Snapshot(
            at_ms=now_ms,
            cluster_id=metadata.cluster_id or "",
            software="onceflow" if is_onceflow(features) else "Apache Kafka",
            brokers=tuple(str(Address(each.host, each.port)) for each in metadata.brokers),
            partitions=partitions,
            producers=producers,
            transactions=transactions,
            ended=self._ended.last,
            groups=groups,
            micro_batches=micro_batches,
            coordinators=_coordinators(metadata, asking),
            counters=Counters(commits=self._ended.commits, aborts=self._ended.aborts),
            truncated=asking.truncated,
            notes=asking.notes,
            remarks=self._progress.remarks,
        )


def _coordinators(metadata: MetadataResponse, asking: Questions) -> tuple[Coordinator, ...]:
    """By whether the partitions that hold their state have leaders, and by what those said who were asked to list."""
    leaders = {topic.name: [each.leader_id for each in topic.partitions] for topic in metadata.topics}
    return tuple(_coordinator(kind, leaders.get(topic), asking) for kind, topic in COORDINATORS.items())


def _coordinator(kind: str, leaders: list[int] | None, asking: Questions) -> Coordinator:
    if leaders is None:
        note = "its topic is not there: nobody has used it yet, or we may not see it"
        return Coordinator(kind=kind, state=asking.coordinators.get(kind, "active"), note=note)
    if without := sum(each < 0 or each in asking.away for each in leaders):
        note = f"{without} of the {len(leaders)} partitions that hold its state have no leader that answers"
        return Coordinator(kind=kind, state="unavailable", partitions=len(leaders), note=note)
    return Coordinator(kind=kind, state=asking.coordinators.get(kind, "active"), partitions=len(leaders))
