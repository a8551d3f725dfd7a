"""Transactions in words: states, time left, and what happens next."""

from __future__ import annotations

import time

from onceflow.cli.common import counted
from onceflow.cli.durations import in_words
from onceflow.client.transactions import Transaction

__all__ = ["WORDS", "left_ms", "now_ms", "timeout", "what_next", "word"]

WORDS = {
    "Empty": "idle",
    "Ongoing": "open",
    "PrepareCommit": "committing",
    "PrepareAbort": "aborting",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
    "PrepareEpochFence": "fencing",
    "Dead": "expiring",
}
TIMEOUT_NONE_MS = 2**31 - 1  # what Kafka gives to producers that take part in a foreign two-phase commit (KIP-939)


def word(state: str) -> str:
    return WORDS.get(state, state)


def timeout(each: Transaction) -> str:
    return "none" if each.timeout_ms >= TIMEOUT_NONE_MS else in_words(each.timeout_ms)


def left_ms(each: Transaction, now: int) -> int | None:
    """Time until the coordinator aborts it; 0 if it may do so any moment, None if it will not."""
    age = each.age_ms(now)
    if each.state != "Ongoing" or age is None or each.timeout_ms >= TIMEOUT_NONE_MS:
        return None
    return max(0, each.timeout_ms - age)


def what_next(each: Transaction, now: int) -> str:
    """What will happen, in one sentence."""
    if each.state == "Ongoing":
        left = left_ms(each, now)
        if left is None:
            return "stays open until its producer commits or aborts it"
        if left == 0:
            return "is past its timeout and will be aborted by the coordinator at its next look, within seconds"
        return f"will be aborted by the coordinator in {in_words(left)} unless it commits"
    waiting = counted(len(each.partitions), "partition")
    return {
        "Empty": "has nothing open; a transaction begins with the first write of its producer",
        "PrepareCommit": f"will commit, whatever happens: {waiting} still to be marked",
        "PrepareAbort": f"will abort, whatever happens: {waiting} still to be marked",
        "PrepareEpochFence": "will be aborted, because its producer was fenced",
        "CompleteCommit": "has nothing open; the last transaction was committed",
        "CompleteAbort": "has nothing open; the last transaction was aborted",
        "Dead": "will be forgotten, because it has not been used for a long time",
    }.get(each.state, f"is in a state that this program does not know: {each.state}")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
