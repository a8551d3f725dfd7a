"""What must be there, once, and nothing besides: compared with what a reader finds in the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from onceflow.verify.anomalies.evidence import (
    acknowledged,
    anomaly,
    asked_for,
    at,
    handed,
    names,
    speakers,
    what,
    where,
    writers,
)
from onceflow.verify.history import (
    Derivation,
    History,
    Operation,
    Outcome,
    Place,
    Record,
    Seen,
    Transaction,
    process_of,
)
from onceflow.verify.verdict import Anomaly

__all__ = ["duplicate", "lost_write", "phantom", "taken_back", "torn_transaction"]


# --- lost write


def lost_write(history: History) -> Iterator[Anomaly]:
    """A record is gone that was acknowledged: written outside of transactions, or in a transaction whose commit was
    confirmed. Or a record of a source topic never arrived in the topic that is made from it."""
    if not history.is_drained:
        return  # what is missing may still come
    yield from _lost_outside_of_transactions(history)
    for transaction in history.transactions.values():
        if transaction.commit_outcome is Outcome.OK:
            yield from _lost_in(transaction, history)
    for derivation in history.derivations:
        yield from _never_derived(derivation, history)


def _lost_outside_of_transactions(history: History) -> Iterator[Anomaly]:
    for write in history.of("write"):
        if write.asked.get("transaction") is not None:
            continue
        lost = [(topic, id) for topic, id in acknowledged(write) if id not in history.final_by_id.get(topic, ())]
        if lost:
            sentence = f"{write.process} was told by {at(write.ended)} that {_in_topics(lost)} had been written; gone."
            yield anomaly("lost write", sentence, [write])


def _lost_in(transaction: Transaction, history: History) -> Iterator[Anomaly]:
    visible = _visible_ids(history, transaction.name)
    lost = [each for each in _parts(transaction) if each not in visible]
    commit = next(each for each in transaction.commits if each.is_ok)
    said = f"The commit of {transaction.name} was confirmed at {at(commit.ended)}"
    if lost:
        sentence = f"{said}; of what it wrote, {_in_topics(lost)} cannot be found."
        yield anomaly("lost write", sentence, [commit, *transaction.writes[:4]])
    elif (count := _count(transaction)) and not _final_of(history, transaction.name):
        sentence = f"{said}; none of its {count} records can be found."
        yield anomaly("lost write", sentence, [commit])


def _never_derived(derivation: Derivation, history: History) -> Iterator[Anomaly]:
    there = history.final_by_id.get(derivation.target, {})
    for id, places in history.final_by_id.get(derivation.source, {}).items():
        if id not in there:
            sentence = f"{id}, at {where(places[0])}, never arrived in {derivation.target}."
            yield anomaly("lost write", sentence, (), places)


def _in_topics(records: Iterable[tuple[str, str]]) -> str:
    return names([f"{id} ({topic})" for topic, id in records])


# --- duplicate


def duplicate(history: History) -> Iterator[Anomaly]:
    """The same record is at more than one place of its topic, in the end or in what one reader was shown."""
    reported: set[tuple[str, str | None]] = set()
    for topic, ids in history.final_by_id.items():
        for id, places in ids.items():
            if len(places) > 1:
                reported.add((topic, id))
                yield _duplicate(id, places, "", _writes_of(history, places))
    for read, earlier, seen in _shown_twice(history):
        if (seen.topic, seen.record.id) not in reported:
            reported.add((seen.topic, seen.record.id))
            yield _duplicate(str(seen.record.id), [earlier, seen], f" in what {read.process} was shown", [read])


def _duplicate(id: str, places: list[Seen], whose: str, operations: Iterable[Operation]) -> Anomaly:
    found = names([f"{where(each)} ({each.record.transaction or 'no transaction'})" for each in places])
    return anomaly("duplicate", f"{id} is there {len(places)} times{whose}: {found}.", operations, places)


def _writes_of(history: History, places: Iterable[Seen]) -> list[Operation]:
    found: list[Operation] = []
    for name in dict.fromkeys(seen.record.transaction for seen in places):
        if name is not None and (transaction := history.transactions.get(name)):
            found += [*transaction.writes[:1], *transaction.commits[:1]]
    return found


def _shown_twice(history: History) -> Iterator[tuple[Operation, Seen, Seen]]:
    shown: dict[tuple[str, str, str], Seen] = {}
    for read, records in history.committed_reads:
        process = read.process
        for seen in records:
            if seen.record.id is None:
                continue
            earlier = shown.setdefault((process, seen.topic, seen.record.id), seen)
            if earlier[:3] != seen[:3]:
                yield read, earlier, seen


# --- torn transaction


def torn_transaction(history: History) -> Iterator[Anomaly]:
    """Part of what a transaction wrote is visible in the end, and part is not."""
    if not history.is_drained:
        return
    for transaction in history.transactions.values():
        final = _final_of(history, transaction.name)
        if not final or (difference := _what_is_torn(transaction, history)) is None:
            continue
        example = f"{what(final[0].record)} is visible at {where(final[0])}"
        sentence = f"Of transaction {transaction.name}, {example}, {difference}."
        operations = [*transaction.commits[:2], *transaction.aborts[:1], *transaction.writes[:3]]
        yield anomaly("torn transaction", sentence, operations, final)


def _what_is_torn(transaction: Transaction, history: History) -> str | None:
    visible = _visible_ids(history, transaction.name)
    if missing := [each for each in _parts(transaction) if each not in visible]:
        return f"but not {_in_topics(missing)}"
    count, there = _count(transaction), len(_final_of(history, transaction.name))
    return None if count in (None, there) else f"one of {there} that are there, but it has {count} records"


def _parts(transaction: Transaction) -> dict[tuple[str, str], None]:
    """Topic and id of all that belongs to it. Who asks for a commit has handed everything over, and the client commits
    nothing before all of it is written; without a commit, only what was acknowledged is certain to have been."""
    is_complete = transaction.commit_outcome in (Outcome.OK, Outcome.UNKNOWN)
    parts = handed if is_complete else acknowledged
    return dict.fromkeys(part for write in transaction.writes for part in parts(write))


def _final_of(history: History, transaction: str) -> Sequence[Seen]:
    sightings = history.sightings.get(transaction)
    return () if sightings is None else sightings.final


def _visible_ids(history: History, transaction: str) -> set[tuple[str, str | None]]:
    return {(seen.topic, seen.record.id) for seen in _final_of(history, transaction)}


def _count(transaction: Transaction) -> int | None:
    return next((each.asked["count"] for each in transaction.commits if each.asked.get("count") is not None), None)


# --- phantom


def phantom(history: History) -> Iterator[Anomaly]:
    """A record is visible that nobody asked to write, or whose write is known to have failed, or that was made from a
    record which its source topic does not have."""
    judge = _PhantomJudge(history)
    for seen, read in _everything_visible(history):
        if why := judge.why(seen):
            who = "in the end" if read is None else f"to {read.process} at {at(read.ended)}"
            sentence = f"{what(seen.record)} at {where(seen)} is visible {who}: {why}."
            yield anomaly("phantom", sentence, [read], [seen])


def _everything_visible(history: History) -> Iterator[tuple[Seen, Operation | None]]:
    """Each record at its place once, those of the end first."""
    yield from ((seen, None) for seen in history.final)
    known = set()
    for read, records in history.committed_reads:
        for seen in records:
            if history.final_at.get(seen[:3]) != seen.record and seen not in known:
                known.add(seen)
                yield seen, read


class _PhantomJudge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._writers = writers(history)
        self._recorded = speakers(history)
        self._asked: set[tuple[str | None, str, str]] = set()
        """Transaction, topic and id of what may have been written."""
        self._listed: set[tuple[str | None, str, str]] = set()
        for write in history.of("write"):
            name = write.asked.get("transaction")
            self._asked.update((name, *part) for part in (handed(write) if name is None else asked_for(write)))
            self._listed.update((None, *part) for part in asked_for(write) if name is None)
        self._sources: dict[str, list[str]] = {}
        for derivation in history.derivations:
            self._sources.setdefault(derivation.target, []).append(derivation.source)

    def why(self, seen: Seen) -> str | None:
        if seen.record.id is None:
            return None if seen.record.state is not None else "it is not a record of this run"
        return self._why_not_asked(seen.topic, seen.record) or self._why_not_derived(seen.topic, seen.record.id)

    def _why_not_asked(self, topic: str, record: Record) -> str | None:
        name = record.transaction
        part = (name, topic, str(record.id))
        if part in self._asked:
            return None
        if part in self._listed:
            return "its write is known to have failed"
        if name is None:
            return None if topic in self._sources else "nobody asked to write it"
        if process_of(name) not in self._recorded:
            return f"nobody knows its transaction {name}"
        if process_of(name) in self._writers:
            return f"nobody asked to write it in its transaction {name}"
        return None

    def _why_not_derived(self, topic: str, id: str) -> str | None:
        sources = self._sources.get(topic)
        if sources is None or not self._history.is_drained:
            return None
        if any(id in self._history.final_by_id.get(source, ()) for source in sources):
            return None
        return f"there is no such record in {' or '.join(sources)}"


# --- taken back


def taken_back(history: History) -> Iterator[Anomaly]:
    """A reader under read_committed was shown a record that in the end is not at that place any more."""
    ends: dict[Place, int] = {seen.place: seen.offset for seen in history.final}
    reported = set()
    for read, records in history.committed_reads:
        for seen in records:
            now = history.final_at.get(seen[:3])
            if now == seen.record or seen in reported:
                continue
            if now is None and not history.is_drained and seen.offset > ends.get(seen.place, -1):
                continue  # the final read did not get there
            reported.add(seen)
            yield _taken_back(read, seen, now)


def _taken_back(read: Operation, seen: Seen, now: Record | None) -> Anomaly:
    there = "nothing" if now is None else _with_transaction(now)
    shown = f"{_with_transaction(seen.record)} at {where(seen)} by {at(read.ended)}"
    sentence = f"{read.process} was shown {shown}; in the end there is {there}."
    left = [] if now is None else [seen._replace(record=now)]
    return anomaly("taken back", sentence, [read], [seen, *left])


def _with_transaction(record: Record) -> str:
    """The same output may be there from another attempt."""
    return what(record) if record.transaction is None else f"{what(record)} of {record.transaction}"
