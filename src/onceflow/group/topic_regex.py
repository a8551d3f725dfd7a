"""Regular expressions from clients, in RE2's syntax and with RE2's guarantee: time linear in what is matched.

Members of consumer groups send expressions that the broker tries on every topic while everybody waits. Python's `re`
backtracks and can take hours for twenty letters; Kafka uses RE2 too, so the syntax is the same.
"""

from __future__ import annotations

from typing import Final

import re2

__all__ = ["BadRegex", "TopicRegex"]

LENGTH_MAX: Final = 1_000
"""Of an expression."""
MEMORY_MAX: Final = 1 << 20
"""Of a compiled expression, in bytes; RE2 refuses one that needs more."""


class BadRegex(ValueError):
    """Not an expression, or one that is too large. The message says why."""


class TopicRegex:
    """An expression that the whole of a name has to match."""

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise BadRegex(f"it has more than {LENGTH_MAX} characters")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = MEMORY_MAX
        try:
            self._compiled = re2.compile(text, options=options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            raise BadRegex(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from error

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None
