"""Who was there: workers as lanes, their lives as bars, and which lanes a fault struck.

Process "copier-2.3" is the third life of worker "copier-2". Two lives of one worker may overlap (a zombie and its
successor): then the lane has two rows. What faults name and no operation does (a broker) gets a lane without lives;
what is not a process at all (the network, the disk) strikes all lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.verify.history import NEVER, Operation
from onceflow.verify.report_page.markup import clipped, counted, ticks

__all__ = ["Fault", "Lanes", "last_moment"]

EVERYBODY: Final = frozenset({"", "network", "disk", "all"})
KILLS: Final = frozenset({"kill"})


class Fault:
    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.kind = str(operation.asked.get("kind", "fault"))
        self.target = str(operation.asked.get("target", ""))
        self.began = operation.began
        self.ended = operation.began if operation.ended == NEVER else operation.ended

    @property
    def detail(self) -> str:
        """What it hit, if that is known; else what was intended beyond kind and target."""
        told = [str(value) for value in self.operation.told.values()]
        asked = [f"{name} {value}" for name, value in self.operation.asked.items() if name not in ("kind", "target")]
        return ", ".join(told or asked)


@dataclass
class Life:
    name: str
    lane: int
    began: float
    ended: float
    row: int = 0
    is_killed: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "name": clipped(self.name, 80),
            "lane": self.lane,
            "row": self.row,
            "from": ticks(self.began),
            "to": ticks(self.ended),
            "killed": self.is_killed,
        }


@dataclass
class Lane:
    name: str
    rows: int = 1
    lives: list[Life] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        note = counted(len(self.lives), "life").replace("lifes", "lives") if len(self.lives) > 1 else ""
        return {"name": clipped(self.name, 60), "rows": self.rows, "note": note}

    def settle(self) -> None:
        """Gives each life a row, the first that is free by then."""
        self.lives.sort(key=lambda each: each.began)
        busy: list[float] = []
        for life in self.lives:
            life.row = next((row for row, until in enumerate(busy) if until <= life.began), len(busy))
            busy[life.row : life.row + 1] = [life.ended]
        self.rows = max(1, len(busy))


class Lanes:
    def __init__(self, operations: Sequence[Operation], faults: Sequence[Fault]) -> None:
        spans = _spans(operations)
        targets = {_worker(fault.target) for fault in faults if fault.target not in EVERYBODY}
        names = sorted({_worker(process) for process in spans} | targets, key=_rank)
        self.lanes = [Lane(name) for name in names]
        self._at = {name: at for at, name in enumerate(names)}
        lives = [Life(process, self._at[_worker(process)], *span) for process, span in spans.items()]
        self.lives = sorted(lives, key=lambda each: each.began)
        self.life_at = {life.name: at for at, life in enumerate(self.lives)}
        self._mark_ends(faults)
        for life in self.lives:
            self.lanes[life.lane].lives.append(life)
        for lane in self.lanes:
            lane.settle()

    def struck_by(self, fault: Fault) -> list[int]:
        """A lane of its own, if the target has one; else all of them."""
        own = self._at.get(_worker(fault.target))
        return list(range(len(self.lanes))) if own is None else [own]

    def touched_by(self, fault: Fault) -> set[int]:
        """Whose operations may suffer: a fault of a broker is everybody's."""
        struck = self.struck_by(fault)
        return set(struck if any(self.lanes[at].lives for at in struck) else range(len(self.lanes)))

    def _mark_ends(self, faults: Iterable[Fault]) -> None:
        """Whoever was struck was alive until then, even with nothing to say any more; whoever was killed, no longer."""
        for fault in faults:
            at = self.life_at.get(fault.target)
            if at is not None:
                life = self.lives[at]
                life.is_killed |= fault.kind in KILLS
                life.ended = max(life.ended, fault.began)


def last_moment(operations: Iterable[Operation]) -> float:
    return max((_last(each) for each in operations), default=0.0)


def _last(operation: Operation) -> float:
    return operation.began if operation.ended == NEVER else operation.ended


def _spans(operations: Iterable[Operation]) -> dict[str, tuple[float, float]]:
    """From the first thing a process asked to the last it was told."""
    spans: dict[str, tuple[float, float]] = {}
    for each in operations:
        began, ended = spans.get(each.process, (each.began, each.began))
        spans[each.process] = began, max(ended, _last(each))
    return spans


def _worker(process: str) -> str:
    worker, dot, life = process.rpartition(".")
    return worker if dot and life.isdigit() else process


def _rank(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """Brokers first, then by name, copier-2 before copier-10."""
    parts = [(int(each), "") if each.isdecimal() else (-1, each) for each in re.split(r"(\d+)", name)]
    return not name.startswith("broker"), parts
