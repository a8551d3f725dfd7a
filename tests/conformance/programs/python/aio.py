"""aiokafka, from 0.8 on."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata
from playing import PATIENCE_S, Scenario, check, numbers, play

BOOTSTRAP = sys.argv[1]


async def records(topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP) as producer:
        headers = [("header", b"text")]
        await producer.send_and_wait(topic, b"value", b"key", 0, timestamp_ms=1_234_567_890_123, headers=headers)
        await producer.send_and_wait(topic, None, b"key", 0)
    first, second = await read(topic, 2)
    check("record", (b"key", b"value", 1_234_567_890_123), (first.key, first.value, first.timestamp))
    check("headers", [("header", b"text")], list(first.headers))
    check("tombstone", None, second.value)


async def codec(topic: str, name: str) -> None:
    compression = None if name == "none" else name
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, compression_type=compression, linger_ms=50) as producer:
        await send(producer, topic, 0, 100)
    check_numbers(await read(topic, 100), 0, 100)


async def idempotence(topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=True, max_batch_size=200) as producer:
        await send(producer, topic, 0, 300)
    check_numbers(await read(topic, 300), 0, 300)


# --- transactions


@asynccontextmanager
async def transactional(name: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=name)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def commit(topic: str) -> None:
    async with transactional(topic) as producer:
        for first in (0, 10, 20):
            async with producer.transaction():
                await send(producer, topic, first, 10)
    check_numbers(await read(topic, 30), 0, 30)


async def abort(topic: str) -> None:
    async with transactional(topic) as producer:
        await producer.begin_transaction()
        await send(producer, topic, 0, 10)
        await producer.abort_transaction()
        async with producer.transaction():
            await send(producer, topic, 10, 10)
    check_numbers(await read(topic, 10), 10, 10)
    check_numbers(await read(topic, 20, "read_uncommitted"), 0, 20)


async def offsets(topic: str) -> None:
    at = TopicPartition(topic, 0)
    async with transactional(topic) as producer, member(topic, topic) as reader:
        async with producer.transaction():
            await send(producer, topic, 0, 10)
        check_numbers(await consume(reader, 10), 0, 10)
        await producer.begin_transaction()
        await send(producer, topic, 10, 1)
        await producer.send_offsets_to_transaction({at: 7}, topic)
        await producer.abort_transaction()
        check("offset after the abort", None, await reader.committed(at))
        async with producer.transaction():
            await send(producer, topic, 11, 1)
            await producer.send_offsets_to_transaction({at: 10}, topic)
        check("offset after the commit", 10, await reader.committed(at))


async def fencing(topic: str) -> None:
    async with transactional(topic) as older:
        await older.begin_transaction()
        await send(older, topic, 0, 5)
        async with transactional(topic) as newer, newer.transaction():
            await send(newer, topic, 5, 5)
        try:
            await older.commit_transaction()
        except KafkaError as error:
            check("kind of refusal", "ProducerFenced", type(error).__name__)
        else:
            raise AssertionError("the older producer was not fenced")
    check_numbers(await read(topic, 5), 5, 5)


# --- groups


@asynccontextmanager
async def member(group: str, topic: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=BOOTSTRAP,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
    )
    async with consumer:
        yield consumer


async def group(topic: str) -> None:
    at = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP) as producer:
        await send(producer, topic, 0, 15)
    async with member(topic, topic) as first:
        check_numbers(await consume(first, 15), 0, 15)
        await first.commit({at: OffsetAndMetadata(10, "ten")})
    async with member(topic, topic) as second:
        check_numbers(await consume(second, 5), 10, 5)


async def rebalance(topic: str) -> None:
    group = f"{topic}-rebalance"
    async with member(group, topic) as first:
        await settle([first], 2)
        async with member(group, topic) as second:
            await settle([first, second], 1)
        await settle([first], 2)


async def settle(members: Sequence[AIOKafkaConsumer], each: int) -> None:
    async def settled() -> bool:
        for one in members:
            await one.getmany(timeout_ms=20)
        shares = [one.assignment() for one in members]
        return all(len(share) == each for share in shares) and len(set().union(*shares)) == each * len(members)

    await until(settled, f"each of {len(members)} members has {each} partitions")


# --- an administrator


async def admin(topic: str) -> None:
    client, created = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP), f"{topic}-created"
    await client.start()
    answer = await client.create_topics([NewTopic(created, 1, 1, topic_configs={"retention.ms": "60000"})])
    check("error", 0, answer.topic_errors[0][1])

    async def listed() -> bool:
        return created in await client.list_topics()

    async def gone() -> bool:
        return not await listed()

    await until(listed, "the new topic is listed")
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP) as producer:
        await send(producer, created, 0, 5)
    at = TopicPartition(created, 0)
    async with member(created, created) as reader:
        check("end", {at: 5}, await reader.end_offsets([at]))
    await client.delete_topics([created])
    await until(gone, "the topic is gone")
    await client.close()


# --- what is done with clients


async def send(producer: AIOKafkaProducer, topic: str, first: int, count: int) -> None:
    for each in [await producer.send(topic, value, partition=0) for value in numbers(first, count)]:
        await each


async def read(topic: str, count: int, isolation: str = "read_committed") -> list[ConsumerRecord[Any, Any]]:
    reader = AIOKafkaConsumer(bootstrap_servers=BOOTSTRAP, isolation_level=isolation, auto_offset_reset="earliest")
    async with reader:
        at = TopicPartition(topic, 0)
        reader.assign([at])
        reader.seek(at, 0)
        return await consume(reader, count)


async def consume(reader: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    found: list[ConsumerRecord[Any, Any]] = []

    async def arrived() -> bool:
        for each in (await reader.getmany(timeout_ms=200)).values():
            found.extend(each)
        return len(found) >= count

    await until(arrived, f"{count} records arrive")
    return found


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    async def wait() -> None:
        while not await condition():
            await asyncio.sleep(0.01)

    try:
        await asyncio.wait_for(wait(), PATIENCE_S)
    except asyncio.TimeoutError:  # noqa: UP041
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}") from None


def check_numbers(found: Sequence[ConsumerRecord[Any, Any]], first: int, count: int) -> None:
    check("values", numbers(first, count), [each.value for each in found])


def scenario(work: Callable[[str], Awaitable[None]]) -> Scenario:
    async def in_time(topic: str) -> None:
        await asyncio.wait_for(work(topic), 2 * PATIENCE_S)

    return lambda topic: asyncio.run(in_time(topic))


if __name__ == "__main__":
    works: dict[str, Callable[[str], Awaitable[None]]] = {
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
    play({name: scenario(work) for name, work in works.items()})
