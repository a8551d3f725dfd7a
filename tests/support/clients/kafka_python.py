"""kafka-python."""

from __future__ import annotations

import re
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.clients import CODECS, TIMEOUT_S, Cluster, Config, Received, Record, Refused

with warnings.catch_warnings():
    # It loads its message definitions through a function that Python 3.11 deprecates (and 3.13 brought back).
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.errors import KafkaError
    from kafka.net.inet import KafkaNetSocket

__all__ = ["INSTALLED_CODECS", "KafkaPythonClient", "KafkaPythonReader", "refusals"]

INSTALLED_CODECS = tuple(name for name in CODECS if name == "none" or getattr(kafka.codec, f"has_{name}")())
"""It compresses with other packages, which need not be there: python-snappy, lz4 and zstandard."""


class _Socket(socket.socket):
    """kafka-python loses the socket of a connection that is still being made when a client is closed (`sock_connect` of
    `KafkaNetSocket`). Python would warn of that in whichever test is running when it notices."""

    def __del__(self) -> None:
        self.close()


def _new_socket(_: KafkaNetSocket, family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> socket.socket:
    return _Socket(family, kind, protocol)


KafkaNetSocket.socket = _new_socket


class KafkaPythonClient:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        # A consumer that only answers questions about offsets: starting one takes a tenth of a second.
        self._enquirer = self._consumer()

    def close(self) -> None:
        self._enquirer.close()
        self.admin.close()

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
        options = {
            "num_partitions": -1 if partitions is None else partitions,
            "replication_factor": replication,
            "configs": dict(config or {}),
        }
        with refusals():
            self.admin.create_topics({name: options}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with refusals():
            self.admin.delete_topics([name])

    def topics(self) -> set[str]:
        return set(self.admin.list_topics())

    def partition_count(self, topic: str) -> int:
        [described] = self.admin.describe_topics([topic])
        return len(described["partitions"])

    def topic_id(self, topic: str) -> str:
        [described] = self.admin.describe_topics([topic])
        return str(described["topic_id"])

    def create_partitions(self, topic: str, total: int) -> None:
        with refusals():
            self.admin.create_partitions({topic: total})

    def describe_config(self, topic: str) -> Mapping[str, Config]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        entries = self.admin.describe_configs([resource], config_filter="all")["topic"][topic]
        return {
            name: Config(value=entry["value"], is_default=entry["config_source"] == "DEFAULT_CONFIG")
            for name, entry in entries.items()
        }

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        operations = {
            name: (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value)
            for name, value in changes.items()
        }
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, operations)
        outcome = self.admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if outcome != "OK":
            # This call hands errors over as text only: "[Error 40] InvalidConfigurationError: ...".
            raise Refused(int(re.search(r"\[Error (\d+)]", outcome)[1]), outcome)

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        with refusals():
            return int(self.admin.delete_records({at: before})[at]["low_watermark"])

    def cluster(self) -> Cluster:
        described = self.admin.describe_cluster()
        return Cluster(
            cluster_id=described["cluster_id"],
            controller_id=described["controller_id"],
            nodes=frozenset((node["broker_id"], node["host"], node["port"]) for node in described["brokers"]),
        )

    def produce(
        self, topic: str, records: Sequence[Record], *, codec: str = "none", idempotence: bool = False, acks: int = -1
    ) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotence,
            acks=acks,
            max_request_size=10_000_000,
            request_timeout_ms=int(TIMEOUT_S * 1000),
            delivery_timeout_ms=int(TIMEOUT_S * 1000) + 5,
            linger_ms=5,
        )
        try:
            with refusals():
                sent = [
                    producer.send(
                        topic,
                        record.value,
                        record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                return [each.get(TIMEOUT_S).offset for each in sent]
        finally:
            producer.close(timeout=TIMEOUT_S)

    @contextmanager
    def reader(
        self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500
    ) -> Iterator[KafkaPythonReader]:
        consumer = self._consumer(max_wait_ms)
        try:
            at = TopicPartition(topic, partition)
            consumer.assign([at])
            consumer.seek(at, offset)
            yield KafkaPythonReader(consumer)
        finally:
            consumer.close()

    def _consumer(self, max_wait_ms: int = 500) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=max_wait_ms,
            request_timeout_ms=2 * max_wait_ms + 30_000,
        )

    def earliest(self, topic: str, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        with refusals():
            return int(self._enquirer.beginning_offsets([at])[at])

    def latest(self, topic: str, partition: int = 0) -> int:
        at = TopicPartition(topic, partition)
        with refusals():
            return int(self._enquirer.end_offsets([at])[at])

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        at = TopicPartition(topic, partition)
        with refusals():
            found = self._enquirer.offsets_for_times({at: timestamp_ms})[at]
        return None if found is None else int(found.offset)

    def max_timestamp_offset(self, topic: str, partition: int = 0) -> int | None:
        at = TopicPartition(topic, partition)
        with refusals():
            found = self.admin.list_partition_offsets({at: OffsetSpec.MAX_TIMESTAMP})[at]
        return None if found.offset < 0 else int(found.offset)

    def describe_producers(self, topic: str, partition: int = 0) -> list[Any]:
        at = TopicPartition(topic, partition)
        return list(self.admin.describe_producers([at])[at].active_producers)


class KafkaPythonReader:
    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer

    def poll(self, timeout_s: float) -> list[Received]:
        with refusals():
            arrived = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        return [_received(record) for records in arrived.values() for record in records]


def _received(record: ConsumerRecord) -> Received:
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


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise Refused(getattr(error, "errno", -1), str(error)) from error
