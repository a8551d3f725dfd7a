"""Apache Kafka's own clients in Java, through one long-lived JVM (`tests/conformance/java/bridge`)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.clients import Cluster, Config, Received, Record, Refused
from tests.support.java_programs import compiled
from tests.support.kafka_jars import java

__all__ = ["QUICK_START", "QUIET", "JavaClient", "received", "sendable"]

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""For processes that live for seconds: less optimizing, less memory."""
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"


class JavaClient:
    def __init__(self, bootstrap: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # not a pipe: nobody reads it, and a full one stops it
        self._bridge = subprocess.Popen(
            [java(), *QUICK_START, QUIET, "-cp", compiled("bridge"), "Bridge", bootstrap],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def close(self) -> None:
        """The bridge ends when its input does."""
        self._bridge.communicate(timeout=30)
        self._errors.close()

    def ask(self, op: str, **arguments: Any) -> Any:
        assert self._bridge.stdin is not None
        assert self._bridge.stdout is not None
        try:
            self._bridge.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._bridge.stdin.flush()
        except BrokenPipeError:
            self._explain_death()
        line = self._bridge.stdout.readline()
        if not line:
            self._explain_death()
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["ok"]

    def _explain_death(self) -> None:
        self._bridge.communicate()
        self._errors.seek(0)
        raise RuntimeError(f"The Java bridge ended with {self._bridge.returncode}:\n{self._errors.read()}")

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
        self.ask(
            "create_topic",
            topic=name,
            partitions=partitions,
            config=dict(config or {}),
            replication=replication,
            validate_only=validate_only,
        )

    def delete_topic(self, name: str) -> None:
        self.ask("delete_topic", topic=name)

    def topics(self) -> set[str]:
        return set(self.ask("topics"))

    def partition_count(self, topic: str) -> int:
        try:
            return int(self.ask("describe_topic", topic=topic)["partitions"])
        except Refused:
            return 0

    def topic_id(self, topic: str) -> str:
        return str(self.ask("describe_topic", topic=topic)["id"])

    def create_partitions(self, topic: str, total: int) -> None:
        self.ask("create_partitions", topic=topic, total=total)

    def describe_config(self, topic: str) -> Mapping[str, Config]:
        described = self.ask("describe_config", topic=topic)
        return {name: Config(value=each["value"], is_default=each["default"]) for name, each in described.items()}

    def config_types(self, topic: str) -> Mapping[str, str]:
        return {name: each["type"] for name, each in self.ask("describe_config", topic=topic).items()}

    def config_sources(self, topic: str) -> Mapping[str, str]:
        return {name: each["source"] for name, each in self.ask("describe_config", topic=topic).items()}

    def set_config(self, topic: str, changes: Mapping[str, str | None]) -> None:
        self.ask("set_config", topic=topic, changes=dict(changes))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> int:
        return int(self.ask("delete_records", topic=topic, partition=partition, before=before))

    def cluster(self) -> Cluster:
        described = self.ask("cluster")
        return Cluster(
            cluster_id=described["id"],
            controller_id=described["controller"],
            nodes=frozenset((node, host, port) for node, host, port in described["nodes"]),
        )

    def produce(
        self, topic: str, records: Sequence[Record], *, codec: str = "none", idempotence: bool = False, acks: int = -1
    ) -> list[int]:
        offsets = self.ask(
            "produce", topic=topic, records=sendable(records), codec=codec, idempotence=idempotence, acks=str(acks)
        )
        return list(offsets)

    @contextmanager
    def reader(self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500) -> Iterator[JavaReader]:
        handle = self.ask("open_reader", topic=topic, partition=partition, offset=offset, max_wait_ms=max_wait_ms)
        try:
            yield JavaReader(self, handle)
        finally:
            self.ask("close_reader", reader=handle)

    def earliest(self, topic: str, partition: int = 0) -> int:
        return self.list_offset(topic, "earliest", partition)

    def latest(self, topic: str, partition: int = 0) -> int:
        return self.list_offset(topic, "latest", partition)

    def max_timestamp_offset(self, topic: str, partition: int = 0) -> int | None:
        offset = self.list_offset(topic, "max_timestamp", partition)
        return None if offset < 0 else offset

    def list_offset(self, topic: str, spec: str, partition: int = 0) -> int:
        return int(self.ask("list_offset", topic=topic, partition=partition, spec=spec)["offset"])

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        offset = self.ask("offset_at", topic=topic, partition=partition, timestamp=timestamp_ms)
        return None if offset is None else int(offset)

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        low, high = self.ask("watermarks", topic=topic, partition=partition)
        return low, high

    def describe_producers(self, topic: str, partition: int = 0) -> list[dict[str, Any]]:
        return list(self.ask("describe_producers", topic=topic, partition=partition))

    def log_sizes(self) -> Mapping[str, int]:
        """Bytes on disk of each `topic-partition`."""
        return dict(self.ask("log_dirs"))

    def tool(self, main_class: str, *arguments: str, feed: str = "") -> str:
        """What one of Kafka's command line tools prints when it is fed these lines; it must succeed."""
        done = self.ask("tool", tool=main_class, arguments=arguments, feed=feed)
        assert done["status"] == 0, f"{main_class} ended with {done}"
        return str(done["printed"])


class JavaReader:
    def __init__(self, client: JavaClient, handle: int) -> None:
        self._client = client
        self._handle = handle

    def poll(self, timeout_s: float) -> list[Received]:
        arrived = self._client.ask("poll", reader=self._handle, timeout_ms=int(timeout_s * 1000))
        return [received(each) for each in arrived]


def sendable(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [
        {
            "value": _text(record.value),
            "key": _text(record.key),
            "headers": [[name, _text(value)] for name, value in record.headers],
            "timestamp": record.timestamp_ms,
            "partition": record.partition,
        }
        for record in records
    ]


def received(each: Mapping[str, Any]) -> Received:
    return Received(
        record=Record(
            value=_bytes(each["value"]),
            key=_bytes(each["key"]),
            headers=tuple((name, _bytes(value)) for name, value in each["headers"]),
            timestamp_ms=each["timestamp"],
            partition=each["partition"],
        ),
        offset=each["offset"],
        append_time=each["append_time"],
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
