"""One transactional id: a value that never changes, and the moves that make the next one of it.

A move (`initialized`, `with_partitions`, `ending`, `fenced`, `completed`) returns the transaction as it is to be; the
caller logs that, and then it is the current one. A restart reads the last one of each id from the log. So there is
nothing between "before" and "after" that could be half done.

- Who a producer is, is the pair (producer id, epoch). The epoch only ever rises; when it is used up, a new producer id
  starts at 0. The last usable epoch is 32766: in V2 the marker of its transaction carries 32767.
- `previous_producer_id` recognises a retry that was sent before a new producer id was given out.
- `last_epoch` recognises the repeat of an InitProducerId. As in Kafka it is not on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.txn.states import Event, State, follow

__all__ = ["LAST_EPOCH", "TopicPartition", "Transaction"]

TopicPartition = tuple[str, int]

NO_ID: Final = -1
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 2**15 - 2
EPOCH_MAX: Final = 2**15 - 1
V2: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    producer_id: int
    epoch: int = NO_EPOCH
    state: State = State.EMPTY
    timeout_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    updated_ms: int
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    """The one that is handed out with the end of this transaction, where the epochs of the present one are used up."""
    last_epoch: int = NO_EPOCH
    version: int = 0
    """Of the protocol that the client spoke when it last added or ended: 2 for V2."""

    @property
    def is_epoch_used_up(self) -> bool:
        return self.epoch >= LAST_EPOCH

    @property
    def is_complete(self) -> bool:
        return self.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def has_bumped_epoch(self) -> bool:
        """Whether the epoch of a prepared transaction is the one after that of its records."""
        return self.version >= V2

    @property
    def next_identity(self) -> tuple[int, int]:
        """The producer id and epoch to go on with after this transaction."""
        if self.next_producer_id != NO_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.epoch

    def _move(self, event: Event, **changes: object) -> Transaction:
        state = follow(self.state, event)
        if not isinstance(state, State):
            raise ProtocolError(state)
        return replace(self, state=state, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]

    # InitProducerId

    def initialized(self, *, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Transaction:
        """A producer begins, or begins anew, with an epoch of its own. `expected_epoch` is what it has now, if anything
        (KIP-360): the current one, or the one before if it repeats itself."""
        epoch, last_epoch = self.epoch + 1, self.epoch
        if expected_epoch is None:
            last_epoch = NO_EPOCH
        elif self.epoch not in (NO_EPOCH, expected_epoch):
            if expected_epoch != self.last_epoch:
                raise ProtocolError(ErrorCode.PRODUCER_FENCED)
            epoch, last_epoch = self.epoch, self.last_epoch
        return self._begun_anew(timeout_ms, now_ms, epoch=epoch, last_epoch=last_epoch)

    def with_new_id(self, producer_id: int, *, timeout_ms: int, is_expected: bool, now_ms: int) -> Transaction:
        """The same, when the epochs of the producer id are used up."""
        last_epoch = self.epoch if is_expected else NO_EPOCH
        return self._begun_anew(timeout_ms, now_ms, producer_id=producer_id, epoch=0, last_epoch=last_epoch)

    def _begun_anew(self, timeout_ms: int, now_ms: int, **identity: int) -> Transaction:
        return self._move(
            Event.INIT, timeout_ms=timeout_ms, partitions=frozenset(), started_ms=-1, updated_ms=now_ms, **identity
        )

    # Writing

    def with_partitions(self, partitions: frozenset[TopicPartition], *, version: int, now_ms: int) -> Transaction:
        return self._move(
            Event.ADD,
            partitions=self.partitions | partitions,
            started_ms=self.started_ms if self.state is State.ONGOING else now_ms,
            updated_ms=now_ms,
            version=version,
        )

    # The end

    def ending(self, event: Event, *, version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """Commit or abort, as `event` says. In V2 the epoch is raised with it."""
        identity = {"epoch": self.epoch, "last_epoch": self.last_epoch}
        if version >= V2:
            identity = {"epoch": min(self.epoch + 1, EPOCH_MAX), "last_epoch": self.epoch}
        return self._move(
            event,
            started_ms=self.started_ms if self.state in (State.ONGOING, State.PREPARE_EPOCH_FENCE) else now_ms,
            updated_ms=now_ms,
            version=version,
            next_producer_id=next_producer_id,
            **identity,
        )

    def fenced(self) -> Transaction:
        """Somebody else takes over. The epoch is raised by the abort that follows."""
        return self._move(Event.FENCE)

    def completed(self, now_ms: int) -> Transaction:
        """All markers are written."""
        producer_id, epoch = self.next_identity
        return self._move(
            Event.MARKED,
            producer_id=producer_id,
            epoch=epoch,
            next_producer_id=NO_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )
