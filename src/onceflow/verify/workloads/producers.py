"""`producers`: idempotent and transactional producers side by side, and readers who look on.

The idempotent ones write to `plain`. The transactional ones write each transaction to partitions of two topics, abort
some on purpose, and are succeeded under their transactional ids whenever they die.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.verify.history import Derivation
from onceflow.verify.stage import NotDrained, Pace, Stage, Target
from onceflow.verify.workloads.input import add_producers

__all__ = ["Producers"]

TRANSACTORS = 3
RATE = 150
"""Records per second of each idempotent producer."""
KEYS = 12
TRANSACTION_TIMEOUT_MS = 8000


class Producers:
    name = "producers"
    strikes = ("producer", "transactor", "transactor")
    pace = Pace()

    def topics(self, stage: Stage) -> Mapping[str, int]:
        return {stage.named("plain"): 3, stage.named("orders"): 3, stage.named("payments"): 2}

    def derivations(self, stage: Stage) -> Sequence[Derivation]:
        return ()

    def groups(self, stage: Stage) -> Sequence[str]:
        return ()

    def start(self, stage: Stage) -> None:
        topics = dict(self.topics(stage))
        plain = stage.named("plain")
        add_producers(stage, plain, topics[plain], rate=RATE, keys=KEYS)
        for number in range(1, TRANSACTORS + 1):
            stage.workers.add(
                "transactor",
                f"transactor-{number}",
                "onceflow.verify.programs.transactor",
                topics={name: count for name, count in topics.items() if name != plain},
                transactional_id=stage.named(f"transactor-{number}"),
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )

    def targets(self) -> Sequence[Target]:
        return ()

    def finish(self, stage: Stage, timeout_s: float) -> None:
        if killed := stage.workers.finish("producer", "transactor", timeout_s=timeout_s):
            raise NotDrained(f"{', '.join(killed)} did not end within {timeout_s:g} s although everything was healed")
