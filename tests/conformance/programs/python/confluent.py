"""confluent-kafka, from 2.0 on; and with it librdkafka."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from playing import check, numbers, play, until

BOOTSTRAP = {"bootstrap.servers": sys.argv[1], "log_level": 0}
TIMEOUT_S = 20.0


def records(topic: str) -> None:
    sent = Producer(BOOTSTRAP)
    sent.produce(topic, "value", "key", 0, timestamp=1_234_567_890_123, headers={"header": b"text"})
    sent.produce(topic, None, "key", 0)
    check("left over", 0, sent.flush(TIMEOUT_S))
    first, second = read(topic, 2)
    check("record", (b"key", b"value", 1_234_567_890_123), (first.key(), first.value(), first.timestamp()[1]))
    check("headers", [("header", b"text")], first.headers())
    check("tombstone", None, second.value())


def codec(topic: str, name: str) -> None:
    send(Producer({**BOOTSTRAP, "compression.type": name, "linger.ms": 50}), topic, 0, 100)
    check_numbers(read(topic, 100), 0, 100)


def idempotence(topic: str) -> None:
    settings = {"enable.idempotence": True, "batch.num.messages": 10, "max.in.flight.requests.per.connection": 5}
    send(Producer({**BOOTSTRAP, **settings}), topic, 0, 300)
    check_numbers(read(topic, 300), 0, 300)


# --- transactions


def transactional(name: str) -> Producer:
    producer = Producer({**BOOTSTRAP, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    return producer


def commit(topic: str) -> None:
    producer = transactional(topic)
    for first in (0, 10, 20):
        producer.begin_transaction()
        send(producer, topic, first, 10)
        producer.commit_transaction(TIMEOUT_S)
    check_numbers(read(topic, 30), 0, 30)


def abort(topic: str) -> None:
    producer = transactional(topic)
    producer.begin_transaction()
    send(producer, topic, 0, 10)
    producer.abort_transaction(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, 10, 10)
    producer.commit_transaction(TIMEOUT_S)
    check_numbers(read(topic, 10), 10, 10)
    check_numbers(read(topic, 20, "read_uncommitted"), 0, 20)


def offsets(topic: str) -> None:
    producer = transactional(topic)
    producer.begin_transaction()
    send(producer, topic, 0, 10)
    producer.commit_transaction(TIMEOUT_S)
    reader = member(topic)
    reader.subscribe([topic])
    check_numbers(consume(reader, 10), 0, 10)
    producer.begin_transaction()
    send(producer, topic, 10, 1)
    group = reader.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    check("offset after the abort", -1001, committed(reader, topic))
    producer.begin_transaction()
    send(producer, topic, 11, 1)
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 10)], group, TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    check("offset after the commit", 10, committed(reader, topic))
    reader.close()


def fencing(topic: str) -> None:
    older = transactional(topic)
    older.begin_transaction()
    send(older, topic, 0, 5)
    newer = transactional(topic)
    newer.begin_transaction()
    send(newer, topic, 5, 5)
    newer.commit_transaction(TIMEOUT_S)
    try:
        older.commit_transaction(TIMEOUT_S)
    except KafkaException as error:
        check("fatal", True, error.args[0].fatal())
    else:
        raise AssertionError("the older producer was not fenced")
    check_numbers(read(topic, 5), 5, 5)


# --- groups


def member(group: str, **settings: Any) -> Consumer:
    return Consumer(
        {**BOOTSTRAP, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings}
    )


def group(topic: str, **settings: Any) -> None:
    send(Producer(BOOTSTRAP), topic, 0, 15)
    first = member(topic, **settings)
    first.subscribe([topic])
    check_numbers(consume(first, 15), 0, 15)
    first.commit(offsets=[TopicPartition(topic, 0, 10)], asynchronous=False)
    first.close()
    second = member(topic, **settings)
    second.subscribe([topic])
    check_numbers(consume(second, 5), 10, 5)
    second.close()


def rebalance(topic: str, **settings: Any) -> None:
    first, second = (member(f"{topic}-rebalance", **settings) for _ in range(2))
    first.subscribe([topic])
    settle([first], 2)
    second.subscribe([topic])
    settle([first, second], 1)
    second.close()
    settle([first], 2)
    first.close()


def settle(members: Sequence[Consumer], each: int) -> None:
    def settled() -> bool:
        for one in members:
            one.poll(0.05)
        shares = [{(at.topic, at.partition) for at in one.assignment()} for one in members]
        return all(len(share) == each for share in shares) and len(set().union(*shares)) == each * len(members)

    until(settled, f"each of {len(members)} members has {each} partitions")


def consumer_protocol(topic: str) -> None:
    protocol = {"group.protocol": "consumer"}
    group(topic, **protocol)
    rebalance(topic, **protocol)


# --- an administrator


def admin(topic: str) -> None:
    client, created = AdminClient(BOOTSTRAP), f"{topic}-created"
    answer(client.create_topics([NewTopic(created, 1, 1, config={"retention.ms": "60000"})]))
    until(lambda: created in client.list_topics(timeout=TIMEOUT_S).topics, "the new topic is listed")
    resource = ConfigResource(ConfigResource.Type.TOPIC, created)
    check("setting", "60000", answer(client.describe_configs([resource]))["retention.ms"].value)
    answer(client.create_partitions([NewPartitions(created, 2)]))
    until(lambda: len(client.list_topics(created, TIMEOUT_S).topics[created].partitions) == 2, "it has grown")
    send(Producer(BOOTSTRAP), created, 0, 5)
    check("ends", (0, 5), member(created).get_watermark_offsets(TopicPartition(created, 0), TIMEOUT_S))
    answer(client.delete_topics([created]))
    until(lambda: created not in client.list_topics(timeout=TIMEOUT_S).topics, "the topic is gone")


def answer(futures: Any) -> Any:
    [future] = futures.values()
    return future.result(TIMEOUT_S)


# --- what is done with clients


def send(producer: Producer, topic: str, first: int, count: int) -> None:
    for value in numbers(first, count):
        producer.produce(topic, value, partition=0)
    check("left over", 0, producer.flush(TIMEOUT_S))


def read(topic: str, count: int, isolation: str = "read_committed") -> list[Message]:
    reader = member(f"{topic}-reader", **{"isolation.level": isolation})
    reader.assign([TopicPartition(topic, 0, 0)])
    found = consume(reader, count)
    reader.close()
    return found


def consume(reader: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    until(lambda: found.extend(reader.consume(count, 0.2)) or len(found) >= count, f"{count} records arrive")
    for message in found:
        check("error", None, message.error())
    return found


def committed(reader: Consumer, topic: str) -> int:
    [at] = reader.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    return int(at.offset)


def check_numbers(found: Sequence[Message], first: int, count: int) -> None:
    check("values", numbers(first, count), [message.value() for message in found])


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
            "consumer protocol": consumer_protocol,
            "admin": admin,
        }
    )
