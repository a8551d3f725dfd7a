"""The table of alerts: what each looks for, in PromQL and in Python, what it means, and what to do.

The two forms of a condition see different things, the one scrapes and the other snapshots, and have to agree: a test
shows the same scenarios to both (`tests/unit/monitor/alert_scenarios.py`).

In expressions, `%(name)s` is a threshold: in the unit of its name, in seconds (`%(idle_s)s`), or as a duration
(`%(window)s`). Rules that need what no snapshot has are Prometheus' alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onceflow.monitor import rules_conditions as conditions
from onceflow.monitor.rules_conditions import Findings
from onceflow.monitor.rules_thresholds import Thresholds
from onceflow.monitor.rules_windows import SteadyTime
from onceflow.monitor.snapshot import Snapshot

__all__ = ["RECORDED", "RULES", "Condition", "Rule"]

Condition = Callable[[Snapshot, SteadyTime], Findings]


@dataclass(frozen=True, kw_only=True)
class Rule:
    name: str
    severity: str
    """critical: data is late or refused now. warning: somebody should look today."""
    when: str
    """A sentence, with thresholds as in expressions; a share also in percent (`%(open_percent)s`)."""
    expression: str
    for_ms: str = ""
    """The threshold that says how long the condition has to hold; empty: it fires at once."""
    needs_ms: str = ""
    """The threshold that says how long one has to look before it can fire, where the condition looks back itself."""
    summary: str
    """For Prometheus, with its templates. Python says the same with more detail."""
    meaning: str
    action: str
    condition: Callable[[Thresholds], Condition] | None
    """None: it needs what only Prometheus has."""

    @property
    def runbook(self) -> str:
        return f"docs/monitoring.md#{self.name.lower()}"


# One series per broker, or per group, so that rules and dashboards need not add up again.
RECORDED: Final[dict[str, str]] = {
    "onceflow:transactions_committed:increase":
        "sum by (job, instance) (increase(onceflow_transactions_committed_total[%(window)s]))",
    "onceflow:transactions_aborted:increase":
        "sum by (job, instance) (increase(onceflow_transactions_aborted_total[%(window)s]))",
    "onceflow:consumergroup_lag:sum":
        "sum by (job, instance, consumergroup) (kafka_consumergroup_lag)",
    "onceflow:offset_commit_latency_seconds:p99":
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(onceflow_offset_commit_latency_seconds_bucket[%(window)s])))",
    "onceflow:fsync_latency_seconds:p99":
        "histogram_quantile(0.99, sum by (job, instance, le) "
        "(rate(onceflow_fsync_latency_seconds_bucket[%(window)s])))",
}  # fmt: skip

_PAST_TIMEOUT: Final = (
    "onceflow_transaction_open_seconds > on (job, instance, transactional_id) "
    "(onceflow_transaction_timeout_seconds + %(overdue_s)s)"
)

_LAG: Final = "onceflow:consumergroup_lag:sum[%(lag_1_fifths)s]"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="CoordinatorUnavailable",
        severity="critical",
        when="A coordinator is loading or unavailable, for %(coordinator_for)s.",
        expression='max by (job, instance, coordinator) (onceflow_coordinator_state{state!="active"}) == 1',
        for_ms="coordinator_for_ms",
        summary="the {{ $labels.coordinator }} coordinator is not active",
        meaning="No transaction can begin or end, or no group can join or commit offsets. Producers and consumers "
        "wait and try again; nothing is lost, and nothing moves on.",
        action="Look into the broker's log for the reason: a disk that is full or refuses writes is the usual one. "
        "On our broker, restart it when the disk is well: it reads its state from __transaction_state and "
        "__consumer_offsets. On Apache Kafka, see which broker leads these topics (onceflow topics describe "
        "__transaction_state) and whether min.insync.replicas are there (transaction.state.log.min.isr).",
        condition=conditions.Coordinators,
    ),
    Rule(
        name="LongTransaction",
        severity="critical",
        when="A transaction is open %(overdue)s after its timeout.",
        expression=_PAST_TIMEOUT,
        summary="{{ $labels.transactional_id }}: open for {{ $value | humanizeDuration }}, and past its timeout",
        meaning="The coordinator should have aborted this transaction and has not: it cannot write its decision or "
        "the markers. Readers of committed records wait behind it.",
        action="onceflow txns describe ID shows the state: Ongoing means that the coordinator does not get to abort "
        "it, PrepareAbort or PrepareCommit that markers are missing on a partition. See CoordinatorUnavailable, and "
        "the broker's log. onceflow txns abort ID fences the producer and aborts; for what only a partition knows, "
        "use onceflow txns find-hanging.",
        condition=lambda limits: conditions.OpenTransactions(limits, overdue=True),
    ),
    Rule(
        name="LongTransaction",
        severity="warning",
        when="A transaction is open for more than %(open_percent)s of its timeout, or for more than %(open)s.",
        expression="(onceflow_transaction_open_seconds > on (job, instance, transactional_id) "
        "(%(open_share)s * onceflow_transaction_timeout_seconds) "
        "or onceflow_transaction_open_seconds > %(open_s)s) "
        f"unless on (job, instance, transactional_id) ({_PAST_TIMEOUT})",
        summary="{{ $labels.transactional_id }}: open for {{ $value | humanizeDuration }}",
        meaning="When the timeout is reached, the coordinator aborts the transaction and fences its producer: the "
        "work is done again. Until then, readers of committed records wait behind it.",
        action="Is the producer alive? If it is: make the work of one transaction smaller (a Spark job: a shorter "
        "trigger, maxOffsetsPerTrigger), or raise its transaction.timeout.ms, up to the broker's "
        "transaction.max.timeout.ms. If it is not: start it again, which ends the transaction, or onceflow txns "
        "abort ID.",
        condition=conditions.OpenTransactions,
    ),
    Rule(
        name="LsoStuck",
        severity="warning",
        when="The last stable offset of a partition has not moved for %(lso_stuck)s, and there are records behind it.",
        expression='min_over_time(onceflow_partition_lso_lag{topic!~"__.*"}[%(lso_stuck)s]) > 0 '
        "and onceflow_partition_last_stable_offset == (onceflow_partition_last_stable_offset offset %(lso_stuck)s)",
        needs_ms="lso_stuck_ms",
        summary="{{ $labels.topic }}-{{ $labels.partition }}: the last stable offset does not move, {{ $value }} "
        "records are behind it",
        meaning="A transaction is open where the last stable offset is. Everything behind it, by whomever and "
        "decided or not, is hidden from consumers with isolation.level=read_committed until it ends.",
        action="onceflow txns list --state open --older-than 1m, then as for LongTransaction: let its producer "
        "finish, or onceflow txns abort ID. If no transactional id is open: onceflow txns find-hanging, which tells "
        "how to end it (onceflow txns abort --topic T --partition N --start-offset O). Jobs whose micro-batches take "
        "longer than a minute are behind this without anything being wrong: raise lso_stuck_ms.",
        condition=conditions.StuckPartitions,
    ),
    Rule(
        name="StaleProducerEpoch",
        severity="warning",
        when="A producer holds a transaction open, and for %(idle)s has neither written nor spoken to its coordinator.",
        expression="onceflow_producer_id_age_ms / 1000 > %(idle_s)s "
        "and on (job, instance, transactional_id) onceflow_transaction_open_seconds",
        summary="{{ $labels.transactional_id }} holds a transaction open and has done nothing for {{ $value | "
        "humanizeDuration }}",
        meaning="Its epoch is valid, its transaction is open, and nobody is there: it crashed without a successor, "
        "hangs, or has been cut off. An idle producer without a transaction is no alert.",
        action="Look for the process that uses this transactional.id. Start it again with the same id: it fences the "
        "old epoch and the transaction is aborted. Or onceflow txns abort ID. Without a coordinator that knows it: "
        "onceflow txns find-hanging. A shorter transaction.timeout.ms makes the broker do this by itself.",
        condition=conditions.IdleProducers,
    ),
    Rule(
        name="ZombieProducer",
        severity="warning",
        when="A producer comes with an epoch that is past, %(fencings_min)s times or more in %(fencing_pause)s, and "
        "that goes on for %(fencing_for)s.",
        expression="sum by (job, instance) (increase(onceflow_fencing_events_total[%(fencing_pause)s])) "
        ">= %(fencings_min)s",
        for_ms="fencing_for_ms",
        summary="producers with an epoch that is past keep coming: {{ $value | humanize }} were refused lately",
        meaning="An instance that has been replaced does not know it and tries again and again, or two instances "
        "share a transactional.id and fence each other in turn. Nothing of what it sends is written: that is what "
        "epochs are for.",
        action="Stop the old instance. If both are meant to run, give each a transactional.id (a Spark job: an "
        "app_id) of its own. A client has to close its producer after ProducerFenced or InvalidProducerEpoch instead "
        "of trying on.",
        condition=conditions.Fenced,
    ),
    Rule(
        name="HighAbortRate",
        severity="warning",
        when="In the last %(window)s more than %(abort_percent)s as many transactions were aborted as committed, and "
        "at least %(aborts_min)s; and that for %(abort_for)s.",
        expression="onceflow:transactions_aborted:increase "
        "> %(abort_share)s * onceflow:transactions_committed:increase "
        "and onceflow:transactions_aborted:increase >= %(aborts_min)s",
        for_ms="abort_for_ms",
        summary="{{ $value | humanize }} transactions were aborted lately",
        meaning="Much work is done twice. Readers of committed records see nothing of it, and wait for longer.",
        action="The page shows whose they are and why. By timeout: smaller transactions, or a larger "
        "transaction.timeout.ms. By fencing: instances that start again and again, or share a transactional.id. By "
        "the client: its own log has the error that made it abort.",
        condition=conditions.AbortRate,
    ),
    Rule(
        name="LagGrowing",
        severity="warning",
        when="A group is more than %(lag_min)s records behind, and over %(lag_window)s that has grown without "
        "falling back.",
        expression="onceflow:consumergroup_lag:sum > %(lag_min)s"
        f" and min_over_time({_LAG}) > min_over_time({_LAG} offset %(lag_2_fifths)s)"
        f" and min_over_time({_LAG} offset %(lag_2_fifths)s) > min_over_time({_LAG} offset %(lag_4_fifths)s)"
        f" and min_over_time({_LAG}) > max_over_time({_LAG} offset %(lag_4_fifths)s)",
        needs_ms="lag_window_ms",
        summary="{{ $labels.consumergroup }} is {{ $value | humanize }} records behind, and falls back further",
        meaning="The group reads more slowly than is written, or does not read at all. Its lag counts committed "
        "records only: what an open transaction hides is LsoStuck's business.",
        action="onceflow groups describe GROUP shows which partitions, and whether anybody reads them. One "
        "partition: a hot key, or a record that its reader fails on. All: more members, up to the number of "
        "partitions, larger max.poll.records and fetch.min.bytes, or more partitions. Nobody reads it any more: "
        "onceflow groups delete GROUP.",
        condition=conditions.Lag,
    ),
    Rule(
        name="CommitLatencyHigh",
        severity="warning",
        when="In the last %(window)s the 99th percentile of offset commits is above %(commit_p99_ms)s ms, of "
        "%(commits_min)s commits or more.",
        expression="onceflow:offset_commit_latency_seconds:p99 > %(commit_p99_s)s and sum by (job, instance) "
        "(increase(onceflow_offset_commit_latency_seconds_count[%(window)s])) >= %(commits_min)s",
        summary="1 of 100 offset commits takes {{ $value | humanizeDuration }} or longer",
        meaning="Offset commits, in transactions and outside, are on the way of every batch of every consumer: all "
        "of them slow down.",
        action="See DiskSlow first: under --durability fsync a commit waits for the disk. Then the machine's CPU. "
        "Fewer and larger commits help: a larger auto.commit.interval.ms, more records per transaction, a longer "
        "trigger.",
        condition=lambda limits: conditions.Latency(
            limits, "offset commits", ("OffsetCommit", "TxnOffsetCommit"), limits.commit_p99_ms, limits.commits_min
        ),
    ),
    Rule(
        name="DiskSlow",
        severity="warning",
        when="In the last %(window)s the 99th percentile of fsyncs is above %(fsync_p99_ms)s ms, of %(fsyncs_min)s "
        "fsyncs or more.",
        expression="onceflow:fsync_latency_seconds:p99 > %(fsync_p99_s)s and sum by (job, instance) "
        "(increase(onceflow_fsync_latency_seconds_count[%(window)s])) >= %(fsyncs_min)s",
        summary="1 of 100 fsyncs takes {{ $value | humanizeDuration }} or longer",
        meaning="Whatever waits for the disk is answered late: writes with acks=all, commits of transactions and "
        "offsets.",
        action="iostat -x 1 on the broker's machine: is somebody else writing there, is the volume throttled, is the "
        "disk dying? Give the data directory a disk of its own. --durability os does not wait for the disk, and "
        "loses the last writes if the machine (not the process) crashes.",
        condition=lambda limits: conditions.Latency(
            limits, "fsyncs", ("fsync",), limits.fsync_p99_ms, limits.fsyncs_min
        ),
    ),
    Rule(
        name="AuthenticationFailures",
        severity="warning",
        when="In the last %(window)s %(authentication_failures_min)s logins or more failed.",
        expression="sum by (job, instance) (increase(onceflow_failed_authentication_total[%(window)s])) "
        ">= %(authentication_failures_min)s",
        summary="{{ $value | humanize }} logins failed lately",
        meaning="A client goes on with a password that was changed or deleted, or somebody guesses.",
        action="onceflow_failed_authentication_total tells the mechanism, and the broker's log, once a minute, from "
        "where a login failed. onceflow users list shows who may log in. Correct the client, or keep the address out.",
        condition=conditions.AuthenticationFailures,
    ),
    Rule(
        name="MicroBatchFailing",
        severity="warning",
        when="In the last %(window)s a sink gave up on a micro-batch.",
        # Each reason has a counter that begins with its first failure, which `increase` cannot see.
        expression="increase(onceflow_microbatch_failures_total[%(window)s]) >= %(batch_failures_min)s or "
        "(onceflow_microbatch_failures_total unless onceflow_microbatch_failures_total offset %(window)s) "
        ">= %(batch_failures_min)s",
        summary="{{ $labels.app }}: a micro-batch failed with {{ $labels.reason }}",
        meaning="The sink has tried again and given up, and the query has ended. Nothing of the micro-batch is "
        "visible to readers of committed records; it is done again when the query is started again.",
        action="The driver's log has the error, what was or was not written, and what to do. Start the query again "
        "with the same checkpoint and app_id. If it fails at the same micro-batch again: docs/spark.md, "
        "docs/landing.md.",
        condition=None,
    ),
    Rule(
        name="MicroBatchStuck",
        severity="warning",
        when="A query runs and has input, and has committed no micro-batch for %(batch_stuck)s.",
        # A query that is idle says so, by a rate of 0.
        expression="time() - onceflow_microbatch_last_commit_timestamp_seconds > %(batch_stuck_s)s"
        " and on (job, instance) max by (job, instance) (onceflow_query_active) == 1"
        " and on (job, instance) max by (job, instance) (onceflow_query_input_rows_per_second) > 0"
        " unless on (job, instance) 2 * max by (job, instance) (onceflow_query_trigger_interval_seconds)"
        " > %(batch_stuck_s)s",
        summary="{{ $labels.app }} has committed no micro-batch for {{ $value | humanizeDuration }}",
        meaning="The query runs and there is something to do, and nothing is committed: a micro-batch takes very "
        "long, or waits for somebody, such as another instance with the same app_id, a lock in the database, or "
        "Kafka.",
        action="Spark's page shows the running job and its tasks. onceflow txns describe APP_ID shows its "
        "transaction: the app_id is its transactional id. If it is only large: maxOffsetsPerTrigger, and a "
        "transaction timeout to match.",
        condition=None,
    ),
    Rule(
        name="BrokerDown",
        severity="critical",
        when="The job `onceflow` cannot be scraped for %(down_for)s.",
        expression='up{job="onceflow"} == 0',
        for_ms="down_for_ms",
        summary="{{ $labels.instance }} does not answer",
        meaning="Prometheus gets no metrics: the broker is not there, or started without --http, or on another "
        "address. No other alert can be seen meanwhile.",
        action="onceflow topics list tells whether it answers clients. Start it again: it recovers by itself from "
        "whatever stopped it.",
        condition=None,
    ),
)
