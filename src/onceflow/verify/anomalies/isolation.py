"""What a reader under read_committed must never be shown: aborted, not yet committed, or written by somebody fenced."""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.verify.anomalies.evidence import (
    anomaly,
    at,
    fenced_transactions,
    speakers,
    transaction_named,
    what,
    where,
    writers,
)
from onceflow.verify.history import History, Operation, Outcome, Seen, Sightings, Transaction
from onceflow.verify.verdict import Anomaly

__all__ = ["aborted_read", "fenced_write", "read_before_commit"]


def aborted_read(history: History) -> Iterator[Anomaly]:
    """A reader under read_committed was shown a record of a transaction that was certainly aborted: its abort was asked
    for and never its commit, or its commit is known to have failed."""
    fenced = fenced_transactions(history)
    for name, sightings in history.sightings.items():
        transaction = transaction_named(history, name)
        if name not in fenced and (why := _why_aborted(transaction)):
            sentence = f"{_who_saw(sightings)}, although its transaction {name} was aborted: {why}."
            yield anomaly("aborted read", sentence, _story(transaction, sightings), _records(sightings))


def _why_aborted(transaction: Transaction) -> str | None:
    if transaction.commit_outcome is Outcome.FAILED:
        last = transaction.commits[-1]
        return f"the commit asked for at {at(last.began)} certainly failed ({at(last.ended)})"
    if transaction.aborts and not transaction.commits:
        return f"its abort was asked for at {at(transaction.aborts[0].began)}, and never its commit"
    return None


def read_before_commit(history: History) -> Iterator[Anomaly]:
    """A reader under read_committed was shown a record before the commit of its transaction was asked for, or although
    it never was."""
    fenced, recorded, listed = fenced_transactions(history), speakers(history), writers(history)
    for name, sightings in history.sightings.items():
        transaction = transaction_named(history, name)
        if name in fenced or transaction.process not in recorded:
            continue
        if name not in history.transactions and transaction.process in listed:
            continue  # nobody asked to write it: a phantom
        if why := _why_too_early(transaction, sightings):
            seen, read = _earliest(sightings)
            sentence = f"{_saw(seen, read)}, although the commit of its transaction {name} {why}."
            yield anomaly("read before commit", sentence, _story(transaction, sightings), [seen])


def _why_too_early(transaction: Transaction, sightings: Sightings) -> str | None:
    commits = [each for each in transaction.commits if each.outcome is not Outcome.FAILED]
    if not transaction.commits and not transaction.aborts:
        return "was never asked for"
    if commits and sightings.first is not None and sightings.first[0].ended < commits[0].began:
        return f"was asked for at {at(commits[0].began)} only"
    return None


def fenced_write(history: History) -> Iterator[Anomaly]:
    """Records of a producer that had been fenced are visible: its successor had taken over the transactional id before
    the commit of their transaction was asked for, so the take-over had aborted it."""
    for name, take in fenced_transactions(history).items():
        transaction, sightings = transaction_named(history, name), history.sightings[name]
        late = [each for each in transaction.writes if each.began > take.ended]
        commit = f"asked for at {at(transaction.commits[0].began)}" if transaction.commits else "never asked for"
        sentence = (
            f"{_who_saw(sightings)}, although {take.process} had taken over the transactional id "
            f"{take.asked['transactional_id']} from {transaction.process} by {at(take.ended)}; the commit of its "
            f"transaction {name} was {commit}"
            + (f", and {late[0].id} wrote to it at {at(late[0].began)}, after the take-over." if late else ".")
        )
        yield anomaly("fenced write", sentence, [take, *late[:1], *_story(transaction, sightings)], _records(sightings))


# --- in words


def _saw(seen: Seen, read: Operation | None) -> str:
    if read is None:
        return f"{what(seen.record)} is visible in the end, at {where(seen)}"
    return f"{read.process} was shown {what(seen.record)} at {where(seen)} by {at(read.ended)}"


def _earliest(sightings: Sightings) -> tuple[Seen, Operation | None]:
    if sightings.first is None:
        return sightings.example, None
    read, seen = sightings.first
    return seen, read


def _who_saw(sightings: Sightings) -> str:
    """What is visible in the end is worse than what somebody saw in passing."""
    if not sightings.final:
        return _saw(*_earliest(sightings))
    more = len(sightings.final) - 1
    return _saw(sightings.final[0], None) + (f" (and {more} more of the same transaction)" if more else "")


def _records(sightings: Sightings) -> list[Seen]:
    return sightings.final or [sightings.example]


def _story(transaction: Transaction, sightings: Sightings) -> list[Operation | None]:
    read = sightings.first[0] if sightings.first is not None else None
    return [*transaction.writes[:2], *transaction.commits[:2], *transaction.aborts[:1], read]
