"""The data of the timeline, as `timeline.js` draws it: small enough for a page, whatever the run was.

    end          of the run; all times are whole ticks of 0.1 ms
    lanes        {name, rows, note}
    lives        {name, lane, row, from, to, killed}
    operations   columns of equal length: life, number, kind, outcome, began, took (-1: no answer), text
    texts        what operations have to say, each once
    transactions [life, from, to, end, name], `end` being a place in `ends`
    faults       {kind, target, lanes, from, to, text}
    progress     {lane, at, read}: how many offsets a reader had passed when
    density      [ok, not ok] for equal parts of the run: of all operations, drawn or not

Record lists stay in history.jsonl. Of a run with more than `OPERATIONS_MAX` operations, the timeline has all that did
not go well and all that an anomaly names, and a regular choice of the rest; `left_out` says so in sentences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from onceflow.verify.history import NEVER, History, Operation, Outcome, Transaction
from onceflow.verify.report_page.lanes import Fault, Lanes, last_moment
from onceflow.verify.report_page.markup import clipped, counted, ticks

__all__ = ["Timeline"]

OPERATIONS_MAX: Final = 60_000
TRANSACTIONS_MAX: Final = 30_000
POINTS_MAX: Final = 400
"""Of a reader's progress."""
DENSITY_PARTS: Final = 400
TEXT_MAX: Final = 90
OUTCOMES: Final = [Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN]
COMMITTED, ABORTED, OPEN = 0, 1, 2
ENDS: Final = ["committed", "aborted", "open or unknown"]
T = TypeVar("T")


class Timeline:
    def __init__(self, history: History, faults: Sequence[Operation], shown: Collection[str] = ()) -> None:
        """`shown`: ids of operations that must not be left out."""
        self.faults = [Fault(each) for each in faults]
        self._operations = [each for each in history.operations if each.f != "fault"]
        self._transactions = list(history.transactions.values())
        self._shown = frozenset(shown)
        self.lanes = Lanes(self._operations, self.faults)
        self.end = max(last_moment(self._operations), max((each.ended for each in self.faults), default=0.0))
        self.left_out: list[str] = []

    def to_json(self) -> dict[str, Any]:
        self.left_out = []
        operations = self._thinned_operations()
        texts: dict[str, int] = {}
        return {
            "end": ticks(self.end),
            "outcomes": [each.value for each in OUTCOMES],
            "ends": ENDS,
            "lanes": [each.to_json() for each in self.lanes.lanes],
            "lives": [each.to_json() for each in self.lanes.lives],
            "operations": self._columns(operations, texts),
            "texts": list(texts),
            "transactions": self._spans(),
            "faults": [self._fault(each) for each in self.faults],
            "progress": self._progress(),
            "density": self._density(),
        }

    def _thinned_operations(self) -> list[Operation]:
        everything = self._operations
        if len(everything) <= OPERATIONS_MAX:
            return everything
        kept: list[Operation] = []
        for rank in range(3):  # what an anomaly names, then what did not go well, then the rest
            kept += _some([each for each in everything if self._rank(each) == rank], OPERATIONS_MAX - len(kept))
        self.left_out.append(
            f"The timeline shows {len(kept):,} of {counted(len(everything), 'operation')}: first those that an anomaly "
            "names or that did not go well, then as many of the others as fit. The strip above it counts all of them."
        )
        return sorted(kept, key=lambda each: (each.began, each.id))

    def _rank(self, operation: Operation) -> int:
        return 0 if operation.id in self._shown else 1 if not operation.is_ok else 2

    def _columns(self, operations: Sequence[Operation], texts: dict[str, int]) -> dict[str, list[Any]]:
        kinds = {kind: at for at, kind in enumerate(sorted({each.f for each in operations}))}
        numbers = [each.id.rpartition(":")[2] for each in operations]
        said = [_say(each) for each in operations]
        return {
            "kinds": list(kinds),
            "life": [self.lanes.life_at[each.process] for each in operations],
            "number": [int(each) if each.isdecimal() and str(int(each)) == each else each for each in numbers],
            "kind": [kinds[each.f] for each in operations],
            "outcome": [OUTCOMES.index(each.outcome) for each in operations],
            "began": [ticks(each.began) for each in operations],
            "took": [-1 if each.ended == NEVER else ticks(each.ended - each.began) for each in operations],
            "text": [texts.setdefault(each, len(texts)) for each in said],
        }

    def _spans(self) -> list[list[Any]]:
        spans = [self._span(each) for each in self._transactions]
        if len(spans) > TRANSACTIONS_MAX:
            kept = _some([each for each in spans if each[3] != COMMITTED], TRANSACTIONS_MAX)
            kept += _some([each for each in spans if each[3] == COMMITTED], TRANSACTIONS_MAX - len(kept))
            self.left_out.append(f"It shows {len(kept):,} of {counted(len(spans), 'transaction')}.")
            spans = kept
        return sorted(spans, key=lambda each: int(each[1]))

    def _span(self, transaction: Transaction) -> list[Any]:
        parts = [*transaction.writes, *transaction.commits, *transaction.aborts]
        end = _end(transaction)
        life = self.lanes.lives[self.lanes.life_at[parts[0].process]]
        until = life.ended if end == OPEN else last_moment(parts)
        began = min(each.began for each in parts)
        name = clipped(transaction.name, 80)
        return [self.lanes.life_at[life.name], ticks(began), ticks(max(began, until)), end, name]

    def _fault(self, fault: Fault) -> dict[str, Any]:
        return {
            "kind": clipped(fault.kind, 40),
            "target": clipped(fault.target, 60),
            "lanes": self.lanes.struck_by(fault),
            "from": ticks(fault.began),
            "to": ticks(fault.ended),
            "text": clipped(fault.detail, 200),
        }

    def _progress(self) -> list[dict[str, Any]]:
        """Of each life of a reader: how far it had come, all partitions together."""
        found: dict[str, list[tuple[int, int]]] = {}
        for read in self._operations:
            moved = sum(to - start for _, _, start, to in read.told.get("moved", ()))
            if moved:
                points = found.setdefault(read.process, [(ticks(read.began), 0)])
                points.append((ticks(read.ended), points[-1][1] + moved))
        return [
            {
                "lane": self.lanes.lives[self.lanes.life_at[process]].lane,
                "at": [at for at, _ in _some(points, POINTS_MAX)],
                "read": [read for _, read in _some(points, POINTS_MAX)],
            }
            for process, points in found.items()
        ]

    def _density(self) -> list[list[int]]:
        parts = [[0, 0] for _ in range(DENSITY_PARTS)]
        scale = DENSITY_PARTS / max(self.end, 1e-9)
        for each in self._operations:
            parts[min(int(max(each.began, 0) * scale), DENSITY_PARTS - 1)][not each.is_ok] += 1
        return parts


def _end(transaction: Transaction) -> int:
    if any(each.is_ok for each in transaction.commits):
        return COMMITTED
    if any(each.is_ok for each in transaction.aborts) and not transaction.commits:
        return ABORTED
    if transaction.commits and all(each.outcome is Outcome.FAILED for each in transaction.commits):
        return ABORTED
    return OPEN


def _some(everything: Sequence[T], number: int) -> list[T]:
    """At most `number`, evenly from first to last."""
    if len(everything) <= number:
        return list(everything)
    if number <= 1:
        return list(everything[:number])
    return [everything[round(at * (len(everything) - 1) / (number - 1))] for at in range(number)]


def _say(operation: Operation) -> str:
    """What an operation was about, in a line."""
    asked, told = operation.asked, operation.told
    parts: list[str] = []
    if "transaction" in asked and asked["transaction"] is not None:
        parts.append(str(asked["transaction"]))
    parts += [str(asked[name]) for name in ("transactional_id", "reader", "group", "isolation") if asked.get(name)]
    if records := asked.get("records"):
        parts.append(f"{counted(len(records), 'record')} to {_places(records)}")
    if records := told.get("records"):
        parts.append(f"{counted(len(records), 'record')} from {_places(records)}")
    parts += [str(told[name]) for name in ("error", "problem", "why") if told.get(name)]
    return clipped(", ".join(parts), TEXT_MAX)


def _places(records: Iterable[Sequence[Any]]) -> str:
    topics = dict.fromkeys(str(each[0]) for each in records)
    return " and ".join(topics)
