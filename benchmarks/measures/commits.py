"""Commits: small transactions back to back, one record of 100 B for each of 1, 4 or 16 partitions.

With one producer, commits per second and the time of commitTransaction() as the client sees it: its records are
acknowledged and the outcome is decided when it returns. With several producers at once, commits per second alone.
Afterwards the log is asked: each partition must hold a record and a marker for each transaction.
"""

from __future__ import annotations

from tests.support.waiting import eventually

from benchmarks import clients
from benchmarks.bench import Bench
from benchmarks.brokers import Flavour, RunningBroker, watched
from benchmarks.clients import Committed
from benchmarks.results import Case
from benchmarks.targets import COMMIT_P99, COMMIT_RATE

OVERTAKEN_MAX = 3
FSYNC = "; fsync, Kafka without"


def run(bench: Bench, flavour: Flavour) -> None:
    broker = bench.warm(flavour)
    _warm_up(bench, broker)
    for partitions in bench.plan.commit_partitions:
        _alone(bench, flavour, broker, "java", partitions)
    for partitions in bench.plan.commit_partitions:
        _together(bench, flavour, broker, partitions)
    for partitions in bench.plan.commit_partitions:
        _alone(bench, flavour, broker, "confluent", partitions)


def run_fsync(bench: Bench, flavour: Flavour) -> None:
    """Ours with every step of a commit on disk, beside Kafka, which leaves that to the kernel; no target."""
    with bench.fresh(flavour) as broker:
        _warm_up(bench, broker)
        for partitions in bench.plan.commit_partitions:
            _alone(bench, flavour, broker, "java", partitions, suffix=FSYNC)
        for partitions in bench.plan.commit_partitions:
            _together(bench, flavour, broker, partitions, suffix=FSYNC)


def _warm_up(bench: Bench, broker: RunningBroker) -> None:
    """Uncounted: the coordinator's topic comes to be, and Kafka's JVM compiles its way through a commit."""
    _java(bench, broker, max(bench.plan.commit_partitions), bench.plan.commit_producers)


def _alone(
    bench: Bench, flavour: Flavour, broker: RunningBroker, client: str, partitions: int, *, suffix: str = ""
) -> None:
    bench.settle()
    with watched(broker) as usage:
        if client == "java":
            done = _java(bench, broker, partitions, 1)
        else:
            done = _confluent(bench, broker, partitions)
    which = f"{client}/{partitions}"
    title = f"{client}, {_partitions(partitions)}{suffix}"
    cpu = usage.cpu_seconds / done.committed * 1e6
    bench.record(_case(which, "rate", f"commits, {title}", suffix), flavour, done.transactions_per_s, cpu)
    bench.record(_case(which, "p50", f"commit p50, {title}", suffix), flavour, done.p50_ms)
    bench.record(_case(which, "p99", f"commit p99, {title}", suffix), flavour, done.p99_ms)


def _together(bench: Bench, flavour: Flavour, broker: RunningBroker, partitions: int, *, suffix: str = "") -> None:
    producers = bench.plan.commit_producers
    bench.settle()
    with watched(broker) as usage:
        done = _java(bench, broker, partitions, producers)
    title = f"commits, {producers} java producers, {_partitions(partitions)}{suffix}"
    cpu = usage.cpu_seconds / done.committed * 1e6
    bench.record(_case(f"together/{partitions}", "rate", title, suffix), flavour, done.transactions_per_s, cpu)


def _java(bench: Bench, broker: RunningBroker, partitions: int, producers: int) -> Committed:
    """Once more where the producer has failed by its own fault: its commit may overtake its records, now and then."""
    for _ in range(OVERTAKEN_MAX):
        try:
            return _java_once(bench, broker, partitions, producers)
        except clients.ClientError as error:
            if "InvalidTxnStateException" not in str(error):
                raise
    return _java_once(bench, broker, partitions, producers)


def _java_once(bench: Bench, broker: RunningBroker, partitions: int, producers: int) -> Committed:
    plan = bench.plan
    topic = bench.topic(broker, partitions=partitions)
    done = clients.java_commits(
        broker.bootstrap,
        topic,
        partitions=partitions,
        producers=producers,
        warm_up_seconds=plan.commit_warm_up_seconds,
        seconds=plan.commit_seconds,
    )
    _check(broker, topic, done, partitions)
    return done


def _confluent(bench: Bench, broker: RunningBroker, partitions: int) -> Committed:
    plan = bench.plan
    topic = bench.topic(broker, partitions=partitions)
    done = clients.confluent_commits(
        broker.bootstrap,
        topic,
        partitions=partitions,
        warm_up_seconds=plan.commit_warm_up_seconds,
        seconds=plan.commit_seconds,
    )
    _check(broker, topic, done, partitions)
    return done


def _check(broker: RunningBroker, topic: str, done: Committed, partitions: int) -> None:
    """The markers of the last transactions may be on their way; nothing else may be missing or too many."""
    wanted = done.committed * partitions * 2
    what = f"{topic} holds {wanted} records and markers"
    eventually(lambda: clients.count_records(broker.bootstrap, topic) == wanted, what)


def _case(which: str, what: str, title: str, suffix: str) -> Case:
    key = f"commits/{which}/{what}"
    target = None if suffix else {"rate": COMMIT_RATE, "p99": COMMIT_P99}.get(what)
    return Case(
        key=f"{key}/fsync" if suffix else key,
        title=title,
        unit="/s" if what == "rate" else "ms",
        target=target,
        kafka_key=key if suffix else "",
    )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
