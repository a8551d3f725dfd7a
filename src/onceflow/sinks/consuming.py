"""Records into a database, exactly once, without Spark: a loop in plain Python.

    def count(cursor, records):                      # one database transaction; the commit is ours
        for record in records:
            cursor.execute("INSERT INTO clicks ...", [record.key, record.value])

    consume_into("postgresql://...", "clicks", count, group="pages", bootstrap_servers="localhost:9092")

The offsets are in the database, in the table `onceflow_offsets`, and move in the same transaction as what the function
writes. So a record is applied once, whatever is killed when:

    killed while reading                   nothing was written
    killed in the function, before COMMIT  rolled back: offsets and all; the next start begins with the same records
    killed after COMMIT                    the next start reads the offset that was committed with the records
    a rebalance                            the new owner fences the partition in the database and reads where to go on
    a process that the group has given up  finds its partitions fenced: what it still has of them is dropped, and it
    comes back (a zombie)                  joins the group again

A topic that is deleted and created again is lost data (`DataLossError`), whatever its offsets are: the ids of the
topics are in the database, too, in `onceflow_topics`.

Records of aborted transactions are never seen, and those of open ones not yet (`read_committed`). The members of a
group share the partitions of its topics.

While a database is away it is asked again and again for `patience_s`, and Kafka is not polled meanwhile. If that takes
longer than `max.poll.interval.ms`, the group gives the partitions to somebody else, and nothing is lost by it.
"""

from __future__ import annotations

import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from onceflow.client.admin import Admin
from onceflow.client.cluster import TopicPartition
from onceflow.client.offsets import MISSING_PATIENCE_S, persistently
from onceflow.client.topic_ids import recreated
from onceflow.errors import ConfigError, DataLossError
from onceflow.sinks.consumer_member import Collected, Doubt, Member, Record
from onceflow.sinks.consumer_offsets import Held, Move, Superseded
from onceflow.sinks.consumer_settings import EARLIEST, ConsumeSettings
from onceflow.sinks.consumer_transactions import Stopped, Transactions, Work
from onceflow.sinks.databases import Database, open_database
from onceflow.spark.planning import other_topics
from onceflow.spark.problems import TakenOver

__all__ = ["Committed", "Consumed", "DataLossError", "Record", "consume_into"]

log = logging.getLogger(__name__)

FAIL_ADVICE: Final = "With fail_on_data_loss=False it would go on with what is there"
RECREATED_ADVICE: Final = (
    "To read the new topic from its beginning, use another group or fail_on_data_loss=False. The records at hand were "
    "not written; some that came in the second before may have been"
)
TOPICS_S: Final = 1.0
"""How often the broker is asked whether the topics are still the same, while there are records: so late an error may
come. To start over without writing any record of the new topic twice it has to be asked before every transaction."""
TOPICS_POLL_S: Final = 0.1
KAFKA_PATIENCE_S: Final = 20.0
"""For the questions that are asked of Kafka at the start and when something is wrong."""
OTHERS_S: Final = 0.5
"""How often the database is asked how far the other members are, if that is what an end waits for."""
SUPERSEDED_MAX: Final = 5
"""A process that was away for long is superseded once, and joins again. More often in a row, without a transaction in
between, it is another program that uses the same group and does not share its partitions."""

Function = Callable[[Any, list[Record]], object]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A transaction that was committed."""

    records: int
    offsets: Mapping[TopicPartition, int]
    """The next offset of each partition that was in it."""


@dataclass(frozen=True, kw_only=True)
class Consumed:
    """What a run has done."""

    records: int
    transactions: int
    """Those with records."""
    interrupted: bool
    """Whether Ctrl-C was what ended it."""


def consume_into(
    db: str | Database,
    topic: str | Sequence[str],
    fn: Function,
    *,
    group: str,
    bootstrap_servers: str,
    stop: threading.Event | Callable[[], bool] | None = None,
    until_now: bool = False,
    on_commit: Callable[[Committed], object] | None = None,
    kafka: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Consumed:
    """Calls `fn(cursor, records)` for all records of a topic, or of several, each once as far as the database can tell.

    - `fn` gets a cursor of the database's driver (psycopg, sqlite3) inside of a transaction, and a list of `Record`. It
      returns and everything is committed, together with the offsets; it raises and everything is rolled back, its
      exception comes out of here, and the next start begins with the same records. It may be called again with the same
      records (a deadlock, a lost connection), so what it does elsewhere than in the database may happen twice. It must
      not commit or roll back. PostgreSQL ends a transaction in which nothing happens for a minute.
    - `group` names the progress in the database and the consumer group. Several processes may share one.
    - It ends when `stop` is set (or returns true), with Ctrl-C after the running transaction, and with `until_now=True`
      when everything that was there at the start is in the database. Otherwise it runs until something is wrong.
    - `on_commit` is called after each transaction.
    - Further: see `ConsumeSettings`; all of them are keyword arguments.

    Raises `ConfigError` before anything starts; `ClientError` for trouble with Kafka; `DataLossError`; and for trouble
    with the database `BatchFailed` (nothing of the batch is written), `CommitUnknown` (all of it or nothing; the next
    start finds out) or another `SinkError`.
    """
    _check_function(fn)
    names = (topic,) if isinstance(topic, str) else tuple(topic)
    address = {"bootstrap_servers": bootstrap_servers, "kafka": dict(kafka or {})}
    checked = _checked(topics=names, group=group, **address, **settings)
    is_wanted = getattr(stop, "is_set", stop or (lambda: False))
    if not callable(is_wanted):
        raise ConfigError(f"stop={stop!r} is neither an event nor a function")
    with _interruptible() as interrupted:
        loop = _Loop(open_database(db), checked, fn, lambda: interrupted.is_set() or bool(is_wanted()), on_commit)
        try:
            loop.run(until_now)
        finally:
            loop.close()
        return Consumed(records=loop.records, transactions=loop.transactions, interrupted=interrupted.is_set())


def _check_function(fn: object) -> None:
    if not callable(fn):
        raise ConfigError("consume_into(db, topic, fn): fn must be a function of a cursor and a list of records")
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(each) for is_kind in kinds for each in (fn, getattr(fn, "__call__", None))):  # noqa: B004
        # Called, it would return at once and have done nothing; and the offsets would say that it was done.
        raise ConfigError("consume_into(db, topic, fn): fn must work when it is called, and it is async or has a yield")


def _checked(**settings: Any) -> ConsumeSettings:
    known = ConsumeSettings.__dataclass_fields__
    if unknown := sorted(settings.keys() - known.keys()):
        raise ConfigError(f"consume_into has no argument {unknown[0]!r}; there is {', '.join(known)}")
    return ConsumeSettings(**settings)


class _Loop:
    def __init__(
        self,
        database: Database,
        settings: ConsumeSettings,
        function: Function,
        is_stopping: Callable[[], bool],
        on_commit: Callable[[Committed], object] | None,
    ) -> None:
        self._settings = settings
        self._is_stopping = is_stopping
        self._on_commit = on_commit
        self._transactions = Transactions(database, settings, function, is_stopping)
        self._admin: Admin | None = None
        self._member: Member | None = None
        self._superseded = 0
        self._topic_ids: dict[str, str] = {}
        """Of the topics that the offsets in the database are of."""
        self._is_unchecked = False
        """Whether something was written since the topics were last looked at."""
        self._look_at_topics = _Occasionally(TOPICS_S if settings.fail_on_data_loss else 0.0)
        self.records = 0
        self.transactions = 0

    def run(self, until_now: bool) -> None:
        try:
            missing = self._begin()
            others = _Occasionally(OTHERS_S)
            while not self._is_stopping() and (missing or not until_now):
                if self._round():
                    missing = self._begin()  # what was missing was of the old topics
                elif until_now:
                    missing = self._still_missing(missing, others)
            if self._is_unchecked:
                self._start_over_in_other_topics()
        except Stopped:
            log.info("stopped while the database was waited for")

    def _still_missing(self, ends: Mapping[TopicPartition, int], others: _Occasionally) -> dict[TopicPartition, int]:
        """Partitions that are not read that far. Of those that others have, the database knows."""
        held = self._member.held if self._member is not None else {}
        known = {place: each.next_offset for place, each in held.items()}
        if ends.keys() - held.keys() and others.is_due():
            known = self._transactions.positions() | known
        return {place: end for place, end in ends.items() if known.get(place, 0) < end}

    def close(self) -> None:
        try:
            self._leave()
        finally:
            self._transactions.close()

    # --- the beginning

    def _begin(self) -> dict[TopicPartition, int]:
        """Partitions in which something is to be read, and how far it goes now."""
        topic_ids = self._ids_now()
        offsets = self._watermarks(self._places(self._settings.topics), read_committed=True)
        which = 0 if self._settings.starting_offsets == EARLIEST else 1
        positions = self._transactions.begin({place: each[which] for place, each in offsets.items()})
        self._topic_ids = self._transactions.begin_topics(topic_ids)
        if self._start_over_in_other_topics():
            positions = self._transactions.positions()
        self._check_positions({place: at for place, at in positions.items() if place in offsets})
        return {place: end for place, (_, end) in offsets.items() if positions.get(place, 0) < end}

    def _places(self, topics: Collection[str]) -> list[TopicPartition]:
        return [(name, each) for name in topics for each in self._kafka().topic(name).partitions]

    def _ids_now(self) -> dict[str, str]:
        return persistently(lambda: self._kafka().topic_ids(self._settings.topics), KAFKA_PATIENCE_S)

    def _other_topics(self) -> dict[str, str]:
        """Those that are not what they were, and their ids now. It has to stay so for a moment: one broker may know of
        a new topic later than the next."""
        deadline = time.monotonic() + MISSING_PATIENCE_S
        while True:
            now = self._ids_now()
            others = {topic: now[topic] for topic in other_topics(self._topic_ids, now)}
            if not others or time.monotonic() >= deadline:
                return others
            time.sleep(TOPICS_POLL_S)

    def _start_over_in_other_topics(self) -> bool:
        """Raises if a topic was deleted and created again; or the group begins anew in it, and this is true."""
        others = self._other_topics()
        for topic, topic_id in others.items():
            old = self._topic_ids[topic]
            self._report(recreated(topic, old, topic_id), RECREATED_ADVICE)
            starts = {place: first for place, (first, _) in self._watermarks(self._places([topic])).items()}
            self._topic_ids[topic] = self._transactions.start_over(topic, old, topic_id, starts)
        return bool(others)

    def _check_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """If it is not an error, it is for whoever gets the partition to go on elsewhere."""
        ends = self._watermarks(list(positions))
        for place, at in sorted(positions.items()):
            if problem := _loss(place, at, *ends[place]):
                self._report(problem)

    def _report(self, problem: str, advice: str = FAIL_ADVICE) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLossError(f"{problem}. {advice}")
        log.warning("%s; it goes on without, since fail_on_data_loss is false", problem)

    def _watermarks(
        self, places: Collection[TopicPartition], *, read_committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        return persistently(lambda: self._kafka().offsets(places, read_committed=read_committed), KAFKA_PATIENCE_S)

    def _kafka(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._settings.client)
        return self._admin

    # --- one round

    def _round(self) -> bool:
        """Whether the group begins anew in another topic."""
        member = self._joined()
        try:
            collected = member.collect()
        except Doubt as doubt:
            return self._look(member, doubt)
        work = _work(collected, member.held)
        if (work.moves or self._is_unchecked) and self._look_at_topics.is_due():
            self._is_unchecked = False
            if self._start_over_in_other_topics():
                self._leave()  # what was collected may be of either topic
                return True
        if work.moves:
            self._is_unchecked = True
            self._apply(member, work)
        return False

    def _apply(self, member: Member, work: Work) -> None:
        try:
            self._transactions.apply(work)
        except Superseded as problem:
            self._join_again(problem, work)
            return
        self._superseded = 0
        offsets = {place: move.to for place, move in work.moves.items()}
        for place, offset in offsets.items():
            member.moved(place, offset)
        if work.records:
            self.records += len(work.records)
            self.transactions += 1
            if self._on_commit is not None:
                self._on_commit(Committed(records=len(work.records), offsets=offsets))
        if self._settings.report_offsets:
            member.report(offsets)

    def _join_again(self, problem: Superseded, work: Work) -> None:
        self._superseded += 1
        if self._superseded > SUPERSEDED_MAX:
            raise TakenOver(
                f"{problem}, again and again: somebody else uses group {self._settings.group!r} in the same database, "
                f"and is not in the same group of {self._settings.bootstrap_servers}. Nothing of {work} was written"
            )
        log.warning("%s: dropping %s, and joining the group again", problem, work)
        self._leave()

    def _joined(self) -> Member:
        if self._member is None:
            self._member = Member(self._settings, self._transactions.fence)
        return self._member

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.close()

    def _look(self, member: Member, doubt: Doubt) -> bool:
        """Raises, or joins again: a partition that Kafka has refused to read from is not read any further. Returns
        whether the group begins anew in another topic."""
        place = doubt.place
        if doubt.is_topic_missing:
            self._kafka().topic(place[0])  # raises if it is, and not only news to a broker
            return False
        is_another = self._start_over_in_other_topics()
        if not is_another and place in member.held:
            self._check_offset(member, place, member.held[place])
        self._leave()
        return is_another

    def _check_offset(self, member: Member, place: TopicPartition, held: Held) -> None:
        """Raises, or moves to the nearest offset that there is: what is in between is lost, and nothing comes twice."""
        earliest, end = self._watermarks([place])[place]
        problem = _loss(place, held.next_offset, earliest, end)
        if problem is None:  # a leader was behind for a moment
            log.warning("%s-%s was not readable at offset %s, and is now", *place, held.next_offset)
            return
        self._report(problem)
        there = min(max(held.next_offset, earliest), end)
        self._apply(member, Work({place: Move(held, there)}, []))


def _work(collected: Collected, held: Mapping[TopicPartition, Held]) -> Work:
    reached = dict(collected.ends)
    for record in collected.records:
        place = (record.topic, record.partition)
        reached[place] = max(record.offset + 1, reached.get(place, 0))
    return Work({place: Move(held[place], to) for place, to in reached.items()}, collected.records)


def _loss(place: TopicPartition, next_offset: int, earliest: int, end: int) -> str | None:
    """What is wrong with an offset; None if it can be read."""
    name = f"{place[0]}-{place[1]}"
    if next_offset < earliest:
        return (
            f"{name} begins at offset {earliest} now, and {next_offset} is the next to be read: the records in between "
            "were deleted, by retention probably, before they were read"
        )
    if next_offset > end:
        return (
            f"{name} ends at offset {end}, and everything before {next_offset} was read already: the topic was deleted "
            "and created anew, or it has lost records. To read a new topic from its beginning, use another group"
        )
    return None


class _Occasionally:
    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last = 0.0

    def is_due(self) -> bool:
        if time.monotonic() - self._last < self._every_s:
            return False
        self._last = time.monotonic()
        return True


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Set by the first Ctrl-C; the second one is a `KeyboardInterrupt` wherever it hits. A program that has a handler
    of its own, or calls from another thread, keeps what it has."""
    interrupted = threading.Event()

    def on_interrupt(number: int, frame: Any) -> None:
        if interrupted.is_set():
            signal.default_int_handler(number, frame)
        interrupted.set()

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not (
        signal.default_int_handler
    ):
        yield interrupted
        return
    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
