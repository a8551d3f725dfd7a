"""The group coordinator's shell: it writes what was decided, answers when it is on disk, and keeps the time.

There is a `Coordinator` for each partition of `__consumer_offsets`, and all the decisions are in there. When a flush
fails, the log goes back to what was on disk, and so does the coordinator of that partition: it is thrown away, whoever
waits on it is told to look for the coordinator again (16), and a new one reads the log as at a start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final
from uuid import UUID

from onceflow.broker.consumer_groups import TopicView, consumer_settings
from onceflow.broker.deferred import Answer, Deferred
from onceflow.broker.state_log import StateLog
from onceflow.broker.topics import CONSUMER_OFFSETS
from onceflow.errors import ErrorCode, ProtocolError
from onceflow.group.base import Group
from onceflow.group.classic import ClassicGroup, ClassicSettings
from onceflow.group.consumer_register import ConsumerGroups
from onceflow.group.coordinator import NO_PRODUCER, Coordinator
from onceflow.group.effects import Client, Effects
from onceflow.group.offsets import CommittedOffset, offset_record
from onceflow.group.records import KeyValue
from onceflow.wire.messages.heartbeat import HeartbeatRequest
from onceflow.wire.schema import Message

if TYPE_CHECKING:
    from onceflow.broker.handlers import Context
    from onceflow.broker.node import Node

__all__ = ["Groups", "OffsetEntry", "client_of"]

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
GROUP_ID_LENGTH_MAX: Final = 8_000
"""In characters. Kafka has no limit; but a name in a record has 32,767 bytes, and one that cannot be written must not
come to have a group."""

SAID_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of what members of classic groups say for their protocols. It is in memory, and only in part on disk."""

OffsetEntry = tuple[str, int, CommittedOffset]
"""An offset to commit: topic, partition, and what is known of it but its place in the log."""


def client_of(context: Context) -> Client:
    return Client(context.client_id or "", f"/{context.peer.host}")


class Groups:
    def __init__(self, node: Node) -> None:
        config = node.config
        self._node = node
        self._classic = ClassicSettings(
            min_session_timeout_ms=config["group.min.session.timeout.ms"],
            max_session_timeout_ms=config["group.max.session.timeout.ms"],
            initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            max_size=config["group.max.size"],
        )
        self.consumer_settings = consumer_settings(config, self._classic)
        self.consumers: dict[int, ConsumerGroups] = {}
        """The consumer groups of each coordinator, by partition."""
        self.metadata_max_bytes: int = config["offset.metadata.max.bytes"]
        self._retention_ms: int = config["offsets.retention.minutes"] * 60_000
        self._said_bytes = 0
        """At least what members of classic groups have said; counted anew when it is too much."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self.log = StateLog(node, CONSUMER_OFFSETS, "offsets.topic", self._taken_back)
        self.coordinators: list[Coordinator] = []
        self.load_ms = 0.0
        """How long it took to read all groups, at the start or after the disk lost something."""
        self._load_all()

    @property
    def classic_settings(self) -> ClassicSettings:
        return self._classic

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set_timer()

    # Finding

    def index_of(self, group_id: str) -> int:
        """The partition that keeps a group; the topic is made if this is the first group ever.

        Raises `ProtocolError` for what cannot be a group's id, and if the topic cannot be made.
        """
        if len(group_id) > GROUP_ID_LENGTH_MAX:
            raise ProtocolError(ErrorCode.INVALID_GROUP_ID, f"A group id has at most {GROUP_ID_LENGTH_MAX} characters.")
        if len(self.coordinators) == 1:
            return 0
        index = self.log.partition_of(group_id)
        self._load_all()
        return index

    def coordinator_of(self, group_id: str) -> Coordinator:
        return self.coordinators[self.index_of(group_id)]

    def are_still(self, seen: Sequence[Coordinator]) -> bool:
        """Whether these are the coordinators: what was seen of one that the disk has taken back may never have been."""
        return all(now is before for now, before in zip(self.coordinators, seen, strict=False))

    def check_memory(self, size: int) -> None:
        """Raise `ProtocolError` if there is no room for so many bytes of what a member says."""
        self._said_bytes += size
        if self._said_bytes <= SAID_BYTES_MAX:
            return
        groups = (group for coordinator in self.coordinators for group in coordinator.groups.values())
        self._said_bytes = size + sum(group.members.said_bytes for group in groups if isinstance(group, ClassicGroup))
        if self._said_bytes > SAID_BYTES_MAX:
            self._said_bytes -= size
            logger.warning("A member is refused: those of all classic groups say %d bytes already.", self._said_bytes)
            raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    # Loading

    def _new_coordinator(self, index: int) -> Coordinator:
        coordinator = Coordinator(self._classic)
        topics = TopicView(self._node.topics)
        self.consumers[index] = ConsumerGroups(coordinator, topics, self.consumer_settings)
        return coordinator

    def _load_all(self) -> None:
        """Read the partitions that were not read yet."""
        began = perf_counter()
        for index in range(len(self.coordinators), len(self.log.partitions)):
            self.coordinators.append(self._read(index))
            self._begin(index)
            self.load_ms = (perf_counter() - began) * 1000

    def _read(self, index: int) -> Coordinator:
        coordinator = self._new_coordinator(index)
        now_ms = self._node.clock.now_ms()
        for header, records in self.log.replay(index):
            with self.log.naming(index):
                for problem in coordinator.replay(header, records, now_ms):
                    logger.error("A record of %s-%d is left out: %s", self.log.name, index, problem)
        return coordinator

    def _begin(self, index: int) -> None:
        for group, effects in list(self.coordinators[index].loaded(self._node.clock.now_ms())):
            self.carry_out(group.id, effects)

    def _taken_back(self, index: int) -> None:
        if index >= len(self.coordinators):
            return
        lost = self.coordinators[index]
        self.coordinators[index] = self._read(index)
        for group in lost.groups.values():
            self._give(group.abandon(ErrorCode.NOT_COORDINATOR))
        self._begin(index)
        self._set_timer()

    # Writing

    def write(self, index: int, records: Sequence[KeyValue]) -> None:
        """Write records and apply them; raises `ProtocolError` with nothing changed."""
        if not records:
            return
        first_offset = self._append(index, records)
        self.coordinators[index].apply(records, self._node.clock.now_ms(), first_offset=first_offset)

    def commit(
        self, index: int, group_id: str, entries: Iterable[OffsetEntry], producer: tuple[int, int] | None = None
    ) -> None:
        """Write offsets of a group, as part of the producer's transaction if there is one, and apply them."""
        entries = list(entries)
        records = [offset_record(group_id, topic, partition, offset) for topic, partition, offset in entries]
        if not records:
            return
        at = self._append(index, records, producer)
        coordinator, now_ms = self.coordinators[index], self._node.clock.now_ms()
        producer_id = NO_PRODUCER if producer is None else producer[0]
        for topic, partition, offset in entries:
            coordinator.apply_commit(group_id, topic, partition, offset._replace(record_offset=at), producer_id, now_ms)
            at += 1

    def _append(self, index: int, records: Sequence[KeyValue], producer: tuple[int, int] | None = None) -> int:
        """Returns the offset of the first record."""
        try:
            return self.log.append(index, records, producer=producer)
        except ProtocolError as error:
            raise ProtocolError(_as_coordinator_error(error.code), error.message) from error

    def end_transaction(self, index: int, producer_id: int, commit: bool) -> None:
        """A marker was appended to a partition of the offsets topic."""
        if index < len(self.coordinators):
            self.coordinators[index].end_transaction(producer_id, commit)

    # Answering

    def answer(self, index: int, message: Message, refusal: Callable[[ErrorCode], Message]) -> Message | Deferred:
        """The message, once all that it may rest on is on disk; or what `refusal` makes of the error."""
        return self.answer_from({index}, lambda errors: refusal(errors[index]) if errors else message)

    def answer_from(
        self, indexes: set[int], finish: Callable[[Mapping[int, ErrorCode]], Message]
    ) -> Message | Deferred:
        """The message that `finish` makes, once all that is in these partitions is on disk.

        `finish` is given an error for each partition in which something was taken back instead.
        """
        waiting = set(indexes)
        errors: dict[int, ErrorCode] = {}
        deferred = Deferred()

        def settled(index: int, error: ErrorCode) -> None:
            waiting.discard(index)
            if error:
                errors[index] = error
            if not waiting:
                deferred.resolve(Answer(finish(errors)))

        for index in indexes:
            self.log.when_durable(index, partial(settled, index))
        if not indexes:
            return finish(errors)
        if deferred.result is not None:
            return deferred.result.message  # type: ignore[return-value]
        return deferred

    def carry_out(self, group_id: str, effects: Effects) -> ErrorCode:
        """Give the answers, write the records, and see to what comes after.

        Returns why the records could not be written. Whose answer rests on them has to look at that, and to wait until
        they are on disk (`answer`).
        """
        self._give(effects)
        refused = ErrorCode.NONE
        if effects.records or effects.then is not None:
            index = self.index_of(group_id)
            then = effects.then
            try:
                if effects.applies:
                    self.write(index, effects.records)
                    self.coordinators[index].settle(group_id, effects, self._node.clock.now_ms())
                elif effects.records:
                    self._append(index, effects.records)
            except ProtocolError as error:
                logger.error("Group %s could not be written: %s", group_id, error)
                refused = error.code
                self._follow_up(group_id, then, error.code)
            else:
                if then is not None:
                    self.log.when_durable(index, partial(self._follow_up, group_id, then))
        self._set_timer()
        return refused

    def _follow_up(self, group_id: str, then: Callable[[ErrorCode, int], Effects] | None, error: ErrorCode) -> None:
        if then is None:
            return
        effects = then(error, self._node.clock.now_ms())
        group = self.coordinator_of(group_id).get(group_id)
        if group is not None:
            self.coordinator_of(group_id).deadlines.watch(group)
        self.carry_out(group_id, effects)

    @staticmethod
    def _give(effects: Effects) -> None:
        for ticket, message in effects.answers:
            ticket.resolve(Answer(message))

    # Time

    def _set_timer(self) -> None:
        """One timer, for the next deadline of all groups."""
        if self._loop is None:
            return
        times = [c.deadlines.next_ms for c in self.coordinators if c.deadlines.next_ms is not None]
        next_ms = min(times, default=None)
        if next_ms is None or (self._timer_ms is not None and self._timer_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        delay_ms = max(0, next_ms - self._node.clock.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._time_is_up)

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Of a member that uses the classic protocol; raises `ProtocolError`."""
        error = self.coordinator_of(request.group_id).heartbeat(request, self._node.clock.now_ms())
        if error:
            self._set_timer()
        return error

    def _time_is_up(self) -> None:
        assert self._loop is not None
        self._timer = self._timer_ms = None
        try:
            self.on_time()
        except Exception:  # one group's trouble must not stop the clock of all
            logger.exception("A group could not be served in time; it is tried again in %s s.", RETRY_S)
            self._timer_ms = self._node.clock.now_ms() + round(RETRY_S * 1000)
            self._timer = self._loop.call_later(RETRY_S, self._time_is_up)
        else:
            self._set_timer()

    def on_time(self) -> None:
        now_ms = self._node.clock.now_ms()
        for coordinator in list(self.coordinators):
            due: list[tuple[Group, Effects]] = list(coordinator.on_time(now_ms))
            for group, effects in due:
                self.carry_out(group.id, effects)

    def expire_offsets(self) -> None:
        """A chore: forget offsets that nobody has needed for offsets.retention.minutes, and those of topics gone."""
        for index, coordinator in enumerate(self.coordinators):
            records = coordinator.expire(self._node.clock.now_ms(), self._retention_ms, self.topic_exists)
            try:
                self.write(index, records)
            except ProtocolError as error:
                logger.error("No offset expires in %s-%d: %s", self.log.name, index, error)

    def topic_exists(self, name: str, topic_id: UUID | None) -> bool:
        topic = self._node.topics.get(name)
        return topic is not None and topic_id in (None, topic.id)


def _as_coordinator_error(error: ErrorCode) -> ErrorCode:
    """What a client is told when the log refuses, as in Kafka's CoordinatorOperationExceptionHelper."""
    if error is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.NOT_COORDINATOR
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error
