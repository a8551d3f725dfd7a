"""Metrics of a broker in its own process, scraped over HTTP: what only real connections and clients cause.

What needs neither is in tests/unit/broker/test_watching.py.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import onceflow
from onceflow.errors import ErrorCode
from tests.support.raw import READ_COMMITTED, READ_UNCOMMITTED, Wire, batch
from tests.support.raw_transactions import V2, TransactionalProducer
from tests.support.scraping import OPENMETRICS, Scrape, scrape_of
from tests.support.waiting import eventually

RECORDS = 500
WAIT_MS = 600


@pytest.fixture(scope="module")
def broker() -> Iterator[onceflow.Broker]:
    with onceflow.Broker(http="127.0.0.1:0") as running:
        yield running
        assert "Traceback" not in running.log_file.read_text()


@pytest.fixture
def wire(broker: onceflow.Broker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(wire: Wire) -> str:
    name = f"t-{uuid4().hex[:8]}"
    wire.create_topic(name)
    return name


def scrape(broker: onceflow.Broker, accept: str = "") -> Scrape:
    assert broker.http_url is not None
    return scrape_of(broker.http_url, accept)


def reaches(broker: onceflow.Broker, expected: float, name: str, **labels: str) -> Scrape:
    """The first scrape in which a metric has a value: a scrape may be of a moment ago."""

    def look() -> Scrape | None:
        found = scrape(broker)
        return found if found.value(name, **labels) == expected else None

    return eventually(look, f"{name}{labels} is {expected}")


def value(found: Scrape, name: str, **labels: str) -> float:
    value = found.value(name, **labels)
    assert value is not None, f"{name}{labels} is absent"
    return value


def settled(broker: onceflow.Broker, wire: Wire, topic: str) -> Scrape:
    """A scrape that knows all that has happened so far, by a topic that this creates when the last one is answered."""
    mark = f"mark-{uuid4().hex[:8]}"
    wire.create_topic(mark)
    wire.produce(mark, batch("x"))
    wire.create_topic(f"{mark}-answered")
    return reaches(broker, 0, "kafka_topic_partition_current_offset", topic=f"{mark}-answered")


def test_what_clients_write_and_read_is_counted_by_topic(broker: onceflow.Broker, wire: Wire, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(RECORDS):
        producer.produce(topic, f"{number:0100d}")
    producer.commit_transaction()
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False}
    with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert len(consumer.consume(RECORDS, timeout=15)) == RECORDS
        consumer.commit(offsets=[TopicPartition(topic, 0, RECORDS)], asynchronous=False)
        reaches(broker, RECORDS + 1, "onceflow_records_consumed_total", topic=topic)  # and the marker
        found = settled(broker, wire, topic)
    assert value(found, "kafka_server_brokertopicmetrics_messagesin_total", topic=topic) == RECORDS
    assert value(found, "kafka_server_brokertopicmetrics_bytesin_total", topic=topic) > RECORDS * 100
    sent = value(found, "kafka_server_brokertopicmetrics_bytesout_total", topic=topic)
    assert sent >= value(found, "kafka_server_brokertopicmetrics_bytesin_total", topic=topic)
    assert value(found, "onceflow_records_consumed_rate") > 0
    assert value(found, "onceflow_consumers", isolation_level="read_committed") >= 1
    assert value(found, "kafka_consumergroup_lag", consumergroup=topic, topic=topic, partition="0") == 1
    assert value(found, "onceflow_offset_commit_latency_seconds_count") >= 1
    assert value(found, "onceflow_offset_commit_latency_p99_ms") > 0
    assert value(found, "onceflow_transactions_committed_total") >= 1
    for request in ("Produce", "Fetch", "InitProducerId", "EndTxn"):
        assert value(found, "onceflow_request_latency_seconds_count", request=request) >= 1
        assert value(found, "onceflow_request_latency_p99_ms", request=request) > 0
    assert value(found, "onceflow_request_rate", request="Produce") > 0
    assert value(found, "onceflow_fsync_latency_seconds_count") >= 1
    assert value(found, "onceflow_fsync_latency_seconds_sum") > 0


def test_waiting_in_a_long_poll_is_not_latency(broker: onceflow.Broker, wire: Wire, topic: str) -> None:
    before = settled(broker, wire, topic)
    wire.fetch(topic, 0, max_wait_ms=WAIT_MS)
    after = settled(broker, wire, topic)
    fetches = {"request": "Fetch"}

    def added(name: str, **labels: str) -> float:
        return value(after, name, **labels) - (before.value(name, **labels) or 0)

    assert added("onceflow_request_latency_seconds_count", **fetches) == 1
    assert added("onceflow_request_latency_seconds_sum", **fetches) < WAIT_MS / 1000 / 2
    assert added("onceflow_fetch_wait_seconds_count") == 1
    assert added("onceflow_fetch_wait_seconds_sum") >= WAIT_MS / 1000 * 0.99


def test_waiting_for_the_disk_is_latency(broker: onceflow.Broker, wire: Wire, topic: str) -> None:
    """A round of group commit is a part of what a produce takes."""
    before = settled(broker, wire, topic)
    for _ in range(20):
        wire.produce(topic, batch("x"))
    after = settled(broker, wire, topic)
    name = "onceflow_request_latency_seconds"
    fsync = value(after, "onceflow_fsync_latency_seconds_sum") - value(before, "onceflow_fsync_latency_seconds_sum")
    took = value(after, f"{name}_sum", request="Produce") - value(before, f"{name}_sum", request="Produce")
    assert value(after, f"{name}_count", request="Produce") - value(before, f"{name}_count", request="Produce") == 21
    assert took > fsync / 2  # the rounds of what creates a topic are in the other


def test_consumers_count_by_the_isolation_level_of_their_last_fetch(
    broker: onceflow.Broker, wire: Wire, topic: str
) -> None:
    levels = ("read_committed", "read_uncommitted")
    found = settled(broker, wire, topic)
    before = {level: value(found, "onceflow_consumers", isolation_level=level) for level in levels}
    with Wire(broker.bootstrap) as one, Wire(broker.bootstrap) as other:
        one.fetch(topic, 0, max_wait_ms=0, isolation_level=READ_UNCOMMITTED)
        one.fetch(topic, 0, max_wait_ms=0, isolation_level=READ_COMMITTED)
        other.fetch(topic, 0, max_wait_ms=0, isolation_level=READ_UNCOMMITTED)
        for level in levels:
            reaches(broker, before[level] + 1, "onceflow_consumers", isolation_level=level)
    for level in levels:  # who is gone is none
        reaches(broker, before[level], "onceflow_consumers", isolation_level=level)


def test_connections_are_counted(broker: onceflow.Broker, wire: Wire, topic: str) -> None:
    before = settled(broker, wire, topic)
    accepted = value(before, "onceflow_connections_accepted_total")
    with Wire(broker.bootstrap) as one:
        one.new_producer()
        found = reaches(broker, accepted + 1, "onceflow_connections_accepted_total")
        assert value(found, "onceflow_connections") >= 1


def test_the_page_answers_to_the_name_that_it_was_told_to_listen_on_and_ends_with_the_broker() -> None:
    """`127.1` stands for a name: it leads to this machine, and is no address by the rules of a `Host` header."""
    with onceflow.Broker(http="127.1:0") as broker:
        assert broker.http_url is not None
        with closing(http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=10)) as page:
            for host, status in (("127.1", 200), ("elsewhere.example", 403)):
                page.request("GET", "/alerts.json", headers={"Host": host})
                with page.getresponse() as answer:
                    assert (answer.status, bool(answer.read())) == (status, True)
            began = time.monotonic()
            broker.stop()  # the connection is open, and idle
            assert time.monotonic() - began < 5


TRANSACTIONS = 100
ABORTED = 10
DUPLICATES = 50
FENCED = 3


def cause_known_totals(wire: Wire, topic: str) -> None:
    """Transactions of three records of which some are aborted, batches that are repeated, producers that are replaced,
    and a reader of it all."""
    producer = TransactionalProducer(wire, topic, V2).init()
    for number in range(TRANSACTIONS):
        producer.write(topic, "a", "b")
        producer.write(topic, "c")
        producer.end_patiently(committed=number % (TRANSACTIONS // ABORTED) != 0)
        producer.init()
    repeated = batch("x", producer=wire.new_producer(), sequence=0)
    for _ in range(DUPLICATES + 1):
        assert wire.produce(topic, repeated).error_code == ErrorCode.NONE
    for _ in range(FENCED):
        past = producer.identity
        producer.init()
        assert producer.produce_once(topic, "late", identity=past).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    end = wire.end(topic)
    for offset in (0, end):  # the second says that the first was read
        wire.fetch(topic, offset, max_wait_ms=0, max_bytes=1 << 20)


def test_totals_are_what_happened_and_begin_anew_with_the_broker() -> None:
    with onceflow.Broker(http="127.0.0.1:0", durability="os") as broker:
        with Wire(broker.bootstrap) as wire:
            wire.create_topic("known")
            cause_known_totals(wire, "known")
            found = settled(broker, wire, "known")
            end = wire.end("known")
        expected = {
            ("onceflow_transactions_committed_total", ""): TRANSACTIONS - ABORTED,
            ("onceflow_transactions_aborted_total", "client"): ABORTED,
            ("onceflow_transactions_aborted_total", "timeout"): 0,
            ("onceflow_transactions_aborted_total", "fenced"): 0,
            ("onceflow_duplicate_batches_total", ""): DUPLICATES,
            ("onceflow_out_of_order_batches_total", ""): 0,
            ("onceflow_fencing_events_total", ""): FENCED,
            ("onceflow_produce_errors_total", "INVALID_PRODUCER_EPOCH"): FENCED,
            ("kafka_server_brokertopicmetrics_messagesin_total", "known"): 3 * TRANSACTIONS + 1,
            ("onceflow_records_consumed_total", "known"): end,
            ("onceflow_request_latency_seconds_count", "EndTxn"): TRANSACTIONS,
            ("onceflow_request_latency_seconds_count", "Fetch"): 2,
            ("onceflow_open_transactions", ""): 0,
        }
        assert {each: _of(found, *each) for each in expected} == expected
        assert end == 4 * TRANSACTIONS + 1  # three records and a marker each
        broker.stop()
        broker.start()
        anew = scrape(broker)
        for name, label in expected:
            assert not _of(anew, name, label), name
        assert value(anew, "kafka_topic_partition_current_offset", topic="known", partition="0") == end


def _of(found: Scrape, name: str, label: str) -> float | None:
    """The value of the series that has this label, whatever it is called."""
    kinds = {"aborted": "reason", "errors": "error", "latency": "request"}
    kind = next((kind for word, kind in kinds.items() if word in name), "topic")
    return found.value(name, **({kind: label} if label else {}))


@pytest.mark.parametrize(("accept", "kind"), [("", "text/plain"), (OPENMETRICS, "application/openmetrics-text")])
def test_a_scrape_is_in_the_format_that_was_asked_for(broker: onceflow.Broker, accept: str, kind: str) -> None:
    found = scrape(broker, accept)
    assert found.content_type.startswith(kind)
    assert value(found, "onceflow_build_info", version=onceflow.__version__) == 1
    assert value(found, "process_resident_memory_bytes") > 1 << 20
    assert value(found, "kafka_brokers") == 1
