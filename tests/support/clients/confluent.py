"""confluent-kafka, and with it librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from onceflow.errors import ErrorCode
from tests.support.clients import TIMEOUT_S, Cluster, Config, Received, Record, Refused

__all__ = ["ConfluentClient"]


class ConfluentClient:
    def __init__(self, bootstrap: str) -> None:
        self._connection = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self._connection)

    def close(self) -> None:
        self.admin = None

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
        topic = NewTopic(
            name, -1 if partitions is None else partitions, replication_factor=replication, config=dict(config or {})
        )
        _answer(self.admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        _answer(self.admin.delete_topics([name]))

    def topics(self) -> set[str]:
        return set(self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def partition_count(self, topic: str) -> int:
        try:
            return len(_answer(self.admin.describe_topics(TopicCollection([topic]))).partitions)
        except Refused:
            return 0

    def topic_id(self, topic: str) -> str:
        return str(_answer(self.admin.describe_topics(TopicCollection([topic]))).topic_id)

    def create_partitions(self, topic: str, total: int) -> None:
        _answer(self.admin.create_partitions([NewPartitions(topic, total)]))

    def describe_config(self, topic: str) -> Mapping[str, Config]:
        entries = _answer(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: Config(value=entry.value, is_default=entry.is_default) for name, entry in entries.items()}

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        self.alter_config(topic, entries)

    def alter_config(self, topic: str, entries: list[ConfigEntry]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        _answer(self.admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        at = TopicPartition(topic, partition, before)
        return int(_answer(self.admin.delete_records([at])).low_watermark)

    def cluster(self) -> Cluster:
        described = self.admin.describe_cluster(request_timeout=TIMEOUT_S).result()
        return Cluster(
            cluster_id=described.cluster_id,
            controller_id=described.controller.id,
            nodes=frozenset((node.id, node.host, node.port) for node in described.nodes),
        )

    def produce(
        self, topic: str, records: Sequence[Record], *, codec: str = "none", idempotence: bool = False, acks: int = -1
    ) -> list[int]:
        settings = {
            "compression.type": codec,
            "enable.idempotence": idempotence,
            "acks": acks,
            "message.max.bytes": 10_000_000,
            "message.timeout.ms": int(TIMEOUT_S * 1000),
            "linger.ms": 5,
        }
        reports: dict[int, tuple[KafkaError | None, int | None]] = {}
        with Producer({**self._connection, **settings}) as producer:
            for index, record in enumerate(records):
                producer.produce(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    on_delivery=_report_into(reports, index),
                    **({} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}),
                )
            producer.flush(TIMEOUT_S)
        assert len(reports) == len(records), f"{len(reports)} of {len(records)} records were answered"
        for error, _ in reports.values():
            if error is not None:
                raise Refused(error.code(), error.str())
        return [reports[index][1] for index in range(len(records))]

    @contextmanager
    def reader(
        self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500
    ) -> Iterator[ConfluentReader]:
        consumer = self._consumer({"fetch.wait.max.ms": max_wait_ms})
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            yield ConfluentReader(consumer)
        finally:
            consumer.close()

    def earliest(self, topic: str, partition: int = 0) -> int:
        return self._list_offset(topic, partition, OffsetSpec.earliest())

    def latest(self, topic: str, partition: int = 0) -> int:
        return self._list_offset(topic, partition, OffsetSpec.latest())

    def max_timestamp_offset(self, topic: str, partition: int = 0) -> int | None:
        offset = self._list_offset(topic, partition, OffsetSpec.max_timestamp())
        return None if offset < 0 else offset

    def _list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        return int(_answer(self.admin.list_offsets({TopicPartition(topic, partition): spec})).offset)

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self._consumer({})
        try:
            [found] = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=TIMEOUT_S)
        finally:
            consumer.close()
        if found.error is not None:
            raise Refused(found.error.code(), found.error.str())
        return None if found.offset < 0 else found.offset

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer({})
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)
        finally:
            consumer.close()

    def _consumer(self, settings: Mapping[str, object]) -> Consumer:
        # librdkafka wants a group id even of a consumer that never joins one, and reads committed records by default.
        fixed = {
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
        }
        return Consumer({**self._connection, **fixed, **settings})


class ConfluentReader:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Received]:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        return [_received(message) for message in [first, *self._consumer.consume(1000, timeout=0)]]


def _received(message: Message) -> Received:
    error = message.error()
    if error is not None:
        # With "auto.offset.reset": "error" this is librdkafka's word for an offset that is not there.
        out_of_range = error.code() == KafkaError._AUTO_OFFSET_RESET
        raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE if out_of_range else error.code(), error.str())
    kind, timestamp_ms = message.timestamp()
    record = Record(
        value=message.value(),
        key=message.key(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp_ms,
        partition=message.partition(),
    )
    return Received(record=record, offset=message.offset(), append_time=kind == TIMESTAMP_LOG_APPEND_TIME)


def _report_into(
    reports: dict[int, tuple[KafkaError | None, int | None]], index: int
) -> Callable[[KafkaError | None, Message], None]:
    def report(error: KafkaError | None, message: Message) -> None:
        reports[index] = (error, message.offset())

    return report


def _answer(futures: Mapping[Any, Future[Any]]) -> Any:
    """The result of the one thing that was asked."""
    [future] = futures.values()
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from error
