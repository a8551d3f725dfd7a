"""The database's side of `consume_into`: transactions that are tried until it is known what has become of them.

A transaction moves the offsets, calls the function, and is committed. What can happen, and what it leads to:

    the function raises                       rolled back; its exception goes on unchanged
    deadlock, serialization failure, lock     rolled back; again, up to `retries` times
    the connection is lost before COMMIT      nothing is there; again, with a new connection, for up to `patience_s`
    the connection is lost during COMMIT      a new connection reads the offset, which waits for the lost transaction to
                                              end: moved, it is done; not moved, again. If that is not to be found out
                                              within `patience_s`: `CommitUnknown`
    somebody has fenced a partition           rolled back; `Superseded`
    anything else that the database refuses   rolled back; `BatchFailed`

So the function may be called several times with the same records, and what it has done to the database counts once.

It must not end the transaction that it was given. The offsets are moved first, so that one which commits after its last
statement has neither lost nor doubled anything; and a savepoint, which only the same transaction can release, tells.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from onceflow.client.cluster import TopicPartition
from onceflow.sinks.consumer_offsets import Held, Move, OffsetsTable, Superseded
from onceflow.sinks.consumer_settings import ConsumeSettings
from onceflow.sinks.consumer_topics import TopicsTable
from onceflow.sinks.databases.database import Again, Database, Gone, Refused, Session, Trouble
from onceflow.spark.problems import BatchFailed, CommitUnknown, SinkError

__all__ = ["Stopped", "Transactions", "Work"]

log = logging.getLogger(__name__)
T = TypeVar("T")

BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
SAVEPOINT: Final = "onceflow_records"


class Stopped(Exception):
    """The caller wants to end while the database is being waited for. Nothing is open."""


@dataclass(frozen=True)
class Work:
    """What one transaction does. Without records it only notes that there are none up to the new offsets."""

    moves: Mapping[TopicPartition, Move]
    records: Sequence[Any]

    def __str__(self) -> str:
        ranges = [
            f"{topic}-{partition} {move.held.next_offset} to {move.to - 1}"
            for (topic, partition), move in sorted(self.moves.items())
        ]
        more = f" and {len(ranges) - 5} more partitions" if len(ranges) > 5 else ""
        count = f"{len(self.records)} record{'' if len(self.records) == 1 else 's'}"
        return f"{count} ({', '.join(ranges[:5])}{more})"


class Transactions:
    """One connection, made when it is needed and again when it is lost. Used by one thread."""

    def __init__(
        self,
        database: Database,
        settings: ConsumeSettings,
        function: Callable[[Any, Any], object],
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._database = database
        self._settings = settings
        self._function = function
        self._is_stopping = is_stopping
        self._table = OffsetsTable(database, settings.group)
        self._topics = TopicsTable(database, settings.group)
        self._session: Session | None = None

    # --- offsets without records

    def begin(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where the group is, after it has begun."""

        def step(session: Session) -> dict[TopicPartition, int]:
            self._table.create(session)
            with session.transaction():
                self._table.begin(session, starts)
                return self._table.read(session, self._settings.topics)

        return self._prepared(step)

    def begin_topics(self, topic_ids: Mapping[str, str]) -> dict[str, str]:
        """Of which topics the offsets are: of these, unless something else is known."""

        def step(session: Session) -> dict[str, str]:
            self._topics.create(session)
            with session.transaction():
                return self._topics.begin(session, topic_ids)

        return self._prepared(step)

    def start_over(self, topic: str, old: str, new: str, starts: Mapping[TopicPartition, int]) -> str:
        """The topic of that name is another one now. Done once, whoever of the group notices. Returns the id of the
        topic that the offsets are of: neither of the two, if somebody else has started over in one between them."""

        def step(session: Session) -> str:
            with session.transaction():
                if self._topics.replace(session, topic, old, new):
                    self._table.start_over(session, topic, starts)
                return self._topics.read(session, [topic]).get(topic, new)

        return self._prepared(step)

    def positions(self) -> dict[TopicPartition, int]:
        return self._prepared(lambda session: self._table.read(session, self._settings.topics))

    def fence(self, places: Collection[TopicPartition]) -> dict[TopicPartition, Held]:
        """A fence whose COMMIT was not answered is simply repeated: one epoch more does no harm."""

        def step(session: Session) -> dict[TopicPartition, Held]:
            with session.transaction():
                return self._table.fence(session, places)

        return self._prepared(step)

    def _prepared(self, step: Callable[[Session], T]) -> T:
        """Locks are waited for with patience here: a process that hangs in its transaction may hold them."""
        try:
            return self._persistently(step, retries=None)
        except Refused as problem:
            raise SinkError(f"{self._database.shown}: {_said(problem)}. Nothing was written") from problem
        except Trouble as problem:
            waited = f"was not to be had for {self._settings.patience_s:g} s"
            raise SinkError(f"{self._database.shown} {waited}: {_said(problem)}. Nothing was written") from problem

    # --- records

    def apply(self, work: Work) -> None:
        """When it returns, the work is done, once. Raises `Superseded` if it is not ours to do."""
        try:
            self._persistently(lambda session: self._attempt(session, work), self._settings.retries)
        except Refused as problem:
            raise BatchFailed(f"{self._nothing_of(work)}: {problem}") from problem
        except Again as problem:
            tries = self._settings.retries + 1
            raise BatchFailed(f"{self._nothing_of(work)}, tried {tries} times: {problem}") from problem
        except Gone as problem:
            waited = f"which did not answer for {self._settings.patience_s:g} s"
            raise BatchFailed(f"{self._nothing_of(work)}, {waited}: {problem}") from problem

    def _nothing_of(self, work: Work) -> str:
        return f"nothing of {work} was written to {self._database.shown}"

    def _attempt(self, session: Session, work: Work) -> None:
        session.begin()
        try:
            self._table.move(session, work.moves)
            if work.records:
                self._call(session, work)
        except BaseException:
            session.rollback()
            raise
        try:
            session.commit()
        except Gone as problem:
            self.close()
            if not self._was_committed(work, problem):
                raise Again("the connection was lost during COMMIT, and nothing was committed") from problem

    def _was_committed(self, work: Work, lost: Gone) -> bool:
        """All rows were moved in one transaction, so one of them tells."""
        place, move = min(work.moves.items())

        def step(session: Session) -> Held | None:
            with session.transaction():
                return self._table.current(session, place)

        try:
            now = self._persistently(step, retries=None, may_stop=False)
        except Trouble as problem:
            raise CommitUnknown(
                f"the COMMIT of {work} was not answered ({_said(lost)}), and {self._database.shown} could not be "
                f"asked since ({_said(problem)}): all of it is written, or nothing. The next start finds out, and goes "
                "on accordingly"
            ) from problem
        if now is None or now.epoch != move.held.epoch:
            raise Superseded(work.moves.keys())  # who fenced has read what became of it
        return now.next_offset == move.to

    # --- the function

    def _call(self, session: Session, work: Work) -> None:
        session.execute(f"SAVEPOINT {SAVEPOINT}")
        cursor = session.connection.cursor()
        try:
            self._function(cursor, work.records)
        except Exception as problem:
            if trouble := _trouble(session, problem):
                raise trouble from problem
            raise
        finally:
            with suppress(session.connection.Error):  # of a connection that the function has closed
                cursor.close()
        self._check_not_ended(session, work)

    def _check_not_ended(self, session: Session, work: Work) -> None:
        if session.is_in_transaction:
            try:
                session.execute(f"RELEASE SAVEPOINT {SAVEPOINT}")
                return
            except Refused as problem:
                why = (
                    f"the transaction of {work} cannot be committed ({_said(problem)}): the function has ended it and "
                    "begun another, or has ignored an error of the database"
                )
        else:
            why = f"the function has ended the transaction of {work} by itself"
        session.rollback()
        raise SinkError(f"{why}. {self._what_counts(session, work)}. Leave COMMIT and ROLLBACK to consume_into")

    def _what_counts(self, session: Session, work: Work) -> str:
        place, move = min(work.moves.items())
        with session.transaction():
            now = self._table.current(session, place)
        if now is not None and now.next_offset == move.to:
            return (
                "It committed: these records count as done, and are not given to it again; what it wrote before its "
                "last COMMIT is there, and what it wrote afterwards may be missing"
            )
        return (
            "It was rolled back: these records count as not done, and come again with the next start; what it wrote "
            "after a ROLLBACK of its own may be there already"
        )

    # --- trying again

    def _persistently(self, step: Callable[[Session], T], retries: int | None, *, may_stop: bool = True) -> T:
        """Raises what cannot get better at once, and the rest when patience is over. None: locks, too, are waited for
        as long as patience lasts."""
        tries, backoff_s = 0, BACKOFF_S
        patience = _Patience(self._settings.patience_s)
        while True:
            try:
                return step(self._connected())
            except Again as problem:
                tries += 1
                if patience.is_over() if retries is None else tries > retries:
                    raise
                log.info("the database gave up a transaction, which is run again: %s", problem)
            except Gone as problem:
                self.close()
                if patience.is_over():
                    raise
                log.warning("%s does not answer, and is asked again: %s", self._database.shown, problem)
            if may_stop and self._is_stopping():
                raise Stopped
            time.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self._database.connect(lock_timeout_s=self._settings.lock_timeout_s)
        return self._session

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _said(problem: Exception) -> str:
    """As a part of a sentence."""
    return str(problem).rstrip(".")


class _Patience:
    """Begins with the first trouble, however long a function took before."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def is_over(self) -> bool:
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= self._seconds


_ROLLED_BACK: Final = "40"  # the SQL standard's class of SQLSTATE for deadlocks and serialization failures
_LOCK_NOT_AVAILABLE: Final = "55P03"
_BUSY: Final = ("SQLITE_BUSY", "SQLITE_LOCKED")


def _trouble(session: Session, problem: Exception) -> Trouble | None:
    """What the driver told the function, in our terms, if the same may succeed in a moment.

    Not if the transaction is over: then it was the function's own, and what it did before would be done twice.
    """
    if not isinstance(problem, session.connection.Error):
        return None
    was_open = session.is_in_transaction
    state, name = str(getattr(problem, "sqlstate", "")), str(getattr(problem, "sqlite_errorname", ""))
    if was_open and (state.startswith(_ROLLED_BACK) or state == _LOCK_NOT_AVAILABLE or name.startswith(_BUSY)):
        return Again(str(problem).strip())
    session.rollback()
    try:
        session.execute("SELECT 1")
    except Gone as gone:
        return gone
    except Trouble:
        return None
    return None
