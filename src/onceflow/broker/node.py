"""The broker's state and what it decides: topics, producer ids, time. No sockets here.

Handlers are given a `Node`; it holds everything that outlives a request.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from onceflow.broker import acls, dynamic_settings, features, users
from onceflow.broker.access import Authorizer
from onceflow.broker.acls import ACLS_FILE, Acls
from onceflow.broker.chores import unless_it_fails
from onceflow.broker.disk_trouble import DiskTrouble
from onceflow.broker.dynamic_settings import SETTINGS_FILE, DynamicSettings
from onceflow.broker.features import FEATURES_FILE, Features
from onceflow.broker.fetch_sessions import FetchSessions
from onceflow.broker.group_commit import GroupCommit
from onceflow.broker.groups import Groups
from onceflow.broker.large_fetches import LargeFetches
from onceflow.broker.large_requests import LargeRequests
from onceflow.broker.partition import Partition
from onceflow.broker.state_log import StateLog
from onceflow.broker.topics import CATALOGUE, CONSUMER_OFFSETS, TRANSACTION_STATE, Topic, Topics
from onceflow.broker.transactions import Transactions
from onceflow.broker.users import USERS_FILE, Users
from onceflow.clock import Clock
from onceflow.config import PRODUCER_ID_BLOCK, BrokerConfig
from onceflow.errors import CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.compaction import Cleaner, Pace
from onceflow.log.files import FileSystem
from onceflow.log.partition import Appended, PartitionLog
from onceflow.log.small_files import RESTORE, read_json, replace_json
from onceflow.monitor.meters import Meters
from onceflow.wire.batch import BatchHeader

__all__ = ["Node"]

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
PRODUCER_IDS_FILE: Final = "producer-ids.json"
CLEANER_WORK_S: Final = 0.001
CLEANER_REST_S: Final = 0.001
CLOSING_THREADS: Final = 8

T = TypeVar("T")


def kafka_uuid(id: uuid.UUID) -> str:
    """An id as Kafka writes it."""
    return base64.urlsafe_b64encode(id.bytes).rstrip(b"=").decode()


def _no_loop(seconds: float, run: Callable[[], None]) -> object:
    raise RuntimeError("The node is not attached to a loop yet.")


class Node:
    """One broker on one data directory, which the caller has locked."""

    def __init__(self, files: FileSystem, directory: Path, config: BrokerConfig, clock: Clock) -> None:
        self.files = files
        self.directory = directory
        self.clock = clock
        self.node_id: int = config["node.id"]
        self.fetch_max_bytes: int = config["fetch.max.bytes"]
        self.host, self.port = "127.0.0.1", 0
        """What clients are told to connect to."""
        self.meters = Meters()
        self.started_ms = clock.now_ms()
        self.cluster_id = self._open_directory()
        self.dynamic_settings = DynamicSettings(files, directory)
        self.config = config = self.dynamic_settings.load(config)
        """Another object after every change."""
        self.authorizer: Authorizer | None = None
        """Who decides what clients may do; None lets everybody do everything."""
        if config["authorizer.class.name"]:
            self.authorizer = Authorizer(Acls(files, directory), config, self.meters, clock)
        self.topics = Topics(files, directory, config, clock)
        self.users = Users(files, directory)
        self.features = Features(files, directory)
        self._producer_ids = iter(range(0))
        self._unclaimed_producer_id = self._read_unclaimed_producer_id()
        self.disk_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self.cleaner_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cleaner")
        self.cleaner = Cleaner(files, pace=Pace(CLEANER_WORK_S, CLEANER_REST_S))
        self.disk_trouble = DiskTrouble()
        self.group_commit: GroupCommit | None = None
        self.large_requests: LargeRequests | None = None
        """What divides them; without one, each is done at once."""
        self.large_fetches = LargeFetches()
        self.fetch_sessions = FetchSessions()
        self.call_later: Callable[[float, Callable[[], None]], object] = _no_loop
        self.groups = Groups(self)
        self.transactions = Transactions(self)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self.group_commit = GroupCommit(loop, self.disk_thread, self.meters.fsync, self.disk_trouble)
        self.call_later = loop.call_later
        self.groups.attach(loop)
        self.transactions.resume()

    def _open_directory(self) -> str:
        """The cluster id that the directory was given when it was new."""
        path = self.directory / "meta.json"
        self.files.make_directory(self.directory)
        if self.files.exists(path):
            self._check_all_there()
            version = self._stored(path, "version", int)
            if version != FORMAT_VERSION:
                raise StorageError(f"{self.directory} has format {version}; this version reads {FORMAT_VERSION}.")
            return self._stored(path, "cluster_id", str)
        if self.files.exists(self.directory / CATALOGUE):
            raise CorruptLog(f"{path} is missing, and the directory is not a new one. {RESTORE}")
        Users(self.files, self.directory).create_file()
        Acls(self.files, self.directory).create_file()
        Features(self.files, self.directory).create_file()
        DynamicSettings(self.files, self.directory).create_file()
        replace_json(self.files, self._producer_ids_file, {"next": 0})
        # Last: with it the directory is not a new one any more.
        cluster_id = kafka_uuid(uuid.uuid4())
        replace_json(self.files, path, {"version": FORMAT_VERSION, "cluster_id": cluster_id})
        return cluster_id

    def _check_all_there(self) -> None:
        """All of them were made when the directory was new. One that is missing would be taken for an empty one."""
        remedies = {
            USERS_FILE: users.REMEDY,
            ACLS_FILE: acls.REMEDY,
            FEATURES_FILE: features.REMEDY,
            SETTINGS_FILE: dynamic_settings.REMEDY,
            PRODUCER_IDS_FILE: RESTORE,
        }
        for name, remedy in remedies.items():
            path = self.directory / name
            if not self.files.exists(path):
                raise CorruptLog(f"{path} is missing: something other than the broker has removed it. {remedy}")

    def _stored(self, path: Path, key: str, kind: type[T]) -> T:
        """A value of one of our JSON files."""
        try:
            value = read_json(self.files, path)[key]
            if not isinstance(value, kind):
                raise TypeError(f"{key} is {value!r}")
            return value
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptLog(f"{path} is damaged ({error}). {RESTORE}") from error

    # Writing

    def write(self, partition: Partition, batch: memoryview, header: BatchHeader) -> Appended:
        """Append a batch and see to it that it gets to disk; `partition.when_durable` says when.

        Raises `ProtocolError` with nothing written.
        """
        try:
            appended = partition.log.append(batch, header)
        except StorageError as error:
            self.disk_trouble.refused(partition, error)
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self.wrote(partition)
        return appended

    def wrote(self, partition: Partition) -> None:
        """Records were appended to a partition: have them synced, or let readers know."""
        if partition.log.is_dirty:
            assert self.group_commit is not None
            self.group_commit.wrote(partition)
        elif partition.fetchers:
            partition.wake()

    # Topics

    def auto_create(self, name: str) -> Topic:
        """A topic that a client asked for and that does not exist, if the settings allow it."""
        if not self.config["auto.create.topics.enable"]:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        state = self.state_log(name)
        return self.topics.create(name, self.config["num.partitions"], {}) if state is None else state.open()

    def state_log(self, topic: str) -> StateLog | None:
        """What keeps a coordinator's state in the topic of that name."""
        return {CONSUMER_OFFSETS: self.groups.log, TRANSACTION_STATE: self.transactions.log}.get(topic)

    def configure(self, config: BrokerConfig) -> Generator[int, None, None]:
        """Change the broker's settings, on disk first. Topics follow step by step.

        Raises `StorageError` with nothing changed.
        """
        self.dynamic_settings.save(config)
        self.config = config
        yield from self.topics.follow(config)

    # Producers

    def new_producer_id(self) -> int:
        """A producer id that was never given out before, also not before a crash: a block is claimed on disk first."""
        for producer_id in self._producer_ids:
            return producer_id
        start, end = self._unclaimed_producer_id, self._unclaimed_producer_id + PRODUCER_ID_BLOCK
        replace_json(self.files, self._producer_ids_file, {"next": end})
        self._unclaimed_producer_id = end
        self._producer_ids = iter(range(start, end))
        return next(self._producer_ids)

    @property
    def _producer_ids_file(self) -> Path:
        return self.directory / PRODUCER_IDS_FILE

    def _read_unclaimed_producer_id(self) -> int:
        return self._stored(self._producer_ids_file, "next", int)

    # Housekeeping; the shell decides when.

    def apply_retention(self) -> None:
        now_ms = self.clock.now_ms()
        for partition in list(self.topics.partitions()):
            with unless_it_fails("Retention", partition.log.directory):
                try:
                    freed = partition.log.apply_retention(now_ms)
                except (StorageError, CorruptLog) as error:
                    logger.error("No retention for %s-%d: %s", partition.topic, partition.index, error)
                    continue
                if freed:
                    logger.info("Retention freed %d bytes of %s-%d.", freed, partition.topic, partition.index)

    def expire_producers(self) -> None:
        before_ms = self.clock.now_ms() - int(self.config["producer.id.expiration.ms"])
        for partition in self.topics.partitions():
            partition.log.producers.expire(before_ms)

    async def compact(self) -> None:
        """Compact what is due, one partition after the other, in a thread of its own: acknowledgements do not wait."""
        logs = [partition.log for partition in self.topics.partitions()]
        for log in self.cleaner.due(logs, self.clock.now_ms()):
            steps = self.cleaner.clean(log, self.clock.now_ms())
            with unless_it_fails("Compaction", log.directory), closing(steps):
                for step in steps:
                    await self._in_cleaner_thread(step)

    async def _in_cleaner_thread(self, step: Callable[[], None]) -> None:
        running = asyncio.get_running_loop().run_in_executor(self.cleaner_thread, step)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            # The broker stops. The files that the step writes to are closed next, so it has to end first; it does soon.
            self.cleaner.pace.stop()
            await asyncio.wait([running])
            raise

    def close(self) -> None:
        """Leave every log with a checkpoint, so that the next start has nothing to read."""
        self.cleaner.pace.stop()
        self.cleaner_thread.shutdown(wait=True)
        self.cleaner.close_retired()
        if self.large_requests is not None:
            self.large_requests.close()
        self.disk_thread.shutdown(wait=True)
        # Most of it is waiting for the disk, which serves many at once.
        with ThreadPoolExecutor(max_workers=CLOSING_THREADS, thread_name_prefix="closing") as threads:
            list(threads.map(self._close, [partition.log for partition in self.topics.partitions()]))

    @staticmethod
    def _close(log: PartitionLog) -> None:
        try:
            log.close()
        except StorageError as error:
            logger.error("%s was closed without a checkpoint: %s", log.directory, error)
