"""Text that others have chosen, for terminals and logs: names of topics, ids, messages of another broker.

Kafka lets clients choose ids freely, and what a terminal is told to do begins with a character as well. So whatever is
not printable is shown as its escape (`\\x1b`, `\\n`, `\\u202e`): nothing steers a terminal, and no name makes a line of
its own. What commands print comes through `cli/output.py`, which asks here; the broker's log through
`broker/log_lines.py`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["json_text", "printable"]


def printable(text: str, keep: str = "") -> str:
    """`keep` is what may stay though it is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that people can read, and that steers no terminal. It means the same as any other."""
    import json  # not every command needs it

    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    # Outside of strings there are only our own line breaks; those inside json.dumps has escaped.
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
