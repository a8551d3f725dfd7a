"""Draws the table of `onceflow.txn.states` into `docs/transactions.md`, as Mermaid text, which most viewers show.

`python tools/draw_states.py` writes it; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from onceflow.txn.states import TABLE, Event, State

PAGE = Path(__file__).parents[1] / "docs" / "transactions.md"

_SHORT = {
    Event.INIT: "InitProducerId",
    Event.ADD: "add partition",
    Event.COMMIT: "commit",
    Event.ABORT: "abort",
    Event.COMMIT_V2: "commit",
    Event.ABORT_V2: "abort",
    Event.FENCE: "new instance or timeout",
    Event.FENCED: "raise the epoch",
    Event.MARKED: "markers written",
    Event.EXPIRE: "unused for long",
}


def state_diagram() -> str:
    """Every move of the table, once per pair of states."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.EMPTY.label}: InitProducerId"]
    for state, row in TABLE.items():
        reasons: dict[State, list[str]] = {}
        for event, target in row.items():
            if isinstance(target, State):
                reasons.setdefault(target, []).append(_reason(event, row))
        for target, words in reasons.items():
            lines.append(f"    {state.label} --> {target.label}: {', '.join(dict.fromkeys(words))}")
    return "\n".join([*lines, f"    {State.DEAD.label} --> [*]"])


def _reason(event: Event, row: dict[Event, object]) -> str:
    v1 = {Event.COMMIT_V2: Event.COMMIT, Event.ABORT_V2: Event.ABORT}.get(event)
    only_v2 = v1 is not None and not isinstance(row.get(v1), State)
    return _SHORT[event] + (" (V2)" if only_v2 else "")


def redrawn(page: str) -> str:
    """The page with the diagram that the table gives."""
    drawn = f"```mermaid\n{state_diagram()}\n```"
    return re.sub(r"```mermaid\nstateDiagram-v2\n.*?```", lambda _: drawn, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
