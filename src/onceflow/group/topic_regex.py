"""Regular expressions over topic names, in RE2's syntax and with RE2's guarantee: time linear in the name.

A consumer group's members send expressions to the broker, which tries them on every topic while everybody waits.
Python's `re` backtracks and can take hours for twenty letters, so this is an automaton: an expression becomes a program
of small steps, and matching follows all ways through it at once, one letter after the other. Sets of steps that were
seen are kept, so most letters cost one lookup.

The whole name must match. What RE2 refuses is refused here: references back, looking around, counts above 1000. Names
of topics are ASCII, and so are the classes: `\\pL` and scripts are refused too, where RE2 would take them.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["BadRegex", "TopicRegex"]

LENGTH_MAX: Final = 1_000
"""Of an expression."""
PROGRAM_MAX: Final = 4_000
"""Steps of an expression when its counts are written out."""
REPEAT_MAX: Final = 1_000
NESTING_MAX: Final = 100
KNOWN_SIZE_MAX: Final = 200_000
"""Beyond this much in them the seen sets are forgotten, and built again as needed."""

ALPHABET: Final = frozenset(map(chr, range(128)))
DIGITS: Final = frozenset(string.digits)
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
SPACE: Final = frozenset("\t\n\f\r ")
PERL_CLASSES: Final = {"d": DIGITS, "w": WORD, "s": SPACE}
POSIX_CLASSES: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": ALPHABET,
    "blank": frozenset("\t "),
    "cntrl": frozenset([*map(chr, range(32)), "\x7f"]),
    "digit": DIGITS,
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "),
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
CONTROL: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


class BadRegex(ValueError):
    """Not an expression in RE2's syntax, or one that is too large."""


# --- the parts of an expression


class Letters(NamedTuple):
    """One letter of a set."""

    allowed: frozenset[str]


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    options: tuple[Node, ...]


class Repeat(NamedTuple):
    part: Node
    low: int
    high: int | None


class Assertion(NamedTuple):
    """A condition on the letters before and after a place; "" is the outside."""

    holds: Callable[[str, str], bool]


Node = Letters | Sequence | Choice | Repeat | Assertion


def _is_word_edge(before: str, after: str) -> bool:
    return (before in WORD) != (after in WORD)


TEXT_START: Final = Assertion(lambda before, after: not before)
TEXT_END: Final = Assertion(lambda before, after: not after)
WORD_EDGE: Final = Assertion(_is_word_edge)
NO_WORD_EDGE: Final = Assertion(lambda before, after: not _is_word_edge(before, after))
ASSERTIONS: Final = {"A": TEXT_START, "z": TEXT_END, "b": WORD_EDGE, "B": NO_WORD_EDGE}


class _Parser:
    """Recursive descent over one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignore_case = False

    def parse(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise BadRegex("unexpected ')'")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self, missing: str) -> str:
        if self._at >= len(self._text):
            raise BadRegex(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _until(self, end: str, missing: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise BadRegex(missing)
        inside = self._text[self._at : found]
        self._at = found + len(end)
        return inside

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts += self._quoted() if self._take("\\Q") else [self._atom()]
            if parts:
                parts[-1] = self._repeated(parts[-1])
        return Sequence(tuple(parts))

    def _quoted(self) -> list[Node]:
        literal, _, _ = self._text[self._at :].partition("\\E")
        self._at = min(self._at + len(literal) + len("\\E"), len(self._text))
        return [self._literal(letter) for letter in literal]

    def _repeated(self, part: Node) -> Node:
        count = self._count()
        if count is None:
            return part
        self._take("?")  # the lazy form matches the same names
        if self._count() is not None:
            raise BadRegex("invalid nested repetition operator")
        return Repeat(part, *count)

    def _count(self) -> tuple[int, int | None] | None:
        for operator, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(operator):
                return count
        if not self._peek("{"):
            return None
        body = self._text[self._at + 1 :].partition("}")
        low, comma, high = body[0].partition(",")
        if not body[1] or not low.isdecimal() or not (high.isdecimal() or high == ""):
            return None  # braces that count nothing stand for themselves
        self._at += len(body[0]) + 2
        most = None if comma and not high else int(high) if comma else int(low)
        if int(low) > REPEAT_MAX or (most is not None and not int(low) <= most <= REPEAT_MAX):
            raise BadRegex("bad repetition operator")
        return int(low), most

    def _atom(self) -> Node:
        letter = self._next("missing expression")
        match letter:
            case "(":
                return self._group()
            case "[":
                return Letters(self._class())
            case ".":
                return Letters(ALPHABET - {"\n"})
            case "^":
                return TEXT_START
            case "$":
                return TEXT_END
            case "*" | "+" | "?":
                raise BadRegex(f"missing argument to repetition operator: `{letter}`")
            case "\\":
                return self._escape()
            case _:
                return self._literal(letter)

    def _literal(self, letter: str) -> Letters:
        return Letters(frozenset({letter.lower(), letter.upper()}) if self._ignore_case else frozenset({letter}))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise BadRegex("expression nests too deeply")
        outer_case = self._ignore_case
        if self._take("?") and not self._named() and self._flags():
            self._depth -= 1
            return Sequence(())  # flags for what follows in the group around
        node = self._choice()
        if not self._take(")"):
            raise BadRegex("missing closing )")
        self._ignore_case = outer_case
        self._depth -= 1
        return node

    def _named(self) -> bool:
        if not (self._take("P<") or (self._peek("<") and not self._peek("<=") and not self._peek("<!"))):
            return False
        self._take("<")
        name = self._until(">", "invalid named capture")
        if not name or not WORD.issuperset(name):
            raise BadRegex("invalid named capture")
        return True

    def _flags(self) -> bool:
        """Read flags such as `i-s:`; whether they stand alone, without a group of their own."""
        on = True
        while True:
            letter = self._next("missing closing )")
            match letter:
                case "i":
                    self._ignore_case = on
                case "m" | "s" | "U":
                    pass  # a topic's name has no line ends, and which of several ways matches is nobody's question
                case "-" if on:
                    on = False
                case ":":
                    return False
                case ")":
                    return True
                case _:
                    raise BadRegex("invalid or unsupported Perl syntax")

    def _escape(self) -> Node:
        letter = self._next("trailing \\")
        if letter in ASSERTIONS:
            return ASSERTIONS[letter]
        if letter.lower() in PERL_CLASSES:
            return Letters(self._perl_class(letter))
        return self._literal(self._escaped(letter))

    @staticmethod
    def _perl_class(letter: str) -> frozenset[str]:
        inside = PERL_CLASSES[letter.lower()]
        return inside if letter.islower() else ALPHABET - inside

    def _escaped(self, letter: str) -> str:
        if letter in CONTROL:
            return CONTROL[letter]
        if letter == "x":
            return self._hexadecimal()
        if letter not in string.punctuation:
            raise BadRegex(f"invalid escape sequence: `\\{letter}`")
        return letter

    def _hexadecimal(self) -> str:
        digits = self._until("}", "invalid escape sequence") if self._take("{") else ""
        if not digits:
            digits = self._next("invalid escape sequence") + self._next("invalid escape sequence")
        if not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
            raise BadRegex("invalid escape sequence")
        return chr(int(digits, 16))

    def _class(self) -> frozenset[str]:
        negated = self._take("^")
        allowed: set[str] = set()
        first = True
        while first or not self._take("]"):
            first = False
            allowed |= self._class_item()
        if self._ignore_case:
            allowed |= {letter.swapcase() for letter in allowed}
        return ALPHABET - allowed if negated else frozenset(allowed)

    def _class_item(self) -> frozenset[str]:
        if self._take("[:"):
            name = self._until(":]", "invalid character class range")
            inside = POSIX_CLASSES.get(name.removeprefix("^"))
            if inside is None:
                raise BadRegex(f"invalid character class range: `[:{name}:]`")
            return ALPHABET - inside if name.startswith("^") else inside
        letter = self._next("missing closing ]")
        if letter == "\\":
            letter = self._next("missing closing ]")
            if letter.lower() in PERL_CLASSES:
                return self._perl_class(letter)
            letter = self._escaped(letter)
        if not self._peek("-") or self._peek("-]"):
            return frozenset({letter})
        self._take("-")
        last = self._next("missing closing ]")
        if last == "\\":
            last = self._escaped(self._next("missing closing ]"))
        if last < letter:
            raise BadRegex(f"invalid character class range: `{letter}-{last}`")
        return frozenset(other for other in ALPHABET if letter <= other <= last)


# --- the program


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
        program = _Program(_Parser(text).parse())
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
