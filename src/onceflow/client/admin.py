"""Topics, as an administrator sees them: list, describe, create, delete."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from onceflow.client.problems import ClientError, NotYet, Overheard, configured, describe, translated
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError

__all__ = ["Admin", "Partition", "Topic", "TopicDescription", "TopicExistsError", "TopicMissingError"]

SETTLE_S = 5.0  # brokers learn of a new or deleted topic, and of its leaders, a moment after it is decided
SETTLE_POLL_S = 0.02
NO_TOPIC_ID = "A" * 22  # zero, which is all that librdkafka knows of a topic whose broker says no id


class TopicMissingError(ClientError):
    """There is no topic of this name."""


class TopicExistsError(ClientError):
    """There already is a topic of this name."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    name: str
    partitions: tuple[int, ...]
    replication_factor: int

    @property
    def internal(self) -> bool:
        """Kafka's own topics, and nobody else's by convention, start with two underscores."""
        return self.name.startswith("__")


@dataclass(frozen=True, kw_only=True)
class Partition:
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    earliest: int
    latest: int

    @property
    def records_estimate(self) -> int:
        """An upper bound: transaction markers take an offset each, and compaction leaves gaps."""
        return self.latest - self.earliest


@dataclass(frozen=True, kw_only=True)
class TopicDescription:
    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str]
    """Only what was set on the topic itself."""


class Admin:
    """A connection for questions about topics. Raises `ClientError` at once if nobody listens there."""

    def __init__(self, settings: ClientSettings) -> None:
        from confluent_kafka.admin import AdminClient

        self._settings = settings
        self._overheard = Overheard()
        with configured():
            self._client = AdminClient(settings.librdkafka(error_cb=self._overheard))
        settings.knock()

    def topics(self) -> list[Topic]:
        """All topics by name, the internal ones included."""
        metadata = self._metadata()
        return [_topic(name, metadata.topics[name]) for name in sorted(metadata.topics)]

    def topic(self, name: str) -> Topic:
        """One topic, once all its partitions have leaders. Raises `TopicMissingError`."""
        found = self._settled(lambda topics: name not in topics or _has_leaders(topics[name])).get(name)
        if found is None:
            raise TopicMissingError(
                f"there is no topic {name!r} at {self._settings.bootstrap}; "
                f"create it with: onceflow topics create {name}"
            )
        if not _has_leaders(found):
            raise ClientError(f"topic {name!r} has partitions without a leader: the broker is starting or incomplete")
        return _topic(name, found)

    def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """As Kafka prints them; none, if the broker is too old. Raises `TopicMissingError` if a topic is not there."""
        from confluent_kafka import KafkaError, KafkaException

        with self._asking("asking for the ids of topics"):
            try:
                found = {name: _topic_id(each.topic_id) for name, each in self._described(names).items()}
            except KafkaException as problem:
                if problem.args[0].code() not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
                    raise
                for name in names:
                    self.topic(name)  # raises for the one that is missing
                raise TopicMissingError(  # it has been created since, or not every broker knows it yet
                    f"of the topics {', '.join(sorted(names))} not all are there at {self._settings.bootstrap}"
                ) from None
        return {name: topic_id for name, topic_id in found.items() if topic_id != NO_TOPIC_ID}

    def describe(self, names: Iterable[str]) -> list[TopicDescription]:
        """Everything about these topics, in this order. Raises `TopicMissingError` if one is not there."""
        topics = [self.topic(name) for name in names]
        if not topics:
            return []
        with self._asking("describing topics"):
            ids = self._described([topic.name for topic in topics])
        offsets = self.offsets((topic.name, partition) for topic in topics for partition in topic.partitions)
        configs = self._configs(topics)
        return [
            TopicDescription(
                name=topic.name,
                id=_topic_id(ids[topic.name].topic_id),
                internal=bool(ids[topic.name].is_internal),
                partitions=tuple(
                    Partition(
                        partition=p.id,
                        leader=p.leader.id if p.leader else None,
                        replicas=tuple(node.id for node in p.replicas),
                        isr=tuple(node.id for node in p.isr),
                        earliest=offsets[topic.name, p.id][0],
                        latest=offsets[topic.name, p.id][1],
                    )
                    for p in sorted(ids[topic.name].partitions, key=lambda p: int(p.id))
                ),
                configs=configs[topic.name],
            )
            for topic in topics
        ]

    def create(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a topic; -1 leaves a number to the broker.

        Raises `TopicExistsError`, or `ConfigError` for a name, number or setting that cannot be.
        """
        from confluent_kafka import KafkaError, KafkaException

        new = _api().NewTopic(name, partitions, replication_factor, config=dict(configs or {}))
        wrong_wish = (
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.INVALID_PARTITIONS,
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaError.INVALID_CONFIG,
            KafkaError.POLICY_VIOLATION,
            KafkaError._INVALID_ARG,
        )
        try:
            for future in self._client.create_topics([new], request_timeout=self._settings.timeout_s).values():
                future.result()
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicExistsError(f"there already is a topic {name!r}") from None
            kind = ConfigError if error.code() in wrong_wish else ClientError
            raise kind(f"topic {name!r} was not created: {describe(error)}") from None
        self._settled(lambda topics: name in topics and _has_leaders(topics[name]))

    def delete(self, name: str) -> None:
        """Deletes a topic and everything in it. Raises `TopicMissingError`."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            for future in self._client.delete_topics([name], request_timeout=self._settings.timeout_s).values():
                future.result()
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicMissingError(f"there is no topic {name!r} at {self._settings.bootstrap}") from None
            raise ClientError(f"topic {name!r} was not deleted: {describe(error)}") from None
        self._settled(lambda topics: name not in topics)

    def offsets(
        self, at: Iterable[tuple[str, int]], *, read_committed: bool = False
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Earliest offset and end of each (topic, partition).

        With `read_committed` the end is where the first open transaction begins.
        """

        at = list(at)
        earliest = self._list_offsets(at, _api().OffsetSpec.earliest(), read_committed)
        latest = self._list_offsets(at, _api().OffsetSpec.latest(), read_committed)
        return {place: (earliest[place], latest[place]) for place in at}

    def offsets_at(self, at: Iterable[tuple[str, int]], timestamp_ms: int) -> dict[tuple[str, int], int | None]:
        """Per (topic, partition) the first offset of this time or later; None if there is none."""

        found = self._list_offsets(list(at), _api().OffsetSpec.for_timestamp(timestamp_ms), read_committed=False)
        return {place: offset if offset >= 0 else None for place, offset in found.items()}

    def _list_offsets(self, at: list[tuple[str, int]], spec: Any, read_committed: bool) -> dict[tuple[str, int], int]:
        from confluent_kafka import IsolationLevel, TopicPartition

        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(topic, partition): spec for topic, partition in at}
        with self._asking("asking for offsets"):
            futures = self._client.list_offsets(wanted, isolation_level=level, request_timeout=self._settings.timeout_s)
            return {(each.topic, each.partition): int(future.result().offset) for each, future in futures.items()}

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        """As `translated`; a login that is refused is an error, and does not pass."""
        self._client.poll(0)
        self._overheard.last = None  # what was heard before is not about this question
        try:
            with translated(doing):
                yield
        except NotYet:  # all that librdkafka says if it is not let in is that it got no answer in time
            self._client.poll(0)
            self._check_login(self._overheard.last)
            raise

    def _settled(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The metadata of all topics, by name, once `condition` holds or `SETTLE_S` have passed.

        Of all topics, because asking for one by name may create it, if the broker is set so.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            topics: dict[str, Any] = self._metadata().topics
            if condition(topics) or time.monotonic() > deadline:
                return topics
            time.sleep(SETTLE_POLL_S)

    def _metadata(self) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._client.list_topics(timeout=self._settings.timeout_s)
        except KafkaException as problem:
            self._client.poll(0)  # this is what delivers the reasons
            reason = self._overheard.last or describe(problem.args[0])
            self._check_login(reason)
            raise ClientError(
                f"somebody listens at {self._settings.bootstrap}, but not a Kafka broker it seems: {reason}"
            ) from None

    def _check_login(self, reason: str | None) -> None:
        if reason is not None and "authentication" in reason.lower():
            raise ClientError(f"the login at {self._settings.bootstrap} was refused: {reason}") from None

    def _described(self, names: Collection[str]) -> dict[str, Any]:
        """Raises what librdkafka does."""
        from confluent_kafka import TopicCollection

        futures = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._settings.timeout_s)
        return {name: future.result() for name, future in futures.items()}

    def _configs(self, topics: list[Topic]) -> dict[str, dict[str, str]]:

        with self._asking("reading the settings of topics"):
            futures = self._client.describe_configs(
                [_api().ConfigResource(_api().ConfigResource.Type.TOPIC, topic.name) for topic in topics],
                request_timeout=self._settings.timeout_s,
            )
            answers = {resource.name: future.result() for resource, future in futures.items()}
        own = _api().ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {
            topic: {name: entries[name].value for name in sorted(entries) if entries[name].source == own}
            for topic, entries in answers.items()
        }


def _api() -> Any:
    """confluent_kafka.admin, whose types do not survive mypy --strict."""
    import confluent_kafka.admin

    return confluent_kafka.admin


def _has_leaders(metadata: Any) -> bool:
    return bool(metadata.partitions) and all(p.leader >= 0 for p in metadata.partitions.values())


def _topic(name: str, metadata: Any) -> Topic:
    partitions = metadata.partitions
    return Topic(
        name=name,
        partitions=tuple(sorted(partitions)),
        replication_factor=max((len(p.replicas) for p in partitions.values()), default=0),
    )


def _topic_id(uuid: Any) -> str:
    """As Kafka's own tools print it: 22 characters of URL-safe base64. librdkafka uses the other alphabet."""
    halves = (uuid.get_most_significant_bits(), uuid.get_least_significant_bits())
    raw = b"".join((half & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "big") for half in halves)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
