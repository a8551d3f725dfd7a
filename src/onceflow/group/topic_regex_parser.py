"""The syntax of RE2, read into a tree; `topic_regex` says what is left out.

Python's own parser would do but for two things: it takes what only backtracking can match, and it is not public.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Final, NamedTuple

__all__ = ["WORD", "Assertion", "BadRegex", "Choice", "Letters", "Node", "Repeat", "Sequence", "parse"]

REPEAT_MAX: Final = 1_000
NESTING_MAX: Final = 100

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
        self._names: set[str] = set()

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
        if not name or not WORD.issuperset(name) or name in self._names:
            raise BadRegex("invalid named capture")
        self._names.add(name)
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


def parse(text: str) -> Node:
    """Raises `BadRegex`."""
    return _Parser(text).parse()
