"""Topics: what exists, under which id, with which settings; on disk before anyone is told.

    DIR/topics/NAME.json     the topic: id, number of partitions, settings
    DIR/NAME-0/ ...          its partitions' logs

The JSON file is the commit point, replaced as a whole each time:

    create    partition folders first, then the file: a crash before it leaves empty folders that a later create clears
    delete    the file is marked first, then the folders go, then the file: a crash in between is finished by the
              next start
    grow      new folders first, then the file with the new number

A folder that belongs to no topic is left alone and reported: records are never removed on a guess. If there ever were
records in it, or if the folder of a partition is missing, something else has changed the directory, and the broker does
not start.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from onceflow.broker.partition import Partition
from onceflow.clock import Clock
from onceflow.config import BrokerConfig, TopicConfig
from onceflow.errors import ConfigError, CorruptLog, ErrorCode, ProtocolError, StorageError
from onceflow.log.files import FileSystem
from onceflow.log.partition import PartitionLog, was_written
from onceflow.log.small_files import read_json, replace_json
from onceflow.monitor.meters import Traffic

__all__ = ["Topic", "Topics"]

logger = logging.getLogger(__name__)

NAME_LENGTH_MAX: Final = 249
PARTITIONS_MAX: Final = 10_000
"""Per topic; each open partition holds a file."""
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
CATALOGUE: Final = "topics"
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


class Topic:
    def __init__(self, name: str, id: uuid.UUID, overrides: Mapping[str, str]) -> None:
        self.name = name
        self.id = id
        self.overrides = dict(overrides)
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition] = []
        self.traffic = Traffic()

    def check_not_internal(self) -> None:
        """Raise for what would take the coordinators' state away from under them."""
        if self.is_internal:
            raise ProtocolError(
                ErrorCode.POLICY_VIOLATION, f"{self.name} holds the state of a coordinator and stays as it is."
            )

    def to_json(self, partitions: int | None = None) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "partitions": len(self.partitions) if partitions is None else partitions,
            "config": self.overrides,
        }


def check_name(name: str) -> None:
    """Kafka's rules for topic names; a name is also the name of folders."""
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it is '.' or '..'"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"it is longer than {NAME_LENGTH_MAX} characters"
    elif not _LEGAL_NAME.fullmatch(name):
        reason = "it has a character other than ASCII letters, digits, '.', '_' and '-'"
    if reason:
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name {name!r} is illegal: {reason}.")


def check_not_too_many(partitions: int) -> None:
    """Raise `ProtocolError`, with the code of Kafka's own limit for a request, which is the same."""
    if partitions > PARTITIONS_MAX:
        raise ProtocolError(
            ErrorCode.POLICY_VIOLATION, f"A topic may have {PARTITIONS_MAX} partitions, and not {partitions}."
        )


class Topics:
    """All topics of a broker, by name and by id."""

    def __init__(self, files: FileSystem, directory: Path, config: BrokerConfig, clock: Clock) -> None:
        self._files = files
        self._directory = directory
        self._config = config
        self._clock = clock
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.version = 0
        """Another number after every topic that appeared, grew or went away."""
        files.make_directory(self._catalogue)
        self._load()

    @property
    def _catalogue(self) -> Path:
        return self._directory / CATALOGUE

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def named(self, name: str) -> Topic:
        """The topic of that name, or `ProtocolError`: 17 for what cannot be a name, 3 for one that nobody has."""
        topic = self._by_name.get(name)
        if topic is None:
            check_name(name)
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
        return topic

    def by_id(self, id: uuid.UUID | None) -> Topic | None:
        return self._by_id.get(id.bytes) if id is not None else None

    def find(self, key: str | bytes) -> Topic | None:
        """By name, or by the bytes of an id."""
        return self._by_name.get(key) if isinstance(key, str) else self._by_id.get(key)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self._by_name.get(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def partitions(self) -> Iterator[Partition]:
        for topic in self._by_name.values():
            yield from topic.partitions

    # Changing

    def check_new(self, name: str, partitions: int, overrides: Mapping[str, str | None]) -> None:
        """Raise `ProtocolError` if this topic cannot be created."""
        check_name(name)
        if name in self._by_name:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        collision = name.replace(".", "_")
        for other in self._by_name:
            if other.replace(".", "_") == collision:
                raise ProtocolError(
                    ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}."
                )
        if partitions <= 0:
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, "The number of partitions must be larger than 0.")
        check_not_too_many(partitions)
        self._check_config(overrides)

    def create(self, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
        self.check_new(name, partitions, overrides)
        topic = Topic(name, uuid.uuid4(), overrides)
        try:
            topic.partitions = self._make_partitions(topic, range(partitions))
            self._save(topic)
        except StorageError:
            for partition in topic.partitions:
                partition.log.abandon()
            with contextlib.suppress(StorageError):
                # The file first: where it is, the folders have to be. Without it they are empty, and in nobody's way.
                self._files.remove(self._file(name))
                with contextlib.suppress(StorageError):
                    self._files.sync_directory(self._catalogue)
                self._remove_folders(name, range(partitions))
            raise
        self._add(topic)
        return topic

    def delete(self, topic: Topic) -> None:
        deleted = {"deleted": True, "partitions": len(topic.partitions)}
        try:
            replace_json(self._files, self._file(topic.name), deleted)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._save(topic)  # the mark may be there, and the next start must not act on it: the topic lives on
            raise
        del self._by_name[topic.name]
        del self._by_id[topic.id.bytes]
        self.version += 1
        for partition in topic.partitions:
            partition.log.abandon()
            partition.wake()
        try:
            self._finish_delete(topic.name, len(topic.partitions))
        except StorageError as error:
            logger.warning("Topic %s is deleted, its files are not; the next start removes them: %s", topic.name, error)

    def _finish_delete(self, name: str, partitions: int) -> None:
        self._remove_folders(name, range(partitions))
        self._files.sync_directory(self._directory)  # first: a folder must not outlive the file that says whose it was
        self._files.remove(self._file(name))
        self._files.sync_directory(self._catalogue)

    def grow(self, topic: Topic, partitions: int) -> None:
        indexes = range(len(topic.partitions), partitions)
        added: list[Partition] = []
        try:
            added = self._make_partitions(topic, indexes)
            replace_json(self._files, self._file(topic.name), topic.to_json(partitions))
        except StorageError:
            for partition in added:
                partition.log.abandon()
            # The folders stay, empty: the file may be there in spite of it, and knows them.
            raise
        topic.partitions.extend(added)
        self.version += 1

    def configure(self, topic: Topic, overrides: Mapping[str, str]) -> None:
        """Give a topic new settings, all of them; they hold from the next record on."""
        self._check_config(overrides)
        before = topic.overrides
        topic.overrides = dict(overrides)
        try:
            self._save(topic)
        except StorageError:
            topic.overrides = before
            raise
        self._take_over(topic, self._config.topic(topic.overrides))

    def follow(self, config: BrokerConfig) -> Generator[int, None, None]:
        """Have all topics go by other settings of the broker where they have none of their own; in steps, as there may
        be many topics. If whoever asked for it goes away, the rest is done at once."""
        self._config = config
        known: dict[frozenset[tuple[str, str]], TopicConfig] = {}
        remaining = iter(tuple(self))

        def one_more(topic: Topic) -> None:
            nonlocal config
            if self._config is not config:  # changed again between two steps
                config = self._config
                known.clear()
            own = frozenset(topic.overrides.items())
            if own not in known:
                known[own] = config.topic(topic.overrides)
            self._take_over(topic, known[own])

        try:
            for topic in remaining:
                one_more(topic)
                yield 0
        finally:
            for topic in remaining:
                one_more(topic)

    @staticmethod
    def _take_over(topic: Topic, config: TopicConfig) -> None:
        for partition in topic.partitions:
            partition.log.config = config

    def _check_config(self, overrides: Mapping[str, str | None]) -> None:
        try:
            self._config.check_topic(overrides)
        except ConfigError as error:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, str(error)) from error

    # On disk

    def _file(self, name: str) -> Path:
        return self._catalogue / f"{name}.json"

    def _folder(self, name: str, index: int) -> Path:
        return self._directory / f"{name}-{index}"

    def _save(self, topic: Topic) -> None:
        replace_json(self._files, self._file(topic.name), topic.to_json())

    def _remove_folders(self, name: str, indexes: range) -> None:
        for index in indexes:
            self._files.remove_tree(self._folder(name, index))

    def _make_partitions(self, topic: Topic, indexes: range) -> list[Partition]:
        """New ones, in folders that an earlier attempt or an earlier topic of this name may have left."""
        self._remove_folders(topic.name, indexes)
        partitions = self._open_partitions(topic, indexes)
        try:
            self._files.sync_directory(self._directory)
        except StorageError:
            for partition in partitions:
                partition.log.abandon()
            raise
        return partitions

    def _open_partitions(self, topic: Topic, indexes: range) -> list[Partition]:
        """All of them, or none and a `StorageError`."""
        config = self._config.topic(topic.overrides)
        fsync = self._config.fsync
        opened: list[Partition] = []
        try:
            for index in indexes:
                folder = self._folder(topic.name, index)
                log = PartitionLog(self._files, folder, config, self._clock, fsync=fsync)
                opened.append(Partition(topic.name, index, log))
        except StorageError:
            for partition in opened:
                partition.log.abandon()
            raise
        return opened

    def _add(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id.bytes] = topic
        self.version += 1

    def _load(self) -> None:
        self._files.sync_directory(self._catalogue)  # whatever the last process died over: what is shown is certain
        for file in self._files.list(self._catalogue):
            if not file.endswith(".json"):
                self._files.remove(self._catalogue / file)  # a replace that was never finished
                continue
            name = file.removesuffix(".json")
            remedy = (
                f"Its records are in the folders {name}-0 and so on, untouched. Restore the file from a backup, or "
                "move it and the folders away to go without the topic."
            )
            content = read_json(self._files, self._catalogue / file, remedy)
            try:
                partitions = range(content["partitions"])
                if content.get("deleted"):
                    self._finish_delete(name, len(partitions))
                    continue
                topic = Topic(name, uuid.UUID(content["id"]), content["config"])
                self._config.check_topic(topic.overrides)
            except (ValueError, LookupError, TypeError, AttributeError, ConfigError) as error:
                raise CorruptLog(f"{self._catalogue / file} does not describe a topic ({error}). {remedy}") from error
            self._check_folders(topic, partitions)
            topic.partitions = self._open_partitions(topic, partitions)
            self._add(topic)
        self._check_strangers()

    def _check_folders(self, topic: Topic, partitions: range) -> None:
        """They were there before the file of the topic, and go only after it was marked."""
        for index in partitions:
            folder = self._folder(topic.name, index)
            if not self._files.exists(folder):
                raise CorruptLog(
                    f"{folder} is missing: something other than the broker has removed it, and the records of "
                    f"partition {index} with it. Restore it from a backup of the directory, or make an empty folder of "
                    "that name to go on without the records."
                )

    def _check_strangers(self) -> None:
        """What a crash leaves of a topic that was being made or grew is empty: nobody could write to it yet."""
        known = {self._folder(p.topic, p.index).name for p in self.partitions()}
        for name in self._files.list(self._directory):
            found = re.fullmatch(r"([a-zA-Z0-9._-]+)-\d+", name)
            if found is None or name in known:
                continue
            folder = self._directory / name
            if was_written(self._files, folder):
                raise CorruptLog(
                    f"Folder {folder} holds records and belongs to no topic: {self._file(found[1])} is missing or does "
                    "not know it. Restore that file from a backup of the directory, or move the folder away to go "
                    "without the records."
                )
            logger.warning("Folder %s belongs to no topic and is left alone.", folder)
