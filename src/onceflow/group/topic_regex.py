"""Regular expressions over topic names, in RE2's syntax and with RE2's guarantee: time linear in the name.

A consumer group's members send expressions to the broker, which tries them on every topic while everybody waits.
Python's `re` backtracks and can take hours for twenty letters, so this is an automaton: an expression becomes a program
of small steps, and matching follows all ways through it at once, one letter after the other. Sets of steps that were
seen are kept, so most letters cost one lookup.

The whole name must match. What RE2 refuses is refused here: references back, looking around, counts above 1000. Some
that RE2 takes are refused too: `\\pL` and the like (names of topics are ASCII), octal numbers, and expressions above
the sizes below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from onceflow.group.topic_regex_parser import WORD, Assertion, BadRegex, Choice, Letters, Node, Repeat, Sequence, parse

__all__ = ["BadRegex", "TopicRegex"]

LENGTH_MAX: Final = 1_000
"""Of an expression."""
PROGRAM_MAX: Final = 4_000
"""Steps of an expression when its counts are written out."""
KNOWN_SIZE_MAX: Final = 200_000
"""Beyond this much in them the seen sets are forgotten, and built again as needed."""


class Step(NamedTuple):
    """Either a letter to read, or a condition to go on under, or a fork; then the steps that follow."""

    reads: frozenset[str] | None
    holds: Callable[[str, str], bool] | None
    then: tuple[int, ...]


class _Program:
    """Steps, built from the end: every part is told which step follows it."""

    def __init__(self, root: Node) -> None:
        self.steps: list[Step] = [Step(None, None, ())]
        self.start = self._build(root, 0)

    def _add(self, step: Step) -> int:
        if len(self.steps) >= PROGRAM_MAX:
            raise BadRegex("expression is too large")
        self.steps.append(step)
        return len(self.steps) - 1

    def _build(self, node: Node, following: int) -> int:
        match node:
            case Letters(allowed):
                return self._add(Step(allowed, None, (following,)))
            case Assertion(holds):
                return self._add(Step(None, holds, (following,)))
            case Sequence(parts):
                for part in reversed(parts):
                    following = self._build(part, following)
                return following
            case Choice(options):
                return self._add(Step(None, None, tuple(self._build(option, following) for option in options)))
            case Repeat(part, low, high):
                return self._repeat(part, low, high, following)

    def _repeat(self, part: Node, low: int, high: int | None, following: int) -> int:
        if high is None:
            loop = self._add(Step(None, None, ()))
            self.steps[loop] = Step(None, None, (self._build(part, loop), following))
            entry = loop
        else:
            entry = following
            for _ in range(high - low):
                entry = self._add(Step(None, None, (self._build(part, entry), following)))
        for _ in range(low):
            built = self._build(part, entry)
            if built == entry:
                break  # nothing, however often
            entry = built
        return entry


class TopicRegex:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        """Raises `BadRegex`."""
        if len(text) > LENGTH_MAX:
            raise BadRegex(f"expression is longer than {LENGTH_MAX}")
        program = _Program(parse(text))
        self._steps = program.steps
        self._start = frozenset({program.start})
        self._kinds = _kinds_of_letters({step.reads for step in self._steps if step.reads is not None})
        self._known: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._known_size = 0

    def matches(self, name: str) -> bool:
        """Whether the whole name is matched."""
        at, before = self._start, ""
        for letter in name:
            kind = self._kinds.get(letter, letter)
            at, before = self._advance(at, before, kind), kind
            if not at:
                return False
        return 0 in self._closure(at, before, "")

    def _advance(self, at: frozenset[int], before: str, letter: str) -> frozenset[int]:
        key = at, before, letter
        found = self._known.get(key)
        if found is None:
            found = frozenset(
                following
                for index in self._closure(at, before, letter)
                if (reads := self._steps[index].reads) is not None and letter in reads
                for following in self._steps[index].then
            )
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[frozenset[int], str, str], found: frozenset[int]) -> None:
        if self._known_size > KNOWN_SIZE_MAX:
            self._known.clear()
            self._known_size = 0
        self._known[key] = found
        self._known_size += 1 + len(found)

    def _closure(self, at: frozenset[int], before: str, after: str) -> set[int]:
        """All steps that can be reached from these without reading a letter."""
        seen: set[int] = set()
        waiting = list(at)
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            step = self._steps[index]
            if step.reads is None and (step.holds is None or step.holds(before, after)):
                waiting += step.then
        return seen


def _kinds_of_letters(sets: set[frozenset[str]]) -> dict[str, str]:
    """Letters that no set and no assertion tells apart are of one kind: one of them stands for all."""
    ordered = [WORD, *sets]
    first: dict[tuple[bool, ...], str] = {}
    return {
        letter: first.setdefault(tuple(letter in each for each in ordered), letter)
        for letter in (chr(code) for code in range(128))
    }
