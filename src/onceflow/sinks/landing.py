"""Micro-batches into a database, exactly once: what the driver does there. No Spark here; `sql_sink.py` runs the tasks.

    1 FENCE     one more to the epoch of the app         a later driver does the same
    2 PROGRESS  committed before? then skip              nothing was written
    3 STAGE     make the tables that tasks load          left behind, until the next fence drops it
    4 WRITE     the tasks load, each all or nothing      the same
    5 VERIFY    what is staged is what Spark has done    \\
    6 MERGE     from the stages into the tables           } one transaction: rolled back; then the same
    7 RECORD    the progress of the app                  /
    8 COMMIT                                             before it was asked: the same. After: done, and the next
                                                         driver's fence, which waits for it, says so

(On the right: what a crash of the driver after each step leads to.)

Invariants:

- **The epoch is looked at under a lock**, when a stage is made and in the transaction of the merge. Whoever is fenced
  neither changes a table nor leaves a stage behind that nobody drops.
- **A stage is sealed before it is looked at.** A task that comes late finds it closed, or was waited for.
- **A merge takes exactly the attempts that Spark calls successful.** A stage with more of them (an executor was lost
  after its task had loaded) or less (the database crashed, and unlogged tables are empty afterwards) is given up, and
  the micro-batch is staged again as a whole.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from onceflow.sinks.databases.database import (
    Again,
    Column,
    Database,
    Gone,
    Loaded,
    Session,
    Stage,
    TableName,
    Trouble,
)
from onceflow.sinks.merging import Applied, merge
from onceflow.sinks.progress_table import Owned, ProgressTable
from onceflow.sinks.tables import Table, check_columns, check_kinds, creation, fit
from onceflow.spark.listening import Listeners, Step
from onceflow.spark.problems import CommitUnknown, SinkError, TakenOver
from onceflow.spark.progress import Progress

__all__ = ["Landing", "Patience", "Spoiled", "Tries"]

log = logging.getLogger("onceflow.sinks")

Value = TypeVar("Value")
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
SWEEP_LOCK_S: Final = 1.0
"""For a stage that somebody else left behind and still writes into: it is dropped the next time."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long and how often something is tried."""

    retries: int = 5
    """After a deadlock, a serialization failure, or a lock that was not to be had within `lock_timeout_s`."""
    lock_timeout_s: float = 20.0
    outage_s: float = 120.0
    """How long a database may be away: a restart, a failover."""


class Tries:
    """Says whether there is to be another try, and pauses before it."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._pause_s = FIRST_PAUSE_S
        self._conflicts = 0
        self._away_since: float | None = None
        self.count = 1

    def another(self, *, is_outage: bool) -> bool:
        """After one that has failed, because nobody answered or for another reason: each has a bound of its own."""
        if is_outage:
            self._away_since = self._away_since or time.monotonic()
            is_over = time.monotonic() - self._away_since > self._patience.outage_s
        else:
            self._away_since = None
            self._conflicts += 1
            is_over = self._conflicts > self._patience.retries
        if is_over:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.count += 1
        return True


class Spoiled(SinkError):
    """What is staged is not what was to be staged: stage the micro-batch again."""


class Landing:
    """An application's place in a database. Used by one thread at a time."""

    def __init__(
        self,
        database: Database,
        app_id: str,
        tables: Sequence[Table],
        *,
        schema: str | None = None,
        patience: Patience | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        self.database = database
        self.app_id = app_id
        self.tables = tuple(tables)
        self._schema = schema
        self._patience = patience or Patience()
        self._listeners = listeners or Listeners(())
        self._table = ProgressTable(database, schema, app_id)
        self._prefix = f"onceflow_stage_{hashlib.sha256(app_id.encode()).hexdigest()[:10]}_"
        self._session: Session | None = None
        self._epoch: int | None = None
        self._staged = 0
        self._leftovers: list[TableName] = []

    def close(self) -> None:
        self._epoch = None
        self._disconnect()

    @property
    def is_fenced(self) -> bool:
        """Whether the app is ours, as far as we know."""
        return self._epoch is not None

    # --- before anything is written

    def check(self, columns: Sequence[Sequence[Column]]) -> None:
        """Raises unless rows with these columns can go into the tables; creates tables where that was asked for."""
        for table, own in zip(self.tables, columns, strict=True):
            check_columns(table, own)
            check_kinds(self.database, table, own)
        with self._explained("Nothing was written"):
            self._persistently(lambda: self._check(columns))

    def _check(self, columns: Sequence[Sequence[Column]]) -> None:
        session = self._connected()
        for table, own in zip(self.tables, columns, strict=True):
            if table.create:
                self.database.create_if_missing(session, table.target, creation(self.database, table, own))
            fit(self.database, session, table, own)

    # --- steps 1 and 2

    def fence(self, batch_id: int) -> Progress | None:
        """The app is ours. Returns how far it has come, and that stays true as long as it is ours."""
        with self._listeners.step(Step.FENCE, batch_id), self._explained("Nothing was written"):
            owned = self._persistently(self._fence)
        self._epoch = owned.epoch
        with self._listeners.step(Step.PROGRESS, batch_id):
            self._sweep()
        return owned.progress

    def _fence(self) -> Owned:
        session = self._connected()
        self._table.create(session)
        with session.transaction():
            return self._table.fence(session)

    def _sweep(self) -> None:
        """Drop what others have left behind. They are fenced: they make no more of it."""
        prefix = TableName(self._schema, self._prefix)
        self._at_leisure(lambda session: self._leftovers.extend(self.database.stages(session, prefix)))
        self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """As far as it goes; the rest goes the next time."""
        if self._leftovers:
            self._at_leisure(self._drop)

    def _drop(self, session: Session) -> None:
        while self._leftovers:
            self.database.drop_stage(session, self._leftovers[0])
            self._leftovers.pop(0)

    def _at_leisure(self, work: Callable[[Session], object]) -> None:
        """For what need not be done now: a session of its own that waits for nothing, and trouble is only logged."""
        try:
            session = self.database.connect(lock_timeout_s=SWEEP_LOCK_S)
            try:
                work(session)
            finally:
                session.close()
        except Trouble as trouble:
            log.info("%s: staging tables are left for later: %s", self.app_id, trouble)

    # --- step 3

    def stage(self, batch_id: int, columns: Sequence[Sequence[Column]]) -> list[Stage]:
        """Empty stages for the tables, in their order."""
        with self._listeners.step(Step.STAGE, batch_id), self._explained(_nothing(batch_id)):
            return self._persistently(lambda: self._stage(batch_id, columns))

    def _stage(self, batch_id: int, columns: Sequence[Sequence[Column]]) -> list[Stage]:
        session = self._connected()
        self._staged += 1
        begin = f"{self._prefix}{self._epoch}_{batch_id}_{self._staged}"
        stages = [Stage(TableName(self._schema, f"{begin}_{number}"), tuple(own)) for number, own in enumerate(columns)]
        self._leftovers += [stage.name for stage in stages]  # until they are merged; also if COMMIT is not answered
        with session.transaction():
            self._check_epoch(self._table.locked(session), batch_id)
            for stage, table in zip(stages, self.tables, strict=True):
                self.database.create_stage(session, stage, table.target)
        return stages

    def _check_epoch(self, owned: Owned | None, batch_id: int, *, commit_was_lost: bool = False) -> None:
        if owned is not None and owned.epoch == self._epoch:
            return
        self._epoch = None
        if owned is None:
            raise SinkError(
                f"the row of {self.app_id!r} in {self._table.name} was deleted while the app was running; batch "
                f"{batch_id} was not written. Bring it back, or start the query again if that was meant"
            )
        what = (
            f"the commit of batch {batch_id} was not answered, and the other run, which knows, writes it or skips it"
            if commit_was_lost
            else f"batch {batch_id} was not committed by this run and the other one writes it"
        )
        raise TakenOver(
            f"another run with the app id {self.app_id!r} has taken over in {self.database.shown}, so this one stops; "
            f"{what}. If both were meant to run, give each its own app_id"
        )

    # --- steps 5 to 8

    def merge(self, progress: Progress, stages: Sequence[Stage], loaded: Sequence[Sequence[Loaded]]) -> dict[str, int]:
        """All of the micro-batch, or nothing of it. Returns how many rows of each table it has changed.

        Raises `Spoiled` if the stages do not have what Spark says that was loaded; `CommitUnknown` if nobody can be
        asked what has become of the commit; any other `SinkError`: nothing of the micro-batch is there.
        """
        with self._explained(_nothing(progress.batch_id)):
            changed = self._persistently(lambda: self._merge(progress, stages, loaded))
        self._forget(stages)
        self._drop_leftovers()
        return changed

    def _forget(self, stages: Sequence[Stage]) -> None:
        """After the commit: what of the stages could not go with it. In trouble they are left to `_drop_leftovers`."""
        try:
            for stage in stages:
                self.database.drop_stage(self._connected(), stage.name)
                self._leftovers.remove(stage.name)
        except Trouble:
            self._disconnect()

    def give_up(self) -> None:
        """What is staged is not merged any more."""
        self._disconnect()  # whatever it was in the middle of
        self._drop_leftovers()

    def _merge(self, progress: Progress, stages: Sequence[Stage], loaded: Sequence[Sequence[Loaded]]) -> dict[str, int]:
        session = self._connected()
        batch_id = progress.batch_id
        for stage in stages:
            self.database.gather(session, stage)
        session.begin()
        try:
            with self._listeners.step(Step.VERIFY, batch_id):
                owned = self._table.locked(session)
                self._check_epoch(owned, batch_id)
                for stage, expected in zip(stages, loaded, strict=True):
                    _compare(self.database.seal(session, stage), expected, self.database)
            with self._listeners.step(Step.MERGE, batch_id):
                applied = Applied(progress.query_id, batch_id)
                changed = {
                    table.name: merge(self.database, session, table, stage, applied)
                    for table, stage in zip(self.tables, stages, strict=True)
                }
                for stage in stages:
                    self.database.drop_stage(session, stage.name)
            with self._listeners.step(Step.RECORD, batch_id):
                self._table.record(session, progress)
            with self._listeners.step(Step.COMMIT, batch_id):
                self._commit(session, progress)
        except BaseException:
            session.rollback()
            raise
        return changed

    def _commit(self, session: Session, progress: Progress) -> None:
        try:
            session.commit()
        except Gone as lost:
            if not self._was_committed(progress, lost):
                raise

    def _was_committed(self, progress: Progress, lost: Gone) -> bool:
        """Nobody has answered. Whoever locks the row waits for the lost transaction to end, and sees what became
        of it."""
        self._disconnect()
        try:
            owned = self._persistently(self._owned)
        except Trouble as trouble:
            self._epoch = None
            raise CommitUnknown(
                f"the commit of batch {progress.batch_id} of {self.app_id!r} was not answered ({lost}), and the "
                f"database could not be asked since ({trouble}): the batch is there as a whole or not at all. Start "
                "the query again: it finds out which, and goes on from there"
            ) from None
        if owned is not None:
            # What the row says may be the work of a successor.
            self._check_epoch(owned, progress.batch_id, commit_was_lost=True)
        if owned is None or owned.progress is None:
            return False
        return (owned.progress.query_id, owned.progress.batch_id) == (progress.query_id, progress.batch_id)

    def _owned(self) -> Owned | None:
        session = self._connected()
        with session.transaction():
            return self._table.locked(session)

    # --- trouble

    def _persistently(self, attempt: Callable[[], Value]) -> Value:
        """Once more after trouble that passes; within bounds."""
        tries = Tries(self._patience)
        while True:
            try:
                return attempt()
            except Again as trouble:
                if not tries.another(is_outage=False):
                    raise Again(f"{trouble} (tried {tries.count} times)") from None
                log.info("%s: trying again: %s", self.app_id, trouble)
            except Gone as trouble:
                self._disconnect()
                if not tries.another(is_outage=True):
                    raise Gone(f"{trouble} (for {self._patience.outage_s:g} s)") from None
                log.warning("%s: waiting for the database: %s", self.app_id, trouble)

    @contextmanager
    def _explained(self, nothing: str) -> Iterator[None]:
        """Trouble that is left over, as what it means for the query."""
        try:
            yield
        except Trouble as trouble:
            self._disconnect()
            raise SinkError(f"{self.app_id}: {str(trouble).rstrip('.')}. {nothing}") from None

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self.database.connect(lock_timeout_s=self._patience.lock_timeout_s)
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _compare(staged: Sequence[Loaded], expected: Sequence[Loaded], database: Database) -> None:
    if sorted(staged) == sorted(expected):
        return
    missing = sorted({each.task for each in expected} - {each.task for each in staged})
    if missing:
        raise Spoiled(f"what task {missing[0]} has loaded is not there{database.where_stages_are}")
    raise Spoiled("a task that Spark does not count, or an attempt of one, has loaded rows")


def _nothing(batch_id: int) -> str:
    return f"Nothing of batch {batch_id} was written"
