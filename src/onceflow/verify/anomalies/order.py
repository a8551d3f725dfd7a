"""What must keep its order: records of one writer, positions of one reader, offsets that only ever grow."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from onceflow.verify.anomalies.evidence import acknowledged, anomaly, asked_for, at, names, speakers, what, where
from onceflow.verify.history import Derivation, History, Operation, Place, Seen
from onceflow.verify.verdict import Anomaly

__all__ = ["offsets_moved_back", "reordering", "skipped_offsets"]


# --- reordering


def reordering(history: History) -> Iterator[Anomaly]:
    """Records of one writer are in a partition in another order than it wrote them. Or records of one source partition
    are in a partition of the topic made from it in another order than at their source."""
    written = _written(history)
    firsts = _firsts(history.final)
    for earlier, later in _descents(firsts, lambda seen: _by_writer(written, seen)):
        first, then = written[_attempt(later)], written[_attempt(earlier)]
        assert first is not None
        assert then is not None
        sentence = (
            f"{first.write.process} wrote {what(later.record)} before {what(earlier.record)} ({first.write.id}, "
            f"{then.write.id}), but they are at {where(later)} and {where(earlier)}."
        )
        yield anomaly("reordering", sentence, [first.write, then.write], [earlier, later])
    for derivation in history.derivations:
        if derivation.is_ordered:
            yield from _derived_out_of_order(derivation, history)


class _Written(NamedTuple):
    write: Operation
    number: int
    """Among all that was ever written."""


_Attempt = tuple[str, str | None, str | None]
"""Topic, transaction and id: one attempt to write one record."""
_Rank = tuple[Hashable, int]
"""Who has an order of its own, and where in it this is."""


def _attempt(seen: Seen) -> _Attempt:
    return seen.topic, seen.record.transaction, seen.record.id


def _written(history: History) -> dict[_Attempt, _Written | None]:
    """None for what was written more than once under one name: either of them may be the one that is there."""
    found: dict[_Attempt, _Written | None] = {}
    for write in history.of("write"):
        name = write.asked.get("transaction")
        # Outside of transactions, what was not acknowledged may arrive at any time, on a connection given up long ago.
        certain = None if name is not None else set(acknowledged(write))
        for topic, id in asked_for(write):
            attempt = (topic, name, id)
            is_usable = attempt not in found and (certain is None or (topic, id) in certain)
            found[attempt] = _Written(write, len(found)) if is_usable else None
    return found


def _by_writer(written: Mapping[_Attempt, _Written | None], seen: Seen) -> _Rank | None:
    found = written.get(_attempt(seen))
    return None if found is None else (found.write.process, found.number)


def _descents(found: Iterable[Seen], rank: Callable[[Seen], _Rank | None]) -> Iterator[tuple[Seen, Seen]]:
    """Neighbours within a partition that are in the wrong order."""
    last: dict[tuple[str, int, Hashable], tuple[int, Seen]] = {}
    for seen in found:
        if (ranked := rank(seen)) is None:
            continue
        whose, number = ranked
        key = (seen.topic, seen.partition, whose)
        before = last.get(key)
        if before is not None and number < before[0]:
            yield before[1], seen
        last[key] = number, seen


def _firsts(final: Iterable[Seen]) -> Iterator[Seen]:
    """Of a record that is there more than once, the first: its duplicates are another anomaly."""
    known = set()
    for seen in final:
        name = f"{seen.topic}/{seen.record.id}"
        if name not in known:
            known.add(name)
            yield seen


def _derived_out_of_order(derivation: Derivation, history: History) -> Iterator[Anomaly]:
    sources = history.final_by_id.get(derivation.source, {})

    def by_source(seen: Seen) -> _Rank | None:
        places = sources.get(seen.record.id or "")
        return None if places is None else (places[0].partition, places[0].offset)

    derived = (seen for seen in _firsts(history.final) if seen.topic == derivation.target)
    for earlier, later in _descents(derived, by_source):
        first, then = sources[str(later.record.id)][0], sources[str(earlier.record.id)][0]
        sentence = (
            f"{later.record.id} comes before {earlier.record.id} at their source ({where(first)} and {where(then)}), "
            f"but after it in {derivation.target} ({where(later)} and {where(earlier)})."
        )
        yield anomaly("reordering", sentence, (), [first, then, earlier, later])


# --- skipped offsets


def skipped_offsets(history: History) -> Iterator[Anomaly]:
    """A reader under read_committed passed over a record that is there in the end, and was never shown it. What lies
    below a position that a reader has passed was decided by then."""
    final = _by_place(history.final)
    shown = _shown(history)
    committed, members = _committed_offsets(history), _members(history)
    for move in _moves(history):
        begin = move.start
        if move.reached is not None and move.reached < move.start:
            resumed = _resumed_at(committed.get(move.place, []), move.start) if move.read.process in members else 0
            begin = max(move.reached, resumed)
        passed = _between(final.get(move.place, []), begin, move.end)
        if missing := [seen for seen in passed if seen.offset not in shown.get((move.session, move.place), ())]:
            yield _skipped(move, missing)


_Session = tuple[str, str | None]
"""Process, and which of its readers."""


def _session(read: Operation) -> _Session:
    return read.process, read.asked.get("reader")


class _Move(NamedTuple):
    """One poll passed over [start, end) of a partition."""

    read: Operation
    session: _Session
    place: Place
    start: int
    end: int
    reached: int | None
    """Where the poll before it had come to."""
    before: Operation | None
    """That poll."""


def _moves(history: History) -> Iterator[_Move]:
    last: dict[tuple[_Session, Place], tuple[int, Operation]] = {}
    for read, _ in history.committed_reads:
        session = _session(read)
        for topic, partition, start, end in read.told.get("moved", ()):
            place = (topic, partition)
            reached, before = last.get((session, place), (None, None))
            last[session, place] = end, read
            yield _Move(read, session, place, start, end, reached, before)


def _shown(history: History) -> dict[tuple[_Session, Place], set[int]]:
    found: dict[tuple[_Session, Place], set[int]] = {}
    for read, records in history.committed_reads:
        session = _session(read)
        for seen in records:
            found.setdefault((session, seen.place), set()).add(seen.offset)
    return found


def _by_place(final: Iterable[Seen]) -> dict[Place, list[Seen]]:
    found: dict[Place, list[Seen]] = {}
    for seen in final:
        found.setdefault(seen.place, []).append(seen)
    return found


def _between(records: list[Seen], start: int, end: int) -> list[Seen]:
    first = bisect_left(records, start, key=lambda seen: seen.offset)
    return records[first : bisect_left(records, end, key=lambda seen: seen.offset)]


def _members(history: History) -> set[str]:
    """Processes that do more than look on. They work in groups: partitions are given to them and taken away, and after
    an abort they go back."""
    return speakers(history)


def _committed_offsets(history: History) -> dict[Place, list[int]]:
    """All that anybody asked to commit, in order."""
    found: dict[Place, list[int]] = {}
    for commit in history.of("commit"):
        for topic, partition, offset in commit.asked.get("offsets") or ():
            found.setdefault((topic, partition), []).append(offset)
    return {place: sorted(offsets) for place, offsets in found.items()}


def _resumed_at(committed: list[int], start: int) -> int:
    """A member of a group to which a partition comes back goes on where others have left it."""
    found = bisect_right(committed, start)
    return committed[found - 1] if found else 0


def _skipped(move: _Move, missing: list[Seen]) -> Anomaly:
    topic, partition = move.place
    begin = move.start if move.reached is None else min(move.start, move.reached)
    sentence = (
        f"{move.read.process} went from {begin} to {move.end} in {topic}-{partition} by {at(move.read.ended)} and was "
        f"never shown {names([f'{what(seen.record)} at {seen.offset}' for seen in missing])}."
    )
    return anomaly("skipped offsets", sentence, [move.before, move.read], missing)


# --- offsets moved back


def offsets_moved_back(history: History) -> Iterator[Anomaly]:
    """What only ever grows was less than before: what a group has committed, the end of a partition or its last stable
    offset, the position of a reader."""
    groups = [each for each in history.of("offsets") if each.is_ok]
    yield from _fallen(groups, "group", "told", "The committed offset of group {}", lost_if_absent=True)
    ends = [each for each in history.of("ends") if each.is_ok]
    yield from _fallen(ends, "isolation", "told", "The end under {}")
    commits = [each for each in history.of("commit") if each.is_ok and each.asked.get("offsets")]
    yield from _fallen(commits, "group", "asked", "The offset that was committed for group {}")
    yield from _readers_moved_back(history)


def _fallen(
    operations: list[Operation], scope: str, side: str, whose: str, *, lost_if_absent: bool = False
) -> Iterator[Anomaly]:
    """Each is compared with the highest of those that had ended before it began; `operations` are in order."""
    highest: dict[object, dict[Place, tuple[int, Operation]]] = {}
    ended = iter(sorted(operations, key=lambda each: each.ended))
    past = next(ended, None)
    for operation in operations:
        while past is not None and past.ended < operation.began:
            _raise(highest.setdefault(past.asked.get(scope), {}), past, _offsets(past, side))
            past = next(ended, None)
        found = _offsets(operation, side)
        before = highest.get(operation.asked.get(scope), {})
        for place in [*before] if lost_if_absent else found:
            value, earlier = before.get(place, (-1, operation))
            if found.get(place, -1) < value:
                before[place] = found.get(place, -1), operation
                yield _moved_back(whose.format(operation.asked.get(scope)), place, (earlier, value), (operation, found))


def _offsets(operation: Operation, side: str) -> dict[Place, int]:
    listed = (operation.told if side == "told" else operation.asked).get("offsets") or ()
    return {(topic, partition): offset for topic, partition, offset in listed}


def _raise(highest: dict[Place, tuple[int, Operation]], past: Operation, offsets: Mapping[Place, int]) -> None:
    for place, offset in offsets.items():
        if offset > highest.get(place, (-1, past))[0]:
            highest[place] = offset, past


def _moved_back(
    whose: str, place: Place, before: tuple[Operation, int], after: tuple[Operation, Mapping[Place, int]]
) -> Anomaly:
    earlier, value = before
    later, found = after
    now = found.get(place, -1)
    sentence = (
        f"{whose} in {place[0]}-{place[1]} was {value} ({earlier.id}, by {at(earlier.ended)}) and later "
        f"{now if now >= 0 else 'nothing'} ({later.id}, from {at(later.began)})."
    )
    return anomaly("offsets moved back", sentence, [earlier, later])


def _readers_moved_back(history: History) -> Iterator[Anomaly]:
    members = _members(history)
    for move in _moves(history):
        if move.before is None or move.reached is None or move.read.process in members or move.start >= move.reached:
            continue
        (topic, partition), read = move.place, move.read
        sentence = (
            f"{read.process} had come to {move.reached} in {topic}-{partition} by {at(move.before.ended)}, and went on "
            f"from {move.start} ({read.id})."
        )
        yield anomaly("offsets moved back", sentence, [move.before, read])
