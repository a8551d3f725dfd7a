"""State and the outputs it was counted from: they change in one transaction, or they come apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onceflow.verify.anomalies.evidence import anomaly, where
from onceflow.verify.history import History, Operation, Seen
from onceflow.verify.verdict import Anomaly

__all__ = ["state_mismatch"]


def state_mismatch(history: History) -> Iterator[Anomaly]:
    """The state of a key does not follow from its outputs: each change of it must be as large as the number of outputs
    with that key in the same transaction, and in the end it must be their number."""
    states: dict[str, list[Seen]] = {}
    for seen in history.final:
        if seen.record.state is not None:
            states.setdefault(seen.record.state, []).append(seen)
    if not states:
        return
    outputs = _Outputs(history)
    for key, changes in states.items():
        yield from _wrong_changes(key, changes, outputs, history)
    if history.is_drained:
        yield from _wrong_totals(states, outputs)


class _Outputs:
    def __init__(self, history: History) -> None:
        targets = {derivation.target for derivation in history.derivations}
        self.per_key: Counter[str] = Counter()
        self.per_transaction: Counter[tuple[str, str | None]] = Counter()
        self.example: dict[str, Seen] = {}
        for seen in history.final:
            if seen.topic in targets and seen.record.id is not None and (key := seen.record.key) is not None:
                self.per_key[key] += 1
                self.per_transaction[key, seen.record.transaction] += 1
                self.example[key] = seen


def _wrong_changes(key: str, changes: list[Seen], outputs: _Outputs, history: History) -> Iterator[Anomaly]:
    before, previous = 0, None
    for seen in changes:
        name, after = seen.record.transaction, seen.record.n or 0
        there = outputs.per_transaction[key, name]
        # In a run that did not come to its end, outputs may not have been read yet; too many are wrong all the same.
        if after < before + there or (history.is_drained and after != before + there):
            sentence = (
                f"The state of {key} went from {before} to {after} at {where(seen)}, in {name or 'no transaction'}, "
                f"which has {there} outputs with that key."
            )
            yield anomaly("state mismatch", sentence, _about(history, name), [*filter(None, [previous]), seen])
        before, previous = after, seen


def _wrong_totals(states: dict[str, list[Seen]], outputs: _Outputs) -> Iterator[Anomaly]:
    for key, changes in states.items():
        last, count = changes[-1], outputs.per_key[key]
        if last.record.n != count:
            told = f"The state of {key} is {last.record.n} in the end ({where(last)})"
            sentence = f"{told}, but there are {count} outputs with that key."
            yield anomaly("state mismatch", sentence, (), [last])
    for key, count in outputs.per_key.items():
        if key not in states:
            sentence = f"There are {count} outputs with the key {key}, and no state of it."
            yield anomaly("state mismatch", sentence, (), [outputs.example[key]])


def _about(history: History, name: str | None) -> list[Operation]:
    transaction = history.transactions.get(name or "")
    return [] if transaction is None else [*transaction.writes[:2], *transaction.commits[:2]]
