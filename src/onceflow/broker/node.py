"""The broker's state and what it decides: topics, producer ids, time. No sockets here.

Handlers are given a `Node`; it holds everything that outlives a request.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.topics import Topic, Topics
from onceflow.clock import Clock
from onceflow.config import PRODUCER_ID_BLOCK, BrokerConfig
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.files import FileSystem
from onceflow.log.partition import PartitionLog

__all__ = ["Node"]

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1


def kafka_uuid(id: uuid.UUID) -> str:
    """An id as Kafka writes it."""
    return base64.urlsafe_b64encode(id.bytes).rstrip(b"=").decode()


class Node:
    """One broker on one data directory, which the caller has locked."""

    def __init__(self, files: FileSystem, directory: Path, config: BrokerConfig, clock: Clock) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.clock = clock
        self.node_id: int = config["node.id"]
        self.fetch_max_bytes: int = config["fetch.max.bytes"]
        self.host, self.port = "127.0.0.1", 0
        """What clients are told to connect to."""
        self.cluster_id = self._open_directory()
        self.topics = Topics(files, directory, config, clock)
        self._producer_ids = iter(range(0))
        self._unclaimed_producer_id = self._read_unclaimed_producer_id()
        self.disk_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self.group_commit: GroupCommit | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.group_commit = GroupCommit(loop, self.disk_thread)

    def _open_directory(self) -> str:
        """The cluster id that the directory was given when it was new."""
        path = self.directory / "meta.json"
        self.files.make_directory(self.directory)
        if self.files.exists(path):
            meta = self._read_json(path, "version", "cluster_id")
            if meta["version"] != FORMAT_VERSION:
                raise StorageError(
                    f"{self.directory} has format {meta['version']}; this version reads {FORMAT_VERSION}."
                )
            return str(meta["cluster_id"])
        cluster_id = kafka_uuid(uuid.uuid4())
        self.files.replace(path, json.dumps({"version": FORMAT_VERSION, "cluster_id": cluster_id}).encode())
        return cluster_id

    def _read_json(self, path: Path, *keys: str) -> dict[str, Any]:
        try:
            content = json.loads(self.files.read_bytes(path))
            return {key: content[key] for key in keys}
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptLog(f"{path} is damaged ({error}); restore it from a backup of the directory.") from error

    # Topics

    def auto_create(self, name: str) -> Topic:
        """A topic that a client asked for and that does not exist, if the settings allow it."""
        if not self.config["auto.create.topics.enable"]:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        return self.topics.create(name, self.config["num.partitions"], {})

    # Producers

    def new_producer_id(self) -> int:
        """A producer id that was never given out before, also not before a crash: a block is claimed on disk first."""
        for producer_id in self._producer_ids:
            return producer_id
        start, end = self._unclaimed_producer_id, self._unclaimed_producer_id + PRODUCER_ID_BLOCK
        self.files.replace(self._producer_ids_file, json.dumps({"next": end}).encode())
        self._unclaimed_producer_id = end
        self._producer_ids = iter(range(start, end))
        return next(self._producer_ids)

    @property
    def _producer_ids_file(self) -> Path:
        return self.directory / "producer-ids.json"

    def _read_unclaimed_producer_id(self) -> int:
        if not self.files.exists(self._producer_ids_file):
            return 0
        return int(self._read_json(self._producer_ids_file, "next")["next"])

    # Housekeeping; the shell decides when.

    def apply_retention(self) -> None:
        now_ms = self.clock.now_ms()
        for partition in list(self.topics.partitions()):
            try:
                freed = partition.log.apply_retention(now_ms)
            except StorageError as error:
                logger.error("No retention for %s-%d: %s", partition.topic, partition.index, error)
                continue
            if freed:
                logger.info("Retention freed %d bytes of %s-%d.", freed, partition.topic, partition.index)

    def expire_producers(self) -> None:
        before_ms = self.clock.now_ms() - int(self.config["producer.id.expiration.ms"])
        for partition in self.topics.partitions():
            partition.log.producers.expire(before_ms)

    async def compact(self) -> None:
        """Compact what is due, one partition after the other, in a thread of its own."""

    def close(self) -> None:
        """Leave every log with a checkpoint, so that the next start has nothing to read."""
        self.disk_thread.shutdown(wait=True)
        for partition in self.topics.partitions():
            self._close(partition.log)

    @staticmethod
    def _close(log: PartitionLog) -> None:
        try:
            log.close()
        except StorageError as error:
            logger.error("%s was closed without a checkpoint: %s", log.directory, error)
