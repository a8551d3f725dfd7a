"""`consume_into` when Kafka does not have what is next, or the database does not do what it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from onceflow.client.admin import Admin, TopicMissingError
from onceflow.client.settings import ClientSettings
from onceflow.sinks import consumer_member, consuming
from onceflow.sinks.consumer_transactions import Transactions, Work
from onceflow.sinks.consuming import DataLossError, Record, consume_into
from onceflow.sinks.databases.database import Gone
from onceflow.sinks.databases.postgresql import PostgreSql
from onceflow.spark.problems import BatchFailed, CommitUnknown, SinkError, TakenOver
from tests.sinks.consuming import Landed, Topic, land
from tests.support.brokers import RunningBroker, run_against_both
from tests.support.database_proxy import DatabaseProxy
from tests.support.postgresql import PostgreSQL
from tests.support.waiting import eventually


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_against_both(metafunc)


# --- what Kafka does not have


def delete_records(topic: Topic, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    places = [TopicPartition(topic.name, partition, before) for partition in range(topic.partitions)]
    for future in admin.delete_records(places).values():
        future.result(30)


@pytest.mark.daily_on_kafka
def test_records_that_were_deleted_before_they_were_read_are_an_error(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    topic.consume(landed.url)
    topic.write(20)
    delete_records(topic, 15)
    with pytest.raises(DataLossError, match=r"-0 begins at offset 15 now, and 10 is the next to be read"):
        topic.consume(landed.url)
    assert landed.count() == 20
    kept = [row for row in topic.committed if row.offset < 10 or row.offset >= 15]
    assert topic.consume(landed.url, fail_on_data_loss=False).records == 10
    assert landed.rows() == sorted(kept)


@pytest.mark.daily_on_kafka
def test_records_that_are_deleted_while_it_runs_are_an_error(topic: Topic, landed: Landed) -> None:
    """Found out when they are asked for, not when it starts."""
    topic.write(20)
    topic.consume(landed.url)
    topic.write(20)

    def unexpected(cursor: Any, records: list[Record]) -> None:
        raise AssertionError("nothing can be read")

    assigned = consumer_member.Member._on_assign

    def deleting(self: Any, consumer: Any, partitions: Any) -> None:
        delete_records(topic, 15)
        assigned(self, consumer, partitions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_member.Member, "_on_assign", deleting)
        with pytest.raises(DataLossError, match=r"begins at offset 15 now, and 10 is the next to be read"):
            topic.consume(landed.url, unexpected)
    assert landed.count() == 20


def recreate(topic: Topic, partitions: int = 2) -> None:
    admin = Admin(ClientSettings(bootstrap=topic.bootstrap))
    admin.delete(topic.name)
    eventually(lambda: topic.name not in [each.name for each in admin.topics()], "the topic is gone")
    admin.create(topic.name, partitions=partitions, replication_factor=1)
    topic.partitions = partitions


@pytest.mark.daily_on_kafka
@pytest.mark.parametrize("grown", [pytest.param(0, marks=pytest.mark.faults), 60])
def test_a_topic_that_was_created_anew_is_an_error_however_long_it_is(
    topic: Topic, on_postgresql: Landed, grown: int
) -> None:
    topic.write(20)
    topic.consume(on_postgresql.url)
    recreate(topic)
    topic.write(grown)
    with pytest.raises(
        DataLossError, match=rf"topic '{topic.name}' was deleted and created again: its id was .* group"
    ):
        topic.consume(on_postgresql.url)
    assert on_postgresql.count() == 20
    topic.consume(on_postgresql.url, fail_on_data_loss=False)
    on_postgresql.check(topic)  # the new one from its beginning
    topic.write(10)
    topic.consume(on_postgresql.url)
    on_postgresql.check(topic)


def test_a_topic_that_is_created_anew_while_it_runs_is_noticed(topic: Topic, on_postgresql: Landed) -> None:
    topic.write(20)
    caught: list[Exception] = []
    stop = threading.Event()

    def consume() -> None:
        try:
            topic.consume(on_postgresql.url, until_now=False, stop=stop)
        except (DataLossError, TopicMissingError) as problem:  # it may be seen while it is gone
            caught.append(problem)

    running = threading.Thread(target=consume)
    running.start()
    try:
        eventually(lambda: on_postgresql.count() == 20, "everything is there", timeout_s=60)
        recreate(topic)
        topic.write(60)
        eventually(lambda: caught, "it has ended with an error", timeout_s=60)
    finally:
        stop.set()
        running.join(60)
    with pytest.raises(DataLossError, match="was deleted and created again"):
        topic.consume(on_postgresql.url)


def test_a_partition_that_a_new_topic_gets_later_is_read_from_its_first_record(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    topic.consume(landed.url)
    recreate(topic, partitions=1)
    topic.write(4)
    topic.consume(landed.url, fail_on_data_loss=False)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    for future in admin.create_partitions([NewPartitions(topic.name, 2)]).values():
        future.result(30)
    topic.write(30, partition=1)  # more than the group had read of that partition in the old topic
    topic.consume(landed.url)
    landed.check(topic)


def test_the_end_of_a_topic_that_is_created_anew_and_shorter_is_reached(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    old, topic.committed = topic.committed, []
    deadline = time.monotonic() + 60

    def land_and_recreate(cursor: Any, records: list[Record]) -> None:
        land(cursor, records)
        if not topic.committed:
            recreate(topic, partitions=1)
            topic.write(4)

    topic.consume(
        landed.url,
        land_and_recreate,
        fail_on_data_loss=False,
        max_records=5,
        stop=lambda: time.monotonic() > deadline,
    )
    assert time.monotonic() < deadline
    rows = landed.rows()
    assert set(topic.committed) <= set(rows) <= {*topic.committed, *old}
    assert len(rows) == 5 + 4


def test_a_group_from_before_topics_had_ids_goes_on_and_gets_them(topic: Topic, landed: Landed) -> None:
    topic.write(20)
    topic.consume(landed.url)
    landed.execute("DROP TABLE onceflow_topics")
    topic.write(10)
    topic.consume(landed.url)
    landed.check(topic)
    [(group, name, topic_id)] = landed.execute("SELECT group_id, topic, topic_id FROM onceflow_topics")
    assert (group, name) == (topic.name, topic.name)
    assert {topic.name: topic_id} == Admin(ClientSettings(bootstrap=topic.bootstrap)).topic_ids([topic.name])


def test_a_topic_that_does_not_exist_is_an_error(
    broker: RunningBroker, new_name: Callable[[], str], landed: Landed
) -> None:
    with pytest.raises(TopicMissingError, match="there is no topic"):
        consume_into(landed.url, new_name(), land, group="any", bootstrap_servers=broker.bootstrap)


class FencedByOthers(Transactions):
    """Before each of the first `times` transactions somebody else takes the partitions over, and leaves them alone."""

    times = 0

    def apply(self, work: Work) -> None:
        if self.times > 0:
            self.times -= 1
            other = Transactions(self._database, self._settings, land)
            other.fence(work.moves.keys())
            other.close()
        super().apply(work)


def test_a_member_that_is_superseded_joins_again_and_goes_on(
    topic: Topic, landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie may fence when it has lost its partitions already. The group does not know of that, and says nothing."""
    topic.write(10)
    monkeypatch.setattr(FencedByOthers, "times", 2)
    monkeypatch.setattr(consuming, "Transactions", FencedByOthers)
    assert topic.consume(landed.url, max_wait_s=1).records == 10
    landed.check(topic)


def test_somebody_who_uses_the_same_group_and_is_not_in_it_is_an_error_in_the_end(
    topic: Topic, landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with another cluster that has a topic of the same name: both fence each other, again and again."""
    topic.write(10)
    monkeypatch.setattr(FencedByOthers, "times", 100)
    monkeypatch.setattr(consuming, "Transactions", FencedByOthers)
    with pytest.raises(TakenOver, match="again and again: somebody else uses group"):
        topic.consume(landed.url)
    assert landed.count() == 0


# --- what the database does not do


@pytest.fixture
def proxy(postgresql: PostgreSQL) -> Iterator[DatabaseProxy]:
    with DatabaseProxy(postgresql.port) as proxy:
        yield proxy


@pytest.mark.parametrize("is_answer_lost", [True, False])
def test_a_commit_without_an_answer_is_cleared_up(
    topic: Topic, on_postgresql: Landed, proxy: DatabaseProxy, is_answer_lost: bool
) -> None:
    topic.write(40)
    lost: list[threading.Event] = []
    calls: list[int] = []

    def losing(cursor: Any, records: list[Record]) -> None:
        calls.append(len(records))
        land(cursor, records)
        if not lost:
            lost.append(proxy.lose_next_commit_answer() if is_answer_lost else proxy.lose_next_commit())

    topic.consume(proxy.url(on_postgresql.url), losing, max_wait_s=1)
    assert lost[0].is_set()
    assert calls == ([40] if is_answer_lost else [40, 40])
    on_postgresql.check(topic)


def test_a_commit_that_cannot_be_cleared_up_says_so_and_the_next_start_does(
    topic: Topic, on_postgresql: Landed, proxy: DatabaseProxy
) -> None:
    topic.write(40)

    def losing(cursor: Any, records: list[Record]) -> None:
        land(cursor, records)
        proxy.lose_next_commit_answer()

    connect = PostgreSql.connect
    first: list[bool] = []

    def once(self: Any, **rest: Any) -> Any:
        if first:
            raise Gone("it is away")
        first.append(True)
        return connect(self, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgreSql, "connect", once)
        with pytest.raises(CommitUnknown, match=r"the COMMIT of 40 records .* all of it is written, or nothing"):
            topic.consume(proxy.url(on_postgresql.url), losing, max_wait_s=1, patience_s=0.3)
    assert topic.consume(on_postgresql.url).records == 0
    on_postgresql.check(topic)


def test_a_connection_that_breaks_in_the_function_is_made_anew(
    topic: Topic, on_postgresql: Landed, proxy: DatabaseProxy
) -> None:
    topic.write(40)
    calls: list[int] = []

    def cut(cursor: Any, records: list[Record]) -> None:
        calls.append(len(records))
        if len(calls) == 1:
            proxy.cut()
        land(cursor, records)

    topic.consume(proxy.url(on_postgresql.url), cut, max_wait_s=1)
    assert calls == [40, 40]
    on_postgresql.check(topic)


def test_a_database_that_restarts_is_waited_for(topic: Topic) -> None:
    with PostgreSQL() as server:
        landed = Landed(server.new_database())
        topic.write(60)
        restarts = iter(["immediate", "fast"])

        def restarting(cursor: Any, records: list[Record]) -> None:
            land(cursor, records)
            if mode := next(restarts, None):
                server.restart(mode)  # type: ignore[arg-type]

        topic.consume(landed.url, restarting, max_records=20)
        landed.check(topic)


def test_a_database_that_stays_away_is_an_error(topic: Topic) -> None:
    with PostgreSQL() as server:
        landed = Landed(server.new_database())
        topic.write(10)

        def stopping(cursor: Any, records: list[Record]) -> None:
            server.stop("immediate")
            land(cursor, records)

        with pytest.raises(BatchFailed, match=r"nothing of 10 records .* did not answer for 0.5 s"):
            topic.consume(landed.url, stopping, patience_s=0.5, max_wait_s=1)
        server.start()
        topic.consume(landed.url)
        landed.check(topic)


def test_a_role_that_may_not_create_the_table_is_told_which_statement_to_run(
    topic: Topic, postgresql: PostgreSQL, on_postgresql: Landed
) -> None:
    role = f"poor_{topic.name[-8:]}"
    url = postgresql.new_role(role, "secret", on_postgresql.url)
    on_postgresql.execute(f'GRANT ALL ON applied, counted TO "{role}"')
    topic.write(10)
    with pytest.raises(SinkError, match="Somebody who may create it can do so with: CREATE TABLE") as refused:
        topic.consume(url)
    assert "secret" not in str(refused.value)
    on_postgresql.execute(str(refused.value).partition("can do so with: ")[2])
    on_postgresql.execute(f'GRANT ALL ON onceflow_offsets TO "{role}"')
    topic.consume(url)
    on_postgresql.check(topic)


def test_a_wrong_password_is_an_error_without_a_password_in_it(topic: Topic, on_postgresql: Landed) -> None:
    url = on_postgresql.url.replace("right-password", "wrong-password")
    with pytest.raises(SinkError, match=r"Check user and password in url=\. Nothing was written") as refused:
        topic.consume(url)
    assert "wrong-password" not in str(refused.value)
