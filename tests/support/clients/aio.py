"""aiokafka. The tests are synchronous, so the adapter owns an event loop and runs it for as long as each call lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.support.clients import TIMEOUT_S, Cluster, Config, Received, Record, Refused

__all__ = ["AioClient"]

T = TypeVar("T")
DEFAULT_CONFIG_SOURCE = 5


class AioClient:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._runner = asyncio.Runner()
        self._admin = self._run(self._start_admin())
        # A consumer that only answers questions about offsets: starting one takes a tenth of a second.
        self._enquirer = self._run(self._start_consumer())

    async def _start_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    def close(self) -> None:
        self._run(self._enquirer.stop())
        self._run(self._admin.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(asyncio.wait_for(work, 2 * TIMEOUT_S))
        except KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None, *, replication: int = 1
    ) -> None:
        self._create(name, partitions, config, replication, validate_only=False)

    def validate_topic(self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        self._create(name, partitions, config, 1, validate_only=True)

    def _create(
        self,
        name: str,
        partitions: int | None,
        config: Mapping[str, str] | None,
        replication: int,
        *,
        validate_only: bool,
    ) -> None:
        topic = NewTopic(name, -1 if partitions is None else partitions, replication, topic_configs=dict(config or {}))
        answer = self._run(self._admin.create_topics([topic], validate_only=validate_only))
        [(_, code, message, *_)] = answer.topic_errors
        _check(code, message)

    def delete_topic(self, name: str) -> None:
        [(_, code, *_)] = self._run(self._admin.delete_topics([name])).topic_error_codes
        _check(code)

    def topics(self) -> set[str]:
        return set(self._run(self._admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        # Not describe_topics([topic]): aiokafka lets that create the topic.
        described = self._run(self._admin.describe_topics())
        return sum(len(each["partitions"]) for each in described if each["topic"] == topic)

    def topic_id(self, topic: str) -> str:
        raise NotImplementedError("aiokafka does not know topic ids.")

    def create_partitions(self, topic: str, total: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(total)}))

    def describe_config(self, topic: str) -> Mapping[str, Config]:
        [answer] = self._run(self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)]))
        [(code, message, _, _, entries)] = answer.resources
        _check(code, message)
        return {
            name: Config(value=value, is_default=source == DEFAULT_CONFIG_SOURCE)
            for name, value, _, source, *_ in entries
        }

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """AlterConfigs, the old way: whatever is not named goes back to its default."""
        named = {name: value for name, value in changes.items() if value is not None}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, named)
        [answer] = self._run(self._admin.alter_configs([resource]))
        [(code, message, *_)] = answer.resources
        _check(code, message)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        return self._run(self._admin.delete_records({at: RecordsToDelete(before)}))[at]

    def cluster(self) -> Cluster:
        described = self._run(self._admin.describe_cluster())
        return Cluster(
            cluster_id=described["cluster_id"],
            controller_id=described["controller_id"],
            nodes=frozenset((node["node_id"], node["host"], node["port"]) for node in described["brokers"]),
        )

    def produce(
        self, topic: str, records: Sequence[Record], *, codec: str = "none", idempotence: bool = False, acks: int = -1
    ) -> list[int]:
        return self._run(self._produce(topic, records, codec, idempotence, acks))

    async def _produce(
        self, topic: str, records: Sequence[Record], codec: str, idempotence: bool, acks: int
    ) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotence,
            acks=acks,
            max_request_size=10_000_000,
            request_timeout_ms=int(TIMEOUT_S * 1000),
            linger_ms=5,
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            answers = [await each for each in sent]
            return [-1 if each is None else each.offset for each in answers]

    @contextmanager
    def reader(self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500) -> Iterator[AioReader]:
        async def open_at_offset() -> AIOKafkaConsumer:
            consumer = await self._start_consumer(max_wait_ms)
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            return consumer

        consumer = self._run(open_at_offset())
        try:
            yield AioReader(self, consumer)
        finally:
            self._run(consumer.stop())

    async def _start_consumer(self, max_wait_ms: int = 500) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=max_wait_ms,
        )
        await consumer.start()
        return consumer

    def earliest(self, topic: str, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        return self._run(self._enquirer.beginning_offsets([at]))[at]

    def latest(self, topic: str, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        return self._run(self._enquirer.end_offsets([at]))[at]

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        at = TopicPartition(topic, partition)
        found = self._run(self._enquirer.offsets_for_times({at: timestamp_ms}))[at]
        return None if found is None else found.offset

    def max_timestamp_offset(self, topic: str, partition: int = 0) -> int | None:
        raise NotImplementedError("aiokafka cannot ask for the greatest timestamp.")


class AioReader:
    def __init__(self, client: AioClient, consumer: AIOKafkaConsumer) -> None:
        self._client = client
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Received]:
        arrived = self._client._run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [_received(record) for records in arrived.values() for record in records]


def _received(record: ConsumerRecord[bytes, bytes]) -> Received:
    return Received(
        record=Record(
            value=record.value,
            key=record.key,
            headers=tuple(record.headers),
            timestamp_ms=record.timestamp,
            partition=record.partition,
        ),
        offset=record.offset,
        append_time=record.timestamp_type == 1,
    )


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise Refused(code, message or "")
