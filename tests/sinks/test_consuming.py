"""`consume_into` with both databases: where it begins, where it ends, and what it says when something is wrong."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from onceflow.client.admin import Admin
from onceflow.client.cluster import Cluster
from onceflow.client.offsets import committed_offsets
from onceflow.client.settings import ClientSettings
from onceflow.sinks.consuming import Committed, Record, consume_into
from onceflow.spark.problems import BatchFailed, SinkError
from tests.sinks.consuming import Landed, Topic, land
from tests.support.brokers import RunningBroker, run_against_both
from tests.support.waiting import eventually


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


def reset(landed: Landed) -> None:
    landed.execute("DELETE FROM applied")
    landed.execute("DELETE FROM counted")


class Failing(Exception):
    """Of a user's own."""


def failing(cursor: Any, records: list[Record]) -> None:
    land(cursor, records)
    raise Failing("as planned")


# --- where it begins, and what it reads


def test_a_restart_goes_on_where_the_database_says(topic: Topic, landed: Landed) -> None:
    topic.write(50)
    first = topic.consume(landed.url, max_records=20)
    assert (first.records, first.transactions >= 3, first.interrupted) == (50, True, False)
    topic.write(30)
    assert topic.consume(landed.url).records == 30
    assert topic.consume(landed.url).records == 0
    landed.check(topic)


@pytest.mark.parametrize(
    "kafka",
    [{"group.protocol": "consumer"}, {"partition.assignment.strategy": "range,roundrobin"}],
    ids=["KIP-848", "eager"],
)
def test_any_kind_of_group_will_do(topic: Topic, landed: Landed, kafka: dict[str, str]) -> None:
    topic.write(20)
    assert topic.consume(landed.url, kafka=kafka).records == 20
    topic.write(10)
    assert topic.consume(landed.url, kafka=kafka).records == 10
    landed.check(topic)


def test_what_the_group_has_in_kafka_is_never_read(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    topic.consume(landed.url)
    landed.execute("UPDATE onceflow_offsets SET next_offset = 0")
    reset(landed)
    assert topic.consume(landed.url).records == 20
    landed.check(topic)


def test_offsets_are_reported_to_kafka_unless_told_otherwise(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    with Cluster(ClientSettings(bootstrap=topic.bootstrap)) as cluster:
        topic.consume(landed.url, group=f"{topic.name}-silent", report_offsets=False)
        assert committed_offsets(cluster, f"{topic.name}-silent") == {}
        topic.consume(landed.url)
        assert committed_offsets(cluster, topic.name) == {(topic.name, 0): 10, (topic.name, 1): 10}


@pytest.mark.daily_on_kafka
def test_records_of_aborted_transactions_are_never_seen_and_those_of_open_ones_not_yet(
    topic: Topic, landed: Landed
) -> None:
    with topic.transaction(10):
        pass
    with topic.transaction(30, aborted=True):
        pass
    with topic.transaction(10):
        assert topic.consume(landed.url).records == 10, "the last transaction is open"
        landed.check(topic)
    topic.consume(landed.url)
    landed.check(topic)
    with topic.transaction(30, aborted=True):
        pass
    topic.consume(landed.url)
    landed.check(topic)
    # Past the markers too: otherwise they would be taken for lost records when retention has deleted them.
    offsets = Admin(ClientSettings(bootstrap=topic.bootstrap)).offsets([(topic.name, 0), (topic.name, 1)])
    assert {place: at for place, (at, _) in landed.positions().items()} == {
        place: end for (_, place), (_, end) in offsets.items()
    }


def test_latest_begins_with_what_comes_after_the_first_start(topic: Topic, landed: Landed) -> None:
    topic.write(10)
    assert topic.consume(landed.url, starting_offsets="latest").records == 0
    topic.committed.clear()
    topic.write(6)  # while nobody runs
    assert topic.consume(landed.url, starting_offsets="latest").records == 6
    landed.check(topic)


def test_a_partition_that_is_added_is_read_from_its_first_record(topic: Topic, landed: Landed) -> None:
    assert topic.consume(landed.url, starting_offsets="latest").records == 0
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(30)
    eventually(lambda: len(admin.list_topics(topic.name).topics[topic.name].partitions) == 3, "there are 3 partitions")
    topic.write(5, partition=2)
    assert topic.consume(landed.url, starting_offsets="latest").records == 5
    landed.check(topic)


def test_topics_of_a_group_have_offsets_of_their_own(
    broker: RunningBroker, new_name: Callable[[], str], landed: Landed
) -> None:
    first, second = Topic(broker.bootstrap, new_name()), Topic(broker.bootstrap, new_name())
    first.write(10)
    second.write(10)
    first.consume(landed.url)
    reset(landed)
    seen: list[Record] = []

    def keep(cursor: Any, records: list[Record]) -> None:
        seen.extend(records)

    names = [first.name, second.name]
    consume_into(landed.url, names, keep, group=first.name, bootstrap_servers=broker.bootstrap, until_now=True)
    assert {record.topic for record in seen} == {second.name}
    assert len(seen) == 10


def test_a_record_has_everything_that_was_written(topic: Topic, landed: Landed) -> None:
    producer = Producer({"bootstrap.servers": topic.bootstrap})
    headers = [("a", b"1"), ("a", b"2"), ("none", None)]
    producer.produce(topic.name, b"value", b"key", partition=1, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(topic.name, None, None, partition=0)
    producer.flush(30)
    seen: list[Record] = []
    topic.consume(landed.url, lambda cursor, records: seen.extend(records))
    bare, full = sorted(seen)
    assert full[:6] == (topic.name, 1, 0, b"key", b"value", headers)
    assert full.timestamp_ms == 1_700_000_000_123
    assert full.timestamp is not None
    assert full.timestamp.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (bare.key, bare.value, bare.headers) == (None, None, [])


# --- the function


def test_if_the_function_raises_nothing_is_written_and_the_same_records_come_again(
    topic: Topic, landed: Landed
) -> None:
    topic.write(30)
    topic.consume(landed.url)
    before = {place: at for place, (at, _) in landed.positions().items()}
    topic.write(10)
    with pytest.raises(Failing, match=r"^as planned$"):
        topic.consume(landed.url, failing)
    assert landed.count() == 30
    assert {place: at for place, (at, _) in landed.positions().items()} == before
    assert topic.consume(landed.url).records == 10
    landed.check(topic)


def commits(cursor: Any, records: list[Record]) -> None:
    land(cursor, records)
    cursor.connection.commit()


def commits_and_begins(cursor: Any, records: list[Record]) -> None:
    land(cursor, records)
    cursor.execute("COMMIT")
    cursor.execute("BEGIN")


@pytest.mark.parametrize("function", [commits, commits_and_begins])
def test_a_function_that_commits_is_found_out_and_has_lost_and_doubled_nothing(
    topic: Topic, landed: Landed, function: Callable[..., None]
) -> None:
    topic.write(10)
    with pytest.raises(SinkError, match=r"(?s)10 records.*It committed: these records count as done"):
        topic.consume(landed.url, function, max_wait_s=1)
    landed.check(topic)
    assert topic.consume(landed.url).records == 0
    topic.write(5)
    topic.consume(landed.url)
    landed.check(topic)


def test_a_function_that_rolls_back_is_found_out(topic: Topic, landed: Landed) -> None:
    def rolls_back(cursor: Any, records: list[Record]) -> None:
        land(cursor, records)
        cursor.connection.rollback()

    topic.write(10)
    with pytest.raises(SinkError, match="It was rolled back: these records count as not done"):
        topic.consume(landed.url, rolls_back)
    assert landed.count() == 0
    topic.consume(landed.url)
    landed.check(topic)


def test_an_error_that_the_function_ignores_does_not_lose_the_rest(topic: Topic, on_postgresql: Landed) -> None:
    """PostgreSQL answers everything after it with an error, and a COMMIT with a mere ROLLBACK."""

    def ignores(cursor: Any, records: list[Record]) -> None:
        land(cursor, records)
        with contextlib.suppress(psycopg.Error):
            cursor.execute("SELECT * FROM nowhere")

    topic.write(10)
    with pytest.raises(SinkError, match="has ignored an error of the database"):
        topic.consume(on_postgresql.url, ignores)
    topic.consume(on_postgresql.url)
    on_postgresql.check(topic)


def test_a_constraint_that_fails_at_commit_writes_nothing(topic: Topic, on_postgresql: Landed) -> None:
    on_postgresql.execute("ALTER TABLE applied ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
    topic.write(10)
    with pytest.raises(BatchFailed, match=r"^nothing of 10 records \(.*-0 0 to 4, .*-1 0 to 4\) was written to"):
        topic.consume(on_postgresql.url, max_wait_s=1)
    assert on_postgresql.count() == 0
    assert {at for at, _ in on_postgresql.positions().values()} == {0}


def test_a_deadlock_is_run_again(topic: Topic, on_postgresql: Landed) -> None:
    topic.write(10)
    calls: list[int] = []

    def deadlocked(cursor: Any, records: list[Record]) -> None:
        calls.append(len(records))
        land(cursor, records)
        if len(calls) < 3:
            cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$")

    topic.consume(on_postgresql.url, deadlocked, max_wait_s=1)
    assert calls == [10, 10, 10]
    on_postgresql.check(topic)


def test_deadlocks_without_end_are_an_error(topic: Topic, on_postgresql: Landed) -> None:
    def deadlocked(cursor: Any, records: list[Record]) -> None:
        cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    topic.write(10)
    with pytest.raises(BatchFailed, match=r"nothing of 10 records .* tried 3 times"):
        topic.consume(on_postgresql.url, deadlocked, retries=2, max_wait_s=1)


# --- the end


def test_it_ends_when_it_is_told_to(topic: Topic, landed: Landed) -> None:
    topic.write(10)
    stop = threading.Event()
    told: list[Committed] = []

    def stopping(committed: Committed) -> None:
        told.append(committed)
        stop.set()

    topic.consume(landed.url, until_now=False, stop=stop, on_commit=stopping, max_wait_s=1)
    assert told == [Committed(records=10, offsets={(topic.name, 0): 5, (topic.name, 1): 5})]
    landed.check(topic)
