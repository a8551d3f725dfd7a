"""kafka-python, from 2.0 on. Idempotence and transactions came with 2.1."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from playing import check, numbers, play, until

BOOTSTRAP = sys.argv[1]
TIMEOUT_S = 20.0


def records(topic: str) -> None:
    with producing() as producer:
        headers = [("header", b"text")]
        producer.send(topic, b"value", b"key", headers, 0, 1_234_567_890_123).get(TIMEOUT_S)
        producer.send(topic, None, b"key", partition=0).get(TIMEOUT_S)
    first, second = read(topic, 2)
    check("record", (b"key", b"value", 1_234_567_890_123), (first.key, first.value, first.timestamp))
    check("headers", [("header", b"text")], list(first.headers))
    check("tombstone", None, second.value)


def codec(topic: str, name: str) -> None:
    with producing(compression_type=None if name == "none" else name, linger_ms=50) as producer:
        send(producer, topic, 0, 100)
    check_numbers(read(topic, 100), 0, 100)


def idempotence(topic: str) -> None:
    with producing(enable_idempotence=True, batch_size=200) as producer:
        send(producer, topic, 0, 300)
    check_numbers(read(topic, 300), 0, 300)


# --- transactions


def transactional(name: str) -> Any:
    producer = producing(transactional_id=name)
    producer.thing.init_transactions()
    return producer


def commit(topic: str) -> None:
    with transactional(topic) as producer:
        for first in (0, 10, 20):
            producer.begin_transaction()
            send(producer, topic, first, 10)
            producer.commit_transaction()
    check_numbers(read(topic, 30), 0, 30)


def abort(topic: str) -> None:
    with transactional(topic) as producer:
        producer.begin_transaction()
        send(producer, topic, 0, 10)
        producer.abort_transaction()
        producer.begin_transaction()
        send(producer, topic, 10, 10)
        producer.commit_transaction()
    check_numbers(read(topic, 10), 10, 10)
    check_numbers(read(topic, 20, isolation_level="read_uncommitted"), 0, 20)


def offsets(topic: str) -> None:
    at = TopicPartition(topic, 0)
    with transactional(topic) as producer, member(topic) as reader:
        producer.begin_transaction()
        send(producer, topic, 0, 10)
        producer.commit_transaction()
        reader.subscribe([topic])
        check_numbers(consume(reader, 10), 0, 10)
        group = reader.group_metadata() if hasattr(reader, "group_metadata") else topic
        producer.begin_transaction()
        send(producer, topic, 10, 1)
        producer.send_offsets_to_transaction({at: OffsetAndMetadata(7, "", -1)}, group)
        producer.abort_transaction()
        check("offset after the abort", None, reader.committed(at))
        producer.begin_transaction()
        send(producer, topic, 11, 1)
        producer.send_offsets_to_transaction({at: OffsetAndMetadata(10, "", -1)}, group)
        producer.commit_transaction()
        check("offset after the commit", 10, reader.committed(at))


def fencing(topic: str) -> None:
    with transactional(topic) as older:
        older.begin_transaction()
        send(older, topic, 0, 5)
        with transactional(topic) as newer:
            newer.begin_transaction()
            send(newer, topic, 5, 5)
            newer.commit_transaction()
        try:
            older.commit_transaction()
        except KafkaError as error:
            # Versions before 3.0 ask in a way in which it is told with another code.
            check("fenced", True, type(error).__name__ in ("ProducerFencedError", "InvalidProducerEpochError"))
        else:
            raise AssertionError("the older producer was not fenced")
    check_numbers(read(topic, 5), 5, 5)


# --- groups


def member(group: str, **settings: Any) -> Any:
    reset = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return Closing(KafkaConsumer(bootstrap_servers=BOOTSTRAP, group_id=group, **reset, **settings))


def group(topic: str) -> None:
    with producing() as producer:
        send(producer, topic, 0, 15)
    at = TopicPartition(topic, 0)
    with member(topic) as first:
        first.subscribe([topic])
        check_numbers(consume(first, 15), 0, 15)
        first.commit({at: offset(10, "ten")})
    with member(topic) as second:
        second.subscribe([topic])
        check_numbers(consume(second, 5), 10, 5)


def offset(number: int, metadata: str) -> OffsetAndMetadata:
    """With an epoch of the leader from 2.1 on."""
    return OffsetAndMetadata(number, metadata, *(-1 for _ in OffsetAndMetadata._fields[2:]))


def rebalance(topic: str) -> None:
    group = f"{topic}-rebalance"
    with member(group, heartbeat_interval_ms=200) as first:
        first.subscribe([topic])
        settle([first], 2)
        with member(group, heartbeat_interval_ms=200) as second:
            second.subscribe([topic])
            settle([first, second], 1)
        settle([first], 2)


def settle(members: Sequence[KafkaConsumer], each: int) -> None:
    def settled() -> bool:
        # All at once and with patience: a member that is in the middle of a join when its poll ends joins again.
        with ThreadPoolExecutor(len(members)) as pool:
            list(pool.map(lambda one: one.poll(timeout_ms=1000), members))
        shares = [one.assignment() for one in members]
        return all(len(share) == each for share in shares) and len(set().union(*shares)) == each * len(members)

    until(settled, f"each of {len(members)} members has {each} partitions")


# --- an administrator


def admin(topic: str) -> None:
    created = f"{topic}-created"
    with Closing(KafkaAdminClient(bootstrap_servers=BOOTSTRAP)) as client:
        client.create_topics([NewTopic(created, 1, 1, topic_configs={"retention.ms": "60000"})])
        until(lambda: created in client.list_topics(), "the new topic is listed")
        client.create_partitions({created: NewPartitions(2)})
        with producing() as producer:
            send(producer, created, 0, 5)
        at = TopicPartition(created, 0)
        with member(created) as reader:
            check("end", {at: 5}, reader.end_offsets([at]))
        client.delete_topics([created])
        until(lambda: created not in client.list_topics(), "the topic is gone")


# --- what is done with clients


class Closing(contextlib.AbstractContextManager[Any]):
    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __enter__(self) -> Any:
        return self.thing

    def __exit__(self, *_: object) -> None:
        self.thing.close()


def producing(**settings: Any) -> Closing:
    return Closing(KafkaProducer(bootstrap_servers=BOOTSTRAP, **settings))


def send(producer: KafkaProducer, topic: str, first: int, count: int) -> None:
    for each in [producer.send(topic, value, partition=0) for value in numbers(first, count)]:
        each.get(TIMEOUT_S)


def read(topic: str, count: int, **settings: Any) -> list[Any]:
    settings = {"isolation_level": "read_committed", **settings} if ISOLATES else {}
    with Closing(KafkaConsumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", **settings)) as reader:
        at = TopicPartition(topic, 0)
        reader.assign([at])
        reader.seek(at, 0)
        return consume(reader, count)


ISOLATES = "isolation_level" in KafkaConsumer.DEFAULT_CONFIG


def consume(reader: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    def arrived() -> bool:
        for each in reader.poll(timeout_ms=1000).values():
            found.extend(each)
        return len(found) >= count

    until(arrived, f"{count} records arrive")
    return found


def check_numbers(found: Sequence[Any], first: int, count: int) -> None:
    check("values", numbers(first, count), [each.value for each in found])


if __name__ == "__main__":
    play(
        {
            "records": records,
            **{name: functools.partial(codec, name=name) for name in ("none", "gzip", "snappy", "lz4", "zstd")},
            "idempotence": idempotence,
            "commit": commit,
            "abort": abort,
            "offsets": offsets,
            "fencing": fencing,
            "group": group,
            "rebalance": rebalance,
            "admin": admin,
        }
    )
